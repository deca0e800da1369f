//! The arguments of a tool call as templates and formats take them. Owns numbers of any length: whole numbers keep their digits,
//! as in Python. Knows nothing of the calls' writing.

use indexmap::IndexMap;
use minijinja::Value;
use minijinja::value::{Object, ObjectRepr, ValueKind};
use prl_types::ToolCall;
use serde_json::value::RawValue;
use std::fmt;
use std::sync::Arc;

/// How deep lists and objects may be in each other, as in serde_json; what is deeper is no JSON here.
const MAX_DEPTH: usize = 127;

/// A whole number that no machine number holds. It prints as it was written.
#[derive(Debug)]
struct Digits(String);

impl Object for Digits {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The digits of a whole number that no machine number holds.
pub(crate) fn digits(value: &Value) -> Option<&str> {
    value.downcast_object_ref::<Digits>().map(|digits| digits.0.as_str())
}

/// Whether it is a number of any length.
pub(crate) fn is_number(value: &Value) -> bool {
    value.kind() == ValueKind::Number || digits(value).is_some()
}

/// Whether it is a whole number of any length.
pub(crate) fn is_integer(value: &Value) -> bool {
    value.is_integer() || digits(value).is_some()
}

/// The arguments of a call: an object; what is no JSON object stays the text it is.
pub(crate) fn arguments(call: &ToolCall) -> Value {
    match object(&call.arguments, 0) {
        Some(object) => Value::from_pairs(object),
        None => Value::from(call.arguments.as_str()),
    }
}

/// The arguments of a call, each as `one` writes it; what is no JSON object stands on a line of its own as it is.
pub(crate) fn each_argument(call: &ToolCall, one: impl Fn(&str, &Value) -> String) -> String {
    match object(&call.arguments, 0) {
        Some(object) => object.iter().map(|(key, value)| one(key, value)).collect(),
        None if call.arguments.is_empty() => String::new(),
        None => format!("{}\n", call.arguments),
    }
}

/// The last of values with the same key counts, at the place of the first, as in Python.
fn object(text: &str, depth: usize) -> Option<IndexMap<String, Value>> {
    let fields: IndexMap<String, &RawValue> = serde_json::from_str(text).ok()?;
    fields.into_iter().map(|(key, raw)| Some((key, value(raw, depth + 1)?))).collect()
}

fn value(raw: &RawValue, depth: usize) -> Option<Value> {
    let text = raw.get();
    match text.as_bytes().first()? {
        b'{' | b'[' if depth >= MAX_DEPTH => None,
        b'{' => object(text, depth).map(Value::from_pairs),
        b'[' => {
            let items: Vec<&RawValue> = serde_json::from_str(text).ok()?;
            items.into_iter().map(|item| value(item, depth + 1)).collect::<Option<Vec<Value>>>().map(Value::from)
        }
        b'"' => serde_json::from_str::<String>(text).ok().map(Value::from),
        b't' => Some(Value::from(true)),
        b'f' => Some(Value::from(false)),
        b'n' => Some(Value::from(())),
        _ => number(text),
    }
}

/// A number as JSON writes it. Minus nought is nought, as Python reads it.
fn number(text: &str) -> Option<Value> {
    if text.contains(['.', 'e', 'E']) {
        return serde_json::from_str::<f64>(text).ok().map(Value::from);
    }
    let whole = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<u64>().map(Value::from));
    let whole = whole.or_else(|_| text.parse::<i128>().map(Value::from));
    Some(whole.unwrap_or_else(|_| Value::from_object(Digits(text.to_owned()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pyjson;

    fn written(arguments: &str) -> String {
        let call = ToolCall { id: "c".into(), name: "f".into(), arguments: arguments.into() };
        pyjson::dump(&super::arguments(&call))
    }

    /// What Python's `json.dumps(json.loads(text), ensure_ascii=False)` writes.
    #[test]
    fn arguments_are_written_as_python_writes_them() {
        for (text, python) in [
            (r#"{"a":18446744073709551616}"#, r#"{"a": 18446744073709551616}"#),
            (
                r#"{"a":18446744073709551615,"b":[-9223372036854775809]}"#,
                r#"{"a": 18446744073709551615, "b": [-9223372036854775809]}"#,
            ),
            (
                r#"{"a":{"b":123456789012345678901234567890123456789012345678901234567890}}"#,
                r#"{"a": {"b": 123456789012345678901234567890123456789012345678901234567890}}"#,
            ),
            (r#"{"a":-170141183460469231731687303715884105729}"#, r#"{"a": -170141183460469231731687303715884105729}"#),
            (
                r#"{"a":-0,"b":-0.0,"c":1e20,"d":1E5,"e":0.10}"#,
                r#"{"a": 0, "b": -0.0, "c": 1e+20, "d": 100000.0, "e": 0.1}"#,
            ),
            (r#"{"z":1,"a":[true,false,null,"\u00e9\n"],"z":2}"#, r#"{"z": 2, "a": [true, false, null, "é\n"]}"#),
        ] {
            assert_eq!(written(text), python);
        }
    }

    #[test]
    fn what_is_no_object_stays_text() {
        let deep = |n: usize| format!("{{\"a\": {}{}}}", "[".repeat(n), "]".repeat(n));
        for text in
            ["", "[1]", "{\"a\": 1", "{\"a\": 1e999}", "{\"a\": \"\\ud800\"}", "{\"a\": 01}", &deep(127), &deep(9999)]
        {
            assert_eq!(written(text), pyjson::dumps(&text.into()), "{text}");
        }
        assert_eq!(written(&deep(126)), deep(126));
    }
}
