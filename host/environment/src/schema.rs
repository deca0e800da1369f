//! JSON Schema, as far as arguments of environments need it. Owns the sentences for what does not fit, which name the
//! key; must not know what the arguments are for. A schema that uses more is refused rather than half understood.

use serde_json::{Map, Value};

/// Keywords that say nothing about which values are right.
const WORDS: [&str; 8] = ["$schema", "$id", "title", "description", "default", "examples", "deprecated", "$comment"];
/// Keywords that do.
const CHECKS: [&str; 18] = [
    "type",
    "enum",
    "const",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "minLength",
    "maxLength",
    "items",
    "minItems",
    "maxItems",
    "uniqueItems",
    "properties",
    "required",
    "additionalProperties",
    "anyOf",
];
const TYPES: [&str; 7] = ["object", "array", "string", "number", "integer", "boolean", "null"];
/// Deepest nesting.
const DEPTH: usize = 32;

/// Whether all of `schema` is understood.
pub fn check_schema(schema: &Value) -> Result<(), String> {
    understood(schema, "", 0)
}

fn understood(schema: &Value, at: &str, depth: usize) -> Result<(), String> {
    let place = if at.is_empty() { String::new() } else { format!(" (at `{at}`)") };
    if depth > DEPTH {
        return Err(format!("is nested too deeply{place}"));
    }
    let schema = match schema {
        Value::Object(schema) => schema,
        Value::Bool(_) => return Ok(()),
        _ => return Err(format!("is not an object{place}")),
    };
    if let Some(word) = schema.keys().find(|word| !WORDS.contains(&word.as_str()) && !CHECKS.contains(&word.as_str())) {
        return Err(format!("uses `{word}`{place}, which prl does not check; it checks {}", CHECKS.join(", ")));
    }
    for kind in types(schema) {
        if !TYPES.contains(&kind) {
            return Err(format!("has an unknown type `{kind}`{place}"));
        }
    }
    for (name, inner) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        understood(inner, &join(at, name), depth + 1)?;
    }
    for (word, inner) in ["items", "additionalProperties"].iter().filter_map(|word| Some((word, schema.get(*word)?))) {
        understood(inner, &join(at, word), depth + 1)?;
    }
    for inner in schema.get("anyOf").and_then(Value::as_array).into_iter().flatten() {
        understood(inner, at, depth + 1)?;
    }
    Ok(())
}

fn types(schema: &Map<String, Value>) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(kind)) => vec![kind],
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

fn join(at: &str, name: &str) -> String {
    if at.is_empty() { name.to_owned() } else { format!("{at}.{name}") }
}

/// Whether `value` follows `schema`; `at` is its dotted path. The error names the key and what it should be.
pub fn check(schema: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Value::Object(schema) = schema else {
        return if *schema == Value::Bool(false) { Err(format!("`{at}` must not be set")) } else { Ok(()) };
    };
    let is = || format!("`{at}` is {}", shown(value));
    let kinds = types(schema);
    if !kinds.is_empty() && !kinds.iter().any(|kind| is_of(value, kind)) {
        return Err(format!("{}; it must be of type {}", is(), kinds.join(" or ")));
    }
    if let Some(Value::Array(words)) = schema.get("enum")
        && !words.contains(value)
    {
        let words: Vec<String> = words.iter().map(shown).collect();
        return Err(format!("{}; it must be one of {}", is(), words.join(", ")));
    }
    if let Some(only) = schema.get("const").filter(|only| *only != value) {
        return Err(format!("{}; it must be {}", is(), shown(only)));
    }
    if let Some(variants) = schema.get("anyOf").and_then(Value::as_array) {
        let mut errors = variants.iter().map(|variant| check(variant, value, at));
        let first = errors.next();
        if let Some(Err(first)) = first
            && errors.all(|result| result.is_err())
        {
            return Err(if variants.len() == 1 { first } else { format!("{} and fits none of its forms", is()) });
        }
    }
    numbers(schema, value).map_or(Ok(()), |rule| Err(format!("{}; it must be {rule}", is())))?;
    lengths(schema, value).map_or(Ok(()), |rule| Err(format!("{}; it must have {rule}", is())))?;
    match value {
        Value::Array(items) => {
            if let Some(inner) = schema.get("items") {
                items.iter().enumerate().try_for_each(|(i, item)| check(inner, item, &format!("{at}.{i}")))?;
            }
            if schema.get("uniqueItems") == Some(&Value::Bool(true))
                && items.iter().enumerate().any(|(i, item)| items[..i].contains(item))
            {
                return Err(format!("{}; its items must differ", is()));
            }
        }
        Value::Object(given) => object(schema, given, at)?,
        _ => {}
    }
    Ok(())
}

fn object(schema: &Map<String, Value>, given: &Map<String, Value>, at: &str) -> Result<(), String> {
    let none = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&none);
    for (name, value) in given {
        let key = join(at, name);
        match (properties.get(name), schema.get("additionalProperties")) {
            (Some(inner), _) => check(inner, value, &key)?,
            (None, Some(Value::Bool(false))) => {
                let known: Vec<String> = properties.keys().map(|name| format!("`{name}`")).collect();
                let known =
                    if known.is_empty() { "there are none".into() } else { format!("there are {}", known.join(", ")) };
                return Err(format!("`{key}` is not an argument; {known}"));
            }
            (None, Some(inner)) => check(inner, value, &key)?,
            (None, None) => {}
        }
    }
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    match required.into_iter().find(|name| !given.contains_key(*name)) {
        Some(name) => Err(format!("`{}` is missing", join(at, name))),
        None => Ok(()),
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match (kind, value) {
        ("object", Value::Object(_))
        | ("array", Value::Array(_))
        | ("string", Value::String(_))
        | ("number", Value::Number(_))
        | ("boolean", Value::Bool(_))
        | ("null", Value::Null) => true,
        // 1.0 is an integer to JSON Schema.
        ("integer", Value::Number(n)) => n.is_i64() || n.is_u64() || n.as_f64().is_some_and(|f| f.fract() == 0.0),
        _ => false,
    }
}

