//! Between the track's records and the project's types. Owns what a type cannot say by itself: JSON that is JSON, text
//! where only text can be handled. Whether values make sense is checked elsewhere, for all tracks alike.

use super::{wit, wit_types};

use crate::error::{Failure, GuestErrorCode};
use crate::info::{Component, EnvFeatures, EnvInfo, Split};
use crate::services::{LlmRequest, ServiceError};
use crate::{Completion, Finish, GroupMember, RolloutContext};
use prl_types::{EnvTurn, Message, Metric, RewardComponent, Role, SamplingHints, Score, Stop, Task, ToolCall, ToolDef};
use serde_json::{Map, Value};

type Converted<T> = Result<T, String>;

fn json(what: &str, text: &str) -> Converted<Value> {
    serde_json::from_str(text).map_err(|error| format!("{what} is not JSON: {error}"))
}

/// An error that the guest returned.
pub fn error(error: wit_types::Error) -> Failure {
    let code = match error.code {
        wit_types::ErrorCode::InvalidConfig => GuestErrorCode::InvalidConfig,
        wit_types::ErrorCode::InvalidTask => GuestErrorCode::InvalidTask,
        wit_types::ErrorCode::Unsupported => GuestErrorCode::Unsupported,
        wit_types::ErrorCode::InvalidState => GuestErrorCode::InvalidState,
        wit_types::ErrorCode::Denied => GuestErrorCode::Denied,
        wit_types::ErrorCode::NotFound => GuestErrorCode::NotFound,
        wit_types::ErrorCode::Limit => GuestErrorCode::Limit,
        wit_types::ErrorCode::Upstream => GuestErrorCode::Upstream,
        wit_types::ErrorCode::Internal => GuestErrorCode::Internal,
    };
    Failure::Guest { code, message: error.message, retryable: error.retryable }
}

/// An error of a service, for the guest.
pub fn service_error(error: ServiceError) -> wit_types::Error {
    let code = match error {
        ServiceError::Denied(_) => wit_types::ErrorCode::Denied,
        ServiceError::NotFound(_) => wit_types::ErrorCode::NotFound,
        ServiceError::Limit(_) => wit_types::ErrorCode::Limit,
        ServiceError::Invalid(_) => wit_types::ErrorCode::Internal,
        ServiceError::Upstream(_) => wit_types::ErrorCode::Upstream,
    };
    let retryable = code == wit_types::ErrorCode::Upstream;
    wit_types::Error { code, message: error.to_string(), retryable }
}

/// A description.
pub fn info(info: wit::Info) -> Converted<EnvInfo> {
    let has = |flag| info.features.contains(flag);
    let component =
        |line: wit::Component| Component { name: line.name, weight: line.weight, description: line.description };
    Ok(EnvInfo {
        args_schema: json("its args schema", &info.args_schema)?,
        features: EnvFeatures {
            multi_turn: has(wit::Features::MULTI_TURN),
            tools: has(wit::Features::TOOLS),
            group_scoring: has(wit::Features::GROUP_SCORING),
            deterministic: has(wit::Features::DETERMINISTIC),
        },
        splits: info.splits.into_iter().map(|split| Split { name: split.name, size: split.size }).collect(),
        name: info.name,
        version: info.version,
        description: info.description,
        components: info.components.into_iter().map(component).collect(),
        metrics: info.metrics,
        roles: info.roles,
        tags: info.tags,
    })
}

fn message(message: wit_types::Message) -> Converted<Message> {
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
                // Most messages are one part, which need not be copied.
                if content.is_empty() {
                    content = text;
                } else {
                    content.push_str(&text);
                }
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
        without_content: false,
        reasoning: message.reasoning,
        tool_calls: tool_calls.map(|c| ToolCall { id: c.id, name: c.name, arguments: c.arguments }).collect(),
        tool_call_id: message.tool_call_id,
        name: message.name,
    })
}

fn messages(list: Vec<wit_types::Message>) -> Converted<Vec<Message>> {
    list.into_iter().map(message).collect()
}

fn tools(list: Vec<wit_types::ToolDef>) -> Converted<Vec<ToolDef>> {
    let convert = |tool: wit_types::ToolDef| {
        let parameters = json(&format!("the schema of tool `{}`", tool.name), &tool.parameters)?;
        Ok(ToolDef { name: tool.name, description: tool.description, parameters, strict: tool.strict })
    };
    list.into_iter().map(convert).collect()
}

