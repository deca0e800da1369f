//! `POST /v1/completions`. Owns this door's fields and the two forms of its answer.

use crate::app::App;
use crate::asked::{Asked, OneEngine};
use crate::chat::{HARMLESS, salt, stop_reason};
use crate::clock;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::guided;
use crate::metrics::reason;
use crate::sampling::{self, MAX_SEQUENCES, Told};
use crate::sequence::{Cached, Finished, Sequence, Step, admitted, finish_all, submit};
use crate::sse::{self, Form};
use crate::stream_options::{StreamOptions, stream_options};
use crate::wire::{self, TextLogprobs, Usage, Words};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use prl_inference::{Drawn, PromptDone};
use prl_render::{Renderer, Thinking};
use prl_types::{FinishReason, TokenId};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// One of a request's prompts.
#[derive(Clone)]
struct Prompt {
    ids: Arc<[TokenId]>,
    /// As it was given, or what its ids say.
    text: String,
}

/// What of a request shapes its answer.
struct Shape {
    id: String,
    model: String,
    created: u64,
    renderer: Arc<Renderer>,
    prompts: Vec<Prompt>,
    n: usize,
    echo: bool,
    told: Told,
    token_ids: bool,
    words_as_ids: bool,
    named_stops: Vec<TokenId>,
}

/// Serves the door.
pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    _: OneEngine,
    Asked { headers, mut fields }: Asked,
) -> Result<Response, ApiError> {
    let (model, adapter) = app.model(&mut fields)?;
    let mut sampling = sampling::read(&mut fields, &app.renderer, app.engine.vocab_size())?;
    let streams = stream_options(&mut fields)?;
    let echo = fields.flag("echo", false)?;
    let sampled = sampling::likeliest(&mut fields, "logprobs")?;
    let asked = sampling::of_prompt(&mut fields, streams.is_some())?;
    let told = Told { sampled, prompt: asked };
    sampling.tell(Told { prompt: asked.or(sampled.filter(|_| echo)), ..told })?;
    let token_ids = fields.flag("return_token_ids", false)?;
    let words_as_ids = fields.flag("return_tokens_as_token_ids", false)?;
    let special = fields.flag("add_special_tokens", true)?;
    let cached = Cached { salt: salt(&mut fields)?, adapter };
    let given = fields.string("request_id")?;
    fields.neutral("suffix", &[json!("")])?;
    guided::response_format(&mut fields, &mut sampling.guided)?;
    let prompts = prompts(&app, &mut fields, special).await?;
    fields.finish(HARMLESS)?;
    let total = prompts.len().saturating_mul(sampling.n);
    if total > MAX_SEQUENCES {
        let message = format!("`prompt` and `n` make {total} sequences; a request may have {MAX_SEQUENCES}");
        return Err(ApiError::field("n", message));
    }

    let guide = app.guide(sampling.guided.as_ref(), Thinking::Unknown).await?;
    let each = streams.is_some();
    let mut sequences: Vec<Sequence> =
        prompts.iter().flat_map(|p| submit(&app, &p.ids, &sampling, guide.as_ref(), &cached, each)).collect();
    let shape = Shape {
        id: format!("cmpl-{}", app.request_id(&headers, given)?),
        model,
        created: clock::unix_seconds(),
        renderer: app.renderer.clone(),
        prompts,
        n: sampling.n,
        echo,
        told,
        token_ids,
        words_as_ids,
        named_stops: sampling.named_stops,
    };
    if let Some(options) = streams {
        admitted(&mut sequences).await?;
        return Ok(sse::answer(sequences, Pieces::new(shape, options)));
    }
    let finished = finish_all(sequences).await?;
    Ok(Json(shape.whole(&finished)).into_response())
}

