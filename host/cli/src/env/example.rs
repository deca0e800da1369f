//! Values that follow a JSON Schema, and ones that do not. Owns how they are made up; whether a value is right is decided
//! elsewhere.

use serde_json::{Map, Value, json};

/// Some value that follows `schema`: its default, or the plainest one.
pub fn value(schema: &Value) -> Value {
    let given = |word: &str| schema.get(word).cloned();
    if let Some(first) = given("default").or_else(|| given("const")).or_else(|| schema["enum"].get(0).cloned()) {
        return first;
    }
    if let Some(variant) = schema["anyOf"].get(0) {
        return value(variant);
    }
    let kind = schema["type"].as_str().or_else(|| schema["type"].get(0)?.as_str());
    match kind {
        Some("object") => {
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            required.map(|name| (name.to_owned(), value(&schema["properties"][name]))).collect::<Map<_, _>>().into()
        }
        Some("array") => {
            let least = schema["minItems"].as_u64().unwrap_or(0).min(100);
            (0..least).map(|_| value(&schema["items"])).collect()
        }
        Some("integer") => json!(number(schema) as i64),
        Some("number") => json!(number(schema)),
        Some("boolean") => json!(false),
        Some("null") => Value::Null,
        _ => {
            let least = schema["minLength"].as_u64().unwrap_or(1).clamp(1, 1000);
            json!("1".repeat(least as usize))
        }
    }
}

fn number(schema: &Value) -> f64 {
    let (least, most) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
    let above = schema["exclusiveMinimum"].as_f64().map(|bound| bound + 1.0);
    let least = least.or(above);
    match (least, most) {
        (Some(least), _) => least.max(1.0).min(most.unwrap_or(f64::INFINITY)).max(least),
        (None, Some(most)) => most.min(1.0),
        (None, None) => 1.0,
    }
}

/// Values of every type that `schema` does not name, and ones beyond its bounds.
pub fn wrong_values(schema: &Value) -> Vec<Value> {
    if schema.get("anyOf").is_some() {
        return Vec::new();
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let mut wrong = Vec::new();
    if !kinds.is_empty() {
        let samples = [
            ("object", json!({ "no_such_key": 1 })),
            ("array", json!([[]])),
            ("string", json!("text")),
            ("number", json!(0.5)),
            ("boolean", json!(true)),
            ("null", Value::Null),
        ];
        wrong.extend(samples.into_iter().filter(|(kind, _)| !kinds.contains(kind)).map(|(_, value)| value));
    }
    if kinds.contains(&"integer") || kinds.contains(&"number") {
        wrong.extend(schema["minimum"].as_f64().map(|least| json!(least - 1.0)));
        wrong.extend(schema["maximum"].as_f64().map(|most| json!(most + 1.0)));
    }
    wrong.extend(schema.get("enum").map(|_| json!("no such word")));
    wrong
}

/// The values at the edges of what `schema` allows.
pub fn edges(schema: &Value) -> Vec<Value> {
    let mut edges: Vec<Value> = ["minimum", "maximum"].iter().filter_map(|word| schema.get(*word).cloned()).collect();
    edges.extend(schema["enum"].as_array().into_iter().flatten().cloned());
    if schema["type"] == "integer" {
        // Bounds may be written as fractions.
        for edge in &mut edges {
            *edge = edge.as_f64().map_or_else(|| edge.clone(), |bound| json!(bound as i64));
        }
    }
    if schema["type"] == "boolean" {
        edges.extend([json!(true), json!(false)]);
    }
    edges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_values_follow_their_schema() {
        let schema = json!({ "type": "object", "required": ["a", "n"],
            "properties": { "a": { "type": "array", "items": { "enum": ["x"] }, "minItems": 2 },
                            "n": { "type": "integer", "minimum": 3, "maximum": 9 }, "left_out": {} } });
        assert_eq!(value(&schema), json!({ "a": ["x", "x"], "n": 3 }));
        let number = &schema["properties"]["n"];
        assert_eq!(edges(number), [json!(3), json!(9)]);
        let wrong = wrong_values(number);
        assert!(wrong.contains(&json!(2.0)) && wrong.contains(&json!(10.0)) && wrong.contains(&json!("text")));
        assert!(wrong.contains(&json!(0.5)), "a fraction is no integer");
    }
}
