//! Between the contract's records and their form on the wire. Owns both directions; must not know how either travels.

use crate::wire;
use prl_env::{
    Completion, Component, ContentPart, Error, ErrorCode, Features, FinishReason, Finished, Info, Media, MediaSource,
    Message, NamedValue, Result, Role, RolloutContext, Score, Split, Stop, StopKind, Task, ToolCall, ToolDef, Turn,
};
use serde_json::json;
use serde_json::value::RawValue;

/// A JSON text as it is.
pub fn raw(text: String, what: &str) -> Result<Box<RawValue>> {
    RawValue::from_string(text).map_err(|error| Error::internal(format!("{what} is no JSON: {error}")))
}

fn raw_or_none(text: Option<String>, what: &str) -> Result<Option<Box<RawValue>>> {
    text.map(|text| raw(text, what)).transpose()
}

fn text(value: Box<RawValue>) -> String {
    String::from(Box::<str>::from(value))
}

impl From<wire::Error> for Error {
    fn from(error: wire::Error) -> Self {
        let code = match error.code {
            wire::ErrorCode::InvalidConfig => ErrorCode::InvalidConfig,
            wire::ErrorCode::InvalidTask => ErrorCode::InvalidTask,
            wire::ErrorCode::Unsupported => ErrorCode::Unsupported,
            wire::ErrorCode::InvalidState => ErrorCode::InvalidState,
            wire::ErrorCode::Denied => ErrorCode::Denied,
            wire::ErrorCode::NotFound => ErrorCode::NotFound,
            wire::ErrorCode::Limit => ErrorCode::Limit,
            wire::ErrorCode::Upstream => ErrorCode::Upstream,
            wire::ErrorCode::Internal => ErrorCode::Internal,
        };
        Error { code, message: error.message, retryable: error.retryable }
    }
}

pub fn info(info: wire::Info) -> Info {
    let mut features = Features::empty();
    for feature in info.features {
        features |= match feature {
            wire::Feature::MultiTurn => Features::MULTI_TURN,
            wire::Feature::Tools => Features::TOOLS,
            wire::Feature::GroupScoring => Features::GROUP_SCORING,
            // Nobody here could hold it to that.
            wire::Feature::Deterministic => Features::empty(),
        };
    }
    let component =
        |line: wire::Component| Component { name: line.name, weight: line.weight, description: line.description };
    Info {
        name: info.name,
        version: info.version,
        description: info.description,
        args_schema: text(info.args_schema),
        splits: info.splits.into_iter().map(|split| Split { name: split.name, size: split.size }).collect(),
        features,
        components: info.components.into_iter().map(component).collect(),
        metrics: info.metrics,
        roles: Vec::new(),
        tags: info.tags,
    }
}

pub fn task(task: wire::Task) -> Task {
    Task {
        split: task.split,
        index: task.index,
        seed: task.seed,
        key: task.key,
        prompt: task.prompt.into_iter().map(message).collect(),
        tools: task.tools.into_iter().map(tool).collect(),
        answer: task.answer.map(text),
        payload: task.payload.map_or_else(|| "{}".into(), text),
        max_turns: task.max_turns,
        tags: task.tags,
    }
}

pub fn task_to(task: Task) -> Result<wire::Task> {
    let tool = |tool: ToolDef| {
        let parameters = raw(tool.parameters, "a tool's schema")?;
        Ok(wire::ToolDef { name: tool.name, description: tool.description, parameters, strict: tool.strict })
    };
    Ok(wire::Task {
        split: task.split,
        index: task.index,
        seed: task.seed,
        key: task.key,
        prompt: messages_to(task.prompt)?,
        tools: task.tools.into_iter().map(tool).collect::<Result<_>>()?,
        answer: raw_or_none(task.answer, "the task's answer")?,
        payload: Some(raw(task.payload, "the task's payload")?),
        max_turns: task.max_turns,
        tags: task.tags,
    })
}

fn tool(tool: wire::ToolDef) -> ToolDef {
    let parameters = text(tool.parameters);
    ToolDef { name: tool.name, description: tool.description, parameters, strict: tool.strict }
}

fn message(message: wire::Message) -> Message {
    let content = match message.content {
        None => Vec::new(),
        Some(wire::Content::Text(text)) => vec![ContentPart::Text(text)],
        Some(wire::Content::Parts(parts)) => parts.into_iter().map(Into::into).collect(),
    };
    let call = |call: wire::ToolCall| ToolCall { id: call.id, name: call.name, arguments: call.arguments };
    Message {
        role: match message.role {
            wire::Role::System => Role::System,
            wire::Role::User => Role::User,
            wire::Role::Assistant => Role::Assistant,
            wire::Role::Tool => Role::Tool,
        },
        content,
        reasoning: message.reasoning,
        tool_calls: message.tool_calls.into_iter().map(call).collect(),
        tool_call_id: message.tool_call_id,
        name: message.name,
    }
}