/// Reads `prompt`: a string, token ids, or a list of either.
async fn prompts(app: &App, fields: &mut Fields, special: bool) -> Result<Vec<Prompt>, ApiError> {
    const WANT: &str = "`prompt` must be a string, a list of strings, a list of token ids, or a list of such lists";
    let wrong = || ApiError::field("prompt", WANT);
    let value = fields.value("prompt").ok_or_else(wrong)?;
    let items = match value {
        Value::Array(items) if items.first().is_some_and(Value::is_number) => vec![Value::Array(items)],
        Value::Array(items) => items,
        one @ Value::String(_) => vec![one],
        _ => return Err(wrong()),
    };
    if items.is_empty() {
        return Err(ApiError::field("prompt", "`prompt` is empty"));
    }
    if items.len() > MAX_SEQUENCES {
        return Err(ApiError::field("prompt", format!("`prompt` has more than {MAX_SEQUENCES} items")));
    }
    let mut prompts = Vec::with_capacity(items.len());
    for item in items {
        prompts.push(match item {
            Value::String(text) => encoded(app, text, special).await?,
            Value::Array(_) => {
                let ids: Vec<TokenId> = serde_json::from_value(item).map_err(|_| wrong())?;
                let text = app.renderer.decode(&ids).unwrap_or_default();
                Prompt { ids: ids.into(), text }
            }
            _ => return Err(wrong()),
        });
    }
    Ok(prompts)
}

async fn encoded(app: &App, text: String, special: bool) -> Result<Prompt, ApiError> {
    app.work(text.len(), move |renderer: &Renderer| {
        let ids = encode(renderer, &text, special)?;
        Ok(Prompt { ids: ids.into(), text })
    })
    .await
}

/// Ids of plain text.
pub(crate) fn encode(renderer: &Renderer, text: &str, special: bool) -> Result<Vec<TokenId>, ApiError> {
    let tokenizer = renderer.tokenizer();
    let ids = if special { tokenizer.encode_plain(text) } else { tokenizer.encode(text) };
    ids.map_err(|e| ApiError::field("prompt", e.to_string()))
}

impl Shape {
    fn words(&self) -> Words<'_> {
        Words { renderer: &self.renderer, ids: self.words_as_ids }
    }

    fn head(&self, choices: Value) -> Map<String, Value> {
        let mut head = wire::head(&self.id, "text_completion", self.created, &self.model);
        head.insert("choices".into(), choices);
        head
    }

    /// Log-probabilities of a prompt that is said again.
    fn echoed(&self, prompt: &Prompt, done: &PromptDone, logprobs: &mut TextLogprobs, offset: &mut usize) {
        let scored = std::iter::once(None).chain(done.logprobs.iter().map(Some));
        prompt.ids.iter().zip(scored).for_each(|(id, scored)| logprobs.push(*id, scored, self.words(), offset));
    }

    fn whole(&self, finished: &[Finished]) -> Value {
        let mut usage = Usage::default();
        let mut choices = Vec::with_capacity(finished.len());
        for (prompt, group) in self.prompts.iter().zip(finished.chunks(self.n)) {
            usage.add(prompt.ids.len(), group);
            // Of the group's first one; the others have the same.
            let done = group.first().map(|f| &f.prompt);
            choices.extend(group.iter().map(|one| (prompt, one, done)));
        }
        let choice = |(index, (prompt, one, done)): (usize, (&Prompt, &Finished, Option<&PromptDone>))| {
            let mut text = if self.echo { prompt.text.clone() } else { String::new() };
            one.text.iter().for_each(|piece| text += piece);
            let logprobs = self.told.sampled.map(|_| {
                let (mut logprobs, mut offset) = (TextLogprobs::default(), 0);
                if let Some(done) = done.filter(|_| self.echo) {
                    self.echoed(prompt, done, &mut logprobs, &mut offset);
                }
                let drawn = one.drawn.iter().map(|d| &d.scored);
                drawn.for_each(|s| logprobs.push(s.id, Some(s), self.words(), &mut offset));
                logprobs
            });
            let mut choice = json!({
                "index": index, "text": text, "logprobs": logprobs, "finish_reason": one.end.as_ref().map(reason),
                "stop_reason": one.end.as_ref().map(|end| stop_reason(end, &self.named_stops)),
            });
            if let Some(done) = done.filter(|_| self.told.prompt.is_some()) {
                choice["prompt_logprobs"] = wire::prompt_logprobs(&done.logprobs, &self.renderer);
            }
            if self.token_ids {
                choice["prompt_token_ids"] = json!(prompt.ids);
                choice["token_ids"] = json!(wire::ids(&one.drawn));
                choice["policy_versions"] = wire::versions(&one.drawn);
            }
            choice
        };
        let mut answer = self.head(choices.into_iter().enumerate().map(choice).collect());
        answer.insert("usage".into(), usage.json());
        Value::Object(answer)
    }
}