/// The rule for numbers that `value` breaks.
fn numbers(schema: &Map<String, Value>, value: &Value) -> Option<String> {
    let value = value.as_f64()?;
    let limit = |word: &str| schema.get(word).and_then(Value::as_f64);
    let rules: [(&str, &str, fn(f64, f64) -> bool); 5] = [
        ("minimum", "at least", |v, l| v >= l),
        ("maximum", "at most", |v, l| v <= l),
        ("exclusiveMinimum", "more than", |v, l| v > l),
        ("exclusiveMaximum", "less than", |v, l| v < l),
        ("multipleOf", "a multiple of", |v, l| (v / l).fract() == 0.0),
    ];
    let broken = |(word, rule, holds): (&str, &str, fn(f64, f64) -> bool)| {
        limit(word).filter(|limit| !holds(value, *limit)).map(|limit| format!("{rule} {limit}"))
    };
    rules.into_iter().find_map(broken)
}

/// The rule for lengths that `value` breaks.
fn lengths(schema: &Map<String, Value>, value: &Value) -> Option<String> {
    let (length, least, most, what) = match value {
        Value::String(text) => (text.chars().count(), "minLength", "maxLength", "characters"),
        Value::Array(items) => (items.len(), "minItems", "maxItems", "items"),
        _ => return None,
    };
    let limit = |word: &str| schema.get(word).and_then(Value::as_u64);
    let few = limit(least).filter(|limit| (length as u64) < *limit).map(|limit| format!("at least {limit} {what}"));
    few.or_else(|| limit(most).filter(|limit| length as u64 > *limit).map(|limit| format!("at most {limit} {what}")))
}

/// A value in few words.
fn shown(value: &Value) -> String {
    const LONGEST: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= LONGEST { text } else { text.chars().take(LONGEST).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_does_not_fit_is_named() {
        let schema = json!({
            "type": "object", "additionalProperties": false, "required": ["kind"],
            "properties": {
                "kind": { "enum": ["a", "b"] },
                "count": { "type": "integer", "minimum": 1, "maximum": 9, "default": 3 },
                "share": { "type": ["number", "null"], "exclusiveMaximum": 1 },
                "words": { "type": "array", "items": { "type": "string", "minLength": 2 }, "maxItems": 2 },
                "deep": { "type": "object", "properties": { "x": { "const": 4 } } },
                "either": { "anyOf": [{ "type": "string" }, { "type": "integer" }] },
            },
        });
        check_schema(&schema).unwrap();
        let good = json!({
            "kind": "a", "count": 4.0, "share": null, "words": ["ab"], "deep": { "x": 4, "y": 1 }, "either": 1,
        });
        assert_eq!(check(&schema, &good, "args"), Ok(()));
        for (bad, words) in [
            (json!([]), "`args` is []; it must be of type object"),
            (json!({}), "`args.kind` is missing"),
            (json!({ "kind": "c" }), "`args.kind` is \"c\"; it must be one of \"a\", \"b\""),
            (json!({ "kind": "a", "count": "4" }), "`args.count` is \"4\"; it must be of type integer"),
            (json!({ "kind": "a", "count": 4.5 }), "`args.count` is 4.5; it must be of type integer"),
            (json!({ "kind": "a", "count": 0 }), "`args.count` is 0; it must be at least 1"),
            (json!({ "kind": "a", "count": 10 }), "`args.count` is 10; it must be at most 9"),
            (json!({ "kind": "a", "share": 1.0 }), "`args.share` is 1.0; it must be less than 1"),
            (json!({ "kind": "a", "share": true }), "`args.share` is true; it must be of type number or null"),
            (
                json!({ "kind": "a", "words": ["ab", "c"] }),
                "`args.words.1` is \"c\"; it must have at least 2 characters",
            ),
            (
                json!({ "kind": "a", "words": ["ab", "ab", "ab"] }),
                "`args.words` is [\"ab\",\"ab\",\"ab\"]; it must have at most 2 items",
            ),
            (json!({ "kind": "a", "deep": { "x": 5 } }), "`args.deep.x` is 5; it must be 4"),
            (json!({ "kind": "a", "either": 1.5 }), "`args.either` is 1.5 and fits none of its forms"),
            (
                json!({ "kind": "a", "cuont": 1 }),
                "`args.cuont` is not an argument; there are `kind`, `count`, `share`, `words`, `deep`, `either`",
            ),
        ] {
            assert_eq!(check(&schema, &bad, "args"), Err(words.to_owned()));
        }
        assert_eq!(check(&json!({ "type": "object" }), &json!({ "any": 1 }), "args"), Ok(()));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        let refused = |schema: Value| check_schema(&schema).unwrap_err();
        assert!(refused(json!({ "properties": { "x": { "pattern": "a+" } } })).starts_with("uses `pattern` (at `x`)"));
        assert_eq!(refused(json!({ "type": "text" })), "has an unknown type `text`");
        assert_eq!(refused(json!({ "items": 3 })), "is not an object (at `items`)");
        assert_eq!(check_schema(&json!({})), Ok(()));
    }
}
