//! Calls whose arguments are written without quotes: those of Qwen3.5 and of GLM-4.5. Owns what such a value is, which the
//! tool's schema says where there is one; knows nothing of where calls stand.

use super::calls::KEYED;
use crate::pyjson;
use prl_types::ToolDef;
use serde_json::Value;
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// The most characters of a function's name, as of MCP; OpenAI allows 64.
const LONGEST_NAME: usize = 128;

/// Whether a function may be called so.
pub(crate) fn is_name(text: &str) -> bool {
    let fits = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
    !text.is_empty() && text.chars().all(fits) && text.chars().count() <= LONGEST_NAME
}

/// Whether a call may be one of `text`: it is a name, or that of a tool.
fn is_called(text: &str, tools: &[ToolDef]) -> bool {
    is_name(text) || tools.iter().any(|tool| tool.name == text)
}

/// `<function=name>` with any number of `<parameter=key>` value `</parameter>`, and `</function>`. One line break at each end
/// of a value is not part of it. Gives the name, empty where it is none, and the arguments as JSON where all is well-formed.
pub(super) fn xml<'a>(block: &'a str, tools: &[ToolDef]) -> (&'a str, Option<String>) {
    let opened = block.strip_prefix("<function=").and_then(|rest| rest.split_once('>'));
    let Some((name, rest)) = opened.filter(|(name, _)| is_called(name, tools)) else { return ("", None) };
    let read = || {
        let mut rest = rest.strip_suffix("</function>")?.trim();
        let mut arguments = Arguments::of(name, tools);
        while !rest.is_empty() {
            let (key, after) = rest.strip_prefix("<parameter=")?.split_once('>')?;
            let (value, next) = after.split_once("</parameter>")?;
            let value = value.strip_prefix('\n').unwrap_or(value);
            arguments.add(key, value.strip_suffix('\n').unwrap_or(value))?;
            rest = next.trim_start();
        }
        Some(arguments.json())
    };
    (name, read())
}

/// A name, and any number of `<arg_key>` key `</arg_key>` `<arg_value>` value `</arg_value>`. Gives what [`xml`] does.
pub(super) fn keyed<'a>(block: &'a str, tools: &[ToolDef]) -> (&'a str, Option<String>) {
    let name = block[..block.find(['\n', '<']).unwrap_or(block.len())].trim();
    if !is_called(name, tools) {
        return ("", None);
    }
    let [open_key, close_key, open_value, close_value] = KEYED;
    let read = || {
        let mut rest = block[name.len()..].trim();
        let mut arguments = Arguments::of(name, tools);
        while !rest.is_empty() {
            let (key, after) = rest.strip_prefix(open_key)?.split_once(close_key)?;
            let (value, next) = after.trim_start().strip_prefix(open_value)?.split_once(close_value)?;
            arguments.add(key, value)?;
            rest = next.trim_start();
        }
        Some(arguments.json())
    };
    (name, read())
}

/// The arguments of one call, in order.
struct Arguments<'a> {
    /// What the tool's schema says of each parameter.
    properties: &'a Value,
    /// Keys and values, as JSON.
    fields: Vec<(&'a str, String)>,
    places: HashMap<&'a str, usize>,
}

impl<'a> Arguments<'a> {
    /// Those of a call of `name`.
    fn of(name: &str, tools: &'a [ToolDef]) -> Self {
        let tool = tools.iter().find(|tool| tool.name == name);
        let properties = tool.map_or(&Value::Null, |tool| &tool.parameters["properties"]);
        Arguments { properties, fields: Vec::new(), places: HashMap::new() }
    }

    /// Adds one, or replaces that of the same key. `None` where what was written is no key.
    fn add(&mut self, key: &'a str, value: &str) -> Option<()> {
        if key.is_empty() || key.contains(['<', '>', '\n']) {
            return None;
        }
        let json = literal(value, &self.properties[key]);
        match self.places.entry(key) {
            Entry::Occupied(place) => self.fields[*place.get()].1 = json,
            Entry::Vacant(place) => {
                place.insert(self.fields.len());
                self.fields.push((key, json));
            }
        }
        Some(())
    }

