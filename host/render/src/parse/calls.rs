//! What is in a tool call, in each way that models write them. A malformed call is kept as written, so that the environment
//! can answer it.

use super::unquoted;
use prl_types::{ToolCall, ToolDef};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

pub(super) const OPEN_CALL: &str = "<tool_call>";
pub(super) const CLOSE_CALL: &str = "</tool_call>";
pub(super) const PYTHON_TAG: &str = "<|python_tag|>";
/// What stands around a key and a value of GLM-4.5.
pub(super) const KEYED: [&str; 4] = ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"];

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    /// Not at all: everything is text.
    None,
    /// JSON in `<tool_call>`, as Hermes and Qwen write it.
    Hermes,
    /// A turn of bare JSON or behind `<|python_tag|>`, as Llama 3 writes it.
    Llama3,
    /// `<function=name>` with `<parameter=key>` in `<tool_call>`, as Qwen3.5 writes it.
    Xml,
    /// A name with `<arg_key>` and `<arg_value>` in `<tool_call>`, as GLM-4.5 writes it.
    Glm,
    /// A message of its own to `functions.name`, as gpt-oss writes it; its other messages are reasoning and text.
    Harmony,
}

impl Calls {
    /// Whether each call stands in `<tool_call>`.
    pub(super) fn tagged(self) -> bool {
        matches!(self, Calls::Hermes | Calls::Xml | Calls::Glm)
    }
}

/// What stands in `<tool_call>`. What is not well-formed gives the name if it can be read and the whole block as the
/// arguments. `tools` say which values that are written without quotes are text.
pub(super) fn block(block: &str, index: usize, calls: Calls, tools: &[ToolDef]) -> ToolCall {
    let id = format!("call_{index}");
    let (name, arguments) = match calls {
        Calls::Xml => unquoted::xml(block, tools),
        Calls::Glm => unquoted::keyed(block, tools),
        Calls::Hermes | Calls::Llama3 | Calls::Harmony | Calls::None => return json(block, id),
    };
    ToolCall { id, name: name.to_owned(), arguments: arguments.unwrap_or_else(|| block.to_owned()) }
}

/// A well-formed block is `{"name": .., "arguments": ..}`.
fn json(block: &str, id: String) -> ToolCall {
    let fields = fields(block);
    let name = fields.as_ref().and_then(|f| serde_json::from_str::<String>(f.get("name")?).ok());
    let arguments = match &fields {
        Some(fields) if name.is_some() => fields.get("arguments").map_or_else(|| "{}".to_string(), |raw| object(raw)),
        _ => block.to_string(),
    };
    ToolCall { id, name: name.or_else(|| name_in_broken(block)).unwrap_or_default(), arguments }
}

/// Arguments as they were written; some models write the object as a JSON string.
fn object(raw: &str) -> String {
    serde_json::from_str::<String>(raw).unwrap_or_else(|_| raw.to_string())
}

/// The calls of a turn that began as one of Llama 3: JSON objects with `name` and `parameters`, one after the other, or
/// `<|python_tag|>` and such an object, `tool.call(key="value")` or code. Gives them and what is text. What was begun as a
/// call and is none stays a call, as in [`block`].
pub(super) fn bare(text: &str) -> (Vec<ToolCall>, &str) {
    let whole = text;
    let text = text.trim();
    let (tagged, body) = match text.strip_prefix(PYTHON_TAG) {
        Some(body) => (true, body.trim()),
        None => (false, text),
    };
    let mut calls = Vec::new();
    let mut rest = body;
    while let Some((call, next)) = bare_object(rest, calls.len()) {
        calls.push(call);
        rest = next.trim_start().trim_start_matches([';', ',']).trim_start();
        rest = rest.strip_prefix(PYTHON_TAG).unwrap_or(rest).trim_start();
    }
    if rest.is_empty() && !calls.is_empty() {
        return (calls, "");
    }
    let id = format!("call_{}", calls.len());
    let meant =
        |rest: &str| rest.starts_with('{') && ["\"parameters\"", "\"arguments\""].iter().any(|key| rest.contains(key));
    if let Some((name, arguments)) = builtin(rest).filter(|_| tagged) {
        calls.push(ToolCall { id, name, arguments });
    } else if let Some(name) = name_in_broken(rest).filter(|_| meant(rest)) {
        calls.push(ToolCall { id, name, arguments: rest.to_string() });
    } else if tagged && calls.is_empty() {
        calls.push(ToolCall { id, name: String::new(), arguments: rest.to_string() });
    } else {
        return if calls.is_empty() { (calls, whole) } else { (calls, rest) };
    }
    (calls, "")
}

