//! The fields that bind a request's text to a grammar, OpenAI's and vLLM's. Owns their forms and when grammars are made
//! ready; must not know prompts.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, kind};
use prl_inference::{Grammar, Grammars, Guide, InferenceError, Word};
use prl_render::{Renderer, Thinking};
use prl_types::TokenId;
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

/// A grammar, and the field that it came with.
#[derive(Clone, Debug)]
pub(crate) struct Guided {
    field: String,
    grammar: Grammar,
}

/// Reads vLLM's fields: `structured_outputs`, and those it had before.
pub(crate) fn read(fields: &mut Fields) -> Result<Option<Guided>, ApiError> {
    let mut found = Vec::new();
    one_of(fields, ["guided_json", "guided_regex", "guided_choice", "guided_grammar"], &mut found)?;
    fields.neutral("guided_decoding_backend", &[json!("auto"), json!("guidance")])?;
    fields.neutral("guided_whitespace_pattern", &[])?;
    if let Some(value) = fields.value("structured_outputs") {
        let name = fields.name("structured_outputs");
        let mut outputs = Fields::within(value, &name)?;
        one_of(&mut outputs, ["json", "regex", "choice", "grammar"], &mut found)?;
        if outputs.flag("json_object", false)? {
            found.push(Guided { field: outputs.name("json_object"), grammar: any_object() });
        }
        for off in ["disable_any_whitespace", "disable_additional_properties"] {
            outputs.neutral(off, &[json!(false)])?;
        }
        // There is one way, which never falls back to another.
        outputs.finish(&["disable_fallback"])?;
        if found.is_empty() {
            let message = format!("`{name}` needs one of `json`, `regex`, `choice`, `grammar` and `json_object`");
            return Err(ApiError::field(&name, message));
        }
    }
    match found.as_slice() {
        [] | [_] => Ok(found.pop()),
        [one, other, ..] => Err(both(one, other)),
    }
}

/// Reads OpenAI's field. It must not come with what [`read`] has found.
pub(crate) fn response_format(fields: &mut Fields, guided: &mut Option<Guided>) -> Result<(), ApiError> {
    let Some(value) = fields.value("response_format") else { return Ok(()) };
    let field = fields.name("response_format");
    let mut format = Fields::within(value, &field)?;
    let kind: String = format.required("type", "a string")?;
    let grammar = match kind.as_str() {
        "text" => None,
        "json_object" => Some(any_object()),
        "json_schema" => {
            let value: Value = format.required("json_schema", "an object")?;
            let mut described = Fields::within(value, &format.name("json_schema"))?;
            let schema: Value = described.required("schema", "a JSON Schema")?;
            described.string("name")?;
            described.string("description")?;
            // Text is what the schema describes either way.
            described.flag("strict", false)?;
            described.finish(&[])?;
            Some(Grammar::Json(schema))
        }
        other => {
            let name = format.name("type");
            let message = format!("`{name}` is {other:?}; it must be \"text\", \"json_object\" or \"json_schema\"");
            return Err(ApiError::field(&name, message));
        }
    };
    format.finish(&[])?;
    let asked = grammar.map(|grammar| Guided { field, grammar });
    match (guided.as_ref(), asked) {
        (Some(one), Some(other)) => Err(both(one, &other)),
        (_, None) => Ok(()),
        (None, asked) => {
            *guided = asked;
            Ok(())
        }
    }
}