    fn json(&self) -> String {
        let one = |(key, value): &(&str, String)| format!("{}: {value}", pyjson::dumps(&Value::from(*key)));
        format!("{{{}}}", self.fields.iter().map(one).collect::<Vec<_>>().join(", "))
    }
}

/// A value that is written without quotes, as JSON. Where its schema takes nothing but texts it is the text. Else what is JSON
/// is that, in the digits and the layout that it was written in; one of Python's words for it is that; all else is text.
fn literal(text: &str, schema: &Value) -> String {
    let quoted = || pyjson::dumps(&Value::from(text));
    let takes = Takes::of(schema);
    match text {
        "null" | "None" if takes.null || !takes.text => return "null".to_owned(),
        _ if takes.text => return quoted(),
        "True" => return "true".to_owned(),
        "False" => return "false".to_owned(),
        _ => {}
    }
    if serde_json::from_str::<Value>(text).is_ok() { text.trim().to_owned() } else { quoted() }
}

/// What a JSON Schema takes, as far as it matters to unquoted text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Takes {
    /// Texts, and nothing else but `null`.
    text: bool,
    null: bool,
}

impl Takes {
    /// By `type`, the alternatives in `anyOf` and `oneOf`, or the values in `enum` and `const`. What says none of that takes
    /// anything.
    fn of(schema: &Value) -> Takes {
        let is = |kind: &str| Takes { text: kind == "string", null: kind == "null" };
        let given = |value: &Value| Takes { text: value.is_string(), null: value.is_null() };
        let alternatives = || schema["anyOf"].as_array().or_else(|| schema["oneOf"].as_array());
        match &schema["type"] {
            Value::String(kind) => is(kind),
            Value::Array(kinds) => Self::any(kinds.iter().map(|kind| is(kind.as_str().unwrap_or_default()))),
            _ => match (alternatives(), schema["enum"].as_array(), schema.get("const")) {
                (Some(schemas), _, _) => Self::any(schemas.iter().map(Self::of)),
                (None, Some(values), _) => Self::any(values.iter().map(given)),
                (None, None, Some(value)) => given(value),
                (None, None, None) => Takes { text: false, null: false },
            },
        }
    }

