//! `POST /inference/v1/generate`: token ids in, token ids out. Owns this door's fields and the two forms of its answer;
//! text is looked at only for stop strings.

use crate::app::App;
use crate::asked::{Asked, OneEngine};
use crate::chat::{salt, stop_reason};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::metrics::reason;
use crate::sampling::{self, Told};
use crate::sequence::{Cached, Finished, Step, admitted, finish_all, submit};
use crate::sse::{self, Form};
use crate::stream_options::{StreamOptions, stream_options};
use crate::wire::{self, Usage, Words};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use prl_inference::Drawn;
use prl_render::{Renderer, Thinking};
use prl_types::{FinishReason, TokenId};
use serde_json::{Value, json};
use std::sync::Arc;

/// What of a request shapes its answer.
struct Shape {
    id: String,
    renderer: Arc<Renderer>,
    prompt_tokens: usize,
    told: Told,
    named_stops: Vec<TokenId>,
}

/// Serves the door.
pub(crate) async fn generate(
    State(app): State<Arc<App>>,
    _: OneEngine,
    Asked { headers, mut fields }: Asked,
) -> Result<Response, ApiError> {
    let (_, adapter) = app.model(&mut fields)?;
    let ids: Vec<TokenId> = fields.required("token_ids", "a list of token ids")?;
    let params = fields.value("sampling_params").unwrap_or_else(|| json!({}));
    let streams = stream_options(&mut fields)?;
    let cached = Cached { salt: salt(&mut fields)?, adapter };
    let given = fields.string("request_id")?;
    fields.neutral("features", &[json!({}), json!([])])?;
    fields.neutral("kv_transfer_params", &[json!({})])?;
    fields.neutral("priority", &[json!(0)])?;
    fields.finish(&[])?;

    let mut params = Fields::within(params, "sampling_params")?;
    let mut sampling = sampling::read(&mut params, &app.renderer, app.engine.vocab_size())?;
    let told = Told {
        sampled: sampling::likeliest(&mut params, "logprobs")?,
        prompt: sampling::of_prompt(&mut params, streams.is_some())?,
    };
    sampling.tell(told)?;
    // Clients of vLLM say how they want ids to be told; here they always are.
    params.finish(&["detokenize", "output_kind", "skip_clone", "skip_reading_prefix_cache", "extra_args"])?;

    let guide = app.guide(sampling.guided.as_ref(), Thinking::Unknown).await?;
    let shape = Shape {
        id: app.request_id(&headers, given)?,
        renderer: app.renderer.clone(),
        prompt_tokens: ids.len(),
        told,
        named_stops: sampling.named_stops.clone(),
    };
    let prompt: Arc<[TokenId]> = ids.into();
    let mut sequences = submit(&app, &prompt, &sampling, guide.as_ref(), &cached, false);
    if let Some(options) = streams {
        admitted(&mut sequences).await?;
        let usage = Usage { prompt: shape.prompt_tokens, ..Usage::default() };
        return Ok(sse::answer(sequences, Pieces { shape, options, usage }));
    }
    let finished = finish_all(sequences).await?;
    Ok(Json(shape.whole(&finished)).into_response())
}

impl Shape {
    fn choice(&self, index: usize, drawn: &[Drawn], end: Option<&FinishReason>) -> Value {
        // Ids are told here, and ids cannot be mistaken for each other.
        let words = Words { renderer: &self.renderer, ids: true };
        let logprobs = self.told.sampled.map(|_| wire::chat_logprobs(drawn, words));
        json!({
            "index": index, "token_ids": wire::ids(drawn), "logprobs": logprobs,
            "finish_reason": end.map(reason), "stop_reason": end.map(|end| stop_reason(end, &self.named_stops)),
            "policy_versions": wire::versions(drawn),
        })
    }

    fn whole(&self, finished: &[Finished]) -> Value {
        let choices = finished.iter().enumerate().map(|(i, f)| self.choice(i, &f.drawn, f.end.as_ref()));
        let mut usage = Usage::default();
        usage.add(self.prompt_tokens, finished);
        let scored = finished.first().filter(|_| self.told.prompt.is_some());
        json!({
            "request_id": self.id, "choices": choices.collect::<Vec<_>>(),
            "prompt_logprobs": scored.map(|f| wire::prompt_logprobs(&f.prompt.logprobs, &self.renderer)),
            "usage": usage.json(),
        })
    }
}

/// The answer in pieces.
struct Pieces {
    shape: Shape,
    options: StreamOptions,
    usage: Usage,
}

impl Pieces {
    fn piece(&self, choices: Value, usage: Value) -> Value {
        json!({"request_id": self.shape.id, "choices": choices, "usage": usage})
    }
}

impl Form for Pieces {
    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn step(&mut self, index: usize, step: Step) -> Vec<Value> {
        let choice = match step {
            Step::Prompt(done) => {
                if index == 0 {
                    self.usage.cached = done.cached_tokens;
                }
                return Vec::new();
            }
            Step::Token(drawn, _) => {
                self.usage.completion += 1;
                self.shape.choice(index, &[drawn], None)
            }
            Step::End(end, _) => self.shape.choice(index, &[], Some(&end)),
        };
        vec![self.piece(json!([choice]), Value::Null)]
    }

    fn end(&mut self) -> Vec<Value> {
        if self.options.usage { vec![self.piece(json!([]), self.usage.json())] } else { Vec::new() }
    }
}
