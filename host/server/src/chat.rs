//! `POST /v1/chat/completions`. Owns this door's fields and the two forms of its answer, which say the same: the whole one
//! is put together from what the pieces are made of.

use crate::app::App;
use crate::asked::{Asked, OneEngine};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::guided;
use crate::metrics::reason;
use crate::sampling::{self, Sampling, Told};
use crate::sequence::{Cached, Finished, Step, admitted, finish_all, submit};
use crate::sse::{self, Form};
use crate::stream_options::{StreamOptions, stream_options};
use crate::wire::{self, Usage, Words};
use crate::{clock, messages};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use prl_inference::Drawn;
use prl_render::{Calls, Open, Prompt, Renderer, Thinking, TurnDelta, TurnStream};
use prl_types::{FinishReason, Message, TokenId, ToolCall, ToolDef};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// What clients send that says nothing about the answer.
pub(crate) const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "extra_headers",
    "extra_query",
    "timeout",
];

/// The part of a request that becomes the prompt; `/tokenize` has it too.
pub(crate) struct Conversation {
    messages: Vec<Message>,
    tools: Vec<ToolDef>,
    variables: Map<String, Value>,
    open: Open,
}

impl Conversation {
    pub fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages = messages::messages(fields)?;
        let tools = messages::tools(fields)?;
        let variables = fields.optional("chat_template_kwargs", "an object")?.unwrap_or_default();
        let goes_on = fields.flag("continue_final_message", false)?;
        let open = match (fields.optional("add_generation_prompt", "true or false")?, goes_on) {
            (Some(true) | None, false) => Open::NextTurn,
            (Some(false), false) => Open::Nothing,
            (Some(false), true) => Open::LastMessage,
            (Some(true) | None, true) => {
                let message = "`continue_final_message` needs `add_generation_prompt` = false";
                return Err(ApiError::field("continue_final_message", message));
            }
        };
        for field in ["chat_template", "documents", "mm_processor_kwargs", "media_io_kwargs"] {
            fields.neutral(field, &[json!([]), json!({})])?;
        }
        fields.neutral("add_special_tokens", &[json!(false)])?;
        fields.neutral("echo", &[json!(false)])?;
        Ok(Conversation { messages, tools, variables, open })
    }

    pub async fn prompt(self, app: &App) -> Result<Prompt, ApiError> {
        let bytes = messages::bytes(&self.messages, &self.tools);
        app.work(bytes, move |renderer: &Renderer| {
            let Conversation { messages, tools, variables, open } = &self;
            renderer
                .prompt(messages, tools, variables, *open)
                .map_err(|e| ApiError::field("messages", format!("the messages cannot be rendered: {e}")))
        })
        .await
    }
}

/// What of a request shapes its answer.
#[derive(Clone)]
struct Shape {
    id: String,
    model: String,
    created: u64,
    renderer: Arc<Renderer>,
    prompt: Prompt,
    /// Which calls are looked for.
    calls: Calls,
    /// What was offered.
    tools: Arc<[ToolDef]>,
    /// Whether further calls than the first are dropped.
    one_call: bool,
    logprobs: bool,
    token_ids: bool,
    words_as_ids: bool,
    named_stops: Vec<TokenId>,
}

/// Serves the door.
pub(crate) async fn chat(
    State(app): State<Arc<App>>,
    _: OneEngine,
    Asked { headers, mut fields }: Asked,
) -> Result<Response, ApiError> {
    let (model, adapter) = app.model(&mut fields)?;
    let conversation = Conversation::read(&mut fields)?;
    let tools: Arc<[ToolDef]> = conversation.tools.as_slice().into();
    let mut sampling = sampling::read(&mut fields, &app.renderer, app.engine.vocab_size())?;
    let streams = stream_options(&mut fields)?;
    let told = told(&mut fields, streams)?;
    sampling.tell(told)?;
    let token_ids = fields.flag("return_token_ids", false)?;
    let words_as_ids = fields.flag("return_tokens_as_token_ids", false)?;
    let one_call = !fields.flag("parallel_tool_calls", true)?;
    let cached = Cached { salt: salt(&mut fields)?, adapter };
    let given = fields.string("request_id")?;
    guided::response_format(&mut fields, &mut sampling.guided)?;
    fields.neutral("modalities", &[json!(["text"])])?;
    fields.neutral("include_reasoning", &[json!(true)])?;
    fields.finish(HARMLESS)?;

    let mut prompt = conversation.prompt(&app).await?;
    let guide = app.guide(sampling.guided.as_ref(), prompt.thinking).await?;
    if guide.is_some() && prompt.thinking == Thinking::Free {
        // Bound text is the answer as it is.
        prompt.thinking = Thinking::Unknown;
    }
    let ids: Arc<[TokenId]> = prompt.ids.as_slice().into();
    let mut sequences = submit(&app, &ids, &sampling, guide.as_ref(), &cached, false);
    let shape = Shape {
        id: format!("chatcmpl-{}", app.request_id(&headers, given)?),
        model,
        created: clock::unix_seconds(),
        renderer: app.renderer.clone(),
        prompt,
        calls: if !tools.is_empty() && guide.is_none() { app.renderer.calls() } else { Calls::None },
        tools,
        one_call,
        logprobs: told.sampled.is_some(),
        token_ids,
        words_as_ids,
        named_stops: sampling.named_stops.clone(),
    };
    if let Some(options) = streams {
        admitted(&mut sequences).await?;
        return Ok(sse::answer(sequences, Pieces::new(shape, &sampling, options)));
    }
    let finished = finish_all(sequences).await?;
    Ok(Json(whole(&shape, &finished, told)).into_response())
}