/// Reads the four kinds under a door's names for them.
fn one_of(fields: &mut Fields, names: [&str; 4], found: &mut Vec<Guided>) -> Result<(), ApiError> {
    let [schema, regex, choice, lark] = names;
    let mut add = |field: String, grammar| found.push(Guided { field, grammar });
    if let Some(value) = fields.value(schema) {
        let name = fields.name(schema);
        let value = match value {
            // vLLM's clients may send the text of a schema.
            Value::String(text) => serde_json::from_str(&text)
                .map_err(|e| ApiError::field(&name, format!("`{name}` is a string that is no valid JSON: {e}")))?,
            value => value,
        };
        if !value.is_object() && !value.is_boolean() {
            let message = format!("`{name}` must be a JSON Schema, as an object or as text; found {}", kind(&value));
            return Err(ApiError::field(&name, message));
        }
        add(name, Grammar::Json(value));
    }
    if let Some(text) = fields.string(regex)? {
        add(fields.name(regex), Grammar::Regex(text));
    }
    if let Some(all) = fields.optional(choice, "a list of strings")? {
        add(fields.name(choice), Grammar::Choice(all));
    }
    if let Some(text) = fields.string(lark)? {
        add(fields.name(lark), Grammar::Lark(text));
    }
    Ok(())
}

fn any_object() -> Grammar {
    Grammar::Json(json!({"type": "object"}))
}

fn both(one: &Guided, other: &Guided) -> ApiError {
    let message = format!("`{}` and `{}` exclude each other", one.field, other.field);
    ApiError::field(&other.field, message)
}

/// Grammars that are made ready or looked for at a time: others wait without a thread, which those who have long texts
/// tokenised need too.
const AT_ONCE: usize = 4;

/// Grammars for the served model's tokens, once they are asked for.
pub(crate) struct Ready {
    grammars: OnceLock<Result<Grammars, InferenceError>>,
    turns: Arc<Semaphore>,
}

impl Default for Ready {
    fn default() -> Self {
        Ready { grammars: OnceLock::new(), turns: Arc::new(Semaphore::new(AT_ONCE)) }
    }
}

impl Ready {
    fn compile(&self, app: &App, grammar: &Grammar) -> Result<Guide, InferenceError> {
        let made = self.grammars.get_or_init(|| {
            let words = words(&app.renderer, app.engine.vocab_size())
                .map_err(|e| InferenceError::BadGrammar { reason: e.to_string() })?;
            Grammars::new(&words)
        });
        made.as_ref().map_err(Clone::clone)?.compile(grammar)
    }
}

/// What each token of the model is to a grammar. Models have more entries than tokenizers tokens.
fn words(renderer: &Renderer, vocab: usize) -> Result<Vec<Word>, prl_render::RenderError> {
    let tokenizer = renderer.tokenizer();
    let mut bytes = tokenizer.bytes()?;
    bytes.resize(vocab, None);
    let word = |(id, bytes): (TokenId, Option<Vec<u8>>)| match bytes {
        Some(bytes) => Word::Text(bytes),
        None if tokenizer.is_special(id) => tokenizer.id_to_token(id).map_or(Word::Nothing, Word::Special),
        None => Word::Nothing,
    };
    Ok((0..).zip(bytes).map(word).collect())
}

impl App {
    /// Makes a request's grammar ready, on a thread that may block. Where the prompt has opened the reasoning, it is the
    /// answer behind that which is bound.
    pub async fn guide(
        self: &Arc<Self>,
        guided: Option<&Guided>,
        thinking: Thinking,
    ) -> Result<Option<Guide>, ApiError> {
        let Some(Guided { field, grammar }) = guided else { return Ok(None) };
        let wrong = |reason: String| ApiError::field(field, format!("`{field}`: {reason}"));
        let end = match thinking {
            Thinking::Opened => {
                let end = self.renderer.reasoning_end();
                let message = "the model's reasoning does not end with a token, so that what follows cannot be bound";
                Some(end.ok_or_else(|| wrong(message.into()))?)
            }
            Thinking::Unknown | Thinking::Free => None,
        };
        let (app, grammar) = (self.clone(), grammar.clone());
        // Nobody closes it.
        let turn = self.ready.turns.clone().acquire_owned().await.ok();
        let made = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            app.ready.compile(&app, &grammar)
        });
        let guide = made.await?.map_err(|error| match error {
            InferenceError::BadGrammar { .. } => wrong(error.to_string()),
            other => other.into(),
        })?;
        Ok(Some(match end {
            Some(end) => guide.after(end),
            None => guide,
        }))
    }
}
