//! Continuous batching: which sequences take part in the next step, and what happens to what they drew.
//!
//! Owns the queues, the running sequences, the prompts being prefilled, and the memory that all of their caches take.
//! Synchronous and single-threaded; must not know threads, channels' other ends, or the model behind [`Forward`].

use crate::forward::{Cached, Forward, Work};
use crate::live::{Job, Live};
use crate::prefix::Prefixes;
use crate::running::{Decoding, Kind, Pending, Prefill, Step};
use crate::{EngineConfig, InferenceError, clock};
use prl_kernels::Meter;
use prl_model::{Answer, Want};
use prl_types::{FinishReason, PolicyVersion, TokenId};
use rayon::prelude::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// Prompt tokens of one request whose logits are looked at in one step.
const SCORED_TOKENS: usize = 64;

/// Counters of an engine since its start, and its present load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Prompts taken through the model. Requests that share a prompt on its way count once.
    pub prefills: u64,
    /// Requests that took over a prompt, or the beginning of one, that another request had prefilled.
    pub forks: u64,
    /// Prompt tokens taken through the model.
    pub prefill_tokens: u64,
    /// Prompt tokens that were in the cache already.
    pub cached_tokens: u64,
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
    /// Times that a running request gave its memory up to an older one, and started over.
    pub preempted: u64,
    /// Requests that hold a slot.
    pub running: usize,
    /// Requests that wait for a slot.
    pub waiting: usize,
    /// Bytes of keys and values.
    pub cache_bytes: usize,
    /// Bound on those.
    pub cache_budget: usize,
    /// Whether sampling is paused.
    pub paused: bool,
    /// Policy version of the weights in use.
    pub version: PolicyVersion,
}

pub(crate) struct Scheduler<F: Forward> {
    forward: F,
    version: PolicyVersion,
    /// How often the weights changed; versions are the caller's, who may count as it likes.
    changes: u64,
    config: EngineConfig,
    meter: Meter,
    /// By class.
    waiting: [VecDeque<Live>; 2],
    /// Whose turn it is.
    turn: usize,
    prefills: Vec<Prefill<F::Cache>>,
    decoding: Vec<Decoding<F::Cache>>,
    prefixes: Prefixes<F::Cache>,
    underway: Option<Step>,
    arrivals: u64,
    paused: bool,
    counts: Stats,
    published: Arc<Mutex<Stats>>,
}

impl<F: Forward> Scheduler<F> {
    pub fn new(forward: F, version: PolicyVersion, config: EngineConfig, published: Arc<Mutex<Stats>>) -> Self {
        let scheduler = Scheduler {
            forward,
            version,
            changes: 0,
            meter: Meter::default(),
            waiting: Default::default(),
            turn: 0,
            prefills: Vec::new(),
            decoding: Vec::new(),
            prefixes: Prefixes::new(config.kept_prefixes),
            underway: None,
            arrivals: 0,
            paused: false,
            counts: Stats { cache_budget: config.cache_bytes, ..Stats::default() },
            config,
            published,
        };
        scheduler.publish();
        scheduler
    }

    /// Queues a request.
    pub fn submit(&mut self, job: Job) {
        self.arrivals += 1;
        let class = job.request.class;
        let mut live = Live::new(job, self.arrivals);
        if self.queued() >= self.config.max_waiting {
            // Those whose callers went away are not in the way.
            self.drop_cancelled();
        }
        if self.queued() >= self.config.max_waiting {
            live.outcome = Some(Err(InferenceError::Busy { waiting: self.queued() }));
            live.end();
            return;
        }
        self.waiting[class as usize].push_back(live);
        self.publish();
    }

    /// Changes the weights, after the step under way. Running requests go on with what their caches hold; prompts that have
    /// not drawn a token start over, and none of the old version is kept for later requests.
    pub fn update(&mut self, forward: F, version: PolicyVersion) -> Result<(), String> {
        self.finish()?;
        self.forward = forward;
        self.version = version;
        self.changes += 1;
        self.prefixes.clear();
        for prefill in &mut self.prefills {
            prefill.cache = self.forward.new_cache(&self.meter);
            prefill.done = 0;
            prefill.members.iter_mut().for_each(Live::restart);
        }
        self.publish();
        Ok(())
    }

    /// Stops after the step under way, or goes on; requests keep what they have.
    pub fn pause(&mut self, paused: bool) -> Result<(), String> {
        self.finish()?;
        self.paused = paused;
        self.publish();
        Ok(())
    }

    /// Whether there is nothing to do.
    pub fn is_idle(&self) -> bool {
        self.paused || (self.queued() == 0 && self.running() == 0 && self.underway.is_none())
    }