fn told(fields: &mut Fields, streams: Option<StreamOptions>) -> Result<Told, ApiError> {
    let asked = fields.flag("logprobs", false)?;
    let top = sampling::likeliest(fields, "top_logprobs")?;
    if top.is_some_and(|top| top > 0) && !asked {
        return Err(ApiError::field("top_logprobs", "`top_logprobs` needs `logprobs` = true"));
    }
    let prompt = sampling::of_prompt(fields, streams.is_some())?;
    Ok(Told { sampled: asked.then_some(top.unwrap_or(0)), prompt })
}

/// What keys and values are shared under.
pub(crate) fn salt(fields: &mut Fields) -> Result<Option<Arc<str>>, ApiError> {
    match fields.string("cache_salt")? {
        Some(salt) if salt.is_empty() => Err(ApiError::field("cache_salt", "`cache_salt` is empty")),
        salt => Ok(salt.map(Arc::from)),
    }
}

impl Shape {
    fn turn(&self) -> Turn {
        Turn { stream: TurnStream::new(self.prompt.thinking, self.calls, self.tools.clone()), calls: 0 }
    }

    /// The calls of a choice that are told, with ids that no other answer has.
    fn calls(&self, choice: usize, count: &mut usize, delta: &mut TurnDelta) {
        for call in &mut delta.tool_calls {
            call.id = format!("call_{}_{choice}_{count}", self.id.trim_start_matches("chatcmpl-"));
            *count += 1;
        }
        if self.one_call {
            let told = *count - delta.tool_calls.len();
            delta.tool_calls.truncate(1usize.saturating_sub(told));
        }
    }

    fn words(&self) -> Words<'_> {
        Words { renderer: &self.renderer, ids: self.words_as_ids }
    }

    fn head(&self, object: &str) -> Map<String, Value> {
        wire::head(&self.id, object, self.created, &self.model)
    }

    /// How a choice ended: the two fields that say it.
    fn end(&self, end: &FinishReason, calls: usize) -> (Value, Value) {
        let reason = match reason(end) {
            "stop" if calls > 0 => "tool_calls",
            reason => reason,
        };
        (json!(reason), stop_reason(end, &self.named_stops))
    }
}

/// What ended a choice beside the model's own end of turn: a stop string, or a token that the request named.
pub(crate) fn stop_reason(end: &FinishReason, named: &[TokenId]) -> Value {
    match end {
        FinishReason::StopToken(id) if named.contains(id) => json!(id),
        FinishReason::StopString(stop) => json!(stop),
        _ => Value::Null,
    }
}

/// The text of a turn on its way into a message.
struct Turn {
    stream: TurnStream,
    calls: usize,
}

fn call_json(call: &ToolCall) -> Value {
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
}

/// The answer in one piece.
fn whole(shape: &Shape, finished: &[Finished], told: Told) -> Value {
    let choice = |(index, sequence): (usize, &Finished)| {
        let Turn { mut stream, calls: mut count } = shape.turn();
        let mut message = TurnDelta::default();
        let mut deltas: Vec<TurnDelta> = sequence.text.iter().map(|text| stream.push(text)).collect();
        deltas.push(stream.finish());
        for mut delta in deltas {
            shape.calls(index, &mut count, &mut delta);
            message.content += &delta.content;
            message.reasoning += &delta.reasoning;
            message.tool_calls.append(&mut delta.tool_calls);
        }
        let (finish_reason, stop_reason) =
            sequence.end.as_ref().map_or_else(Default::default, |end| shape.end(end, message.tool_calls.len()));
        let content = match message.content.is_empty() && !message.tool_calls.is_empty() {
            true => Value::Null,
            false => json!(message.content),
        };
        let mut said = json!({"role": "assistant", "content": content, "refusal": null});
        if !message.reasoning.is_empty() {
            said["reasoning_content"] = json!(message.reasoning);
        }
        if !message.tool_calls.is_empty() {
            said["tool_calls"] = message.tool_calls.iter().map(call_json).collect();
        }
        let logprobs = shape.logprobs.then(|| wire::chat_logprobs(&sequence.drawn, shape.words()));
        let mut choice = json!({
            "index": index, "message": said, "logprobs": logprobs, "finish_reason": finish_reason,
            "stop_reason": stop_reason,
        });
        if shape.token_ids {
            choice["token_ids"] = json!(wire::ids(&sequence.drawn));
            choice["policy_versions"] = wire::versions(&sequence.drawn);
        }
        choice
    };
    let mut answer = shape.head("chat.completion");
    answer.insert("choices".into(), finished.iter().enumerate().map(choice).collect());
    let mut usage = Usage::default();
    usage.add(shape.prompt.ids.len(), finished);
    answer.insert("usage".into(), usage.json());
    if let Some(first) = finished.first().filter(|_| told.prompt.is_some()) {
        let logprobs = wire::prompt_logprobs(&first.prompt.logprobs, &shape.renderer);
        answer.insert("prompt_logprobs".into(), logprobs);
    }
    if shape.token_ids {
        answer.insert("prompt_token_ids".into(), json!(shape.prompt.ids));
    }
    Value::Object(answer)
}

