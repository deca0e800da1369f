//! Parts of answers that several doors have in common: usage, log-probabilities, policy versions. Owns their form.

use crate::sequence::Finished;
use prl_inference::{Drawn, Scored};
use prl_render::Renderer;
use prl_types::{PolicyVersion, TokenId};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// As vLLM has it, so that JSON stays JSON.
const LEAST_LOGPROB: f32 = -9999.0;

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub prompt: usize,
    pub completion: usize,
    pub cached: usize,
}

impl Usage {
    pub fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt, "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        })
    }

    /// Adds a prompt and what was sampled for it.
    pub fn add(&mut self, prompt: usize, finished: &[Finished]) {
        self.prompt += prompt;
        self.completion += finished.iter().map(|f| f.drawn.len()).sum::<usize>();
        self.cached += finished.first().map_or(0, |f| f.prompt.cached_tokens);
    }
}

/// The beginning of an answer in OpenAI's form.
pub(crate) fn head(id: &str, object: &str, created: u64, model: &str) -> Map<String, Value> {
    let mut head = Map::new();
    head.insert("id".into(), json!(id));
    head.insert("object".into(), json!(object));
    head.insert("created".into(), json!(created));
    head.insert("model".into(), json!(model));
    head
}

/// A token in words.
#[derive(Clone, Copy)]
pub(crate) struct Words<'a> {
    pub renderer: &'a Renderer,
    /// `token_id:<id>` instead of the text.
    pub ids: bool,
}

impl Words<'_> {
    pub fn of(&self, id: TokenId) -> String {
        match self.ids {
            true => format!("token_id:{id}"),
            // Ids of the vocabulary's padding have no text.
            false => self.renderer.decode(&[id]).unwrap_or_default(),
        }
    }
}

/// A log-probability as JSON has it: with the digits that give back the same `f32`.
pub(crate) fn number(logprob: f32) -> f32 {
    logprob.max(LEAST_LOGPROB)
}

#[derive(Serialize)]
struct One {
    token: String,
    logprob: f32,
    bytes: Option<Vec<u8>>,
}

#[derive(Serialize)]
struct Token {
    #[serde(flatten)]
    own: One,
    top_logprobs: Vec<One>,
}

/// `logprobs` of a choice in the form of chat completions.
pub(crate) fn chat_logprobs(drawn: &[Drawn], words: Words<'_>) -> Value {
    let one = |id: TokenId, logprob: f32| {
        let token = words.of(id);
        let bytes = (!words.ids).then(|| token.clone().into_bytes());
        One { token, logprob: number(logprob), bytes }
    };
    let token = |d: &Drawn| Token {
        own: one(d.scored.id, d.scored.logprob),
        top_logprobs: d.scored.top.iter().map(|(id, logprob)| one(*id, *logprob)).collect(),
    };
    json!({"content": drawn.iter().map(token).collect::<Vec<_>>()})
}

/// `logprobs` of a choice in the form of completions; offsets count characters from `offset` on.
#[derive(Serialize, Default)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<Map<String, Value>>>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Adds a token; the first of a prompt has no probability. Moves `offset` on.
    pub fn push(&mut self, id: TokenId, scored: Option<&Scored>, words: Words<'_>, offset: &mut usize) {
        let token = words.of(id);
        self.text_offset.push(*offset);
        *offset += token.chars().count();
        self.token_logprobs.push(scored.map(|s| number(s.logprob)));
        self.top_logprobs.push(scored.map(|s| {
            let all = std::iter::once((s.id, s.logprob)).chain(s.top.iter().copied());
            all.map(|(id, logprob)| (words.of(id), json!(number(logprob)))).collect()
        }));
        self.tokens.push(token);
    }
}

/// `prompt_logprobs` in vLLM's form: nothing for the first token, then for each one a table by id that holds it and the
/// likeliest ones.
pub(crate) fn prompt_logprobs(scored: &[Scored], renderer: &Renderer) -> Value {
    let words = Words { renderer, ids: false };
    let entry = |id: TokenId, logprob: f32, rank: u32| {
        (id.to_string(), json!({"logprob": number(logprob), "rank": rank, "decoded_token": words.of(id)}))
    };
    let table = |s: &Scored| {
        let top = (1..).zip(&s.top).map(|(rank, (id, logprob))| entry(*id, *logprob, rank));
        let own = std::iter::once(entry(s.id, s.logprob, s.rank));
        // The token itself comes first; among the likeliest it has the same numbers.
        let mut table: Map<String, Value> = own.collect();
        for (id, value) in top {
            table.entry(id).or_insert(value);
        }
        Value::Object(table)
    };
    std::iter::once(Value::Null).chain(scored.iter().map(table)).collect()
}

/// Which policy versions drew a choice's tokens, in runs.
pub(crate) fn versions(drawn: &[Drawn]) -> Value {
    let mut runs: Vec<(PolicyVersion, usize)> = Vec::new();
    for version in drawn.iter().map(|d| d.version) {
        match runs.last_mut() {
            Some((last, tokens)) if *last == version => *tokens += 1,
            _ => runs.push((version, 1)),
        }
    }
    runs.iter().map(|(version, tokens)| json!({"version": version.0, "tokens": tokens})).collect()
}

pub(crate) fn ids(drawn: &[Drawn]) -> Vec<TokenId> {
    drawn.iter().map(|d| d.scored.id).collect()
}
