//! Reads an assistant turn: reasoning, text, tool calls. Owns the `<think>` and `<tool_call>` conventions; a malformed
//! tool call is kept as written, so that the environment can answer it.

use prl_types::{Message, Role, ToolCall};
use serde::de::IgnoredAny;
use serde_json::Value;
use std::collections::BTreeMap;

/// Tokens that mark structure; they are read even where the tokenizer calls them special.
pub(crate) const MARKERS: [&str; 4] = [OPEN_THINK, CLOSE_THINK, OPEN_CALL, CLOSE_CALL];

pub(crate) const OPEN_THINK: &str = "<think>";
pub(crate) const CLOSE_THINK: &str = "</think>";
const OPEN_CALL: &str = "<tool_call>";
const CLOSE_CALL: &str = "</tool_call>";

/// What a model's template says about reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thinking {
    /// The template knows no `<think>`: such text is content.
    Unknown,
    /// The model opens `<think>` itself, or does not think.
    Free,
    /// The generation prompt ends inside `<think>`.
    Opened,
}

/// Splits the text of one turn, stop token already removed.
pub(crate) fn parse(text: &str, thinking: Thinking) -> Message {
    let (reasoning, rest) = split_reasoning(text, thinking);
    let (content, tool_calls) = split_calls(rest);
    let mut message = Message::text(Role::Assistant, content);
    message.reasoning = reasoning.map(|r| r.trim_matches('\n').to_string()).filter(|r| !r.is_empty());
    message.tool_calls = tool_calls;
    message
}

fn split_reasoning(text: &str, thinking: Thinking) -> (Option<&str>, &str) {
    let opened = text.trim_start().strip_prefix(OPEN_THINK);
    let inside = match (thinking, opened) {
        (Thinking::Unknown, _) | (Thinking::Free, None) => return (None, text),
        (_, Some(inside)) => inside,
        (Thinking::Opened, None) => text,
    };
    match inside.split_once(CLOSE_THINK) {
        Some((reasoning, rest)) => (Some(reasoning), rest.trim_start_matches('\n')),
        None => (Some(inside), ""),
    }
}

fn split_calls(text: &str) -> (String, Vec<ToolCall>) {
    if !text.contains(OPEN_CALL) {
        return (text.to_string(), Vec::new());
    }
    let (mut content, mut calls, mut rest) = (String::new(), Vec::new(), text);
    while let Some((before, after)) = rest.split_once(OPEN_CALL) {
        content.push_str(before);
        let (block, next) = after.split_once(CLOSE_CALL).unwrap_or((after, ""));
        calls.push(call(block.trim(), calls.len()));
        rest = next;
    }
    content.push_str(rest);
    (content.trim().to_string(), calls)
}

/// One block. A well-formed one is `{"name": .., "arguments": ..}`; anything else gives the name if it can be read and
/// the whole block as the arguments.
fn call(block: &str, index: usize) -> ToolCall {
    let id = format!("call_{index}");
    let fields = fields(block);
    let name = fields.as_ref().and_then(|f| serde_json::from_str::<String>(f.get("name")?).ok());
    let arguments = match &fields {
        Some(fields) if name.is_some() => match fields.get("arguments") {
            // Some models write the object as a JSON string.
            Some(raw) => serde_json::from_str::<String>(raw).unwrap_or_else(|_| raw.to_string()),
            None => "{}".to_string(),
        },
        _ => block.to_string(),
    };
    ToolCall { id, name: name.or_else(|| name_in_broken(block)).unwrap_or_default(), arguments }
}

/// The fields of a JSON object as they were written; `None` if it is not exactly one valid object.
fn fields(block: &str) -> Option<BTreeMap<String, &str>> {
    serde_json::from_str::<Value>(block).ok()?.as_object()?;
    let mut rest = block.trim_start().strip_prefix('{')?.trim_start();
    let mut out = BTreeMap::new();
    while !rest.starts_with('}') {
        let (key, after) = value::<String>(rest)?;
        let after = after.trim_start().strip_prefix(':')?.trim_start();
        let (_, next) = value::<IgnoredAny>(after)?;
        out.insert(key, after[..after.len() - next.len()].trim_end());
        let next = next.trim_start();
        rest = next.strip_prefix(',').unwrap_or(next).trim_start();
    }
    Some(out)
}