/// The answer in pieces.
struct Pieces {
    shape: Shape,
    options: StreamOptions,
    turns: Vec<Option<Turn>>,
    usage: Usage,
}

impl Pieces {
    fn new(shape: Shape, sampling: &Sampling, options: StreamOptions) -> Self {
        let turns = (0..sampling.n).map(|_| Some(shape.turn())).collect();
        let usage = Usage { prompt: shape.prompt.ids.len(), ..Usage::default() };
        Pieces { shape, options, turns, usage }
    }

    fn piece(&self, choice: Value) -> Value {
        let mut piece = self.shape.head("chat.completion.chunk");
        piece.insert("choices".into(), json!([choice]));
        if self.options.usage {
            piece.insert("usage".into(), Value::Null);
        }
        Value::Object(piece)
    }

    /// What a piece of text adds.
    fn delta(&self, index: usize, count: &mut usize, mut delta: TurnDelta) -> Map<String, Value> {
        let first = *count;
        self.shape.calls(index, count, &mut delta);
        let mut said = Map::new();
        if !delta.reasoning.is_empty() {
            said.insert("reasoning_content".into(), json!(delta.reasoning));
        }
        if !delta.content.is_empty() {
            said.insert("content".into(), json!(delta.content));
        }
        if !delta.tool_calls.is_empty() {
            let calls = (first..).zip(&delta.tool_calls).map(|(at, call)| {
                let mut call = call_json(call);
                call["index"] = json!(at);
                call
            });
            said.insert("tool_calls".into(), calls.collect());
        }
        said
    }

    /// What is told of a token beside its text.
    fn token(&self, choice: &mut Value, drawn: Drawn) {
        let drawn = [drawn];
        if self.shape.logprobs {
            choice["logprobs"] = wire::chat_logprobs(&drawn, self.shape.words());
        }
        if self.shape.token_ids {
            choice["token_ids"] = json!(wire::ids(&drawn));
            choice["policy_versions"] = wire::versions(&drawn);
        }
    }
}

impl Form for Pieces {
    fn begin(&mut self) -> Vec<Value> {
        let first = |index: usize| {
            let delta = json!({"role": "assistant", "content": ""});
            let mut piece =
                self.piece(json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": null}));
            if self.shape.token_ids && index == 0 {
                piece["prompt_token_ids"] = json!(self.shape.prompt.ids);
            }
            piece
        };
        (0..self.turns.len()).map(first).collect()
    }

    fn step(&mut self, index: usize, step: Step) -> Vec<Value> {
        let Some(mut turn) = self.turns.get_mut(index).and_then(Option::take) else { return Vec::new() };
        match step {
            Step::Prompt(prompt) => {
                if index == 0 {
                    self.usage.cached = prompt.cached_tokens;
                }
                self.turns[index] = Some(turn);
                Vec::new()
            }
            Step::Token(drawn, text) => {
                self.usage.completion += 1;
                let delta = turn.stream.push(&text);
                let said = self.delta(index, &mut turn.calls, delta);
                self.turns[index] = Some(turn);
                if said.is_empty() && !self.shape.logprobs && !self.shape.token_ids {
                    return Vec::new();
                }
                let mut choice = json!({"index": index, "delta": said, "logprobs": null, "finish_reason": null});
                self.token(&mut choice, drawn);
                vec![self.piece(choice)]
            }
            Step::End(end, text) => {
                let Turn { mut stream, calls: mut count } = turn;
                let mut delta = stream.push(&text);
                let last = stream.finish();
                delta.content += &last.content;
                delta.reasoning += &last.reasoning;
                delta.tool_calls.extend(last.tool_calls);
                let said = self.delta(index, &mut count, delta);
                let (finish_reason, stop_reason) = self.shape.end(&end, count);
                vec![self.piece(json!({
                    "index": index, "delta": said, "logprobs": null, "finish_reason": finish_reason,
                    "stop_reason": stop_reason,
                }))]
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        if !self.options.usage {
            return Vec::new();
        }
        let mut piece = self.shape.head("chat.completion.chunk");
        piece.insert("choices".into(), json!([]));
        piece.insert("usage".into(), self.usage.json());
        vec![Value::Object(piece)]
    }
}
