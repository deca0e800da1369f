//! Short ways to make and read the contract's records.

use crate::{
    ContentPart, Error, ErrorCode, Message, Metric, RewardComponent, Role, Score, Stop, StopKind, ToolCall, Turn,
};

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

    /// Ends the rollout at an end of the environment's own, such as `answered`.
    pub fn terminated(reason: impl Into<String>) -> Self {
        Turn { stop: Some(Stop { kind: StopKind::Terminated, reason: reason.into() }), ..Turn::next(Vec::new()) }
    }

    /// Ends the rollout at a limit of the environment's own.
    pub fn truncated(reason: impl Into<String>) -> Self {
        Turn { stop: Some(Stop { kind: StopKind::Truncated, reason: reason.into() }), ..Turn::next(Vec::new()) }
    }
}

impl Score {
    /// Nothing yet; add to it with [`Score::reward`] and [`Score::metric`].
    pub fn empty() -> Self {
        Score { components: Vec::new(), metrics: Vec::new(), info: None }
    }

    /// Adds a line of the rubric; the total is Σ value·weight.
    pub fn reward(mut self, name: impl Into<String>, value: f64, weight: f64) -> Self {
        self.components.push(RewardComponent { name: name.into(), value, weight });
        self
    }

    /// Adds a number that carries no reward.
    pub fn metric(mut self, name: impl Into<String>, value: f64) -> Self {
        self.metrics.push(Metric { name: name.into(), value });
        self
    }
}