/// The answer in pieces.
struct Pieces {
    shape: Shape,
    options: StreamOptions,
    /// Of each choice's text so far, in characters.
    offsets: Vec<usize>,
    usage: Usage,
}

impl Pieces {
    fn new(shape: Shape, options: StreamOptions) -> Self {
        let offsets = vec![0; shape.prompts.len() * shape.n];
        let usage = Usage { prompt: shape.prompts.iter().map(|p| p.ids.len()).sum(), ..Usage::default() };
        Pieces { shape, options, offsets, usage }
    }

    fn piece(&self, choice: Value) -> Value {
        let mut piece = self.shape.head(json!([choice]));
        if self.options.usage {
            piece.insert("usage".into(), Value::Null);
        }
        Value::Object(piece)
    }

    fn prompt(&mut self, index: usize, done: &PromptDone) -> Vec<Value> {
        let shape = &self.shape;
        if index.is_multiple_of(shape.n) {
            self.usage.cached += done.cached_tokens;
        }
        let Some(prompt) = shape.prompts.get(index / shape.n).filter(|_| shape.echo || shape.token_ids) else {
            return Vec::new();
        };
        let text = if shape.echo { prompt.text.as_str() } else { "" };
        let logprobs = shape.told.sampled.filter(|_| shape.echo).map(|_| {
            let mut logprobs = TextLogprobs::default();
            shape.echoed(prompt, done, &mut logprobs, &mut self.offsets[index]);
            logprobs
        });
        let mut choice = json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null});
        if shape.token_ids {
            choice["prompt_token_ids"] = json!(prompt.ids);
            choice["token_ids"] = json!([]);
        }
        vec![self.piece(choice)]
    }

    fn token(&mut self, index: usize, drawn: Drawn, text: &str) -> Vec<Value> {
        self.usage.completion += 1;
        let shape = &self.shape;
        if text.is_empty() && shape.told.sampled.is_none() && !shape.token_ids {
            return Vec::new();
        }
        let logprobs = shape.told.sampled.map(|_| {
            let mut logprobs = TextLogprobs::default();
            let scored = &drawn.scored;
            logprobs.push(scored.id, Some(scored), shape.words(), &mut self.offsets[index]);
            logprobs
        });
        let mut choice = json!({"index": index, "text": text, "logprobs": logprobs, "finish_reason": null});
        if shape.token_ids {
            let drawn = [drawn];
            choice["token_ids"] = json!(wire::ids(&drawn));
            choice["policy_versions"] = wire::versions(&drawn);
        }
        vec![self.piece(choice)]
    }

    fn last(&self, index: usize, end: &FinishReason, text: &str) -> Vec<Value> {
        vec![self.piece(json!({
            "index": index, "text": text, "logprobs": null, "finish_reason": reason(end),
            "stop_reason": stop_reason(end, &self.shape.named_stops),
        }))]
    }
}

impl Form for Pieces {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn step(&mut self, index: usize, step: Step) -> Vec<Value> {
        match step {
            Step::Prompt(done) => self.prompt(index, &done),
            Step::Token(drawn, text) => self.token(index, drawn, &text),
            Step::End(end, text) => self.last(index, &end, &text),
        }
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.options.usage {
            return Vec::new();
        }
        let mut piece = self.shape.head(json!([]));
        piece.insert("usage".into(), self.usage.json());
        vec![Value::Object(piece)]
    }
}
