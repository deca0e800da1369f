//! Rows of training data as conversations. Owns the accepted layouts; must not know where rows come from, nor tokens.

use crate::pyjson;
use prl_types::{Message, Role, ToolCall, ToolDef};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// One conversation to learn from.
#[derive(Clone, Debug, PartialEq)]
pub struct Conversation {
    /// Its messages.
    pub messages: Vec<Message>,
    /// The tools that were offered.
    pub tools: Vec<ToolDef>,
}

/// What of a row [`read_conversation`] looks at.
pub const COLUMNS: [&str; 9] =
    ["messages", "prompt", "completion", "tools", "tool_defs", "task", "turns", "replay", "error"];

/// A row of training data as a conversation. It has `messages`, or `prompt` and `completion` (each a text or a list of
/// messages), and may have `tools` or `tool_defs` (a list, or one as JSON text; either may hold each tool as JSON text);
/// or it is a rollout as a run's log has it. What is null is taken for absent, except inside the arguments of calls.
///
/// # Errors
/// What is wrong with it.
pub fn read_conversation(row: &Value) -> Result<Conversation, String> {
    let row = row.as_object().ok_or("not a JSON object")?;
    let field = |name: &str| row.get(name).filter(|v| !v.is_null());
    let (messages, offered) = match (field("messages"), field("prompt"), field("completion")) {
        (Some(messages), _, _) => (read_messages(messages, Role::User)?, row),
        (None, Some(prompt), Some(completion)) => {
            let mut messages = read_messages(prompt, Role::User)?;
            messages.extend(read_messages(completion, Role::Assistant)?);
            (messages, row)
        }
        _ => match (field("task").and_then(Value::as_object), field("turns").and_then(Value::as_array)) {
            (Some(task), Some(turns)) => (rollout(row, task, turns)?, task),
            _ => return Err("neither `messages` nor `prompt` and `completion`".into()),
        },
    };
    if messages.is_empty() {
        return Err("no messages".into());
    }
    let named =
        ["tools", "tool_defs"].into_iter().find_map(|name| offered.get_key_value(name).filter(|(_, v)| !v.is_null()));
    let tools = named.map_or(Ok(Vec::new()), |(name, value)| tools(value).map_err(|e| format!("`{name}`: {e}")))?;
    Ok(Conversation { messages, tools })
}

/// The conversation of a rollout: the task's prompt, what the environment opened with, and every turn with its replies.
fn rollout(row: &Map<String, Value>, task: &Map<String, Value>, turns: &[Value]) -> Result<Vec<Message>, String> {
    if let Some(error) = row.get("error").filter(|error| !error.is_null()) {
        let message = error.get("message").and_then(Value::as_str).unwrap_or("no reason is given");
        return Err(format!("the rollout failed: {message}"));
    }
    let mut messages = Vec::new();
    let opening = row.get("replay").and_then(|replay| replay.pointer("/opening/messages"));
    for said in [task.get("prompt"), opening].into_iter().flatten() {
        messages.extend(read_messages(said, Role::User)?);
    }
    for turn in turns {
        messages.push(message(turn.get("message").ok_or("a turn has no `message`")?)?);
        messages.extend(turn.get("replies").map_or(Ok(Vec::new()), |replies| read_messages(replies, Role::User))?);
    }
    Ok(messages)
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
    let role = role(map.get("role").ok_or("a message has no `role`")?)?;
    let calls = match map.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => calls.iter().map(tool_call).collect::<Result<_, _>>()?,
        Some(_) => return Err("`tool_calls` is not a list".into()),
    };
    let content = content(map.get("content"))?;
    if content.is_none() && calls.is_empty() {
        return Err(format!("a message of role {} has neither `content` nor `tool_calls`", role.as_str()));
    }
    let reasoning = match text(map, "reasoning_content")? {
        Some(reasoning) => Some(reasoning),
        None => text(map, "reasoning")?.or(text(map, "thinking")?),
    };
    Ok(Message {
        role,
        without_content: content.is_none(),
        content: content.unwrap_or_default(),
        reasoning,
        tool_calls: calls,
        tool_call_id: text(map, "tool_call_id")?,
        name: text(map, "name")?,
    })
}

/// A speaker. What some call `developer` has the place that templates give to `system`.
fn role(value: &Value) -> Result<Role, String> {
    match value.as_str() {
        Some("system" | "developer") => Ok(Role::System),
        Some("user") => Ok(Role::User),
        Some("assistant") => Ok(Role::Assistant),
        Some("tool") => Ok(Role::Tool),
        _ => Err(format!("`role` is {value}; it must be system, developer, user, assistant or tool")),
    }
}

/// A message's text: one, or parts that are all text and follow each other without anything between.
fn content(value: Option<&Value>) -> Result<Option<String>, String> {
    let part = |part: &Value| match (part.as_str(), part.get("type").and_then(Value::as_str)) {
        (Some(text), _) => Ok(text.to_owned()),
        (None, Some("text")) => part
            .get("text")
            .and_then(Value::as_str)
            .map(str::to_owned)
            .ok_or_else(|| "a part of `content` has the type \"text\" and no `text`".to_owned()),
        (None, Some(other)) => {
            Err(format!("a part of `content` has the type \"{other}\": only text can be trained on"))
        }
        (None, None) => Err("a part of `content` has no `type`".to_owned()),
    };
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(Value::Array(parts)) => parts.iter().map(part).collect::<Result<String, _>>().map(Some),
        Some(_) => Err("`content` is neither a text nor a list of parts".into()),
    }
}

