//! One chat template, rendered as Python's `transformers` renders it. Owns the template engine and what it needs to
//! behave like jinja2; knows no tokens.

use crate::arguments::{arguments, is_integer, is_number};
use crate::bounds::{self, Bounded};
use crate::sources::Source;
use crate::{RenderError, pyjson};
use chrono::{DateTime, Local};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use prl_types::{Message, Role, ToolCall, ToolDef};
use serde_json::{Map, Value as Json, json};
use std::fmt::Write;
use std::ops::Range;

const NAME: &str = "chat";
/// The same, with marks written.
const MARKED: &str = "marked";

/// A compiled template with the variables that every rendering sees.
pub(crate) struct ChatTemplate {
    engine: Environment<'static>,
    origin: String,
    text: String,
    globals: Map<String, Json>,
    has_marks: bool,
    /// Whether tool-call arguments are passed as text because the template cannot take an object.
    arguments_as_text: bool,
}

impl ChatTemplate {
    /// Compiles a template. `globals` are special tokens and extra variables; `now` is what `strftime_now` tells, so
    /// that a run's prompts do not change at midnight.
    pub fn compile(source: Source, globals: Map<String, Json>, now: DateTime<Local>) -> Result<Self, RenderError> {
        let Source { text, origin } = source;
        // jinja2 reads all line ends alike.
        let text = text.replace("\r\n", "\n").replace('\r', "\n");
        let fail = |e: Error| RenderError::TemplateSyntax { origin: origin.clone(), reason: reason(&e) };
        let mut engine = Environment::new();
        engine.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(fail)?);
        engine.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        engine.set_formatter(format_value);
        engine.set_fuel(Some(bounds::FUEL));
        engine.add_filter("tojson", pyjson::tojson);
        engine.add_filter("string", text_of);
        engine.add_test("iterable", |v: &Value| {
            matches!(v.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable | ValueKind::String)
        });
        engine.add_test("number", |v: &Value| is_number(v));
        engine.add_test("integer", |v: &Value| is_integer(v));
        engine.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        engine.add_function("strftime_now", move |format: String| -> Result<String, Error> {
            let mut out = String::new();
            write!(out, "{}", now.format(&format))
                .map_err(|_| Error::new(ErrorKind::InvalidOperation, format!("bad date format `{format}`")))?;
            Ok(out)
        });
        let (plain, has_marks) = without_generation_tags(&text, ["", ""]);
        engine.add_template_owned(NAME, plain).map_err(fail)?;
        if has_marks {
            let marks = MARKS.map(|mark| format!("{{{{ '{mark}' }}}}"));
            let (marked, _) = without_generation_tags(&text, [&marks[0], &marks[1]]);
            engine.add_template_owned(MARKED, marked).map_err(fail)?;
        }
        let mut template = ChatTemplate { engine, origin, text, globals, has_marks, arguments_as_text: false };
        template.arguments_as_text = template.needs_text_arguments()?;
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
        self.try_render(NAME, messages, tools, generate, variables).map_err(|e| self.refused(messages, reason(&e)))
    }

    /// Whether the template marks what the model writes with `{% generation %}`.
    pub fn has_marks(&self) -> bool {
        self.has_marks
    }

    /// The byte ranges of `text`, which is the conversation rendered, that the template marks as written by the model; `None`
    /// where it marks nothing in any conversation.
    pub fn marked(
        &self,
        messages: &[Message],
        tools: &[ToolDef],
        text: &str,
    ) -> Result<Option<Vec<Range<usize>>>, RenderError> {
        if !self.has_marks {
            return Ok(None);
        }
        let shown = self.try_render(MARKED, messages, tools, false, &Map::new());
        let shown = shown.map_err(|e| self.refused(messages, reason(&e)))?;
        let unclear = || self.refused(messages, "what {% generation %} marks cannot be located".into());
        let (mut ranges, mut rest, mut at) = (Vec::new(), shown.as_str(), 0);
        while let Some((before, after)) = rest.split_once(MARKS[0]) {
            let (inside, after) = after.split_once(MARKS[1]).ok_or_else(unclear)?;
            let start = at + before.len();
            at = start + inside.len();
            if text.get(start..at) != Some(inside) {
                return Err(unclear());
            }
            ranges.push(start..at);
            rest = after;
        }
        if at + rest.len() == text.len() && text.ends_with(rest) { Ok(Some(ranges)) } else { Err(unclear()) }
    }

    fn refused(&self, messages: &[Message], reason: String) -> RenderError {
        RenderError::Template { origin: self.origin.clone(), messages: messages.len(), reason }
    }

    fn try_render(
        &self,
        name: &str,
        messages: &[Message],
        tools: &[ToolDef],
        generate: bool,
        variables: &Map<String, Json>,
    ) -> Result<String, Error> {
        let messages = messages.iter().map(|m| message_value(m, self.arguments_as_text));
        self.try_render_values(name, messages.collect(), tools, generate, variables)
    }

    fn try_render_values(
        &self,
        name: &str,
        messages: Vec<Value>,
        tools: &[ToolDef],
        generate: bool,
        variables: &Map<String, Json>,
    ) -> Result<String, Error> {
        let tools = if tools.is_empty() { Json::Null } else { tools.iter().map(tool_json).collect() };
        let given = self.globals.iter().chain(variables).map(|(key, value)| (key.as_str(), Value::from(Serde(value))));
        let own = [
            ("messages", Value::from(messages)),
            ("tools", Value::from(Serde(tools))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(generate)),
        ];
        let mut out = Bounded::default();
        let done = self.engine.get_template(name)?.render_captured_to(Value::from_pairs(given.chain(own)), &mut out);
        match done {
            Ok(_) => Ok(out.text),
            Err(_) if out.full => Err(bounds::exceeded()),
            Err(error) => Err(error),
        }
    }

    /// # Errors
    /// A template that passes a bound with next to nothing to render.
    fn needs_text_arguments(&self) -> Result<bool, RenderError> {
        let mut call = Message::text(Role::Assistant, "");
        call.tool_calls.push(ToolCall { id: "call_0".into(), name: "f".into(), arguments: "{}".into() });
        let chat = [Message::text(Role::User, "x"), call];
        let render = |as_text: bool| {
            let messages = chat.iter().map(|m| message_value(m, as_text)).collect();
            self.try_render_values(NAME, messages, &[], false, &Map::new())
        };
        match render(false) {
            Err(e) if e.kind() == ErrorKind::OutOfFuel => Err(self.refused(&chat, reason(&e))),
            as_object => Ok(as_object.is_err() && render(true).is_ok()),
        }
    }
}

