//! Rows in which writers of tables have put JSON into a text. Owns what is decoded; what a conversation is, is the renderer's
//! business.

use serde_json::Value;

/// A row whose messages are no longer JSON in a text.
///
/// # Errors
/// A text in `messages` that is no list of messages, or in `tools` or `tool_defs` that is no list.
pub fn decoded(mut row: Value) -> Result<Value, String> {
    let Some(columns) = row.as_object_mut() else { return Ok(row) };
    for name in ["messages", "prompt", "completion"] {
        let Some(Value::String(text)) = columns.get(name) else { continue };
        match messages(text) {
            Some(messages) => drop(columns.insert(name.to_owned(), messages)),
            None if name == "messages" => {
                return Err("`messages` is a text; it must be a list of messages, or that list as JSON".into());
            }
            // A text to say.
            None => {}
        }
    }
    for name in ["tools", "tool_defs"] {
        if let Some(Value::String(text)) = columns.get(name)
            && let Err(error) = serde_json::from_str::<Vec<Value>>(text)
        {
            return Err(format!(
                "`{name}` must be a list of tools, or that list as JSON, which this text is not: {error}"
            ));
        }
    }
    Ok(row)
}

/// The messages of a text that is a list of them in JSON, and nothing else that somebody might say.
fn messages(text: &str) -> Option<Value> {
    if !text.trim_start().starts_with('[') {
        return None;
    }
    let items: Vec<Value> = serde_json::from_str(text).ok()?;
    let is_message = |item: &Value| {
        item.get("role").is_some_and(Value::is_string)
            && ["content", "tool_calls"].iter().any(|name| item.get(name).is_some())
    };
    (!items.is_empty() && items.iter().all(is_message)).then_some(Value::Array(items))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_in_a_text_are_messages() {
        let said = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]);
        for name in ["messages", "prompt", "completion"] {
            assert_eq!(decoded(json!({ name: said.to_string() })), Ok(json!({ name: said })));
            assert_eq!(decoded(json!({ name: said })), Ok(json!({ name: said })));
            assert_eq!(decoded(json!({ name: null })), Ok(json!({ name: null })));
        }
        // Lists of something else may be what is to be learnt.
        for text in ["a", "[1, 2]", "[]", "[{\"role\": \"x\"}]", "[{\"name\": \"f\"}]", "[not"] {
            let row = json!({"prompt": text, "completion": text});
            assert_eq!(decoded(row.clone()), Ok(row));
            assert!(decoded(json!({"messages": text})).unwrap_err().starts_with("`messages` is a text"), "{text}");
        }
        assert_eq!(decoded(json!(1)), Ok(json!(1)));
    }

    #[test]
    fn tools_in_a_text_are_a_list() {
        for name in ["tools", "tool_defs"] {
            assert!(decoded(json!({ name: "[]" })).is_ok() && decoded(json!({ name: [] })).is_ok());
            for text in ["", "{}", "[", "None"] {
                let told = decoded(json!({ name: text })).unwrap_err();
                assert!(told.starts_with(&format!("`{name}` must be a list of tools, or that list as JSON")), "{told}");
            }
        }
    }
}