/// A call from the front of `text`, and what follows it.
fn bare_object(text: &str, index: usize) -> Option<(ToolCall, &str)> {
    let (_, rest) = value::<IgnoredAny>(text)?;
    let fields = fields(&text[..text.len() - rest.len()])?;
    let name = serde_json::from_str::<String>(fields.get("name")?).ok()?;
    let arguments = object(fields.get("parameters").or_else(|| fields.get("arguments"))?);
    Some((ToolCall { id: format!("call_{index}"), name, arguments }, rest))
}

/// `tool.call(key="value", ..)`: the tool, and its arguments as a JSON object.
fn builtin(text: &str) -> Option<(String, String)> {
    let (name, rest) = text.split_once(".call(")?;
    let word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_alphanumeric() || c == '_');
    let mut rest = rest.strip_suffix(')')?.trim();
    let mut arguments = Map::new();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let (argument, next) = value::<Value>(after)?;
        if !word(key.trim()) {
            return None;
        }
        arguments.insert(key.trim().to_owned(), argument);
        let next = next.trim_start();
        rest = match next.strip_prefix(',') {
            Some(more) => more.trim_start(),
            None if next.is_empty() => next,
            None => return None,
        };
    }
    word(name).then(|| (name.to_owned(), Value::Object(arguments).to_string()))
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
    fn malformed_calls_without_quotes_stay_calls() {
        for (text, calls, name) in [
            ("<function=f>\n<parameter=a>\n1", Calls::Xml, "f"),
            ("<function=f g>\n</function>", Calls::Xml, ""),
            ("<function=>\n</function>", Calls::Xml, ""),
            ("f\n{\"a\": 1}", Calls::Glm, "f"),
            ("what is this?", Calls::Glm, ""),
        ] {
            let want = ToolCall { id: "call_2".into(), name: name.into(), arguments: text.into() };
            assert_eq!(block(text, 2, calls, &[]), want);
        }
    }

    #[test]
    fn bare_calls_are_read_and_malformed_ones_stay_calls() {
        let read = |text: &str| {
            let (calls, text) = bare(text);
            (calls.into_iter().map(|c| (c.name, c.arguments)).collect::<Vec<_>>(), text.to_owned())
        };
        let call = |name: &str, arguments: &str| (name.to_owned(), arguments.to_owned());
        for (text, calls, rest) in [
            (r#" {"name": "f", "parameters": {"a":  1}}"#, vec![call("f", r#"{"a":  1}"#)], ""),
            (r#"{"parameters": "{\"a\": 1}", "name": "f"}"#, vec![call("f", r#"{"a": 1}"#)], ""),
            (
                r#"<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "arguments": {}}"#,
                vec![call("f", "{}"), call("g", "{}")],
                "",
            ),
            (r#"{"name": "f", "parameters": {}} I said"#, vec![call("f", "{}")], "I said"),
            (
                r#"{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"#,
                vec![call("f", "{}"), call("g", r#"{"name": "g", "parameters": {"#)],
                "",
            ),
            (
                r#"<|python_tag|>search.call(query="a, b=\"c\"", n=3)"#,
                vec![call("search", r#"{"query":"a, b=\"c\"","n":3}"#)],
                "",
            ),
            ("<|python_tag|>print(1)", vec![call("", "print(1)")], ""),
            // What nobody meant as a call is text, to the letter.
            (r#" {"name": "Bob", "age": 3} "#, vec![], r#" {"name": "Bob", "age": 3} "#),
            (r#"{"a": "#, vec![], r#"{"a": "#),
            ("{x} is a set\n", vec![], "{x} is a set\n"),
        ] {
            assert_eq!(read(text), (calls, rest.to_owned()), "{text}");
        }
    }
}
