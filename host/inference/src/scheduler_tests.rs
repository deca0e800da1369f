//! The scheduler over a model made of a hash: what is shared, what is dropped, and that nothing depends on company.

use super::*;
use crate::forward::Answers;
use crate::live::Job;
use crate::request::{Class, Event, PromptDone, Request};
use crate::sampler::draw;
use crate::{Grammar, Grammars, Guide, SamplingParams, Word};
use prl_kernels::Held;
use prl_types::{FinishReason, Sampled};
use proptest::prelude::*;
use std::sync::LazyLock;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

const VOCAB: usize = 13;

/// Logits are a hash of the weights' seed and of all ids so far, with the weights each id was seen under.
#[derive(Clone)]
struct Hash {
    weights: u64,
    role: Role,
    /// What the last step that ran ahead answered.
    last: Arc<Mutex<Vec<Answer>>>,
}

/// How much a model does.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Logits,
    /// Draws where it may.
    Draws,
    /// Draws, scores, and lets steps begin before the answers of the one before are looked at.
    Ahead,
}

thread_local! {
    /// That of new models.
    static ROLE: std::cell::Cell<Role> = const { std::cell::Cell::new(Role::Logits) };
}

impl Hash {
    fn new(weights: u64) -> Self {
        Hash { weights, role: ROLE.get(), last: Arc::default() }
    }

    fn run(&self, work: &mut Work<'_, Seen>, new: &[TokenId]) -> Result<Option<Answer>, String> {
        if new.is_empty() {
            return Err("an item without ids".into());
        }
        let past = work.cache.ids.len();
        let held = |id: &TokenId| (self.weights, *id, Arc::new(work.cache.meter.hold(1)));
        let new: Vec<_> = new.iter().map(held).collect();
        work.cache.ids.extend(new);
        let adapter = work.adapter.map_or(0, |adapter| mix(adapter.id()));
        let row = |seen: &[(u64, TokenId, Arc<Held>)]| {
            let seen = seen.iter().fold(self.weights ^ adapter, |h, (w, id, _)| mix(h ^ mix(*w) ^ u64::from(*id)));
            (0..VOCAB as u64).map(|v| (mix(seen ^ v) % 1000) as f32 / 250.0).collect::<Vec<f32>>()
        };
        let ids = &work.cache.ids;
        let rows = (past + 1..=ids.len()).map(|len| row(&ids[..len]));
        match work.want {
            Want::Nothing => Ok(None),
            Want::AllLogits => Ok(Some(Answer::Logits(rows.flatten().collect()))),
            Want::Scores { labels, temperature, most } => {
                assert!(self.role == Role::Ahead && labels.len() == ids.len() - past);
                let score = |(row, label): (Vec<f32>, &TokenId)| {
                    let mut order: Vec<usize> = (0..VOCAB).collect();
                    order.sort_by(|a, b| row[*b].total_cmp(&row[*a]));
                    let logprob = |id: usize| self.logprob(&row, id as TokenId, temperature);
                    let rank = row.iter().filter(|x| **x > row[*label as usize]).count() as u32 + 1;
                    let top = order.into_iter().take(most).map(|id| (id as TokenId, logprob(id))).collect();
                    prl_model::Score { logprob: logprob(*label as usize), rank, top }
                };
                Ok(Some(Answer::Scores(rows.zip(labels).map(score).collect())))
            }
            want => self.answer(want, row(ids)).map(Some),
        }
    }

    fn answer(&self, want: Want, row: Vec<f32>) -> Result<prl_model::Answer, String> {
        let Want::Token(how) = want else { return Ok(prl_model::Answer::Logits(row)) };
        if self.role == Role::Logits {
            return Ok(prl_model::Answer::Logits(row));
        }
        let prl_model::Draw { temperature, top_k, top_p, min_p, .. } = how;
        let sampling = SamplingParams { temperature, top_k, top_p, min_p, ..SamplingParams::default() };
        let token = draw(&row, &sampling, how.uniform).map_err(|e| e.to_string())?;
        let logprob = self.logprob(&row, token, sampling.logprob_temperature());
        Ok(prl_model::Answer::Token(token, logprob))
    }
}

/// Ids with the weights they were seen under; one byte each, which clones share.
#[derive(Clone)]
struct Seen {
    ids: Vec<(u64, TokenId, Arc<Held>)>,
    meter: Meter,
}

