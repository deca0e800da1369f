//! Between the contract's records and the project's types. Owns every check on what a guest returned: known names,
//! finite numbers, valid JSON, text only. Errors are sentences for `Failure::Invalid`.

use crate::bindings::{wit, wit_types};
use crate::error::{Failure, GuestErrorCode};
use crate::{EnvInfo, EnvTurn, Finish, GroupMember, RolloutContext, Stop};
use prl_types::{Message, Metric, RewardComponent, Role, Score, Task, ToolCall, ToolDef};
use serde_json::Value;

type Checked<T> = Result<T, String>;

fn json(what: &str, text: &str) -> Checked<Value> {
    serde_json::from_str(text).map_err(|error| format!("{what} is not JSON: {error}"))
}

fn finite(what: &str, name: &str, value: f64) -> Checked<f64> {
    if value.is_finite() { Ok(value) } else { Err(format!("{what} `{name}` is {value}")) }
}

/// An error that the guest returned.
pub fn guest_error(error: wit_types::Error) -> Failure {
    let code = match error.code {
        wit_types::ErrorCode::InvalidConfig => GuestErrorCode::InvalidConfig,
        wit_types::ErrorCode::InvalidTask => GuestErrorCode::InvalidTask,
        wit_types::ErrorCode::Unsupported => GuestErrorCode::Unsupported,
        wit_types::ErrorCode::InvalidState => GuestErrorCode::InvalidState,
        wit_types::ErrorCode::Upstream => GuestErrorCode::Upstream,
        wit_types::ErrorCode::Internal => GuestErrorCode::Internal,
    };
    Failure::Guest { code, message: error.message, retryable: error.retryable }
}

fn message(message: wit_types::Message) -> Checked<Message> {
    let role = match message.role {
        wit_types::Role::System => Role::System,
        wit_types::Role::User => Role::User,
        wit_types::Role::Assistant => Role::Assistant,
        wit_types::Role::Tool => Role::Tool,
    };
    let mut content = String::new();
    for part in message.content {
        let kind = match part {
            wit_types::ContentPart::Text(text) => {
                content.push_str(&text);
                continue;
            }
            wit_types::ContentPart::Image(_) => "image",
            wit_types::ContentPart::Audio(_) => "audio",
            wit_types::ContentPart::File(_) => "file",
            wit_types::ContentPart::Other(_) => "other",
        };
        return Err(format!("a {} message holds a part of kind `{kind}`; this prl handles text only", role.as_str()));
    }
    let tool_calls = message.tool_calls.into_iter();
    Ok(Message {
        role,
        content,
        reasoning: message.reasoning,
        tool_calls: tool_calls.map(|c| ToolCall { id: c.id, name: c.name, arguments: c.arguments }).collect(),
        tool_call_id: message.tool_call_id,
        name: message.name,
    })
}

fn messages(list: Vec<wit_types::Message>) -> Checked<Vec<Message>> {
    list.into_iter().map(message).collect()
}

fn tools(list: Vec<wit_types::ToolDef>) -> Checked<Vec<ToolDef>> {
    let convert = |tool: wit_types::ToolDef| {
        let parameters = json(&format!("the schema of tool `{}`", tool.name), &tool.parameters)?;
        if !parameters.is_object() {
            return Err(format!("the schema of tool `{}` is not an object", tool.name));
        }
        Ok(ToolDef { name: tool.name, description: tool.description, parameters, strict: tool.strict })
    };
    list.into_iter().map(convert).collect()
}

fn metrics(info: &EnvInfo, list: Vec<wit_types::Metric>) -> Checked<Vec<Metric>> {
    let convert = |metric: wit_types::Metric| {
        if !info.metrics.contains(&metric.name) {
            return Err(format!("metric `{}` is not in its description", metric.name));
        }
        Ok(Metric { value: finite("metric", &metric.name, metric.value)?, name: metric.name })
    };
    list.into_iter().map(convert).collect()
}

/// A task that was asked for as `(split, index, seed)`.
pub fn task(env: &str, asked: (&str, u64, u64), task: wit::Task) -> Checked<Task> {
    let got = (task.split.as_str(), task.index, task.seed);
    if got != asked {
        return Err(format!("asked for task {asked:?} (split, index, seed), it gave {got:?}"));
    }
    if task.key.is_empty() || task.prompt.is_empty() {
        return Err("a task needs a key and at least one prompt message".into());
    }
    Ok(Task {
        env: env.to_owned(),
        split: task.split,
        index: task.index,
        seed: task.seed,
        key: task.key,
        prompt: messages(task.prompt)?,
        tools: tools(task.tools)?,
        answer: task.answer.map(|answer| json("the task's answer", &answer)).transpose()?,
        payload: json("the task's payload", &task.payload)?,
        max_turns: task.max_turns,
        tags: task.tags,
    })
}

