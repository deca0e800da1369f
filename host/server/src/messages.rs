//! Messages and tools in OpenAI's form. Owns what is understood of them; everything else is an error with its place.

use crate::error::ApiError;
use crate::fields::{Fields, kind};
use prl_types::{Message, Role, ToolCall, ToolDef};
use serde_json::{Value, json};

/// Reads `messages`.
pub(crate) fn messages(fields: &mut Fields) -> Result<Vec<Message>, ApiError> {
    let list: Vec<Value> = fields.required("messages", "a list of messages")?;
    if list.is_empty() {
        return Err(ApiError::field("messages", "`messages` is empty"));
    }
    list.into_iter().enumerate().map(|(i, value)| message(value, &format!("messages[{i}]"))).collect()
}

fn message(value: Value, path: &str) -> Result<Message, ApiError> {
    let mut fields = Fields::within(value, path)?;
    let role: String = fields.required("role", "a string")?;
    let role = match role.as_str() {
        "system" | "developer" => Role::System,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => {
            let name = fields.name("role");
            let want = "\"system\", \"developer\", \"user\", \"assistant\" or \"tool\"";
            return Err(ApiError::field(&name, format!("`{name}` is \"{other}\"; it must be {want}")));
        }
    };
    let place = fields.name("content");
    let content = fields.value("content");
    let calls: Vec<Value> = fields.optional("tool_calls", "a list of tool calls")?.unwrap_or_default();
    if content.is_none() && role != Role::Assistant {
        return Err(ApiError::field(&place, format!("`{place}` is missing")));
    }
    let mut message = Message::text(role, content.map_or(Ok(String::new()), |content| text(content, &place))?);
    if !calls.is_empty() && role != Role::Assistant {
        let name = fields.name("tool_calls");
        return Err(ApiError::field(&name, format!("`{name}`: only an assistant calls tools")));
    }
    let at = fields.name("tool_calls");
    message.tool_calls =
        calls.into_iter().enumerate().map(|(i, value)| call(value, &format!("{at}[{i}]"))).collect::<Result<_, _>>()?;
    let (one, other) = (fields.string("reasoning_content")?, fields.string("reasoning")?);
    message.reasoning = one.or(other);
    message.tool_call_id = fields.string("tool_call_id")?;
    message.name = fields.string("name")?;
    fields.neutral("refusal", &[json!("")])?;
    fields.finish(&["annotations", "id", "object", "status"])?;
    Ok(message)
}

/// A message's text: a string, or parts that are all text.
fn text(content: Value, path: &str) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text),
        Value::Array(parts) => {
            let part = |(i, part): (usize, Value)| {
                let path = format!("{path}[{i}]");
                let mut fields = match part {
                    Value::String(text) => return Ok(text),
                    part => Fields::within(part, &path)?,
                };
                let kind: String = fields.required("type", "a string")?;
                if kind != "text" {
                    let name = fields.name("type");
                    return Err(ApiError::unsupported(&name, &format!("`{name}` = \"{kind}\"")));
                }
                let text = fields.required("text", "a string")?;
                fields.finish(&["cache_control", "annotations"])?;
                Ok(text)
            };
            parts.into_iter().enumerate().map(part).collect()
        }
        other => {
            Err(ApiError::field(path, format!("`{path}` must be a string or a list of parts, not {}", kind(&other))))
        }
    }
}

fn call(value: Value, path: &str) -> Result<ToolCall, ApiError> {
    let mut fields = Fields::within(value, path)?;
    fields.neutral("type", &[json!("function")])?;
    let id = fields.required("id", "a string")?;
    let function = fields.required("function", "an object")?;
    fields.finish(&["index"])?;
    let mut function = Fields::within(function, &format!("{path}.function"))?;
    let name = function.required("name", "a string")?;
    let arguments = match function.value("arguments") {
        None => "{}".to_string(),
        Some(Value::String(text)) => text,
        Some(value @ Value::Object(_)) => value.to_string(),
        Some(other) => {
            let name = function.name("arguments");
            return Err(ApiError::field(&name, format!("`{name}` must be a string, not {}", kind(&other))));
        }
    };
    function.finish(&[])?;
    Ok(ToolCall { id, name, arguments })
}

/// Reads `tools` and `tool_choice`: the tools that the model may call. A choice that would need sampling to be
/// constrained is refused.
pub(crate) fn tools(fields: &mut Fields) -> Result<Vec<ToolDef>, ApiError> {
    let list: Vec<Value> = fields.optional("tools", "a list of tools")?.unwrap_or_default();
    let tools: Vec<ToolDef> =
        list.into_iter().enumerate().map(|(i, value)| tool(value, &format!("tools[{i}]"))).collect::<Result<_, _>>()?;
    match fields.value("tool_choice") {
        None => Ok(tools),
        Some(Value::String(choice)) if choice == "none" => Ok(Vec::new()),
        Some(Value::String(choice)) if choice == "auto" => match tools.is_empty() {
            true => Err(ApiError::field("tool_choice", "`tool_choice` = \"auto\" needs `tools`")),
            false => Ok(tools),
        },
        Some(Value::String(choice)) if choice == "required" => Err(ApiError::unsupported(
            "tool_choice",
            "`tool_choice` = \"required\", for which sampling would have to be constrained,",
        )),
        Some(Value::Object(_)) => Err(ApiError::unsupported(
            "tool_choice",
            "a named tool in `tool_choice`, for which sampling would have to be constrained,",
        )),
        Some(_) => Err(ApiError::field("tool_choice", "`tool_choice` must be \"none\" or \"auto\"")),
    }
}

fn tool(value: Value, path: &str) -> Result<ToolDef, ApiError> {
    let mut fields = Fields::within(value, path)?;
    fields.neutral("type", &[json!("function")])?;
    let function = fields.required("function", "an object")?;
    fields.finish(&[])?;
    let mut function = Fields::within(function, &format!("{path}.function"))?;
    let name: String = function.required("name", "a string")?;
    let description = function.string("description")?.unwrap_or_default();
    let parameters = function.value("parameters").unwrap_or_else(|| json!({"type": "object", "properties": {}}));
    if !parameters.is_object() {
        let name = function.name("parameters");
        return Err(ApiError::field(
            &name,
            format!("`{name}` must be a JSON Schema object, not {}", kind(&parameters)),
        ));
    }
    // Arguments are not constrained, but templates may show the wish.
    let strict = function.flag("strict", false)?;
    function.finish(&[])?;
    Ok(ToolDef { name, description, parameters, strict })
}

/// Bytes of text in messages and tools, about.
pub(crate) fn bytes(messages: &[Message], tools: &[ToolDef]) -> usize {
    let message = |m: &Message| {
        let calls: usize = m.tool_calls.iter().map(|c| c.arguments.len()).sum();
        m.content.len() + m.reasoning.as_ref().map_or(0, String::len) + calls + 64
    };
    messages.iter().map(message).sum::<usize>()
        + tools.iter().map(|t| 64 + t.parameters.to_string().len()).sum::<usize>()
}
