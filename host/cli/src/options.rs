//! Options that a JSON Schema describes, as rows of a table. Owns their words; must not know whose options they are.

use crate::table::short;
use serde_json::Value;

/// Heading of [`rows`].
pub const HEADING: &[&str] = &["NAME", "TYPE", "DEFAULT", "ALLOWED", "MEANING"];

/// One row an option; those of a table within come after it, by their dotted names.
pub fn rows(schema: &Value) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    list(schema, "", &mut rows);
    rows
}

fn list(schema: &Value, path: &str, rows: &mut Vec<Vec<String>>) {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
        let default = match schema.get("default") {
            Some(value) => short(&value.to_string(), 40),
            None if required.contains(&name.as_str()) => "(required)".into(),
            None => "-".into(),
        };
        let meaning = schema["description"].as_str().unwrap_or_default();
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        rows.push(vec![path.clone(), kind(schema), default, allowed(schema), short(meaning, 100)]);
        list(schema, &path, rows);
    }
}

fn kind(schema: &Value) -> String {
    match &schema["type"] {
        Value::String(kind) => kind.clone(),
        Value::Array(kinds) => joined(kinds.iter().filter_map(Value::as_str).map(str::to_owned)),
        _ => match (schema["anyOf"].as_array(), schema["enum"].as_array()) {
            (Some(variants), _) => joined(variants.iter().map(kind)),
            (None, Some(values)) => joined(values.iter().map(|value| type_of(value).to_owned())),
            (None, None) => "any".into(),
        },
    }
}

/// Every kind once.
fn joined(kinds: impl Iterator<Item = String>) -> String {
    let mut each: Vec<String> = Vec::new();
    for kind in kinds {
        if !each.contains(&kind) {
            each.push(kind);
        }
    }
    each.join(" or ")
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn allowed(schema: &Value) -> String {
    if let Some(words) = schema["enum"].as_array() {
        return short(&words.iter().map(Value::to_string).collect::<Vec<_>>().join(", "), 60);
    }
    let bound = |word: &str, form: &str| schema.get(word).map(|bound| format!("{form} {bound}"));
    let bounds = [
        bound("minimum", ">="),
        bound("exclusiveMinimum", ">"),
        bound("maximum", "<="),
        bound("exclusiveMaximum", "<"),
        bound("minLength", "length >="),
        bound("maxLength", "length <="),
        bound("minItems", "items >="),
        bound("maxItems", "items <="),
    ];
    bounds.into_iter().flatten().collect::<Vec<_>>().join(", ")
}
