//! The fields that say how to sample, as all doors have them. Owns their names, types and ranges, and what they become
//! for the engine; must not know prompts.

use crate::error::ApiError;
use crate::fields::Fields;
use crate::guided::{self, Guided};
use prl_inference::SamplingParams;
use prl_render::Renderer;
use prl_types::TokenId;
use serde_json::{Map, Value, json};

/// Most sequences of a request.
pub(crate) const MAX_SEQUENCES: usize = 1024;
/// Most of the likeliest tokens that are told beside each one.
pub(crate) const MAX_LOGPROBS: usize = 20;

/// How one request is sampled, and what is made of its tokens.
#[derive(Clone, Debug)]
pub(crate) struct Sampling {
    /// For the engine.
    pub params: SamplingParams,
    /// Sequences of each prompt.
    pub n: usize,
    /// Of the first sequence; the others count on from it.
    pub seed: Option<u64>,
    /// Whether special tokens are no text.
    pub skip_special: bool,
    /// Whether what ended a sequence is part of its text.
    pub include_stop: bool,
    /// The stop tokens that the request itself names, which are told as its stop reason.
    pub named_stops: Vec<TokenId>,
    /// What the text must be.
    pub guided: Option<Guided>,
}

/// What is asked about log-probabilities, in a door's own terms.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// Beside each sampled token.
    pub sampled: Option<usize>,
    /// Beside each token of the prompt.
    pub prompt: Option<usize>,
}

/// Reads the fields that all doors share.
pub(crate) fn read(fields: &mut Fields, renderer: &Renderer, vocab: usize) -> Result<Sampling, ApiError> {
    const NUMBER: &str = "a number";
    const COUNT: &str = "a non-negative integer";
    let n: usize = fields.optional("n", COUNT)?.unwrap_or(1);
    if n == 0 || n > MAX_SEQUENCES {
        return Err(ApiError::field("n", format!("`n` is {n}; it must be between 1 and {MAX_SEQUENCES}")));
    }
    let mut params = SamplingParams::default();
    if let Some(temperature) = fields.optional::<f64>("temperature", NUMBER)? {
        params.temperature = temperature as f32;
    }
    if let Some(top_p) = fields.optional::<f64>("top_p", NUMBER)? {
        params.top_p = top_p as f32;
    }
    if let Some(min_p) = fields.optional::<f64>("min_p", NUMBER)? {
        params.min_p = min_p as f32;
    }
    for (field, value) in [
        ("frequency_penalty", &mut params.frequency_penalty),
        ("presence_penalty", &mut params.presence_penalty),
        ("repetition_penalty", &mut params.repetition_penalty),
    ] {
        if let Some(penalty) = fields.optional::<f64>(field, NUMBER)? {
            *value = penalty as f32;
        }
    }
    params.top_k = match fields.optional::<i64>("top_k", "an integer")? {
        None | Some(-1 | 0) => None,
        Some(k) => match usize::try_from(k) {
            Ok(k) => Some(k),
            Err(_) => {
                return Err(ApiError::field("top_k", format!("`top_k` is {k}; it must be at least 1, or -1 for all")));
            }
        },
    };
    let (old, new) = (fields.optional("max_tokens", COUNT)?, fields.optional("max_completion_tokens", COUNT)?);
    params.max_tokens = new.or(old);
    params.min_tokens = fields.optional("min_tokens", COUNT)?.unwrap_or(0);
    params.stop = strings(fields, "stop")?;
    params.logit_bias = biases(fields, vocab)?;
    let named_stops: Vec<TokenId> = fields.optional("stop_token_ids", "a list of token ids")?.unwrap_or_default();
    params.stop_token_ids = named_stops.clone();
    if !fields.flag("ignore_eos", false)? {
        params.stop_token_ids.extend(renderer.stop_token_ids());
    }
    let seed = match fields.value("seed") {
        None => None,
        // Any 64 bits, with or without a sign.
        Some(value) => Some(value.as_u64().or_else(|| value.as_i64().map(i64::cast_unsigned)).ok_or_else(|| {
            ApiError::field(
                "seed",
                format!("`seed` must be an integer of 64 bits; found {}", crate::fields::kind(&value)),
            )
        })?),
    };
    let skip_special = fields.flag("skip_special_tokens", true)?;
    let include_stop = fields.flag("include_stop_str_in_output", false)?;
    // What changes nothing at the value that clients send, and would at others.
    for (field, nothing) in [
        ("length_penalty", json!(1)),
        ("best_of", json!(n)),
        ("use_beam_search", json!(false)),
        ("spaces_between_special_tokens", json!(true)),
        ("priority", json!(0)),
        ("bad_words", json!([])),
        ("early_stopping", json!(false)),
    ] {
        fields.neutral(field, &[nothing])?;
    }
    let guided = guided::read(fields)?;
    Ok(Sampling { params, n, seed, skip_special, include_stop, named_stops, guided })
}

impl Sampling {
    /// Sets what is told of probabilities, and checks what does not depend on the prompt.
    pub fn tell(&mut self, told: Told) -> Result<(), ApiError> {
        (self.params.logprobs, self.params.prompt_logprobs) = (told.sampled, told.prompt);
        self.params.validate()?;
        Ok(())
    }
}

/// A number of likeliest tokens; -1, which would be the whole vocabulary, is refused.
pub(crate) fn likeliest(fields: &mut Fields, field: &str) -> Result<Option<usize>, ApiError> {
    let Some(count) = fields.optional::<i64>(field, "an integer")? else { return Ok(None) };
    match usize::try_from(count) {
        Ok(count) if count <= MAX_LOGPROBS => Ok(Some(count)),
        _ => {
            let name = fields.name(field);
            Err(ApiError::field(&name, format!("`{name}` is {count}; it must be between 0 and {MAX_LOGPROBS}")))
        }
    }
}

/// The number of likeliest tokens beside each one of the prompt, which is told in whole answers only.
pub(crate) fn of_prompt(fields: &mut Fields, streamed: bool) -> Result<Option<usize>, ApiError> {
    match likeliest(fields, "prompt_logprobs")? {
        Some(_) if streamed => Err(ApiError::unsupported("prompt_logprobs", "`prompt_logprobs` of a streamed answer")),
        asked => Ok(asked),
    }
}

/// One string or a list of them.
fn strings(fields: &mut Fields, field: &str) -> Result<Vec<String>, ApiError> {
    const WANT: &str = "a string or a list of strings";
    match fields.value(field) {
        None => Ok(Vec::new()),
        Some(Value::String(one)) => Ok(vec![one]),
        Some(value) => serde_json::from_value(value).map_err(|_| {
            let name = fields.name(field);
            ApiError::field(&name, format!("`{name}` must be {WANT}"))
        }),
    }
}

fn biases(fields: &mut Fields, vocab: usize) -> Result<Vec<(TokenId, f32)>, ApiError> {
    let given: Map<String, Value> =
        fields.optional("logit_bias", "an object from token ids to numbers")?.unwrap_or_default();
    let one = |(id, bias): (&String, &Value)| {
        let id: Option<TokenId> = id.parse().ok().filter(|id| (*id as usize) < vocab);
        Some((id?, bias.as_f64().filter(|bias| bias.abs() <= 100.0)? as f32))
    };
    let wrong = || {
        let want = format!("token ids below {vocab} to numbers between -100 and 100");
        ApiError::field("logit_bias", format!("`logit_bias` must map {want}"))
    };
    given.iter().map(|pair| one(pair).ok_or_else(wrong)).collect()
}