fn metrics(list: Vec<wit_types::NamedValue>) -> Vec<Metric> {
    list.into_iter().map(|metric| Metric { name: metric.name, value: metric.value }).collect()
}

/// A task of the environment called `env`.
pub fn task(env: &str, task: wit::Task) -> Converted<Task> {
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
pub fn turn(turn: wit::Turn) -> Converted<EnvTurn> {
    Ok(EnvTurn {
        messages: messages(turn.messages)?,
        reward: turn.reward,
        stop: turn.stop.map(|stop| Stop { truncated: stop.kind == wit::StopKind::Truncated, reason: stop.reason }),
        tools: turn.tools.map(tools).transpose()?,
        metrics: metrics(turn.metrics),
        sampling: match turn.sampling {
            Some(hints) => crate::turn::hints(json("the sampling hints", &hints)?)?,
            None => SamplingHints::default(),
        },
    })
}

/// The final rubric, its weights left at 0.
pub fn score(score: wit_types::Score) -> Converted<Score> {
    let component = |line: wit_types::NamedValue| RewardComponent { name: line.name, value: line.value, weight: 0.0 };
    Ok(Score {
        components: score.components.into_iter().map(component).collect(),
        metrics: metrics(score.metrics),
        info: score.info.map(|info| json("the score's info", &info)).transpose()?,
    })
}

/// A message on its way to the guest.
pub fn message_to(message: &Message) -> wit_types::Message {
    let call =
        |c: &ToolCall| wit_types::ToolCall { id: c.id.clone(), name: c.name.clone(), arguments: c.arguments.clone() };
    wit_types::Message {
        role: match message.role {
            Role::System => wit_types::Role::System,
            Role::User => wit_types::Role::User,
            Role::Assistant => wit_types::Role::Assistant,
            Role::Tool => wit_types::Role::Tool,
        },
        content: vec![wit_types::ContentPart::Text(message.content.clone())],
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
pub fn completion_to(said: &Completion) -> wit::Completion {
    wit::Completion {
        message: message_to(&said.message),
        finish_reason: match said.finish {
            Finish::Stop => wit::FinishReason::Stop,
            Finish::Length => wit::FinishReason::Length,
            Finish::ToolCalls => wit::FinishReason::ToolCalls,
            Finish::ContentFilter => wit::FinishReason::ContentFilter,
        },
        completion_tokens: said.tokens,
        context_left: said.context_left,
        turns_left: said.turns_left,
    }
}

/// A rollout's context.
pub fn context_to(context: &RolloutContext) -> wit::RolloutContext {
    wit::RolloutContext {
        id: context.id.clone(),
        seed: context.seed,
        member: context.member,
        group_size: context.group_size,
        step: context.step,
        eval: context.eval,
    }
}

/// A member of a group that is to be scored as a whole.
pub fn member_to(member: &GroupMember) -> wit::Finished {
    let line = |c: &RewardComponent| wit_types::NamedValue { name: c.name.clone(), value: c.value };
    let metric = |m: &Metric| wit_types::NamedValue { name: m.name.clone(), value: m.value };
    wit::Finished {
        context: context_to(&member.context),
        messages: member.messages.iter().map(message_to).collect(),
        truncated: member.truncated.clone(),
        score: wit_types::Score {
            components: member.score.components.iter().map(line).collect(),
            metrics: member.score.metrics.iter().map(metric).collect(),
            info: member.score.info.as_ref().map(Value::to_string),
        },
        reward: member.reward,
    }
}

/// A model call of the guest's.
pub fn llm_request(request: super::bindings::prl::env::llm::Request) -> Result<LlmRequest, ServiceError> {
    let options = match request.options.map(|options| json("the request's `options`", &options)).transpose() {
        Ok(Some(Value::Object(options))) => options,
        Ok(None) => Map::new(),
        Ok(Some(_)) => return Err(ServiceError::Invalid("the request's `options` is not a JSON object".into())),
        Err(reason) => return Err(ServiceError::Invalid(reason)),
    };
    Ok(LlmRequest {
        role: request.role,
        messages: messages(request.messages).map_err(ServiceError::Invalid)?,
        tools: tools(request.tools).map_err(ServiceError::Invalid)?,
        max_tokens: request.max_tokens,
        temperature: request.temperature,
        options,
    })
}