impl Cached for Seen {
    fn truncate(&mut self, len: usize) {
        self.ids.truncate(len);
    }

    fn growth(&self, more: usize) -> usize {
        more
    }
}

impl Forward for Hash {
    type Cache = Seen;

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn new_cache(&self, meter: &Meter) -> Seen {
        Seen { ids: Vec::new(), meter: meter.clone() }
    }

    fn extend(&self, batch: &mut [Work<'_, Self::Cache>]) -> Result<Vec<prl_model::Answer>, String> {
        batch.iter_mut().filter_map(|work| self.run(work, work.ids).transpose()).collect()
    }

    fn runs_ahead(&self) -> bool {
        self.role == Role::Ahead
    }

    fn begin(&self, batch: &mut [Work<'_, Self::Cache>]) -> Result<Answers, String> {
        let mut answers = Vec::new();
        let mut last = self.last.lock().unwrap();
        for work in batch {
            let drawn = work.follows.map(|answer| match last[answer] {
                Answer::Token(id, _) => id,
                _ => panic!("follows what was not drawn"),
            });
            assert!(drawn.is_none() || self.runs_ahead());
            let ids = drawn.map_or(work.ids.to_vec(), |id| vec![id]);
            answers.extend(self.run(work, &ids)?);
        }
        last.clone_from(&answers);
        Ok(Box::new(|| Ok(answers)))
    }

    fn logprob(&self, logits: &[f32], token: TokenId, temperature: f32) -> f32 {
        let total: f32 = logits.iter().map(|x| (x / temperature).exp()).sum();
        logits[token as usize] / temperature - total.ln()
    }
}

fn mix(x: u64) -> u64 {
    let x = (x ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (x >> 31)
}

type Events = UnboundedReceiver<Event>;

struct Bench {
    scheduler: Scheduler<Hash>,
    stats: Arc<Mutex<Stats>>,
}

impl Bench {
    fn new(config: EngineConfig) -> Self {
        let stats: Arc<Mutex<Stats>> = Arc::default();
        let scheduler = Scheduler::new(Hash::new(0), PolicyVersion(0), config, stats.clone());
        Bench { scheduler, stats }
    }

    fn submit(&mut self, request: &Request) -> Events {
        let (events, inbox) = unbounded_channel();
        self.scheduler.submit(Job { request: request.clone(), events });
        inbox
    }

    fn update(&mut self, version: u64) {
        self.scheduler.update(Hash::new(version), PolicyVersion(version)).unwrap();
    }

    fn finish(&mut self) {
        while !self.scheduler.is_idle() {
            self.scheduler.step().unwrap();
        }
    }

    fn stats(&self) -> Stats {
        *self.stats.lock().unwrap()
    }
}

/// The prompt's event, the tokens, and how it ended.
fn all(mut events: Events) -> (PromptDone, Vec<crate::Drawn>, Result<FinishReason, InferenceError>) {
    let (mut prompt, mut tokens) = (None, Vec::new());
    loop {
        match events.try_recv().expect("answered") {
            Event::Prompt(done) => assert!(prompt.replace(done).is_none() && tokens.is_empty()),
            Event::Token(drawn) => tokens.push(drawn),
            Event::End(outcome) => {
                assert!(events.try_recv().is_err());
                return (prompt.unwrap_or_default(), tokens, outcome);
            }
        }
    }
}

fn take(events: Events) -> Sampled {
    let (_, tokens, outcome) = all(events);
    let versions = tokens.iter().map(|drawn| drawn.version);
    let versions = (versions.clone().min().unwrap(), versions.max().unwrap());
    let (ids, logprobs) = tokens.iter().map(|drawn| (drawn.scored.id, drawn.scored.logprob)).unzip();
    Sampled::from_engine(ids, logprobs, versions, outcome.unwrap()).unwrap()
}

fn config(max_batch: usize) -> EngineConfig {
    EngineConfig { prefill_tokens: 5, ..EngineConfig::new(max_batch, 64) }
}

fn request(prompt: &[TokenId], seed: u64, max_tokens: usize) -> Request {
    let sampling = SamplingParams { max_tokens: Some(max_tokens), ..Default::default() };
    Request::new(prompt, sampling, seed)
}

fn grouped(prompt: &[TokenId], seed: u64, max_tokens: usize) -> Request {
    Request { shared: true, ..request(prompt, seed, max_tokens) }
}

fn alone(request: &Request) -> Sampled {
    let mut bench = Bench::new(config(1));
    let answer = bench.submit(request);
    bench.finish();
    take(answer)
}

#[test]
fn a_group_prefills_its_prompt_once_whenever_its_members_come() {
    let prompt: Vec<TokenId> = (0..12).collect();
    let mut bench = Bench::new(config(3));
    let mut answers: Vec<_> = (0..6).map(|seed| bench.submit(&grouped(&prompt, seed, 4))).collect();
    bench.finish();
    answers.extend((6..8).map(|seed| bench.submit(&grouped(&prompt, seed, 4))));
    bench.finish();
    let stats = bench.stats();
    // Those that come later run the last token again, together.
    assert_eq!((stats.prefills, stats.prefill_tokens, stats.forks), (3, 12 + 2, 7));
    assert_eq!((stats.decode_tokens, stats.finished, stats.running, stats.waiting), (32, 8, 0, 0));
    for (seed, answer) in answers.into_iter().enumerate() {
        assert_eq!(take(answer), alone(&request(&prompt, seed as u64, 4)));
    }
}

#[test]
fn equal_prompts_of_one_salt_are_shared_and_a_next_turn_goes_on_where_the_last_one_ended() {
    let salted = |salt: &str| Request { cache_salt: Some(salt.into()), ..request(&[1, 2], 0, 2) };
    let mut bench = Bench::new(config(6));
    let answers = [
        bench.submit(&request(&[1, 2], 0, 2)),
        bench.submit(&request(&[1, 3], 0, 2)),
        bench.submit(&request(&[1, 2], 0, 2)),
        bench.submit(&salted("a")),
        bench.submit(&salted("b")),
        bench.submit(&Request {
            adapter: Some(Arc::new(prl_model::Adapter::new(Vec::new()))),
            ..request(&[1, 2], 0, 2)
        }),
    ];
    bench.finish();
    assert_eq!((bench.stats().prefills, bench.stats().forks), (5, 1));
    let [a, b, c, d, e, f] = answers.map(take);
    assert_ne!(a, f);
    assert_eq!((&a, &a, &a), (&c, &d, &e));
    assert_eq!(b, alone(&request(&[1, 3], 0, 2)));

    let prompt: Vec<TokenId> = (0..40).map(|i| i % 13).collect();
    let first = bench.submit(&request(&prompt, 1, 5));
    bench.finish();
    let next = [&prompt[..], take(first).ids(), &[1, 2, 3]].concat();
    let before = bench.stats();
    let second = bench.submit(&request(&next, 2, 3));
    bench.finish();
    // All but the last token that was drawn, and what is new.
    assert_eq!(bench.stats().prefill_tokens - before.prefill_tokens, 4);
    let (prompt, tokens, _) = all(second);
    assert_eq!(prompt.cached_tokens, 44);
    assert_eq!(tokens[0].scored.id, alone(&request(&next, 2, 3)).ids()[0]);
}

#[test]
fn what_is_kept_is_bounded() {
    let mut bench = Bench::new(EngineConfig { kept_prefixes: 1, ..config(1) });
    for _ in 0..4 {
        bench.submit(&grouped(&[1, 2, 3], 0, 1));
    }
    // Nobody listens: cancelled before they run.
    bench.finish();
    assert_eq!((bench.stats().cancelled, bench.stats().prefills), (4, 0));
    let a: Vec<TokenId> = (0..40).map(|i| i % 13).collect();
    let b: Vec<TokenId> = (1..41).map(|i| i % 13).collect();
    let answers: Vec<_> = [&a, &a, &b, &a].map(|prompt| bench.submit(&request(prompt, 0, 1))).into_iter().collect();
    bench.finish();
    assert_eq!(bench.stats().prefill_tokens, 40 + 1 + 40 + 40);
    drop(answers);
}

#[test]
fn who_came_last_gives_way_when_memory_runs_out() {
    let prompt: Vec<TokenId> = (0..10).collect();
    let mut bench = Bench::new(EngineConfig { cache_bytes: 40, ..config(3) });
    let requests: Vec<Request> =
        (0..3).map(|seed| request(&[&prompt[..], &[seed as u32]].concat(), seed, 20)).collect();
    let answers: Vec<_> = requests.iter().map(|request| bench.submit(request)).collect();
    while !bench.scheduler.is_idle() {
        bench.scheduler.step().unwrap();
        assert!(bench.stats().cache_bytes <= 40, "{:?}", bench.stats());
    }
    assert!(bench.stats().preempted > 0);
    for (request, answer) in requests.iter().zip(answers) {
        assert_eq!(take(answer), alone(request));
    }
    // One that needs more than there is fails, and nobody else with it.
    let (long, short) = (bench.submit(&request(&prompt, 5, 50)), bench.submit(&request(&prompt, 6, 4)));
    bench.finish();
    assert_eq!(all(long).2, Err(InferenceError::CacheFull { budget: 40 }));
    assert_eq!(take(short), alone(&request(&prompt, 6, 4)));
    bench.update(1);
    assert_eq!((bench.stats().cache_bytes, bench.stats().running), (0, 0));
}

#[test]
fn classes_take_turns_and_each_keeps_its_order() {
    let mut bench = Bench::new(config(1));
    let mut submit = |class, n: usize| {
        let requests = (0..n).map(|seed| Request { class, ..request(&[1], seed as u64, 1) });
        requests.map(|request| bench.submit(&request)).collect::<Vec<_>>()
    };
    let (mut train, mut eval) = (submit(Class::Train, 4), submit(Class::Eval, 2));
    let mut order = String::new();
    while !bench.scheduler.is_idle() {
        bench.scheduler.step().unwrap();
        for (name, events) in [('t', &mut train), ('e', &mut eval)] {
            let before = events.len();
            events.retain_mut(|events| {
                !matches!(std::iter::from_fn(|| events.try_recv().ok()).last(), Some(Event::End(_)))
            });
            order.extend(std::iter::repeat_n(name, before - events.len()));
        }
    }
    assert_eq!(order, "tetett");
}

#[test]
fn prompts_are_scored_like_what_follows_them() {
    [Role::Logits, Role::Ahead].into_iter().for_each(|role| playing(role, scored_prompts));
}

fn scored_prompts() {
    let long: Vec<TokenId> = (0..100).map(|i| i * 5 % 13).collect();
    let mut bench = Bench::new(EngineConfig { prefill_tokens: 30, ..EngineConfig::new(2, 128) });
    let mut scored = request(&long, 1, 3);
    scored.sampling.prompt_logprobs = Some(2);
    scored.sampling.logprobs = Some(3);
    let plain = bench.submit(&request(&long, 1, 3));
    let events = bench.submit(&scored);
    bench.finish();
    let (prompt, tokens, _) = all(events);
    assert_eq!((prompt.cached_tokens, prompt.logprobs.len()), (0, 99));
    assert_eq!(tokens.iter().map(|drawn| drawn.scored.id).collect::<Vec<_>>(), take(plain).ids());
    let hash = Hash { role: Role::Logits, ..Hash::new(0) };
    for (at, scored) in prompt.logprobs.iter().chain(tokens.iter().map(|drawn| &drawn.scored)).enumerate() {
        let ids: Vec<_> = long.iter().copied().chain(tokens.iter().map(|drawn| drawn.scored.id)).collect();
        let mut cache = hash.new_cache(&Meter::default());
        let row = hash
            .extend(&mut [Work {
                cache: &mut cache,
                ids: &ids[..=at],
                follows: None,
                want: Want::Logits,
                adapter: None,
            }])
            .unwrap();
        let prl_model::Answer::Logits(row) = &row[0] else { panic!("logits") };
        assert_eq!((scored.id, scored.logprob), (ids[at + 1], hash.logprob(row, ids[at + 1], 1.0)));
        assert_eq!(scored.rank as usize, row.iter().filter(|x| **x > row[scored.id as usize]).count() + 1);
        let best = row.iter().enumerate().fold(0, |best, (i, x)| if *x > row[best] { i } else { best });
        assert_eq!((scored.top[0].0 as usize, scored.top.len()), (best, if at < 99 { 2 } else { 3 }));
        assert!(scored.top.is_sorted_by(|a, b| a.1 >= b.1));
    }
}

#[test]
fn biases_and_the_least_length_change_what_is_drawn_and_not_its_logprob() {
    let free = alone(&request(&[1], 3, 12));
    let mut biased = request(&[1], 3, 4);
    biased.sampling.logit_bias = vec![(7, 100.0)];
    let biased = alone(&biased);
    assert_eq!(biased.ids(), [7; 4]);
    assert!(biased.logprobs().iter().all(|logprob| *logprob < -0.1));
    let mut long = request(&[1], 3, 12);
    long.sampling.stop_token_ids = vec![free.ids()[0]];
    long.sampling.min_tokens = 5;
    let long = alone(&long);
    assert!(long.ids().len() >= 5 && !long.ids()[..4].contains(&free.ids()[0]));
}

#[test]
fn a_pause_keeps_everything() {
    let mut bench = Bench::new(config(2));
    let answer = bench.submit(&request(&[1, 2], 3, 6));
    (0..3).for_each(|_| bench.scheduler.step().unwrap());
    bench.scheduler.pause(true).unwrap();
    assert!(bench.scheduler.is_idle() && bench.stats().paused);
    let other = bench.submit(&request(&[1, 2], 4, 2));
    bench.scheduler.pause(false).unwrap();
    bench.finish();
    assert_eq!(take(answer), alone(&request(&[1, 2], 3, 6)));
    assert_eq!(take(other), alone(&request(&[1, 2], 4, 2)));
}

#[test]
fn too_many_that_wait_are_refused() {
    let mut bench = Bench::new(EngineConfig { max_waiting: 2, ..config(1) });
    let answers: Vec<_> = (0..3).map(|seed| bench.submit(&request(&[1], seed, 1))).collect();
    bench.finish();
    let ends: Vec<_> = answers.into_iter().map(|events| all(events).2).collect();
    assert_eq!(ends[2], Err(InferenceError::Busy { waiting: 2 }));
    assert!(ends[0].is_ok() && ends[1].is_ok());
}

/// https://github.com/NVIDIA-NeMo/RL/pull/4018
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1650
/// https://github.com/InternLM/lmdeploy/issues/4917
#[test]
fn new_requests_never_see_old_weights_and_running_ones_go_on() {
    let prompt: Vec<TokenId> = (0..9).collect();
    let cold = |seed| {
        let mut bench = Bench::new(config(1));
        bench.update(1);
        let answer = bench.submit(&grouped(&prompt, seed, 3));
        bench.finish();
        take(answer)
    };
    let mut bench = Bench::new(config(8));
    let old = bench.submit(&grouped(&prompt, 1, 6));
    for _ in 0..4 {
        bench.scheduler.step().unwrap();
    }
    bench.update(1);
    let new = bench.submit(&grouped(&prompt, 2, 3));
    bench.finish();
    let old = take(old);
    assert_eq!(old.versions(), Some((PolicyVersion(0), PolicyVersion(1))));
    assert_eq!(old.ids().len(), 6);
    assert_eq!(old.ids()[..3], alone(&request(&prompt, 1, 6)).ids()[..3]);
    assert_eq!(take(new), cold(2));
    assert_eq!(bench.stats().prefills, 2);

    // What began before a change is not kept, whatever number the new weights have.
    let long: Vec<TokenId> = (0..40).map(|i| i % 13).collect();
    let mut bench = Bench::new(EngineConfig { prefill_tokens: 64, ..config(1) });
    let old = bench.submit(&request(&long, 1, 4));
    bench.scheduler.step().unwrap();
    bench.scheduler.update(Hash::new(1), PolicyVersion(0)).unwrap();
    bench.finish();
    let next = [&long[..], take(old).ids()].concat();
    let new = bench.submit(&request(&next, 2, 3));
    bench.finish();
    assert_eq!(all(new).0.cached_tokens, 0);

    // A prompt that is only half through when the weights change starts over.
    let mut bench = Bench::new(config(1));
    let answer = bench.submit(&grouped(&prompt, 3, 3));
    bench.scheduler.step().unwrap();
    bench.update(1);
    bench.finish();
    assert_eq!(take(answer), cold(3));
    assert_eq!(bench.stats().prefill_tokens, 5 + 9);
}

#[test]
fn a_dropped_caller_frees_its_slot_and_its_group_goes_on() {
    let prompt: Vec<TokenId> = (0..9).collect();
    let mut bench = Bench::new(config(2));
    let leader = bench.submit(&grouped(&prompt, 0, 50));
    let member = bench.submit(&grouped(&prompt, 1, 3));
    let queued = bench.submit(&request(&prompt, 2, 3));
    bench.scheduler.step().unwrap();
    assert_eq!((bench.stats().running, bench.stats().waiting), (2, 1));
    drop(leader);
    bench.scheduler.step().unwrap();
    assert_eq!((bench.stats().running, bench.stats().waiting, bench.stats().cancelled), (2, 0, 1));
    bench.finish();
    assert_eq!(take(member), alone(&request(&prompt, 1, 3)));
    assert_eq!(take(queued), alone(&request(&prompt, 2, 3)));
}

#[test]
fn every_reason_to_stop_is_told_apart() {
    let free = alone(&request(&[1], 3, 12));
    assert_eq!((free.finish(), free.ids().len()), (&FinishReason::Length, 12));
    let token = free.ids()[4];
    let at = free.ids().iter().position(|t| *t == token).unwrap();
    let mut stopped = request(&[1], 3, at + 1);
    stopped.sampling.stop_token_ids = vec![token];
    let stopped = alone(&stopped);
    assert_eq!((stopped.finish(), stopped.ids()), (&FinishReason::StopToken(token), &free.ids()[..=at]));

    let letters = |ids: &[TokenId]| -> String { ids.iter().map(|i| char::from(b'a' + *i as u8)).collect() };
    let text = letters(free.ids());
    let word = text[5..8].to_string();
    let end = text.find(&word).unwrap() + 3;
    let mut stopped = request(&[1], 3, end);
    stopped.sampling.stop = vec!["zzz".into(), word.clone()];
    stopped.decode = Some(Arc::new(letters));
    let stopped = alone(&stopped);
    assert_eq!((stopped.finish(), stopped.ids()), (&FinishReason::StopString(word), &free.ids()[..end]));

    // 60 tokens of prompt leave 4 in a context of 64.
    let long: Vec<TokenId> = (0..60).map(|i| i % 13).collect();
    let cut = alone(&request(&long, 3, 12));
    assert_eq!((cut.finish(), cut.ids().len()), (&FinishReason::Length, 4));
}

/// https://github.com/vllm-project/vllm/issues/42259
#[test]
fn logprobs_are_over_the_whole_vocabulary_whatever_is_filtered() {
    let mut filtered = request(&[1, 2], 3, 1);
    filtered.sampling =
        SamplingParams { temperature: 0.7, top_k: Some(2), top_p: 0.5, min_p: 0.1, ..filtered.sampling };
    let got = alone(&filtered);
    let hash = Hash::new(0);
    let mut cache = hash.new_cache(&Meter::default());
    let row = hash
        .extend(&mut [Work { cache: &mut cache, ids: &[1, 2], follows: None, want: Want::Logits, adapter: None }])
        .unwrap();
    let prl_model::Answer::Logits(row) = &row[0] else { panic!("logits") };
    assert_eq!(got.logprobs()[0], hash.logprob(row, got.ids()[0], 0.7));
    let mut greedy = request(&[1, 2], 3, 1);
    greedy.sampling.temperature = 0.0;
    let got = alone(&greedy);
    assert_eq!(got.logprobs()[0], hash.logprob(row, got.ids()[0], 1.0));
}

#[test]
fn a_model_that_draws_itself_gives_the_same_tokens() {
    let mut filtered = request(&[4, 2], 8, 9);
    filtered.sampling.top_k = Some(3);
    let mut greedy = request(&[4, 2], 8, 9);
    greedy.sampling.temperature = 0.0;
    let mut penalised = request(&[4, 2], 8, 9);
    penalised.sampling.presence_penalty = 1.5;
    let guided = Request { guide: Some(GUIDES[1].clone()), ..request(&[4, 2], 8, 9) };
    for request in [request(&[4, 2], 8, 9), filtered, greedy, penalised, guided] {
        let here = alone(&request);
        for role in [Role::Draws, Role::Ahead] {
            assert_eq!(here, playing(role, || alone(&request)));
        }
    }
}

/// What `run` gives with models of this role.
fn playing<R>(role: Role, run: impl FnOnce() -> R) -> R {
    ROLE.set(role);
    let got = run();
    ROLE.set(Role::Logits);
    got
}

#[test]
fn a_model_that_runs_ahead_is_asked_for_every_token_once_and_what_was_begun_in_vain_is_dropped() {
    let prompt: Vec<TokenId> = (0..40).map(|i| i % 13).collect();
    let free = alone(&request(&prompt, 3, 12));
    let mut stopped = request(&prompt, 3, 12);
    stopped.sampling.stop_token_ids = vec![free.ids()[6]];
    let want = alone(&stopped);
    playing(Role::Ahead, || {
        let mut bench = Bench::new(EngineConfig { prefill_tokens: 64, ..config(2) });
        let (cut, whole) =
            (bench.submit(&stopped), bench.submit(&Request { streams: false, ..request(&prompt, 3, 12) }));
        bench.finish();
        assert_eq!((take(cut), take(whole)), (want.clone(), free.clone()));
        assert_eq!((bench.stats().decode_tokens as usize, bench.stats().prefills), (want.ids().len() + 12, 1));
        // The next turn finds all of the one before, and nothing that was begun in vain.
        let next = [&prompt[..], want.ids(), &[1, 2]].concat();
        let answer = bench.submit(&request(&next, 4, 3));
        bench.finish();
        let (told, tokens, _) = all(answer);
        assert!(told.cached_tokens >= prompt.len() + want.ids().len() - 1);
        let tokens: Vec<TokenId> = tokens.iter().map(|drawn| drawn.scored.id).collect();
        assert_eq!(tokens, playing(Role::Logits, || alone(&request(&next, 4, 3))).ids());
        ROLE.set(Role::Ahead);
        // Scoring alone ends without a token, also of a single one.
        for ids in [&prompt[..], &prompt[..1]] {
            let mut scored = request(ids, 5, 0);
            scored.sampling.prompt_logprobs = Some(1);
            let answer = bench.submit(&scored);
            bench.finish();
            let (told, tokens, end) = all(answer);
            assert_eq!((told.logprobs.len(), tokens.len(), end), (ids.len() - 1, 0, Ok(FinishReason::Length)));
        }
        // New weights wait for the step under way.
        let old = bench.submit(&request(&prompt, 3, 12));
        (0..5).for_each(|_| bench.scheduler.step().unwrap());
        bench.update(1);
        assert!(bench.scheduler.underway.is_none());
        bench.finish();
        let old = take(old);
        assert_eq!((old.ids()[0], old.versions()), (free.ids()[0], Some((PolicyVersion(0), PolicyVersion(1)))));
    });
}

/// Answers every row with the same token.
#[derive(Clone, Copy)]
struct Stubborn(f32);

impl Cached for () {
    fn truncate(&mut self, _: usize) {}

    fn growth(&self, _: usize) -> usize {
        0
    }
}

impl Forward for Stubborn {
    type Cache = ();

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn new_cache(&self, _: &Meter) {}

    fn extend(&self, batch: &mut [Work<'_, ()>]) -> Result<Vec<prl_model::Answer>, String> {
        let answer = |w: &&mut Work<'_, ()>| match w.want {
            Want::Nothing => None,
            Want::Logits if self.0 == 0.0 => Some(prl_model::Answer::Token(1, -1.0)),
            Want::Logits => Some(prl_model::Answer::Logits(vec![0.0; VOCAB])),
            Want::AllLogits => Some(prl_model::Answer::Logits(vec![0.0; VOCAB * w.ids.len()])),
            Want::Token(_) => Some(prl_model::Answer::Token(1, self.0)),
            Want::Scores { .. } => None,
        };
        Ok(batch.iter_mut().filter_map(|w| answer(&w)).collect())
    }

    fn logprob(&self, _logits: &[f32], _token: TokenId, _temperature: f32) -> f32 {
        -1.0
    }
}

#[test]
fn a_drawn_token_without_a_probability_ends_its_request_and_one_nobody_asked_for_ends_the_engine() {
    let run = |forward: Stubborn| {
        let mut scheduler = Scheduler::new(forward, PolicyVersion(0), EngineConfig::new(4, 64), Arc::default());
        let (events, answer) = unbounded_channel();
        let mut filtered = request(&[1, 2], 3, 5);
        // A model that draws where it was asked for logits.
        filtered.sampling.logprobs = (forward.0 == 0.0).then_some(3);
        scheduler.submit(Job { request: filtered, events });
        let mut ended = Ok(());
        while ended.is_ok() && !scheduler.is_idle() {
            ended = scheduler.step();
        }
        (ended, answer)
    };
    let (ended, answer) = run(Stubborn(f32::NAN));
    assert!(ended.is_ok());
    assert!(matches!(all(answer).2, Err(InferenceError::NonFiniteLogits { token: 1, .. })));
    let (ended, _) = run(Stubborn(0.0));
    assert!(ended.unwrap_err().contains("not what was asked for"));
}

#[derive(Clone, Debug)]
struct Plan {
    prompt: Vec<TokenId>,
    shared: bool,
    salt: Option<u8>,
    eval: bool,
    seed: u64,
    max_tokens: usize,
    greedy: bool,
    guide: Option<usize>,
    penalised: bool,
    arrives: usize,
}

/// Grammars of text that is never empty, over the thirteen tokens of which 0 is the end.
static GUIDES: LazyLock<Vec<Guide>> = LazyLock::new(|| {
    let texts = ["[", "]", ", ", ",", "1", "23", "\"", "a", "ba", "[1", "23]", " "];
    let text = |s: &&str| Word::Text(s.as_bytes().to_vec());
    let words: Vec<Word> = std::iter::once(Word::Special("<|end|>".into())).chain(texts.iter().map(text)).collect();
    let grammars = Grammars::new(&words).unwrap();
    let item = serde_json::json!({"type": "integer", "minimum": 1});
    let list = serde_json::json!({"type": "array", "items": item, "minItems": 1});
    let all = [Grammar::Json(list), Grammar::Regex("[ab]{3,9}".into()), Grammar::Choice(vec!["a".into(), "a1".into()])];
    all.iter().map(|grammar| grammars.compile(grammar).unwrap()).collect()
});

fn plan() -> impl Strategy<Value = Plan> {
    // Few different prompts and keys, so that sharing happens.
    let prompt = prop_oneof![
        prop::collection::vec(0..VOCAB as TokenId, 1..14),
        (1usize..44).prop_map(|n| (0..n as TokenId).map(|i| i % VOCAB as TokenId).collect()),
    ];
    let drawn = (any::<bool>(), prop::option::of(0usize..3), any::<bool>());
    let kind = (any::<bool>(), prop::option::of(0u8..2), any::<bool>(), drawn);
    (prompt, kind, any::<u64>(), 1usize..10, 0usize..12).prop_map(
        |(prompt, (shared, salt, eval, (greedy, guide, penalised)), seed, max_tokens, arrives)| Plan {
            prompt,
            shared,
            salt,
            eval,
            seed,
            max_tokens,
            greedy,
            guide,
            penalised,
            arrives,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Alone or in any company, in any order of arrival, with any limits: the same ids and logprobs.
    #[test]
    fn tokens_do_not_depend_on_company(
        plans in prop::collection::vec(plan(), 1..12),
        ahead in any::<bool>(), max_batch in 1usize..6, prefill_tokens in 1usize..20, kept_prefixes in 0usize..4, cache_bytes in 64usize..300,
    ) {
        let requests: Vec<Request> = plans
            .iter()
            .map(|p| {
                let mut r = request(&p.prompt, p.seed, p.max_tokens);
                (r.shared, r.cache_salt) = (p.shared, p.salt.map(|salt| salt.to_string().into()));
                r.class = if p.eval { Class::Eval } else { Class::Train };
                r.sampling.stop_token_ids = vec![0];
                if p.greedy {
                    r.sampling.temperature = 0.0;
                }
                if p.seed % 3 == 0 {
                    (r.sampling.top_k, r.sampling.top_p, r.streams) = (Some(4), 0.9, false);
                }
                r.guide = p.guide.map(|i| GUIDES[i].clone());
                if p.penalised {
                    (r.sampling.repetition_penalty, r.sampling.frequency_penalty) = (1.5, 0.7);
                }
                r
            })
            .collect();
        let config = EngineConfig { prefill_tokens, kept_prefixes, cache_bytes, ..EngineConfig::new(max_batch, 64) };
        let mut bench = playing(if ahead { Role::Ahead } else { Role::Logits }, || Bench::new(config));
        let mut answers: Vec<Option<Events>> = plans.iter().map(|_| None).collect();
        for step in 0..12 {
            for i in 0..plans.len() {
                if plans[i].arrives == step {
                    answers[i] = Some(bench.submit(&requests[i]));
                }
            }
            bench.scheduler.step().unwrap();
            prop_assert!(bench.stats().running <= max_batch && bench.stats().cache_bytes <= cache_bytes);
        }
        bench.finish();
        for (request, answer) in requests.iter().zip(answers) {
            prop_assert_eq!(take(answer.unwrap()), alone(request));
        }
    }
}
