//! Rows of training data as conversations. Owns the accepted layouts; must not know where rows come from, nor tokens.

use crate::pyjson;
use prl_types::{Message, Role, ToolCall, ToolDef};
use serde_json::{Map, Value};

/// One conversation to learn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Its messages.
    pub messages: Vec<Message>,
    /// The tools that were offered.
    pub tools: Vec<ToolDef>,
}

/// A row of training data as a conversation. It has `messages`, or `prompt` and `completion` (each a text or a list of
/// messages), and may have `tools` or `tool_defs` (a list, or one as JSON text). What is null is taken for absent, except
/// inside the arguments of calls.
///
/// # Errors
/// What is wrong with it.
pub fn read_conversation(row: &Value) -> Result<Conversation, String> {
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
        None => text(map, "reasoning")?.or(text(map, "thinking")?),
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

/// A JSON Schema: an object, or one as JSON text.
fn parameters(value: Option<&Value>) -> Result<Value, String> {
    match value {
        None | Some(Value::Null) => Ok(Value::Object(Map::new())),
        Some(Value::String(text)) => serde_json::from_str(text).map_err(|e| format!("`parameters`: {e}")),
        Some(value) => Ok(without_nulls(value)),
    }
}

/// Tables fill what a row does not have with null.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        other => other.clone(),
    }
}

fn tools(value: &Value) -> Result<Vec<ToolDef>, String> {
    let items = value.as_array().ok_or("`tools` is not a list")?;
    let tool = |item: &Value| {
        let map = item.as_object().ok_or("a tool is not an object")?;
        let map = map.get("function").and_then(Value::as_object).unwrap_or(map);
        Ok(ToolDef {
            name: text(map, "name")?.ok_or("a tool has no `name`")?,
            description: text(map, "description")?.unwrap_or_default(),
            parameters: parameters(map.get("parameters"))?,
            strict: map.get("strict").and_then(Value::as_bool).unwrap_or_default(),
        })
    };
    items.iter().map(tool).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(row: &str) -> Result<Conversation, String> {
        read_conversation(&serde_json::from_str(row).unwrap())
    }

    #[test]
    fn layouts_agree() {
        let rows = [
            r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}"#,
            r#"{"messages": null, "prompt": "a", "completion": "b"}"#,
            r#"{"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}]}"#,
        ]
        .map(|row| read(row).unwrap());
        assert!(rows.iter().all(|row| *row == rows[0]) && rows[0].messages.len() == 2);
    }

    #[test]
    fn tools_agree_in_all_forms() {
        let flat = r#"[{"name": "f", "description": "d", "parameters": {"type": "object"}}]"#;
        let wrapped = format!(r#"[{{"type": "function", "function": {}}}]"#, &flat[1..flat.len() - 1]);
        let quoted = |text: &str| serde_json::to_string(text).unwrap();
        let nulls = r#"[{"name": "f", "description": "d", "parameters": {"type": "object", "enum": null}}]"#;
        let text = r#"[{"name": "f", "description": "d", "parameters": "{\"type\": \"object\"}"}]"#;
        let row = |key: &str, value: &str| read(&format!(r#"{{"prompt": "a", "completion": "b", "{key}": {value}}}"#));
        let rows = [
            row("tools", &wrapped),
            row("tools", &quoted(&wrapped)),
            row("tool_defs", flat),
            row("tool_defs", &quoted(flat)),
            row("tools", nulls),
            row("tools", text),
        ];
        let rows = rows.map(Result::unwrap);
        assert_eq!(rows[0].tools[0].name, "f");
        assert!(rows.iter().all(|row| *row == rows[0]), "{rows:#?}");
    }

    #[test]
    fn what_is_null_is_absent_but_in_arguments() {
        let arguments = json!({"a": null, "b": [null]});
        let call = json!({"id": null, "function": {"name": "f", "arguments": arguments}});
        let row = json!({"messages": [
            {"role": "user", "content": "a", "tool_calls": null, "thinking": null},
            {"role": "assistant", "content": null, "tool_calls": [call], "thinking": "hm"},
        ]});
        let read = read_conversation(&row).unwrap();
        assert_eq!(read.messages[1].reasoning.as_deref(), Some("hm"));
        assert_eq!(serde_json::from_str::<Value>(&read.messages[1].tool_calls[0].arguments).unwrap(), arguments);
        for bad in [json!({"messages": [{"role": "user", "content": null}]}), json!({"messages": []}), json!([1])] {
            assert!(read_conversation(&bad).is_err(), "{bad}");
        }
    }
}
