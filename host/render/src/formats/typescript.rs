//! Tools as gpt-oss is shown them: TypeScript's types of a JSON Schema, laid out as its template does, white space included.
//! Knows nothing of chat.

use crate::pyjson;
use prl_types::ToolDef;
use serde_json::Value;

/// What stands between the braces' lines of nested objects, where the template's own lines show.
const NESTED: &str = "\n                ";
/// In front of the default of one of several types.
const INDENT: &str = "                    ";
/// A type of an array's items that is longer is not shown.
const LONGEST: usize = 50;

/// All tools, in one namespace.
pub(super) fn namespace(tools: &[ToolDef]) -> String {
    let tools: String = tools.iter().map(tool).collect();
    format!("## functions\n\nnamespace functions {{\n\n{tools}}} // namespace functions")
}

fn tool(tool: &ToolDef) -> String {
    let arguments = match tool.parameters["properties"].as_object().filter(|properties| !properties.is_empty()) {
        Some(properties) => {
            let one = |(name, spec): (&String, &Value)| argument(name, spec, &tool.parameters);
            format!("(_: {{\n{}}})", properties.iter().map(one).collect::<String>())
        }
        None => "()".to_owned(),
    };
    format!("// {}\ntype {} = {arguments} => any;\n\n", tool.description, tool.name)
}

/// One argument of a tool, on lines of its own.
fn argument(name: &str, spec: &Value, of: &Value) -> String {
    let told = text(spec, "description").map(|text| format!("// {text}\n")).unwrap_or_default();
    let default = match spec.get("default") {
        None => String::new(),
        Some(Value::String(default)) if is_given(&spec["enum"]) => format!(", // default: {default}"),
        Some(Value::String(default)) if is_given(&spec["oneOf"]) => format!("// default: {default}"),
        Some(default) => format!(", // default: {}", pyjson::dumps(default)),
    };
    format!("{told}{name}{}: {}{default},\n", optional(name, of), type_of(spec))
}

/// `?` behind the name of what `of` does not require.
fn optional(name: &str, of: &Value) -> &'static str {
    let required = of["required"].as_array().is_some_and(|names| names.iter().any(|n| n == name));
    if required { "" } else { "?" }
}

fn type_of(spec: &Value) -> String {
    let nullable = if spec["nullable"] == Value::Bool(true) { " | null" } else { "" };
    if let Some(types) = spec["type"].as_array().filter(|types| !types.is_empty()) {
        return types.iter().map(plain).collect::<Vec<_>>().join(" | ");
    }
    match spec["type"].as_str() {
        Some("array") => format!("{}{nullable}", items(&spec["items"])),
        _ if is_given(&spec["oneOf"]) => one_of(spec["oneOf"].as_array().map_or(&[][..], Vec::as_slice)),
        Some("string") => match spec["enum"].as_array().filter(|words| !words.is_empty()) {
            Some(words) => format!("\"{}\"", words.iter().map(plain).collect::<Vec<_>>().join("\" | \"")),
            None => format!("string{nullable}"),
        },
        Some("number" | "integer") => "number".into(),
        Some("boolean") => "boolean".into(),
        Some("object") => match spec["properties"].as_object().filter(|properties| !properties.is_empty()) {
            Some(properties) => {
                let one = |(name, inner): (&String, &Value)| {
                    format!("{name}{}: {NESTED}{}", optional(name, spec), type_of(inner))
                };
                format!("{{\n{}}}", properties.iter().map(one).collect::<Vec<_>>().join(", "))
            }
            None => "object".into(),
        },
        _ => "any".into(),
    }
}

fn items(spec: &Value) -> String {
    if !is_given(spec) {
        return "any[]".into();
    }
    let inner = match spec["type"].as_str() {
        Some("string") => "string".into(),
        _ => type_of(spec),
    };
    if inner.chars().count() > LONGEST { "any[]".into() } else { format!("{inner}[]") }
}

fn one_of(variants: &[Value]) -> String {
    let one = |variant: &Value| {
        let told = text(variant, "description").map(|text| format!("// {text}")).unwrap_or_default();
        let default = variant.get("default").map(|default| format!("{INDENT}// default: {}", pyjson::dumps(default)));
        format!("{}{told}{}", type_of(variant), default.unwrap_or_default())
    };
    variants.iter().map(one).collect::<Vec<_>>().join(" | \n")
}

fn text<'a>(spec: &'a Value, key: &str) -> Option<&'a str> {
    spec[key].as_str().filter(|text| !text.is_empty())
}

/// What a template takes for something.
fn is_given(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        other => !other.is_null(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| pyjson::dumps(value), str::to_owned)
}
