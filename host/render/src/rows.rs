//! Training conversations in JSON-lines files. Owns the accepted row layouts and what happens to bad rows; must not know
//! tokens.

use crate::{RenderError, pyjson};
use prl_types::{Message, Role, ToolCall, ToolDef};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Bad rows above this share of a file stop the load: the file is then not what the user thinks it is.
const MAX_BAD_SHARE: f64 = 0.1;

/// One conversation to learn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Its messages.
    pub messages: Vec<Message>,
    /// The tools that were offered.
    pub tools: Vec<ToolDef>,
}

/// The rows of one or more files, each with its place (`file:line`).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// Good rows in order.
    pub conversations: Vec<(String, Conversation)>,
    /// Bad rows and what is wrong with them.
    pub skipped: Vec<(String, String)>,
}

/// Reads a `.jsonl` file, or all of a folder in the order of their names. A row has `messages`, or `prompt` and
/// `completion` (each a text or a list of messages), and may have `tools` or `tool_defs` (a list, or one as JSON text).
///
/// # Errors
/// A path that cannot be read, a folder without `.jsonl` files, no good row, or more than a tenth of bad ones.
pub fn read_conversations(path: &Path) -> Result<Rows, RenderError> {
    let mut rows = Rows::default();
    for file in files(path)? {
        let text = std::fs::read_to_string(&file).map_err(|e| data(&file, e))?;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = format!("{}:{}", file.display(), number + 1);
            match serde_json::from_str(line).map_err(|e| e.to_string()).and_then(|row| conversation(&row)) {
                Ok(conversation) => rows.conversations.push((at, conversation)),
                Err(reason) => rows.skipped.push((at, reason)),
            }
        }
    }
    check_share(path, rows.conversations.len(), &rows.skipped)?;
    Ok(rows)
}

/// Whether data with so many good rows, and these that are `skipped` (place and reason), can be what its user thinks it is.
///
/// # Errors
/// No good row, or more than a tenth of bad ones.
pub fn check_share(path: &Path, good: usize, skipped: &[(String, String)]) -> Result<(), RenderError> {
    let bad = skipped.len();
    match skipped.first() {
        Some((at, reason)) if bad as f64 > MAX_BAD_SHARE * (good + bad) as f64 => {
            Err(data(path, format!("{bad} of {} rows are unusable; the first is {at}: {reason}", good + bad)))
        }
        _ if good == 0 => Err(data(path, "there are no rows")),
        _ => Ok(()),
    }
}

fn data(path: &Path, reason: impl ToString) -> RenderError {
    RenderError::Data { path: path.to_path_buf(), reason: reason.to_string() }
}

fn files(path: &Path) -> Result<Vec<PathBuf>, RenderError> {
    if !path.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(|e| data(path, e))? {
        let file = entry.map_err(|e| data(path, e))?.path();
        if file.extension().is_some_and(|e| e == "jsonl") {
            files.push(file);
        }
    }
    files.sort();
    if files.is_empty() { Err(data(path, "the folder has no .jsonl file")) } else { Ok(files) }
}

fn conversation(row: &Value) -> Result<Conversation, String> {
    let row = row.as_object().ok_or("not a JSON object")?;
    let field = |name: &str| row.get(name).filter(|v| !v.is_null());
    let messages = match (field("messages"), field("prompt"), field("completion")) {
        (Some(messages), _, _) => read_messages(messages, Role::User)?,
        (None, Some(prompt), Some(completion)) => {
            let mut messages = read_messages(prompt, Role::User)?;
            messages.extend(read_messages(completion, Role::Assistant)?);
            messages
        }
        _ => return Err("neither `messages` nor `prompt` and `completion`".into()),
    };
    if messages.is_empty() {
        return Err("no messages".into());
    }
    let tools = match field("tools").or(field("tool_defs")) {
        Some(Value::String(text)) => tools(&serde_json::from_str(text).map_err(|e| format!("`tools`: {e}"))?)?,
        Some(value) => tools(value)?,
        None => Vec::new(),
    };
    Ok(Conversation { messages, tools })
}

/// Messages of a row: a list of them, or the text of one by this role.
///
/// # Errors
/// What is wrong with them.
pub fn read_messages(value: &Value, role: Role) -> Result<Vec<Message>, String> {
    match value {
        Value::String(text) => Ok(vec![Message::text(role, text.as_str())]),
        Value::Array(items) => items.iter().map(message).collect(),
        _ => Err("messages must be a text or a list".into()),
    }
}