/// Reads one JSON value from the front of `text`; gives it and what follows.
fn value<'a, T: serde::Deserialize<'a>>(text: &'a str) -> Option<(T, &'a str)> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<T>();
    let value = stream.next()?.ok()?;
    Some((value, &text[stream.byte_offset()..]))
}

/// The name in a block that is cut off or otherwise no JSON: the string after the first `"name":`.
fn name_in_broken(block: &str) -> Option<String> {
    let (_, after) = block.split_once("\"name\"")?;
    let after = after.trim_start().strip_prefix(':')?.trim_start();
    after.strip_prefix('"')?;
    value::<String>(after).map(|(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasoning_is_split_only_where_the_template_knows_it() {
        let text = "<think>\nwhy\n</think>\n\nbecause";
        assert_eq!(parse(text, Thinking::Unknown).content, text);
        let m = parse(text, Thinking::Free);
        assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("why"), "because"));
        let m = parse("why\n</think>\nbecause", Thinking::Opened);
        assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("why"), "because"));
        let m = parse("<think>\ncut off", Thinking::Free);
        assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("cut off"), ""));
        let m = parse("cut off", Thinking::Opened);
        assert_eq!((m.reasoning.as_deref(), m.content.as_str()), (Some("cut off"), ""));
        let m = parse("<think>\n\n</think>\n\nplain", Thinking::Free);
        assert_eq!((m.reasoning, m.content.as_str()), (None, "plain"));
        assert_eq!(parse("1 </think> 2", Thinking::Free).content, "1 </think> 2");
    }

    #[test]
    fn tool_calls_keep_what_was_written() {
        let text = "I look.\n<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\":  1, \"a\": 2}}\n</tool_call>\n\
                    <tool_call>{\"arguments\": \"{\\\"x\\\": 1}\", \"name\": \"put\"}</tool_call>";
        let m = parse(text, Thinking::Unknown);
        assert_eq!(m.content, "I look.");
        assert_eq!(m.tool_calls.len(), 2);
        assert_eq!(m.tool_calls[0].arguments, "{\"a\":  1, \"a\": 2}");
        assert_eq!((m.tool_calls[1].name.as_str(), m.tool_calls[1].arguments.as_str()), ("put", "{\"x\": 1}"));
        assert_eq!(m.tool_calls[1].id, "call_1");
        let m = parse("<tool_call>{\"name\": \"noargs\", \"x\": 12}</tool_call>", Thinking::Unknown);
        assert_eq!((m.tool_calls[0].name.as_str(), m.tool_calls[0].arguments.as_str()), ("noargs", "{}"));
    }

    #[test]
    fn malformed_calls_stay_calls() {
        for (block, name, arguments) in [
            ("{\"name\": \"get\", \"arguments\": {\"a\": 1", "get", "{\"name\": \"get\", \"arguments\": {\"a\": 1"),
            ("[1]", "", "[1]"),
            ("\"x\"", "", "\"x\""),
            ("", "", ""),
            ("{\"name\": 3}", "", "{\"name\": 3}"),
            ("{\"name\": \"f\", \"arguments\": [1]}", "f", "[1]"),
            ("{\"name\": \"f\", \"arguments\": 1} x", "f", "{\"name\": \"f\", \"arguments\": 1} x"),
        ] {
            for close in ["</tool_call>", ""] {
                let m = parse(&format!("<tool_call>\n{block}\n{close}"), Thinking::Unknown);
                assert_eq!(m.tool_calls.len(), 1, "{block}");
                assert_eq!((m.tool_calls[0].name.as_str(), m.tool_calls[0].arguments.as_str()), (name, arguments));
            }
        }
    }
}
