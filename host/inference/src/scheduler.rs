//! Continuous batching: which sequences take part in the next step, and what happens to what they drew.
//!
//! Owns the queue, the running sequences, the prompts being prefilled and the prompts kept for the rest of their group.
//! Synchronous and single-threaded; must not know threads, channels' other ends, or the model behind [`Forward`].

use crate::forward::{Forward, Work};
use crate::sampler::draw;
use crate::{EngineConfig, InferenceError, Request, clock, stop};
use prl_model::{Answer, Draw, Want};
use prl_types::{FinishReason, PolicyVersion, Sampled, TokenId};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

/// Counters of an engine since its start, and its present load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Prompts taken through the model. Members of a group that share a prompt count once.
    pub prefills: u64,
    /// Requests that took over a prompt another request had prefilled.
    pub forks: u64,
    /// Prompt tokens taken through the model.
    pub prefill_tokens: u64,
    /// Tokens sampled.
    pub decode_tokens: u64,
    /// Calls of the model.
    pub steps: u64,
    /// Seconds spent in steps; with `decode_tokens`, the sampling throughput.
    pub busy_seconds: f64,
    /// Requests answered with sampled tokens.
    pub finished: u64,
    /// Requests whose caller went away.
    pub cancelled: u64,
    /// Requests that hold a slot.
    pub running: usize,
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// Policy version of the weights in use.
    pub version: PolicyVersion,
}

/// A request and where its answer goes.
pub(crate) struct Job {
    pub request: Request,
    pub reply: oneshot::Sender<Result<Sampled, InferenceError>>,
}

/// A request that holds a slot.
struct Live {
    job: Job,
    rng: ChaCha8Rng,
    /// The number that the next token is drawn by, once it was asked for.
    uniform: Option<f64>,
    ids: Vec<TokenId>,
    logprobs: Vec<f32>,
    versions: Option<(PolicyVersion, PolicyVersion)>,
    outcome: Option<Result<FinishReason, InferenceError>>,
}

/// A request whose prompt is through; the cache holds all but the last drawn token.
struct Decoding<C> {
    live: Live,
    cache: C,
    row: Row,
}

/// What a request gets its next token from.
enum Row {
    /// None yet.
    None,
    /// This answer of the step's.
    Step(usize),
    /// Those a shared prompt ended with.
    Kept(Arc<[f32]>),
}

/// A prompt on its way through the model, and the requests that wait for it.
struct Prefill<C> {
    prompt: Arc<[TokenId]>,
    key: Option<u64>,
    cache: C,
    done: usize,
    members: Vec<Live>,
}

/// A prefilled prompt of the present policy version, kept for later members of its group.
struct Shared<C> {
    key: u64,
    prompt: Arc<[TokenId]>,
    cache: C,
    logits: Arc<[f32]>,
}

pub(crate) struct Scheduler<F: Forward> {
    forward: F,
    version: PolicyVersion,
    config: EngineConfig,
    waiting: VecDeque<Job>,
    prefills: Vec<Prefill<F::Cache>>,
    decoding: Vec<Decoding<F::Cache>>,
    /// Least recently used first.
    shared: VecDeque<Shared<F::Cache>>,
    counts: Stats,
    published: Arc<Mutex<Stats>>,
}

impl<F: Forward> Scheduler<F> {
    pub fn new(forward: F, version: PolicyVersion, config: EngineConfig, published: Arc<Mutex<Stats>>) -> Self {
        let scheduler = Scheduler {
            forward,
            version,
            config,
            waiting: VecDeque::new(),
            prefills: Vec::new(),
            decoding: Vec::new(),
            shared: VecDeque::new(),
            counts: Stats::default(),
            published,
        };
        scheduler.publish();
        scheduler
    }

    /// Queues a request.
    pub fn submit(&mut self, job: Job) {
        self.waiting.push_back(job);
        self.publish();
    }

    /// Changes the weights. Running requests go on with what their caches hold; prompts that have not drawn a token
    /// start over, and none of the old version is kept for later requests.
    pub fn update(&mut self, forward: F, version: PolicyVersion) {
        self.forward = forward;
        self.version = version;
        self.shared.clear();
        for prefill in &mut self.prefills {
            prefill.cache = self.forward.new_cache();
            prefill.done = 0;
        }
        self.publish();
    }