/// Floats print as Python's; everything else as the engine's Python-like default. Lists may be longer than memory.
fn format_value(out: &mut minijinja::Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if is_float(value) {
        return out.write_str(&pyjson::float(f64::try_from(value.clone())?)).map_err(Error::from);
    }
    if value.as_object().is_some() {
        return out.write_str(&bounds::printed(value)?).map_err(Error::from);
    }
    minijinja::escape_formatter(out, state, value)
}

/// The `string` filter, with floats as Python's.
fn text_of(value: Value) -> Result<String, Error> {
    if is_float(&value) { Ok(pyjson::float(f64::try_from(value)?)) } else { bounds::printed(&value) }
}

fn is_float(value: &Value) -> bool {
    value.kind() == ValueKind::Number && !value.is_integer()
}

/// The whole chain of an engine error, on one line.
fn reason(error: &Error) -> String {
    if let Some(bound) = bounds::reason(error) {
        return bound;
    }
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        let _ = write!(text, ": {source}");
        next = source.source();
    }
    text
}

fn message_value(message: &Message, arguments_as_text: bool) -> Value {
    let mut out = vec![("role", Value::from(message.role.as_str()))];
    if !message.without_content {
        out.push(("content", Value::from(message.content.as_str())));
    }
    if let Some(reasoning) = &message.reasoning {
        out.push(("reasoning_content", Value::from(reasoning.as_str())));
        out.push(("thinking", Value::from(reasoning.as_str())));
    }
    if !message.tool_calls.is_empty() {
        let call = |call: &ToolCall| {
            let arguments = if arguments_as_text { Value::from(call.arguments.as_str()) } else { arguments(call) };
            let function = Value::from_pairs([("name", Value::from(call.name.as_str())), ("arguments", arguments)]);
            let id = Value::from(call.id.as_str());
            Value::from_pairs([("type", Value::from("function")), ("id", id), ("function", function)])
        };
        out.push(("tool_calls", message.tool_calls.iter().map(call).collect::<Vec<Value>>().into()));
    }
    if let Some(id) = &message.tool_call_id {
        out.push(("tool_call_id", Value::from(id.as_str())));
    }
    if let Some(name) = &message.name {
        out.push(("name", Value::from(name.as_str())));
    }
    Value::from_pairs(out)
}

/// A tool as OpenAI's interface writes it.
pub(crate) fn tool_json(tool: &ToolDef) -> Json {
    let mut function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
    if tool.strict {
        function["strict"] = Json::Bool(true);
    }
    json!({"type": "function", "function": function})
}

/// What stands for `{% generation %}` and its end in a rendering that shows them; no character of any text.
const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// Replaces `{% generation %}` and `{% endgeneration %}`, which only mark text for `transformers`, with a block that is
/// always taken, and whose ends write `marks`. White space control is kept. Gives whether there was one, too.
fn without_generation_tags(template: &str, marks: [&str; 2]) -> (String, bool) {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    let mut found = false;
    while let Some(start) = rest.find("{%") {
        let Some(len) = rest[start..].find("%}") else { break };
        let tag = &rest[start..start + len + 2];
        let inner = &tag[2..tag.len() - 2];
        out.push_str(&rest[..start]);
        match inner.trim_matches(['-', '+']).trim() {
            // The tag's own halves are around the mark: what either strips is beyond it.
            "generation" => {
                let [open, _] = marks;
                out.push_str(&tag.replace("generation", &format!("if true %}}{open}{{% if true")));
                found = true;
            }
            "endgeneration" => {
                let [_, close] = marks;
                out.push_str(&tag.replace("endgeneration", &format!("endif %}}{close}{{% endif")));
            }
            _ => out.push_str(tag),
        }
        rest = &rest[start + len + 2..];
    }
    out.push_str(rest);
    (out, found)
}