/// Texts are texts; anything else passes as it is.
impl From<wire::Part> for ContentPart {
    fn from(part: wire::Part) -> Self {
        match part {
            wire::Part::Text(text) => ContentPart::Text(text),
            wire::Part::Other(value) => ContentPart::Other(value.to_string()),
        }
    }
}

fn messages_to(messages: Vec<Message>) -> Result<Vec<wire::Message>> {
    messages.into_iter().map(message_to).collect()
}

fn message_to(message: Message) -> Result<wire::Message> {
    let plain = message.content.iter().all(|part| matches!(part, ContentPart::Text(_)));
    let content = match plain {
        true => wire::Content::Text(message.text()),
        false => wire::Content::Parts(message.content.into_iter().map(part_to).collect::<Result<_>>()?),
    };
    let call = |call: ToolCall| wire::ToolCall { id: call.id, name: call.name, arguments: call.arguments };
    Ok(wire::Message {
        role: match message.role {
            Role::System => wire::Role::System,
            Role::User => wire::Role::User,
            Role::Assistant => wire::Role::Assistant,
            Role::Tool => wire::Role::Tool,
        },
        content: Some(content),
        reasoning: message.reasoning,
        tool_calls: message.tool_calls.into_iter().map(call).collect(),
        tool_call_id: message.tool_call_id,
        name: message.name,
    })
}

fn part_to(part: ContentPart) -> Result<wire::Part> {
    let media = |kind: &str, media: Media| match media.source {
        MediaSource::Url(url) => Ok(wire::Part::Other(json!({ "type": kind, "mime": media.mime, "url": url }))),
        MediaSource::Bytes(_) | MediaSource::Asset(_) => {
            let message =
                format!("a message holds a part of kind `{kind}` without a URL, which this protocol has no form for");
            Err(Error::new(ErrorCode::Unsupported, message))
        }
    };
    match part {
        ContentPart::Text(text) => Ok(wire::Part::Text(text)),
        ContentPart::Image(image) => media("image", image),
        ContentPart::Audio(audio) => media("audio", audio),
        ContentPart::File(file) => media("file", file),
        ContentPart::Other(text) => {
            let value = serde_json::from_str(&text);
            value.map(wire::Part::Other).map_err(|error| Error::internal(format!("a content part is no JSON: {error}")))
        }
    }
}

pub fn context_to(context: RolloutContext) -> wire::Context {
    wire::Context {
        id: context.id,
        seed: context.seed,
        member: context.member,
        group_size: context.group_size,
        step: context.step,
        eval: context.eval,
    }
}

pub fn completion_to(completion: Completion) -> Result<wire::Completion> {
    Ok(wire::Completion {
        message: message_to(completion.message)?,
        finish_reason: match completion.finish_reason {
            FinishReason::Stop => wire::FinishReason::Stop,
            FinishReason::Length => wire::FinishReason::Length,
            FinishReason::ToolCalls => wire::FinishReason::ToolCalls,
            FinishReason::ContentFilter => wire::FinishReason::ContentFilter,
        },
        completion_tokens: completion.completion_tokens,
        context_left: completion.context_left,
        turns_left: completion.turns_left,
    })
}

fn values(values: Vec<wire::NamedValue>) -> Vec<NamedValue> {
    values.into_iter().map(|value| NamedValue { name: value.name, value: value.value }).collect()
}

fn values_to(values: Vec<NamedValue>) -> Vec<wire::NamedValue> {
    values.into_iter().map(|value| wire::NamedValue { name: value.name, value: value.value }).collect()
}

pub fn turn(turn: wire::Turn) -> Turn {
    let stop = |stop: wire::Stop| Stop {
        kind: match stop.kind {
            wire::StopKind::Terminated => StopKind::Terminated,
            wire::StopKind::Truncated => StopKind::Truncated,
        },
        reason: stop.reason,
    };
    Turn {
        messages: turn.messages.into_iter().map(message).collect(),
        reward: turn.reward,
        stop: turn.stop.map(stop),
        tools: turn.tools.map(|tools| tools.into_iter().map(tool).collect()),
        metrics: values(turn.metrics),
        sampling: turn.sampling.map(text),
    }
}

pub fn score(score: wire::Score) -> Score {
    Score { components: values(score.components), metrics: values(score.metrics), info: score.info.map(text) }
}

pub fn finished_to(member: Finished) -> Result<wire::Finished> {
    let score = wire::Score {
        components: values_to(member.score.components),
        metrics: values_to(member.score.metrics),
        info: raw_or_none(member.score.info, "a score's info")?,
    };
    Ok(wire::Finished {
        context: context_to(member.context),
        messages: messages_to(member.messages)?,
        truncated: member.truncated,
        score,
        reward: member.reward,
    })
}