    /// Whether nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.prefills.is_empty() && self.decoding.is_empty()
    }

    /// One step: lets requests in, extends every running sequence by one token and the waiting prompts by their share
    /// of tokens, draws, and answers what is done.
    pub fn step(&mut self) -> Result<(), String> {
        let started = clock::now();
        self.drop_cancelled();
        self.admit();
        self.extend()?;
        self.counts.busy_seconds += started.elapsed().as_secs_f64();
        self.publish();
        Ok(())
    }

    fn drop_cancelled(&mut self) {
        let before = self.waiting.len() + self.running();
        self.waiting.retain(|job| !job.reply.is_closed());
        self.decoding.retain(|d| !d.live.job.reply.is_closed());
        for prefill in &mut self.prefills {
            prefill.members.retain(|m| !m.job.reply.is_closed());
        }
        self.prefills.retain(|p| !p.members.is_empty());
        self.counts.cancelled += (before - self.waiting.len() - self.running()) as u64;
    }

    fn running(&self) -> usize {
        self.decoding.len() + self.prefills.iter().map(|p| p.members.len()).sum::<usize>()
    }

    /// Fills free slots in order of arrival.
    fn admit(&mut self) {
        let mut free = self.config.max_batch.saturating_sub(self.running());
        while free > 0 {
            let Some(job) = self.waiting.pop_front() else { break };
            free -= 1;
            let live = Live::new(job);
            let prompt = live.job.request.prompt.clone();
            let key = live.job.request.prefix_key;
            let same = |k: Option<u64>, p: &[TokenId]| key.is_some() && k == key && *p == *prompt;
            if let Some(at) = self.shared.iter().position(|s| same(Some(s.key), &s.prompt))
                && let Some(shared) = self.shared.remove(at)
            {
                self.counts.forks += 1;
                let row = Row::Kept(shared.logits.clone());
                self.decoding.push(Decoding { live, cache: shared.cache.clone(), row });
                self.shared.push_back(shared);
            } else if let Some(prefill) = self.prefills.iter_mut().find(|p| same(p.key, &p.prompt)) {
                self.counts.forks += 1;
                prefill.members.push(live);
            } else {
                let cache = self.forward.new_cache();
                self.prefills.push(Prefill { prompt, key, cache, done: 0, members: vec![live] });
            }
        }
        self.draw(&[]);
    }

    /// Calls the model once and draws from what it returns.
    fn extend(&mut self) -> Result<(), String> {
        let mut budget = self.config.prefill_tokens;
        let mut work: Vec<Work<'_, F::Cache>> = Vec::with_capacity(self.decoding.len() + self.prefills.len());
        for (i, Decoding { live, cache, row }) in self.decoding.iter_mut().enumerate() {
            *row = Row::Step(i);
            let want = live.want();
            work.push(Work { cache, ids: &live.ids[live.ids.len() - 1..], want });
        }
        for p in &mut self.prefills {
            let n = budget.min(p.prompt.len() - p.done);
            if n == 0 {
                break;
            }
            let ids = &p.prompt[p.done..p.done + n];
            budget -= n;
            p.done += n;
            let want = if p.done == p.prompt.len() { Want::Logits } else { Want::Nothing };
            work.push(Work { cache: &mut p.cache, ids, want });
        }
        if work.is_empty() {
            return Ok(());
        }
        let answers = self.forward.extend(&mut work)?;
        let vocab = self.forward.vocab_size();
        let wanted = work.iter().filter(|w| w.want != Want::Nothing);
        let fits = |(work, answer): (&Work<'_, F::Cache>, &Answer)| match answer {
            Answer::Logits(row) => row.len() == vocab,
            Answer::Token(..) => matches!(work.want, Want::Token(_)),
        };
        if answers.len() != wanted.clone().count() || !wanted.zip(&answers).all(fits) {
            return Err(format!("the model gave {} answers that are not what was asked for", answers.len()));
        }
        self.counts.steps += 1;
        self.counts.prefill_tokens += (self.config.prefill_tokens - budget) as u64;

        let first = self.decoding.len();
        let ready = self.prefills.extract_if(.., |p| p.done == p.prompt.len());
        for (i, Prefill { prompt, key, cache, mut members, .. }) in (first..).zip(ready) {
            self.counts.prefills += 1;
            if let Some(key) = key.filter(|_| self.config.shared_prompts > 0)
                && let Answer::Logits(logits) = &answers[i]
            {
                if self.shared.len() == self.config.shared_prompts {
                    self.shared.pop_front();
                }
                let logits = logits.as_slice().into();
                self.shared.push_back(Shared { key, prompt, cache: cache.clone(), logits });
            }
            let last = members.pop();
            let forks = members.into_iter().map(|live| Decoding { live, cache: cache.clone(), row: Row::Step(i) });
            self.decoding.extend(forks);
            self.decoding.extend(last.map(|live| Decoding { live, cache, row: Row::Step(i) }));
        }
        self.draw(&answers);
        Ok(())
    }

    /// Draws a token for every request that has a row to draw from, in parallel (every request has its own random
    /// stream, so the order does not matter), and answers those that are done. Requests stay in `decoding` while they
    /// draw, so that a panicking callback loses none before the engine has said why.
    fn draw(&mut self, answers: &[Answer]) {
        let (forward, version, context) = (&self.forward, self.version, self.config.max_model_len);
        let draw = |d: &mut Decoding<F::Cache>| match std::mem::replace(&mut d.row, Row::None) {
            Row::None => 0,
            Row::Step(i) => match &answers[i] {
                Answer::Logits(row) => d.live.draw(forward, version, context, row),
                Answer::Token(token, logprob) => d.live.take(version, context, *token, *logprob),
            },
            Row::Kept(row) => d.live.draw(forward, version, context, &row),
        };
        self.counts.decode_tokens += match self.decoding.as_mut_slice() {
            [] => 0,
            [one] => draw(one),
            many => many.par_iter_mut().map(draw).sum(),
        };
        let done: Vec<Live> =
            self.decoding.extract_if(.., |d| d.live.outcome.is_some()).map(|Decoding { live, .. }| live).collect();
        if done.is_empty() {
            return;
        }
        for live in &done {
            if live.job.reply.is_closed() {
                self.counts.cancelled += 1;
            } else {
                self.counts.finished += u64::from(matches!(live.outcome, Some(Ok(_))));
            }
        }
        // Before the answers, so that whoever has one also sees it counted.
        self.publish();
        for live in done {
            live.answer(self.version);
        }
    }

    fn publish(&self) {
        let mut stats = self.published.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *stats = Stats { running: self.running(), waiting: self.waiting.len(), version: self.version, ..self.counts };
    }
}