fn tool_call(value: &Value) -> Result<ToolCall, String> {
    let map = value.as_object().ok_or("a tool call is not an object")?;
    let function = map.get("function").and_then(Value::as_object).unwrap_or(map);
    let arguments = match function.get("arguments") {
        None | Some(Value::Null) => "{}".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => {
            exact(other)?;
            pyjson::dumps(other)
        }
    };
    let name = text(function, "name")?.ok_or("a tool call has no `name`")?;
    Ok(ToolCall { id: text(map, "id")?.unwrap_or_default(), name, arguments })
}

/// Refuses numbers that may have been read as others: reading JSON makes floats of whole numbers beyond 64 bits.
fn exact(value: &Value) -> Result<(), String> {
    match value {
        Value::Number(number) if number.is_f64() => match number.as_f64() {
            Some(float) if float >= u64::MAX as f64 || float <= i64::MIN as f64 => Err(format!(
                "the number {} in `arguments` may have lost digits; write the arguments as a JSON text, which keeps them",
                pyjson::float(float)
            )),
            _ => Ok(()),
        },
        Value::Array(items) => items.iter().try_for_each(exact),
        Value::Object(map) => map.values().try_for_each(exact),
        _ => Ok(()),
    }
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

/// The value, or the one that is written in its text.
fn unquoted(value: &Value) -> Result<Cow<'_, Value>, String> {
    match value {
        Value::String(text) => Ok(Cow::Owned(serde_json::from_str(text).map_err(|e| e.to_string())?)),
        value => Ok(Cow::Borrowed(value)),
    }
}

fn tools(value: &Value) -> Result<Vec<ToolDef>, String> {
    let list = unquoted(value)?;
    let items = list.as_array().ok_or("not a list")?;
    let tool = |item: &Value| {
        let item = unquoted(item)?;
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
            row("tools", &format!("[{}]", quoted(&flat[1..flat.len() - 1]))),
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
    #[test]
    fn shapes_of_messages_agree() {
        let row = |system: &str, content: Value, reasoning: &str, arguments: Value| {
            let call = json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}});
            let row = json!({"messages": [
                {"role": system, "content": content},
                {"role": "assistant", "content": null, reasoning: "hm", "tool_calls": [call]},
                {"role": "tool", "content": [{"type": "text", "text": "4"}, "2"], "tool_call_id": "1"},
            ]});
            read_conversation(&row).unwrap()
        };
        let parts = json!([{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]);
        let want = row("system", json!("be brief"), "reasoning_content", json!({"x": 1}));
        assert_eq!((want.messages[0].role, want.messages[2].content.as_str()), (Role::System, "42"));
        assert_eq!(want, row("developer", parts, "reasoning", json!("{\"x\": 1}")));
        assert_eq!(want, row("developer", json!(["be brief"]), "thinking", json!({"x": 1})));
    }

    #[test]
    fn what_is_no_text_is_told() {
        let told = |message: Value| read_conversation(&json!({"messages": [message]})).unwrap_err();
        let image = json!({"type": "image_url", "image_url": {"url": "x"}});
        let part = |part: Value| told(json!({"role": "user", "content": [{"type": "text", "text": "see"}, part]}));
        assert_eq!(part(image), "a part of `content` has the type \"image_url\": only text can be trained on");
        assert_eq!(part(json!({"type": "text"})), "a part of `content` has the type \"text\" and no `text`");
        assert_eq!(part(json!({"text": "a"})), "a part of `content` has no `type`");
        assert_eq!(told(json!({"role": "user", "content": 1})), "`content` is neither a text nor a list of parts");
        let role = "`role` is \"critic\"; it must be system, developer, user, assistant or tool";
        assert_eq!(told(json!({"role": "critic", "content": "a"})), role);
        let row = |value: Value| json!({"prompt": "a", "completion": "b", "tool_defs": value});
        assert_eq!(read_conversation(&row(json!({}))).unwrap_err(), "`tool_defs`: not a list");
        assert!(read_conversation(&row(json!("["))).unwrap_err().starts_with("`tool_defs`: EOF"));
    }

    #[test]
    fn a_rollout_is_its_conversation() {
        let tool = json!({"name": "f", "description": "", "parameters": {}});
        let said = |role: &str, text: &str| json!({"role": role, "content": text});
        let mut row = json!({
            "task": {"prompt": [said("system", "a")], "tools": [tool]}, "error": null,
            "replay": {"opening": {"messages": [said("user", "b")]}},
            "turns": [
                {"message": said("assistant", "c"), "replies": [said("user", "d")]},
                {"message": said("assistant", "e"), "replies": []},
            ],
        });
        let read = read_conversation(&row).unwrap();
        let texts: Vec<_> = read.messages.iter().map(|m| m.content.as_str()).collect();
        assert_eq!((texts, read.tools[0].name.as_str()), (vec!["a", "b", "c", "d", "e"], "f"));
        row["error"] = json!({"kind": "environment", "message": "it broke"});
        assert_eq!(read_conversation(&row).unwrap_err(), "the rollout failed: it broke");
    }
}