    fn any(several: impl Iterator<Item = Takes>) -> Takes {
        let several: Vec<Takes> = several.collect();
        let only = several.iter().all(|one| one.text || one.null);
        Takes { text: only && several.iter().any(|one| one.text), null: several.iter().any(|one| one.null) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The name, and the arguments or nothing.
    type Read = for<'a> fn(&'a str, &[ToolDef]) -> (&'a str, Option<String>);

    fn read(one: Read, text: &str, want: (&str, Option<&str>)) {
        let (name, arguments) = one(text, &[]);
        assert_eq!((name, arguments.as_deref()), want, "{text}");
    }

    #[test]
    fn calls_without_quotes_are_read() {
        for (text, name, arguments) in [
            ("<function=now>\n</function>", "now", Some("{}")),
            (
                "<function=f>\n<parameter=a>\ntwo\nlines\n\n</parameter>\n<parameter=b>\n[1, null]\n</parameter>\n</function>",
                "f",
                Some(r#"{"a": "two\nlines\n", "b": [1, null]}"#),
            ),
            (
                "<function=f><parameter=a>True</parameter><parameter=b>1e-05</parameter><parameter=c>None</parameter></function>",
                "f",
                Some(r#"{"a": true, "b": 1e-05, "c": null}"#),
            ),
            (
                "<function=f><parameter=a>1</parameter><parameter=b>2</parameter><parameter=a>3</parameter></function>",
                "f",
                Some(r#"{"a": 3, "b": 2}"#),
            ),
            ("<function=f>\n<parameter=a>\n1", "f", None),
            ("<function=f>\n{\"a\": \n</function>", "f", None),
            ("<function=f><parameter=>1</parameter></function>", "f", None),
            ("<function=f><parameter=a\n1</parameter><parameter=b>1</parameter></function>", "f", None),
            ("{\"name\": \"f\"}", "", None),
            ("", "", None),
        ] {
            read(xml, text, (name, arguments));
        }
        for (text, name, arguments) in [
            ("now", "now", Some("{}")),
            (
                "f\n<arg_key>a</arg_key>\n<arg_value> x\n</arg_value>\n<arg_key>b</arg_key>\n<arg_value>{\"c\": 2}</arg_value>",
                "f",
                Some(r#"{"a": " x\n", "b": {"c": 2}}"#),
            ),
            ("f<arg_key>a</arg_key><arg_value>3</arg_value>", "f", Some(r#"{"a": 3}"#)),
            ("f\n<arg_key>a</arg_key>\n<arg_value>3", "f", None),
            ("f\n{\"a\": 1}", "f", None),
            ("what is this?", "", None),
            ("", "", None),
        ] {
            read(keyed, text, (name, arguments));
        }
    }

    #[test]
    fn what_is_no_name_is_not_called() {
        let long = "f".repeat(10_000);
        for name in ["", " ", "f g", "f\ng", "f<g", "<function=f", "f(x)", "\u{0}", long.as_str()] {
            let block = format!("<function={name}>\n<parameter=a>\n1\n</parameter>\n</function>");
            assert_eq!(xml(&block, &[]), ("", None), "{name}");
            let block = format!("{name}<arg_key>a</arg_key><arg_value>1</arg_value>");
            if name != "f\ng" && name != "f<g" {
                assert_eq!(keyed(&block, &[]), ("", None), "{name}");
            }
        }
        assert_eq!(keyed("f\ng", &[]), ("f", None));
        let tool = ToolDef { name: "f g".into(), description: String::new(), parameters: json!({}), strict: false };
        assert_eq!(xml("<function=f g></function>", &[tool]), ("f g", Some("{}".into())));
        for name in ["f", "functions.get-it_2", "mcp://a:b/c", "é"] {
            assert!(is_name(name), "{name}");
        }
    }

    #[test]
    fn numbers_keep_their_digits_and_the_schema_says_what_is_text() {
        let any = json!({});
        for number in ["1.10", "1e-05", "0.30000000000000004441", "-0", "123456789012345678901234567890", "1E400x"] {
            let want = if number.ends_with('x') { format!("\"{number}\"") } else { number.to_owned() };
            assert_eq!(literal(number, &any), want);
        }
        let text = json!({"type": "string"});
        for (value, json) in
            [("1.10", "\"1.10\""), ("True", "\"True\""), ("null", "\"null\""), ("\"x\"", "\"\\\"x\\\"\"")]
        {
            assert_eq!(literal(value, &text), json);
        }
        let or_null = [
            json!({"type": ["string", "null"]}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            json!({"enum": ["a", null]}),
        ];
        for schema in &or_null {
            assert_eq!(literal("1.10", schema), "\"1.10\"", "{schema}");
            assert_eq!(literal("None", schema), "null", "{schema}");
        }
        for schema in [json!({"type": ["string", "number"]}), json!({"oneOf": [{"type": "string"}, {}]}), json!(true)] {
            assert_eq!(literal("1.10", &schema), "1.10", "{schema}");
            assert_eq!(literal("x", &schema), "\"x\"", "{schema}");
        }
        assert_eq!(literal("7", &json!({"const": "7"})), "\"7\"");
        let parameters = json!({"type": "object", "properties": {"version": text}});
        let tool = ToolDef { name: "f".into(), description: String::new(), parameters, strict: false };
        let written = "f\n<arg_key>version</arg_key>\n<arg_value>1.10</arg_value>\n<arg_key>n</arg_key>\n<arg_value>1.10</arg_value>";
        assert_eq!(keyed(written, &[tool]).1.unwrap(), r#"{"version": "1.10", "n": 1.10}"#);
    }
}
