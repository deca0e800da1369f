//! The contract's records as JSON: the same names, in snake case. Owns the form on the wire and nothing else. JSON texts of
//! the contract are values in here, passed on to the letter.

use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

/// An object without keys.
#[derive(Serialize, Deserialize)]
pub struct Nothing {}

#[derive(Deserialize)]
pub struct Failed {
    pub error: Error,
}

#[derive(Deserialize)]
pub struct Error {
    pub code: ErrorCode,
    pub message: String,
    #[serde(default)]
    pub retryable: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    InvalidConfig,
    InvalidTask,
    Unsupported,
    InvalidState,
    Denied,
    NotFound,
    Limit,
    Upstream,
    Internal,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Info {
    pub name: String,
    pub version: String,
    #[serde(default)]
    pub description: String,
    pub args_schema: Box<RawValue>,
    pub splits: Vec<Split>,
    #[serde(default)]
    pub features: Vec<Feature>,
    pub components: Vec<Component>,
    #[serde(default)]
    pub metrics: Vec<String>,
    #[serde(default)]
    pub tags: Vec<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Feature {
    MultiTurn,
    Tools,
    GroupScoring,
    Deterministic,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Split {
    pub name: String,
    #[serde(default)]
    pub size: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Component {
    pub name: String,
    pub weight: f64,
    #[serde(default)]
    pub description: String,
}

#[derive(Serialize)]
pub struct Configure<'a> {
    pub args: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configured {
    pub configuration: String,
    pub info: Info,
}

#[derive(Serialize)]
pub struct GetTask<'a> {
    pub configuration: &'a str,
    pub split: &'a str,
    pub index: u64,
    pub seed: u64,
}

#[derive(Serialize)]
pub struct Open<'a> {
    pub configuration: &'a str,
    pub task: &'a Task,
    pub context: &'a Context,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opened {
    pub id: String,
}

#[derive(Serialize)]
pub struct Truncated<'a> {
    pub truncated: Option<&'a str>,
}

#[derive(Serialize)]
pub struct ScoreGroup<'a> {
    pub configuration: &'a str,
    pub task: &'a Task,
    pub members: &'a [Finished],
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scores {
    pub scores: Vec<Score>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

/// A text, or content parts in OpenAI's form.
#[derive(Deserialize)]
#[serde(try_from = "Value")]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A text, which has no other keys, or a part of another kind.
pub enum Part {
    Text(String),
    Other(Value),
}

impl TryFrom<Value> for Content {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        match value {
            Value::String(text) => Ok(Content::Text(text)),
            Value::Array(parts) => parts.into_iter().map(Part::try_from).collect::<Result<_, _>>().map(Content::Parts),
            _ => Err("a message's content is neither a text nor a list of parts".into()),
        }
    }
}

impl TryFrom<Value> for Part {
    type Error = String;

    fn try_from(mut value: Value) -> Result<Self, String> {
        if value["type"] != "text" {
            return Ok(Part::Other(value));
        }
        let keys = value.as_object().into_iter().flat_map(|part| part.keys());
        if let Some(key) = keys.into_iter().find(|key| !["type", "text"].contains(&key.as_str())) {
            return Err(format!("a text part has the key `{key}`, which there is not"));
        }
        match value["text"].take() {
            Value::String(text) => Ok(Part::Text(text)),
            _ => Err("a text part has no `text`".into()),
        }
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Content::Text(text) => serializer.serialize_str(text),
            Content::Parts(parts) => serializer.collect_seq(parts),
        }
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Part::Text(text) => json!({ "type": "text", "text": text }).serialize(serializer),
            Part::Other(value) => value.serialize(serializer),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: Role,
    #[serde(default)]
    pub content: Option<Content>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolDef {
    pub name: String,
    #[serde(default)]
    pub description: String,
    pub parameters: Box<RawValue>,
    #[serde(default)]
    pub strict: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    pub split: String,
    pub index: u64,
    pub seed: u64,
    pub key: String,
    pub prompt: Vec<Message>,
    #[serde(default)]
    pub tools: Vec<ToolDef>,
    #[serde(default)]
    pub answer: Option<Box<RawValue>>,
    #[serde(default)]
    pub payload: Option<Box<RawValue>>,
    #[serde(default)]
    pub max_turns: Option<u32>,
    #[serde(default)]
    pub tags: Vec<String>,
}

#[derive(Serialize)]
pub struct Context {
    pub id: String,
    pub seed: u64,
    pub member: u32,
    pub group_size: u32,
    pub step: u64,
    pub eval: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
}

#[derive(Serialize)]
pub struct Completion {
    pub message: Message,
    pub finish_reason: FinishReason,
    pub completion_tokens: u32,
    pub context_left: Option<u32>,
    pub turns_left: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StopKind {
    Terminated,
    Truncated,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stop {
    pub kind: StopKind,
    pub reason: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedValue {
    pub name: String,
    pub value: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Turn {
    #[serde(default)]
    pub messages: Vec<Message>,
    #[serde(default)]
    pub reward: Option<f64>,
    #[serde(default)]
    pub stop: Option<Stop>,
    #[serde(default)]
    pub tools: Option<Vec<ToolDef>>,
    #[serde(default)]
    pub metrics: Vec<NamedValue>,
    #[serde(default)]
    pub sampling: Option<Box<RawValue>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Score {
    pub components: Vec<NamedValue>,
    #[serde(default)]
    pub metrics: Vec<NamedValue>,
    #[serde(default)]
    pub info: Option<Box<RawValue>>,
}

#[derive(Serialize)]
pub struct Finished {
    pub context: Context,
    pub messages: Vec<Message>,
    pub truncated: Option<String>,
    pub score: Score,
    pub reward: f64,
}