    /// One step: lets requests in, extends every running sequence by one token and the waiting prompts by their share
    /// of tokens, draws, and answers what is done. Where the model runs ahead, tokens are those of the step before, which was
    /// computed meanwhile.
    pub fn step(&mut self) -> Result<(), String> {
        let started = clock::now();
        if self.underway.as_ref().is_some_and(Step::needs_host) {
            self.finish()?;
        }
        self.drop_cancelled();
        self.admit();
        let chunks = self.make_room();
        let next = self.begin(&chunks)?;
        self.finish()?;
        self.underway = next;
        let pending =
            self.decoding.iter_mut().map(|d| &mut d.answer).chain(self.prefills.iter_mut().map(|p| &mut p.answer));
        pending.for_each(|answer| *answer = Pending { now: answer.next, next: None });
        if !self.forward.runs_ahead() {
            self.finish()?;
        }
        self.end_done();
        self.counts.busy_seconds += started.elapsed().as_secs_f64();
        self.publish();
        Ok(())
    }

    /// Frees what requests hold whose callers went away.
    pub fn drop_cancelled(&mut self) {
        let before = self.queued() + self.running();
        self.waiting.iter_mut().for_each(|queue| queue.retain(|live| !live.is_cancelled()));
        self.decoding.retain(|d| !d.live.is_cancelled());
        for prefill in &mut self.prefills {
            prefill.members.retain(|live| !live.is_cancelled());
        }
        self.prefills.retain(|p| !p.members.is_empty());
        let gone = before - self.queued() - self.running();
        if gone > 0 {
            self.counts.cancelled += gone as u64;
            self.publish();
        }
    }

