//! What goes to and fro in a rollout, in the project's terms. Plain data; how it crosses the border is the contract's
//! business, and whether it makes sense is `check`'s.

use prl_types::{Message, RolloutContext, SamplingHints, Score};
use serde_json::Value;

/// Why sampling of a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop token or stop string.
    Stop,
    /// The token limit.
    Length,
    /// It asked for tools.
    ToolCalls,
    /// A provider withheld it.
    ContentFilter,
}

impl Finish {
    /// From the engine's reason: a turn that stopped by itself with tool calls ended for them. `None` for one that was
    /// aborted, which no environment is told of.
    pub fn new(reason: &prl_types::FinishReason, message: &Message) -> Option<Self> {
        match reason {
            prl_types::FinishReason::StopToken(_)
            | prl_types::FinishReason::StopString(_)
            | prl_types::FinishReason::Complete => {
                Some(if message.tool_calls.is_empty() { Finish::Stop } else { Finish::ToolCalls })
            }
            prl_types::FinishReason::Length => Some(Finish::Length),
            prl_types::FinishReason::Aborted => None,
        }
    }
}

/// One sampled assistant turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// As parsed.
    pub message: Message,
    /// Why sampling ended.
    pub finish: Finish,
    /// Tokens that were sampled for it.
    pub tokens: u32,
    /// Tokens left before the host cuts the rollout off.
    pub context_left: Option<u32>,
    /// Turns left before the host cuts the rollout off.
    pub turns_left: Option<u32>,
}

/// Sampling hints from the contract's object.
pub(crate) fn hints(json: Value) -> Result<SamplingHints, String> {
    let Value::Object(given) = json else { return Err("the sampling hints are not an object".into()) };
    let mut hints = SamplingHints::default();
    for (name, value) in given {
        let wrong = || format!("the sampling hint `{name}` is {value}");
        match name.as_str() {
            "max_tokens" => {
                let tokens = value.as_u64().and_then(|tokens| u32::try_from(tokens).ok());
                hints.max_tokens = Some(tokens.filter(|tokens| *tokens > 0).ok_or_else(wrong)?);
            }
            "stop" => {
                let texts = value.as_array().ok_or_else(wrong)?;
                let text = |text: &Value| text.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
                hints.stop = texts.iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?;
            }
            _ => return Err(format!("there is no sampling hint `{name}`; there are `max_tokens` and `stop`")),
        }
    }
    Ok(hints)
}

/// A member of a group that is scored as a whole.
#[derive(Clone, Debug)]
pub struct GroupMember {
    /// As it was opened with.
    pub context: RolloutContext,
    /// The whole conversation.
    pub messages: Vec<Message>,
    /// Why the host cut it off, if it did.
    pub truncated: Option<String>,
    /// Its own score.
    pub score: Score,
    /// Its reward so far: weights and rewards of turns included.
    pub reward: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn hints_are_known_or_refused() {
        let read = hints(json!({ "max_tokens": 5, "stop": ["\n"] })).unwrap();
        assert_eq!(read, SamplingHints { max_tokens: Some(5), stop: vec!["\n".into()] });
        for (bad, words) in [
            (json!({ "max_tokens": 0 }), "the sampling hint `max_tokens` is 0"),
            (json!({ "stop": "x" }), "the sampling hint `stop` is \"x\""),
            (json!({ "stop": [""] }), "the sampling hint `stop` is [\"\"]"),
            (json!({ "temperature": 2 }), "there is no sampling hint `temperature`; there are `max_tokens` and `stop`"),
            (json!([]), "the sampling hints are not an object"),
        ] {
            assert_eq!(hints(bad).unwrap_err(), words);
        }
    }
}
