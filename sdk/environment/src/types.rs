//! Short ways to make and read the contract's records.

use crate::{
    ContentPart, Error, ErrorCode, Message, NamedValue, Role, Score, Stop, StopKind, Task, ToolCall, ToolDef, Turn,
};
use serde_json::Value;

impl Message {
    /// A text message.
    pub fn new(role: Role, text: impl Into<String>) -> Self {
        Message {
            role,
            content: vec![ContentPart::Text(text.into())],
            reasoning: None,
            tool_calls: Vec::new(),
            tool_call_id: None,
            name: None,
        }
    }

    /// Instructions.
    pub fn system(text: impl Into<String>) -> Self {
        Message::new(Role::System, text)
    }

    /// What the user says.
    pub fn user(text: impl Into<String>) -> Self {
        Message::new(Role::User, text)
    }

    /// What the model said.
    pub fn assistant(text: impl Into<String>) -> Self {
        Message::new(Role::Assistant, text)
    }

    /// What the model said with a call of a tool.
    pub fn calling(id: impl Into<String>, name: impl Into<String>, arguments: impl Into<String>) -> Self {
        let call = ToolCall { id: id.into(), name: name.into(), arguments: arguments.into() };
        Message { content: Vec::new(), tool_calls: vec![call], ..Message::new(Role::Assistant, "") }
    }

    /// The result of a tool call.
    pub fn tool_result(call: &ToolCall, text: impl Into<String>) -> Self {
        let mut message = Message::new(Role::Tool, text);
        message.tool_call_id = Some(call.id.clone());
        message.name = Some(call.name.clone());
        message
    }

    /// All text parts, joined.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|part| match part {
            ContentPart::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

impl Task {
    /// A task with this prompt and nothing else. A [`Recipe`](crate::Recipe) may leave split, index, seed and key to
    /// be filled in.
    pub fn new(prompt: Vec<Message>) -> Self {
        Task {
            split: String::new(),
            index: 0,
            seed: 0,
            key: String::new(),
            prompt,
            tools: Vec::new(),
            answer: None,
            payload: "{}".into(),
            max_turns: None,
            tags: Vec::new(),
        }
    }

    /// Sets the reference answer.
    pub fn answer(mut self, answer: impl Into<Value>) -> Self {
        self.answer = Some(answer.into().to_string());
        self
    }

    /// Sets what else is needed to rebuild a rollout.
    pub fn payload(mut self, payload: impl Into<Value>) -> Self {
        self.payload = payload.into().to_string();
        self
    }

    /// Sets the stable identity.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = key.into();
        self
    }

    /// Sets the bound on turns.
    pub fn max_turns(mut self, turns: u32) -> Self {
        self.max_turns = Some(turns);
        self
    }

    /// The reference answer; null without one.
    pub fn answer_value(&self) -> Value {
        self.answer.as_deref().and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    }

    /// The reference answer as text: a string as it is, anything else as JSON; empty without one.
    pub fn answer_text(&self) -> String {
        match self.answer_value() {
            Value::String(text) => text,
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// The payload; null when it is not JSON.
    pub fn payload_value(&self) -> Value {
        serde_json::from_str(&self.payload).unwrap_or_default()
    }
}

impl ToolDef {
    /// A tool; `parameters` is a JSON Schema object.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: &Value) -> Self {
        ToolDef {
            name: name.into(),
            description: description.into(),
            parameters: parameters.to_string(),
            strict: false,
        }
    }
}

impl NamedValue {
    /// A value by its name.
    pub fn new(name: impl Into<String>, value: f64) -> Self {
        NamedValue { name: name.into(), value }
    }
}

impl Error {
    /// An error that another try would not mend.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        Error { code, message: message.into(), retryable: false }
    }

    /// Arguments that cannot work.
    pub fn invalid_config(message: impl Into<String>) -> Self {
        Error::new(ErrorCode::InvalidConfig, message)
    }

    /// No such task.
    pub fn invalid_task(message: impl Into<String>) -> Self {
        Error::new(ErrorCode::InvalidTask, message)
    }

    /// An unmet expectation of the environment itself.
    pub fn internal(message: impl Into<String>) -> Self {
        Error::new(ErrorCode::Internal, message)
    }

    /// A call this environment does not offer.
    pub fn unsupported(call: &str) -> Self {
        Error::new(ErrorCode::Unsupported, format!("this environment does not offer `{call}`"))
    }
}

impl Turn {
    /// Adds `messages` and goes on sampling.
    pub fn next(messages: Vec<Message>) -> Self {
        Turn { messages, reward: None, stop: None, tools: None, metrics: Vec::new(), sampling: None }
    }

    /// Adds what the user says and goes on sampling.
    pub fn say(text: impl Into<String>) -> Self {
        Turn::next(vec![Message::user(text)])
    }

    /// Ends the rollout at an end of the environment's own, such as `answered`.
    pub fn terminated(reason: impl Into<String>) -> Self {
        Turn { stop: Some(Stop { kind: StopKind::Terminated, reason: reason.into() }), ..Turn::next(Vec::new()) }
    }

    /// Ends the rollout at a limit of the environment's own.
    pub fn truncated(reason: impl Into<String>) -> Self {
        Turn { stop: Some(Stop { kind: StopKind::Truncated, reason: reason.into() }), ..Turn::next(Vec::new()) }
    }

    /// Adds credit for the assistant turn just taken.
    pub fn reward(mut self, reward: f64) -> Self {
        self.reward = Some(self.reward.unwrap_or(0.0) + reward);
        self
    }

    /// Adds to a metric of the rollout.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push(NamedValue::new(name, value));
        self
    }

    /// Replaces the offered tools from the next sample on.
    pub fn tools(mut self, tools: Vec<ToolDef>) -> Self {
        self.tools = Some(tools);
        self
    }

    /// Hints for the next sample: `max_tokens`, `stop`.
    pub fn sampling(mut self, hints: impl Into<Value>) -> Self {
        self.sampling = Some(hints.into().to_string());
        self
    }
}

impl Score {
    /// Nothing yet; add to it with [`Score::reward`] and [`Score::metric`].
    pub fn empty() -> Self {
        Score { components: Vec::new(), metrics: Vec::new(), info: None }
    }

    /// Adds a line of the rubric; its weight is declared in [`Info`](crate::Info).
    pub fn reward(mut self, name: impl Into<String>, value: f64) -> Self {
        self.components.push(NamedValue::new(name, value));
        self
    }

    /// Adds a number that carries no reward.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push(NamedValue::new(name, value));
        self
    }

    /// Adds an explanation for traces.
    pub fn info(mut self, info: impl Into<Value>) -> Self {
        self.info = Some(info.into().to_string());
        self
    }
}