fn text(map: &Map<String, Value>, name: &str) -> Result<Option<String>, String> {
    match map.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{name}` is not a text")),
    }
}

fn message(value: &Value) -> Result<Message, String> {
    let map = value.as_object().ok_or("a message is not an object")?;
    let role = map.get("role").cloned().ok_or("a message has no `role`")?;
    let role: Role = serde_json::from_value(role).map_err(|e| format!("`role`: {e}"))?;
    let calls = match map.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => calls.iter().map(tool_call).collect::<Result<_, _>>()?,
        Some(_) => return Err("`tool_calls` is not a list".into()),
    };
    let content = text(map, "content")?;
    if content.is_none() && calls.is_empty() {
        return Err(format!("a message of role {} has neither `content` nor `tool_calls`", role.as_str()));
    }
    let reasoning = match text(map, "reasoning_content")? {
        Some(reasoning) => Some(reasoning),
        None => text(map, "reasoning")?,
    };
    Ok(Message {
        role,
        content: content.unwrap_or_default(),
        reasoning,
        tool_calls: calls,
        tool_call_id: text(map, "tool_call_id")?,
        name: text(map, "name")?,
    })
}

fn tool_call(value: &Value) -> Result<ToolCall, String> {
    let map = value.as_object().ok_or("a tool call is not an object")?;
    let function = map.get("function").and_then(Value::as_object).unwrap_or(map);
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => pyjson::dumps(other),
    };
    let name = text(function, "name")?.ok_or("a tool call has no `name`")?;
    Ok(ToolCall { id: text(map, "id")?.unwrap_or_default(), name, arguments })
}

fn tools(value: &Value) -> Result<Vec<ToolDef>, String> {
    let items = value.as_array().ok_or("`tools` is not a list")?;
    let tool = |item: &Value| {
        let map = item.as_object().ok_or("a tool is not an object")?;
        let map = map.get("function").and_then(Value::as_object).unwrap_or(map);
        Ok(ToolDef {
            name: text(map, "name")?.ok_or("a tool has no `name`")?,
            description: text(map, "description")?.unwrap_or_default(),
            parameters: map.get("parameters").cloned().unwrap_or_else(|| Value::Object(Map::new())),
            strict: map.get("strict").and_then(Value::as_bool).unwrap_or_default(),
        })
    };
    items.iter().map(tool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(lines: &[&str]) -> Result<Rows, RenderError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("rows.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        read_conversations(&path)
    }

    #[test]
    fn layouts_agree() {
        let rows = read(&[
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
            r#"{"messages": null, "prompt": "a", "completion": "b"}"#,
            r#"{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}"#,
        ])
        .unwrap();
        assert_eq!(rows.conversations.len(), 3);
        assert!(rows.conversations.iter().all(|(_, c)| *c == rows.conversations[0].1));
    }

    #[test]
    fn tools_agree_in_all_four_forms() {
        let flat = r#"[{"name": "f", "description": "d", "parameters": {"type": "object"}}]"#;
        let wrapped = format!(r#"[{{"type": "function", "function": {}}}]"#, &flat[1..flat.len() - 1]);
        let row = |key: &str, value: &str| format!(r#"{{"prompt": "a", "completion": "b", "{key}": {value}}}"#);
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let lines = [
            row("tools", &wrapped),
            row("tools", &quoted(&wrapped)),
            row("tool_defs", flat),
            row("tool_defs", &quoted(flat)),
        ];
        let rows = read(&lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert_eq!(rows.conversations[0].1.tools[0].name, "f");
        assert!(rows.conversations.iter().all(|(_, c)| *c == rows.conversations[0].1));
    }

    #[test]
    fn bad_rows_are_named_and_too_many_stop() {
        let good = r#"{"prompt": "a", "completion": "b"}"#;
        let bad = r#"{"messages": [{"role": "user", "content": null}]}"#;
        let mut lines = vec![good; 19];
        lines.push(bad);
        let rows = read(&lines).unwrap();
        assert_eq!((rows.conversations.len(), rows.skipped.len()), (19, 1));
        assert!(rows.skipped[0].0.ends_with("rows.jsonl:20"), "{:?}", rows.skipped);
        let error = read(&[good, bad, "{", good]).unwrap_err().to_string();
        assert!(error.contains("2 of 4 rows are unusable") && error.contains("rows.jsonl:2"), "{error}");
        assert!(read(&[]).unwrap_err().to_string().contains("there are no rows"));
    }
}