/// What the guest answered to `start` or `step`.
pub fn turn(info: &EnvInfo, turn: wit::Turn) -> Checked<EnvTurn> {
    Ok(EnvTurn {
        messages: messages(turn.messages)?,
        reward: turn.reward.map(|reward| finite("reward of", "turn", reward)).transpose()?,
        stop: turn.stop.map(stop).transpose()?,
        tools: turn.tools.map(tools).transpose()?,
        metrics: metrics(info, turn.metrics)?,
        sampling: turn.sampling.map(|hints| json("the sampling hints", &hints)).transpose()?,
    })
}

/// Longest stop reason, characters: it becomes part of a metric's name.
const STOP_REASON: usize = 64;

fn stop(stop: wit::Stop) -> Checked<Stop> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
    if stop.reason.is_empty() || stop.reason.len() > STOP_REASON || !stop.reason.chars().all(plain) {
        let shown: String = stop.reason.chars().take(STOP_REASON).collect();
        return Err(format!("the stop reason {shown:?} is not 1 to {STOP_REASON} of the characters a-z A-Z 0-9 _ - ."));
    }
    Ok(Stop { truncated: stop.kind == wit::StopKind::Truncated, reason: stop.reason })
}

/// The final rubric.
pub fn score(info: &EnvInfo, score: wit_types::Score) -> Checked<Score> {
    let component = |line: wit_types::RewardComponent| {
        if !info.components.contains(&line.name) {
            return Err(format!("reward component `{}` is not in its description", line.name));
        }
        let weight = finite("weight of reward component", &line.name, line.weight)?;
        Ok(RewardComponent { value: finite("reward component", &line.name, line.value)?, name: line.name, weight })
    };
    let score = Score {
        components: score.components.into_iter().map(component).collect::<Checked<_>>()?,
        metrics: metrics(info, score.metrics)?,
        info: score.info.map(|info| json("the score's info", &info)).transpose()?,
    };
    finite("the weighted", "total", score.total())?;
    Ok(score)
}

fn message_to(message: &Message) -> wit_types::Message {
    let call =
        |c: &ToolCall| wit_types::ToolCall { id: c.id.clone(), name: c.name.clone(), arguments: c.arguments.clone() };
    wit_types::Message {
        role: match message.role {
            Role::System => wit_types::Role::System,
            Role::User => wit_types::Role::User,
            Role::Assistant => wit_types::Role::Assistant,
            Role::Tool => wit_types::Role::Tool,
        },
        content: match message.content.as_str() {
            "" => Vec::new(),
            text => vec![wit_types::ContentPart::Text(text.to_owned())],
        },
        reasoning: message.reasoning.clone(),
        tool_calls: message.tool_calls.iter().map(call).collect(),
        tool_call_id: message.tool_call_id.clone(),
        name: message.name.clone(),
    }
}

fn tool_to(tool: &ToolDef) -> wit_types::ToolDef {
    wit_types::ToolDef {
        name: tool.name.clone(),
        description: tool.description.clone(),
        parameters: tool.parameters.to_string(),
        strict: tool.strict,
    }
}

/// A task on its way back to the guest.
pub fn task_to(task: &Task) -> wit::Task {
    wit::Task {
        split: task.split.clone(),
        index: task.index,
        seed: task.seed,
        key: task.key.clone(),
        prompt: task.prompt.iter().map(message_to).collect(),
        tools: task.tools.iter().map(tool_to).collect(),
        answer: task.answer.as_ref().map(Value::to_string),
        payload: task.payload.to_string(),
        max_turns: task.max_turns,
        tags: task.tags.clone(),
    }
}

/// One assistant turn.
pub fn completion_to(message: &Message, finish: Finish, tokens: u32, context_left: Option<u32>) -> wit::Completion {
    wit::Completion {
        message: message_to(message),
        finish_reason: match finish {
            Finish::Stop => wit::FinishReason::Stop,
            Finish::Length => wit::FinishReason::Length,
            Finish::ToolCalls => wit::FinishReason::ToolCalls,
            Finish::Aborted => wit::FinishReason::Aborted,
        },
        completion_tokens: tokens,
        context_left,
    }
}

/// A rollout's context.
pub fn context_to(context: &RolloutContext) -> wit::RolloutContext {
    wit::RolloutContext {
        id: context.id.clone(),
        seed: context.seed,
        sample: context.member,
        group_size: context.group_size,
        step: context.step,
        eval: context.eval,
    }
}

/// A member of a group that is to be scored as a whole.
pub fn member_to(member: &GroupMember) -> wit::Finished {
    let line =
        |c: &RewardComponent| wit_types::RewardComponent { name: c.name.clone(), value: c.value, weight: c.weight };
    let metric = |m: &Metric| wit_types::Metric { name: m.name.clone(), value: m.value };
    wit::Finished {
        ctx: context_to(&member.context),
        messages: member.messages.iter().map(message_to).collect(),
        truncated: member.truncated.clone(),
        score: wit_types::Score {
            components: member.score.components.iter().map(line).collect(),
            metrics: member.score.metrics.iter().map(metric).collect(),
            info: member.score.info.as_ref().map(Value::to_string),
        },
    }
}
