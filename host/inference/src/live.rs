//! One request on its way: what it has drawn, what it draws next, and when it is done.
//!
//! Owns a request's random stream, what changes its logits, its stop conditions and what its caller is told. Must not know
//! other requests.

use crate::forward::Forward;
use crate::guide::Guided;
use crate::penalties::Seen;
use crate::request::{Drawn, Event, PromptDone, Request, Scored};
use crate::sampler::draw;
use crate::{InferenceError, SamplingParams, stop};
use prl_model::{Answer, Draw, Score, Want};
use prl_types::{FinishReason, PolicyVersion, TokenId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::VecDeque;
use tokio::sync::mpsc::UnboundedSender;

/// A request and where its events go.
pub(crate) struct Job {
    pub request: Request,
    pub events: UnboundedSender<Event>,
}

/// A request on its way.
pub(crate) struct Live {
    pub job: Job,
    /// Place in the order of arrival.
    pub arrival: u64,
    pub ids: Vec<TokenId>,
    /// How often the weights had changed when its prompt was through.
    pub began: Option<u64>,
    rng: ChaCha8Rng,
    /// The numbers that the next tokens are drawn by, those that were asked for.
    uniforms: VecDeque<f64>,
    /// Tokens that are told at the end.
    held: Vec<Drawn>,
    seen: Option<Seen>,
    guided: Option<Guided>,
    /// What is told of the prompt, until it was told.
    prompt: Option<PromptDone>,
    pub outcome: Option<Result<FinishReason, InferenceError>>,
}

impl Live {
    pub fn new(job: Job, arrival: u64) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(job.request.seed);
        let prompt = Some(PromptDone::default());
        let seen = Seen::new(&job.request.sampling, &job.request.prompt);
        let guided = job.request.guide.clone().map(Guided::new);
        let (uniforms, held) = (VecDeque::new(), Vec::new());
        Live { job, arrival, ids: Vec::new(), began: None, rng, uniforms, held, seen, guided, prompt, outcome: None }
    }

    /// Whether nobody waits for it any more.
    pub fn is_cancelled(&self) -> bool {
        self.job.events.is_closed()
    }

    /// Everything that must be in its cache before its next token is drawn.
    pub fn context(&self) -> Vec<TokenId> {
        [&self.job.request.prompt[..], &self.ids].concat()
    }

    /// Whether log-probabilities of its prompt are still to be computed.
    pub fn scores_prompt(&self) -> bool {
        self.prompt.is_some() && self.job.request.sampling.prompt_logprobs.is_some()
    }

    /// So many tokens of its prompt were there already.
    pub fn found(&mut self, tokens: usize) {
        if let Some(prompt) = &mut self.prompt {
            prompt.cached_tokens = tokens;
        }
    }

    /// Starts over with its prompt.
    pub fn restart(&mut self) {
        if let Some(prompt) = &mut self.prompt {
            *prompt = PromptDone::default();
        }
    }

    /// Scores the prompt's tokens from `first` on by the logits of those before them.
    pub fn score_prompt<F: Forward>(&mut self, forward: &F, first: usize, logits: &[f32]) {
        let request = &self.job.request;
        let Some(prompt) = self.prompt.as_mut() else { return };
        let most = request.sampling.prompt_logprobs.unwrap_or(0);
        let rows = logits.chunks_exact(forward.vocab_size());
        let ids = request.prompt[first..].iter();
        let temperature = request.sampling.logprob_temperature();
        prompt.logprobs.extend(ids.zip(rows).map(|(id, row)| {
            let logprob = forward.logprob(row, *id, temperature);
            scored(forward, row, (*id, logprob), most, temperature)
        }));
    }

    /// The same by scores of the tokens from `first` on.
    pub fn take_scores(&mut self, first: usize, scores: Vec<Score>) {
        let Some(prompt) = self.prompt.as_mut() else { return };
        let ids = self.job.request.prompt[first..].iter();
        let scored = |(id, score): (&TokenId, Score)| {
            let Score { logprob, rank, top } = score;
            Scored { id: *id, logprob, rank, top }
        };
        prompt.logprobs.extend(ids.zip(scores).map(scored));
    }

    /// Tokens of its prompt that were scored, of which the first one is none.
    pub fn scored_tokens(&self) -> usize {
        self.prompt.as_ref().map_or(0, |prompt| prompt.logprobs.len())
    }

    /// The prompt is through.
    pub fn prompt_done(&mut self, changes: u64) {
        if let Some(prompt) = self.prompt.take() {
            self.began = Some(changes);
            self.tell(Event::Prompt(prompt));
        }
    }

    /// A caller who has gone away just now misses nothing.
    fn tell(&self, event: Event) {
        let _ = self.job.events.send(event);
    }

    /// Tells the caller how it ended.
    pub fn end(mut self) {
        std::mem::take(&mut self.held).into_iter().for_each(|drawn| self.tell(Event::Token(drawn)));
        if let Some(outcome) = self.outcome.clone() {
            self.tell(Event::End(outcome));
        }
    }

    /// The number that the token behind the next `ahead` ones is drawn by.
    fn uniform(&mut self, ahead: usize) -> f64 {
        while self.uniforms.len() <= ahead {
            // 53 bits, so that the number is below 1.
            self.uniforms.push_back((self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64);
        }
        self.uniforms[ahead]
    }

    /// The last token of all so far.
    pub fn last_token(&self) -> &[TokenId] {
        let of = |ids: &'_ [TokenId]| ids.len().saturating_sub(1);
        match self.ids.as_slice() {
            [] => &self.job.request.prompt[of(&self.job.request.prompt)..],
            ids => &ids[of(ids)..],
        }
    }

    /// Whether another token may follow `ahead` ones that are on their way, as far as is known before they are.
    pub fn goes_on(&self, context: usize, ahead: usize) -> bool {
        self.outcome.is_none() && self.ids.len() + ahead < self.limit(context)
    }

    /// Most tokens that it may have.
    fn limit(&self, context: usize) -> usize {
        let room = context - self.job.request.prompt.len();
        self.job.request.sampling.max_tokens.map_or(room, |n| n.min(room))
    }

    /// What the model is asked for of the token behind `ahead` ones that are on their way: the token itself where all logits
    /// count as they are.
    pub fn want(&mut self, ahead: usize) -> Want<'static> {
        let sampling = &self.job.request.sampling;
        if sampling.logprobs.is_some() || self.changes_logits(ahead) {
            return Want::Logits;
        }
        let &SamplingParams { temperature, top_k, top_p, min_p, .. } = sampling;
        Want::Token(Draw { temperature, uniform: self.uniform(ahead), top_k, top_p, min_p })
    }

    /// Whether drawing its next token takes a while here.
    pub fn is_slow(&self) -> bool {
        !self.job.request.sampling.stop.is_empty()
    }

    /// Whether the token behind `ahead` ones is not drawn from the model's own logits.
    fn changes_logits(&self, ahead: usize) -> bool {
        let biased = !self.job.request.sampling.logit_bias.is_empty();
        biased || self.seen.is_some() || self.guided.is_some() || self.is_short(ahead)
    }

    /// Whether it must not end yet with the token behind `ahead` ones.
    fn is_short(&self, ahead: usize) -> bool {
        self.ids.len() + ahead < self.job.request.sampling.min_tokens
    }

    /// Draws the next token from what the model answered. Returns how many tokens were drawn.
    pub fn next<F: Forward>(&mut self, forward: &F, version: PolicyVersion, context: usize, answer: &Answer) -> u64 {
        if self.job.request.sampling.max_tokens == Some(0) {
            self.outcome = Some(Ok(FinishReason::Length));
            return 0;
        }
        let logits = match answer {
            Answer::Token(id, logprob) => {
                let scored = Scored { id: *id, logprob: *logprob, rank: 0, top: Vec::new() };
                return self.take(version, context, scored);
            }
            Answer::Logits(row) => row,
            // Asked for by nobody who draws from it.
            Answer::Scores(_) => return 0,
        };
        let uniform = self.uniform(0);
        let changed = match self.changes_logits(0).then(|| self.changed(logits)).transpose() {
            Ok(changed) => changed,
            Err(end) => {
                self.outcome = Some(end);
                return 0;
            }
        };
        let sampling = &self.job.request.sampling;
        let token = match draw(changed.as_deref().unwrap_or(logits), sampling, uniform) {
            Ok(token) => token,
            Err(e) => {
                self.outcome = Some(Err(e));
                return 0;
            }
        };
        let temperature = sampling.logprob_temperature();
        let logprob = forward.logprob(logits, token, temperature);
        let scored = match sampling.logprobs {
            Some(most) => scored(forward, logits, (token, logprob), most, temperature),
            None => Scored { id: token, logprob, rank: 0, top: Vec::new() },
        };
        self.take(version, context, scored)
    }

    /// The logits to draw from: the model's with bias and penalties, and −∞ for what must not come. An error is its end:
    /// nothing may come.
    fn changed(&mut self, logits: &[f32]) -> Result<Vec<f32>, Result<FinishReason, InferenceError>> {
        let short = self.is_short(0);
        let sampling = &self.job.request.sampling;
        let mut changed = logits.to_vec();
        let at = |changed: &mut Vec<f32>, id: TokenId, value: &dyn Fn(f32) -> f32| {
            if let Some(logit) = changed.get_mut(id as usize) {
                *logit = value(*logit);
            }
        };
        sampling.logit_bias.iter().for_each(|(id, bias)| at(&mut changed, *id, &|logit| logit + bias));
        if let Some(seen) = &self.seen {
            seen.apply(sampling, &mut changed);
        }
        let ends = sampling.stop_token_ids.as_slice();
        if short {
            ends.iter().for_each(|id| at(&mut changed, *id, &|_| f32::NEG_INFINITY));
        }
        if let Some(guided) = &mut self.guided {
            let whole = guided.restrict(&mut changed, ends).map_err(Err)?;
            // What is no number is something, and an error of its own.
            if changed.iter().all(|logit| *logit == f32::NEG_INFINITY) {
                return Err(if whole { Ok(FinishReason::Complete) } else { Err(guided.stuck()) });
            }
        }
        Ok(changed)
    }

    /// Takes a drawn token and decides whether it is the last. Returns how many tokens were taken.
    fn take(&mut self, version: PolicyVersion, context: usize, scored: Scored) -> u64 {
        self.uniforms.pop_front();
        let (token, logprob) = (scored.id, scored.logprob);
        if !logprob.is_finite() {
            self.outcome = Some(Err(InferenceError::NonFiniteLogits { token, value: logprob }));
            return 0;
        }
        self.ids.push(token);
        self.seen.iter_mut().for_each(|seen| seen.push(token));
        let drawn = Drawn { scored, version };
        match self.job.request.streams {
            true => self.tell(Event::Token(drawn)),
            false => self.held.push(drawn),
        }
        let limit = self.limit(context);
        let request = &self.job.request;
        let sampling = &request.sampling;
        let may_end = self.ids.len() >= sampling.min_tokens;
        let stop_string = || {
            let decode = request.decode.as_ref().filter(|_| may_end)?;
            stop::find(&self.ids, &sampling.stop, decode)
        };
        let stop = match may_end && sampling.stop_token_ids.contains(&token) {
            true => Some(FinishReason::StopToken(token)),
            false => stop_string().map(|s| FinishReason::StopString(s.to_string())),
        };
        let full = (self.ids.len() >= limit).then_some(FinishReason::Length);
        self.outcome = match (stop, self.guided.as_mut()) {
            (Some(stop), _) => Some(Ok(stop)),
            (None, None) => full.map(Ok),
            (None, Some(guided)) => match guided.push(token) {
                Ok(true) => Some(Ok(FinishReason::Complete)),
                Ok(false) => full.map(Ok),
                Err(error) => Some(Err(error)),
            },
        };
        1
    }
}

/// A token with its rank and the `most` likeliest ones; equals are ordered by id.
fn scored<F: Forward>(
    forward: &F,
    row: &[f32],
    (id, logprob): (TokenId, f32),
    most: usize,
    temperature: f32,
) -> Scored {
    let own = row[id as usize];
    let rank = row.iter().filter(|x| **x > own).count() as u32 + 1;
    let by_logit = |a: &TokenId, b: &TokenId| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b));
    let most = most.min(row.len());
    let mut ids: Vec<TokenId> = if most > 0 { (0..row.len() as TokenId).collect() } else { Vec::new() };
    if most < ids.len() {
        ids.select_nth_unstable_by(most - 1, by_logit);
    }
    ids.truncate(most);
    ids.sort_unstable_by(by_logit);
    let top = ids.into_iter().map(|id| (id, forward.logprob(row, id, temperature))).collect();
    Scored { id, logprob, rank, top }
}

#[cfg(test)]
#[path = "live_tests.rs"]
mod tests;