impl Live {
    fn new(job: Job) -> Self {
        let rng = ChaCha8Rng::seed_from_u64(job.request.seed);
        Live { job, rng, uniform: None, ids: Vec::new(), logprobs: Vec::new(), versions: None, outcome: None }
    }

    /// Sends the outcome to the caller; one who has gone away just now misses nothing.
    fn answer(self, version: PolicyVersion) {
        let Live { job, ids, logprobs, versions, outcome, .. } = self;
        let Some(outcome) = outcome else { return };
        let answer = outcome.and_then(|finish| {
            Sampled::from_engine(ids, logprobs, versions.unwrap_or((version, version)), finish)
                .map_err(|e| InferenceError::Failed { message: e.to_string() })
        });
        let _ = job.reply.send(answer);
    }

    /// The number that the next token is drawn by.
    fn uniform(&mut self) -> f64 {
        // 53 bits, so that the number is below 1.
        *self.uniform.get_or_insert_with(|| (self.rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64)
    }

    /// What the model is asked for: the token itself where no filter applies.
    fn want(&mut self) -> Want {
        let sampling = &self.job.request.sampling;
        if !sampling.keeps_all() && sampling.temperature > 0.0 {
            return Want::Logits;
        }
        let temperature = sampling.temperature;
        Want::Token(Draw { temperature, uniform: self.uniform() })
    }

    /// Draws the next token from a row of logits. Returns how many tokens were drawn.
    fn draw<F: Forward>(&mut self, forward: &F, version: PolicyVersion, context: usize, logits: &[f32]) -> u64 {
        let uniform = self.uniform();
        let sampling = &self.job.request.sampling;
        let token = match draw(logits, sampling, uniform) {
            Ok(token) => token,
            Err(e) => {
                self.outcome = Some(Err(e));
                return 0;
            }
        };
        let logprob = forward.logprob(logits, token, sampling.logprob_temperature());
        self.take(version, context, token, logprob)
    }

    /// Takes a drawn token and decides whether it is the last. Returns how many tokens were taken.
    fn take(&mut self, version: PolicyVersion, context: usize, token: TokenId, logprob: f32) -> u64 {
        self.uniform = None;
        let request = &self.job.request;
        let sampling = &request.sampling;
        if !logprob.is_finite() {
            self.outcome = Some(Err(InferenceError::NonFiniteLogits { token, value: logprob }));
            return 0;
        }
        self.ids.push(token);
        self.logprobs.push(logprob);
        self.versions = Some(self.versions.map_or((version, version), |(a, b)| (a.min(version), b.max(version))));
        let room = context - request.prompt.len();
        let limit = sampling.max_tokens.map_or(room, |n| n.min(room));
        let stop_string = || request.decode.as_ref().and_then(|d| stop::find(&self.ids, &sampling.stop, d));
        self.outcome = if sampling.stop_token_ids.contains(&token) {
            Some(Ok(FinishReason::StopToken(token)))
        } else if let Some(s) = stop_string() {
            Some(Ok(FinishReason::StopString(s.to_string())))
        } else if self.ids.len() >= limit {
            Some(Ok(FinishReason::Length))
        } else {
            None
        };
        1
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