    fn queued(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    fn running(&self) -> usize {
        self.decoding.len() + self.prefills.iter().map(|p| p.members.len()).sum::<usize>()
    }

    /// Fills free slots, classes in turns and each in order of arrival, as long as there is memory for prompts.
    fn admit(&mut self) {
        let mut free = self.config.max_batch.saturating_sub(self.running());
        while free > 0 {
            let turn = if self.waiting[self.turn].is_empty() { 1 - self.turn } else { self.turn };
            let Some(mut live) = self.waiting[turn].pop_front() else { break };
            let ids: Arc<[TokenId]> = match live.ids.is_empty() {
                true => live.job.request.prompt.clone(),
                false => live.context().into(),
            };
            let salt = live.job.request.salt();
            let scores = live.scores_prompt();
            let joins = |p: &&mut Prefill<F::Cache>| {
                let first = &p.members[0];
                p.ids == ids && !scores && !first.scores_prompt() && first.job.request.salt() == salt
            };
            if let Some(prefill) = self.prefills.iter_mut().find(joins) {
                self.counts.forks += 1;
                self.counts.cached_tokens += ids.len() as u64;
                live.found(ids.len());
                prefill.members.push(live);
            } else {
                let found = if scores { None } else { self.prefixes.find(&salt, &ids) };
                let (cache, done) = found.unwrap_or_else(|| (self.forward.new_cache(&self.meter), 0));
                // What is promised to prompts on their way comes on top.
                let growth = |s: &Self| cache.growth(ids.len() - done) + s.promised();
                if !self.free(growth) && self.running() > 0 {
                    self.waiting[turn].push_front(live);
                    break;
                }
                self.counts.forks += u64::from(done > 0);
                self.counts.cached_tokens += done as u64;
                live.found(done);
                let answer = Pending::default();
                self.prefills.push(Prefill { ids, cache, done, members: vec![live], answer });
            }
            self.turn = 1 - turn;
            free -= 1;
        }
    }

    /// Bytes that running sequences take in the next step, and prompts until they are through.
    fn promised(&self) -> usize {
        self.of_decoding() + self.prefills.iter().map(|p| p.cache.growth(p.ids.len() - p.done)).sum::<usize>()
    }

    /// Bytes that decoding sequences take in the next step.
    fn of_decoding(&self) -> usize {
        self.decoding.iter().map(|d| d.cache.growth(1)).sum()
    }

    /// Gives up what is kept of past sequences until `bytes` fit, which may be fewer once less is shared; whether they do.
    fn free(&mut self, bytes: impl Fn(&Self) -> usize) -> bool {
        while self.meter.bytes().saturating_add(bytes(self)) > self.config.cache_bytes {
            if !self.prefixes.give_up() {
                return false;
            }
        }
        true
    }

    /// How many tokens of each prompt go through the model in the next step. Where memory does not suffice for that, what
    /// is kept goes first, then the requests that came last, which start over later.
    fn make_room(&mut self) -> Vec<usize> {
        loop {
            let chunks = self.chunks();
            let growth = |s: &Self| {
                let prompts = s.prefills.iter().zip(&chunks);
                let of_prompts: usize = prompts.map(|(p, n)| if *n == 0 { 0 } else { p.cache.growth(*n) }).sum();
                of_prompts + s.of_decoding()
            };
            if self.free(growth) || !self.preempt() {
                return chunks;
            }
        }
    }

    fn chunks(&self) -> Vec<usize> {
        let mut budget = self.config.prefill_tokens;
        let ahead = self.forward.runs_ahead();
        let share = |p: &Prefill<F::Cache>| {
            let scores = !ahead && p.members.iter().any(Live::scores_prompt);
            let most = if scores { SCORED_TOKENS } else { usize::MAX };
            let n = budget.min(p.target(ahead).saturating_sub(p.done)).min(most);
            budget -= n;
            n
        };
        self.prefills.iter().map(share).collect()
    }

    /// Sends the request that came last back to its queue; one alone fails, since nothing else can make room for it.
    /// Whether that may have freed anything.
    fn preempt(&mut self) -> bool {
        let last =
            self.decoding.iter().enumerate().max_by_key(|(_, d)| d.live.arrival).map(|(i, d)| (i, d.live.arrival));
        let came = |p: &Prefill<F::Cache>| p.members.iter().map(|live| live.arrival).max().unwrap_or(0);
        let prompt = self.prefills.iter().enumerate().map(|(i, p)| (i, came(p))).max_by_key(|(_, arrival)| *arrival);
        let alone = self.decoding.len() + self.prefills.len() == 1;
        let back: Vec<Live> = match (last, prompt) {
            (Some((i, arrival)), other) if other.is_none_or(|(_, prompt)| prompt < arrival) => {
                vec![self.decoding.remove(i).live]
            }
            (_, Some((i, _))) => self.prefills.remove(i).members,
            _ => return false,
        };
        for mut live in back.into_iter().rev() {
            if alone {
                live.outcome = Some(Err(InferenceError::CacheFull { budget: self.config.cache_bytes }));
                live.end();
                continue;
            }
            self.counts.preempted += 1;
            live.restart();
            let queue = &mut self.waiting[live.job.request.class as usize];
            let at = queue.partition_point(|other| other.arrival < live.arrival);
            queue.insert(at, live);
        }
        true
    }

    /// Calls the model once, if there is anything to do.
    fn begin(&mut self, chunks: &[usize]) -> Result<Option<Step>, String> {
        let (ahead, context) = (self.forward.runs_ahead(), self.config.max_model_len);
        let mut work: Vec<Work<'_, F::Cache>> = Vec::with_capacity(self.decoding.len() + self.prefills.len());
        for Decoding { live, cache, answer } in &mut self.decoding {
            let follows = answer.now;
            let tokens = usize::from(follows.is_some());
            if !live.goes_on(context, tokens) {
                continue;
            }
            answer.next = Some(work.len());
            let want = live.want(tokens);
            let adapter = live.job.request.adapter.as_deref();
            work.push(Work { cache, ids: live.last_token(), follows, want, adapter });
        }
        let mut answered = work.len();
        for (p, n) in self.prefills.iter_mut().zip(chunks).filter(|(_, n)| **n > 0) {
            let last = p.done + n == p.ids.len();
            let ids = &p.ids[p.done..p.done + n];
            let want = match p.members.as_mut_slice() {
                [first, ..] if first.scores_prompt() && ahead => Want::Scores {
                    labels: &p.ids[p.done + 1..p.done + n + 1],
                    temperature: first.job.request.sampling.temperature,
                    most: first.job.request.sampling.prompt_logprobs.unwrap_or(0),
                },
                [first, ..] if first.scores_prompt() => Want::AllLogits,
                _ if !last => Want::Nothing,
                [one] => one.want(0),
                _ => Want::Logits,
            };
            p.done += n;
            p.answer.next = (want != Want::Nothing).then_some(answered);
            answered += usize::from(want != Want::Nothing);
            let adapter = p.members.first().and_then(|live| live.job.request.adapter.as_deref());
            work.push(Work { cache: &mut p.cache, ids, follows: None, want, adapter });
        }
        let wanted = work.iter().filter_map(|w| Kind::of(w.want, w.ids.len())).collect();
        let step = match work.is_empty() {
            true => None,
            false => Some(Step { answers: self.forward.begin(&mut work)?, wanted }),
        };
        self.counts.steps += u64::from(step.is_some());
        self.counts.prefill_tokens += chunks.iter().sum::<usize>() as u64;
        self.prefilled(ahead);
        Ok(step)
    }

    /// Lets the prompts decode that are through, and told.
    fn prefilled(&mut self, ahead: bool) {
        let through = |p: &mut Prefill<F::Cache>| p.done == p.target(ahead) && p.is_scored();
        let ready: Vec<_> = self.prefills.extract_if(.., through).collect();
        for Prefill { ids, cache, done, mut members, answer, .. } in ready {
            self.counts.prefills += 1;
            if let Some(live) = members.iter().find(|live| live.job.request.shared) {
                self.prefixes.keep(live.job.request.salt(), ids[..done].to_vec(), cache.clone());
            }
            for live in &mut members {
                live.prompt_done(self.changes);
                if live.job.request.sampling.max_tokens == Some(0) && ahead {
                    live.outcome = Some(Ok(FinishReason::Length));
                }
            }
            let last = members.pop();
            let forks = members.into_iter().map(|live| Decoding { live, cache: cache.clone(), answer });
            self.decoding.extend(forks);
            self.decoding.extend(last.map(|live| Decoding { live, cache, answer }));
        }
    }

    /// Waits for the step under way and draws from what it answers.
    fn finish(&mut self) -> Result<(), String> {
        let Some(step) = self.underway.take() else { return Ok(()) };
        let mut answers = step.finish(self.forward.vocab_size())?;
        self.scored(&mut answers);
        self.draw(&answers);
        self.end_done();
        Ok(())
    }

    /// Notes what was asked of prompts.
    fn scored(&mut self, answers: &mut [Answer]) {
        let vocab = self.forward.vocab_size();
        for p in &mut self.prefills {
            let Some(first) = p.members.first_mut().filter(|first| first.scores_prompt()) else { continue };
            match p.answer.now.and_then(|i| answers.get_mut(i)) {
                Some(Answer::Logits(rows)) => {
                    first.score_prompt(&self.forward, p.done - rows.len() / vocab + 1, rows);
                    // The last row is what the next token is drawn from.
                    rows.drain(..rows.len() - vocab);
                }
                Some(Answer::Scores(scores)) => {
                    first.take_scores(first.scored_tokens() + 1, std::mem::take(scores));
                    p.answer.now = None;
                }
                Some(Answer::Token(..)) | None => {}
            }
        }
        self.prefilled(self.forward.runs_ahead());
    }

    /// Draws a token for every request that has an answer to draw from; every request has its own random stream, so the order
    /// does not matter. Requests stay in `decoding` while they draw, so that a panicking callback loses none before the engine
    /// has said why.
    fn draw(&mut self, answers: &[Answer]) {
        let (forward, version, context) = (&self.forward, self.version, self.config.max_model_len);
        let draw = |d: &mut Decoding<F::Cache>| match d.answer.now.take().and_then(|i| answers.get(i)) {
            Some(answer) if d.live.outcome.is_none() => d.live.next(forward, version, context, answer),
            _ => 0,
        };
        let slow = |d: &Decoding<F::Cache>| {
            d.live.is_slow() || matches!(d.answer.now.and_then(|i| answers.get(i)), Some(Answer::Logits(_)))
        };
        self.counts.decode_tokens += match self.decoding.len() > 1 && self.decoding.iter().any(slow) {
            true => self.decoding.par_iter_mut().map(draw).sum(),
            false => self.decoding.iter_mut().map(draw).sum::<u64>(),
        };
    }

    /// Answers those that are done.
    fn end_done(&mut self) {
        let done: Vec<_> = self.decoding.extract_if(.., |d| d.live.outcome.is_some()).collect();
        if done.is_empty() {
            return;
        }
        let mut over = Vec::with_capacity(done.len());
        for Decoding { live, mut cache, .. } in done {
            let well = matches!(live.outcome, Some(Ok(_)));
            match live.is_cancelled() {
                true => self.counts.cancelled += 1,
                false => self.counts.finished += u64::from(well),
            }
            // What it leaves is the beginning of a next turn; the last token is not in the cache, or came there in vain.
            if well && live.job.request.goes_on && live.began == Some(self.changes) {
                let mut ids = live.context();
                ids.pop();
                cache.truncate(ids.len());
                self.prefixes.keep(live.job.request.salt(), ids, cache);
            }
            over.push(live);
        }
        // Before the answers, so that whoever has one also sees it counted.
        self.publish();
        over.into_iter().for_each(Live::end);
    }

    fn publish(&self) {
        let mut stats = self.published.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *stats = Stats {
            running: self.running(),
            waiting: self.queued(),
            cache_bytes: self.meter.bytes(),
            paused: self.paused,
            version: self.version,
            ..self.counts
        };
    }
}

#[cfg(test)]
#[path = "scheduler_tests.rs"]
mod tests;
