//! One chat template, rendered as Python's `transformers` renders it. Owns the template engine and what it needs to
//! behave like jinja2; knows no tokens.

use crate::RenderError;
use crate::pyjson;
use crate::sources::Source;
use chrono::{DateTime, Local};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use prl_types::{Message, ToolDef};
use serde_json::{Map, Value as Json, json};
use std::fmt::Write;

const NAME: &str = "chat";

/// A compiled template with the variables that every rendering sees.
pub(crate) struct ChatTemplate {
    engine: Environment<'static>,
    origin: String,
    text: String,
    globals: Map<String, Json>,
    /// Whether tool-call arguments are passed as text because the template cannot take an object.
    arguments_as_text: bool,
}

impl ChatTemplate {
    /// Compiles a template. `globals` are special tokens and extra variables; `now` is what `strftime_now` tells, so
    /// that a run's prompts do not change at midnight.
    pub fn compile(source: Source, globals: Map<String, Json>, now: DateTime<Local>) -> Result<Self, RenderError> {
        let Source { text, origin } = source;
        let fail = |e: Error| RenderError::TemplateSyntax { origin: origin.clone(), reason: reason(&e) };
        let mut engine = Environment::new();
        engine.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(fail)?);
        engine.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        engine.set_formatter(format_value);
        engine.add_filter("tojson", pyjson::tojson);
        engine.add_filter("string", text_of);
        engine.add_test("iterable", |v: &Value| {
            matches!(v.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::String)
        });
        engine.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        engine.add_function("strftime_now", move |format: String| -> Result<String, Error> {
            let mut out = String::new();
            write!(out, "{}", now.format(&format))
                .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("bad date format `{format}`")))?;
            Ok(out)
        });
        engine.add_template_owned(NAME, without_generation_tags(&text)).map_err(fail)?;
        let mut template = ChatTemplate { engine, origin, text, globals, arguments_as_text: false };
        template.arguments_as_text = template.needs_text_arguments();
        Ok(template)
    }

    /// The template's text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Where the template came from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Renders a conversation. An empty tool list is no tool list.
    pub fn render(&self, messages: &[Message], tools: &[ToolDef], generate: bool) -> Result<String, RenderError> {
        self.render_with(messages, tools, generate, &Map::new())
    }

    /// Renders a conversation with further variables, which win over those of every rendering.
    pub fn render_with(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        generate: bool,
        variables: &Map<String, Json>,
    ) -> Result<String, RenderError> {
        self.try_render(messages, tools, generate, variables).map_err(|e| RenderError::Template {
            origin: self.origin.clone(),
            messages: messages.len(),
            reason: reason(&e),
        })
    }

    fn try_render(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        generate: bool,
        variables: &Map<String, Json>,
    ) -> Result<String, Error> {
        let mut context = self.globals.clone();
        context.extend(variables.clone());
        let messages = messages.iter().map(|m| message_json(m, self.arguments_as_text)).collect();
        context.insert("messages".into(), Json::Array(messages));
        let tools = if tools.is_empty() { Json::Null } else { tools.iter().map(tool_json).collect() };
        context.insert("tools".into(), tools);
        context.insert("documents".into(), Json::Null);
        context.insert("add_generation_prompt".into(), Json::Bool(generate));
        self.engine.get_template(NAME)?.render(Value::from(Serde(&context)))
    }

    fn needs_text_arguments(&self) -> bool {
        let mut call = Message::text(prl_types::Role::Assistant, "");
        call.tool_calls.push(prl_types::ToolCall { id: "call_0".into(), name: "f".into(), arguments: "{}".into() });
        let chat = [Message::text(prl_types::Role::User, "x"), call];
        let render = |as_text: bool| {
            let mut context = self.globals.clone();
            context.insert("messages".into(), chat.iter().map(|m| message_json(m, as_text)).collect());
            context.insert("tools".into(), Json::Null);
            context.insert("add_generation_prompt".into(), Json::Bool(false));
            self.engine.get_template(NAME).and_then(|t| t.render(Value::from(Serde(&context))))
        };
        render(false).is_err() && render(true).is_ok()
    }
}

/// Floats print as Python's; everything else as the engine's Python-like default.
fn format_value(out: &mut minijinja::Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if is_float(value) {
        return out.write_str(&pyjson::float(f64::try_from(value.clone())?)).map_err(Error::from);
    }
    minijinja::escape_formatter(out, state, value)
}

/// The `string` filter, with floats as Python's.
fn text_of(value: Value) -> Result<String, Error> {
    if is_float(&value) { Ok(pyjson::float(f64::try_from(value)?)) } else { Ok(value.to_string()) }
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// The whole chain of an engine error, on one line.
fn reason(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        let _ = write!(text, ": {source}");
        next = source.source();
    }
    text
}

fn message_json(message: &Message, arguments_as_text: bool) -> Json {
    let mut out = Map::new();
    out.insert("role".into(), Json::from(message.role.as_str()));
    out.insert("content".into(), Json::from(message.content.as_str()));
    if let Some(reasoning) = &message.reasoning {
        out.insert("reasoning_content".into(), Json::from(reasoning.as_str()));
        out.insert("thinking".into(), Json::from(reasoning.as_str()));
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            // Templates print an object; what is no JSON object stays the text it is.
            let arguments = match serde_json::from_str::<Json>(&call.arguments) {
                Ok(Json::Object(object)) if !arguments_as_text => Json::Object(object),
                _ => Json::from(call.arguments.as_str()),
            };
            json!({"type": "function", "id": call.id, "function": {"name": call.name, "arguments": arguments}})
        });
        out.insert("tool_calls".into(), calls.collect());
    }
    if let Some(id) = &message.tool_call_id {
        out.insert("tool_call_id".into(), Json::from(id.as_str()));
    }
    if let Some(name) = &message.name {
        out.insert("name".into(), Json::from(name.as_str()));
    }
    Json::Object(out)
}

fn tool_json(tool: &ToolDef) -> Json {
    let mut function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
    if tool.strict {
        function["strict"] = Json::Bool(true);
    }
    json!({"type": "function", "function": function})
}

/// Replaces `{% generation %}` and `{% endgeneration %}`, which only mark text for `transformers`, with a block that is
/// always taken. Whitespace control is kept.
fn without_generation_tags(template: &str) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + len + 2];
        let inner = &tag[2..tag.len() - 2];
        out.push_str(&rest[..start]);
        match inner.trim_matches(['-', '+']).trim() {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = &rest[start + len + 2..];
    }
    out.push_str(rest);
    out
}
