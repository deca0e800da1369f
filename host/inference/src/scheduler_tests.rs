//! The scheduler over a model made of a hash: what is shared, what is dropped, and that nothing depends on company.

use super::*;
use crate::SamplingParams;
use proptest::prelude::*;

const VOCAB: usize = 13;

/// Logits are a hash of the weights' seed and of all ids so far, with the weights each id was seen under.
#[derive(Clone)]
struct Hash {
    weights: u64,
    /// Whether it draws where it may.
    draws: bool,
}

thread_local! {
    /// What new models are given as `draws`.
    static DRAWS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

impl Hash {
    fn answer(&self, want: Want, row: Vec<f32>) -> Result<prl_model::Answer, String> {
        let Want::Token(how) = want else { return Ok(prl_model::Answer::Logits(row)) };
        if !self.draws {
            return Ok(prl_model::Answer::Logits(row));
        }
        let sampling = SamplingParams { temperature: how.temperature, ..SamplingParams::default() };
        let token = draw(&row, &sampling, how.uniform).map_err(|e| e.to_string())?;
        let logprob = self.logprob(&row, token, sampling.logprob_temperature());
        Ok(prl_model::Answer::Token(token, logprob))
    }
}

impl Forward for Hash {
    type Cache = Vec<(u64, TokenId)>;

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn new_cache(&self) -> Self::Cache {
        Vec::new()
    }

    fn extend(&self, batch: &mut [Work<'_, Self::Cache>]) -> Result<Vec<prl_model::Answer>, String> {
        let mut answers = Vec::new();
        for work in batch {
            if work.ids.is_empty() {
                return Err("an item without ids".into());
            }
            work.cache.extend(work.ids.iter().map(|id| (self.weights, *id)));
            if work.want != Want::Nothing {
                let seen = work.cache.iter().fold(self.weights, |h, (w, id)| mix(h ^ mix(*w) ^ u64::from(*id)));
                let row = (0..VOCAB as u64).map(|v| (mix(seen ^ v) % 1000) as f32 / 250.0).collect::<Vec<f32>>();
                answers.push(self.answer(work.want, row)?);
            }
        }
        Ok(answers)
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

type Answer = oneshot::Receiver<Result<Sampled, InferenceError>>;

struct Bench {
    scheduler: Scheduler<Hash>,
    stats: Arc<Mutex<Stats>>,
}

impl Bench {
    fn new(config: EngineConfig) -> Self {
        let stats: Arc<Mutex<Stats>> = Arc::default();
        let scheduler =
            Scheduler::new(Hash { weights: 0, draws: DRAWS.get() }, PolicyVersion(0), config, stats.clone());
        Bench { scheduler, stats }
    }

    fn submit(&mut self, request: &Request) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.scheduler.submit(Job { request: request.clone(), reply });
        answer
    }

    fn update(&mut self, version: u64) {
        self.scheduler.update(Hash { weights: version, draws: DRAWS.get() }, PolicyVersion(version));
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

fn take(mut answer: Answer) -> Sampled {
    answer.try_recv().expect("answered").expect("sampled")
}

fn config(max_batch: usize) -> EngineConfig {
    EngineConfig { prefill_tokens: 5, ..EngineConfig::new(max_batch, 64) }
}

fn request(prompt: &[TokenId], seed: u64, max_tokens: usize) -> Request {
    let sampling = SamplingParams { max_tokens: Some(max_tokens), ..Default::default() };
    Request::new(prompt, sampling, seed)
}

fn grouped(prompt: &[TokenId], key: u64, seed: u64, max_tokens: usize) -> Request {
    Request { prefix_key: Some(key), ..request(prompt, seed, max_tokens) }
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
    let mut answers: Vec<_> = (0..6).map(|seed| bench.submit(&grouped(&prompt, 9, seed, 4))).collect();
    bench.finish();
    answers.extend((6..8).map(|seed| bench.submit(&grouped(&prompt, 9, seed, 4))));
    bench.finish();
    let stats = bench.stats();
    assert_eq!((stats.prefills, stats.prefill_tokens, stats.forks), (1, 12, 7));
    assert_eq!((stats.decode_tokens, stats.finished, stats.running, stats.waiting), (32, 8, 0, 0));
    for (seed, answer) in answers.into_iter().enumerate() {
        assert_eq!(take(answer), alone(&request(&prompt, seed as u64, 4)));
    }
}

#[test]
fn the_key_shares_equal_prompts_only() {
    let mut bench = Bench::new(config(4));
    let answers = [
        bench.submit(&grouped(&[1, 2], 9, 0, 2)),
        bench.submit(&grouped(&[1, 3], 9, 0, 2)),
        bench.submit(&grouped(&[1, 2], 8, 0, 2)),
        bench.submit(&request(&[1, 2], 0, 2)),
    ];
    bench.finish();
    assert_eq!(bench.stats().prefills, 4);
    let [a, b, c, d] = answers.map(take);
    assert_eq!(a, c);
    assert_eq!(a, d);
    assert_eq!(b, alone(&request(&[1, 3], 0, 2)));
}

#[test]
fn kept_prompts_are_bounded_and_the_oldest_goes_first() {
    let mut bench = Bench::new(EngineConfig { shared_prompts: 1, ..config(1) });
    for key in [1, 1, 2, 1] {
        bench.submit(&grouped(&[1, 2, 3], key, 0, 1));
    }
    // Nobody listens: cancelled before they run.
    bench.finish();
    assert_eq!((bench.stats().cancelled, bench.stats().prefills), (4, 0));
    let answers: Vec<_> = [1, 1, 2, 1].map(|key| bench.submit(&grouped(&[1, 2, 3], key, 0, 1))).into_iter().collect();
    bench.finish();
    assert_eq!(bench.stats().prefills, 3);
    drop(answers);
}

#[test]
fn new_requests_never_see_old_weights_and_running_ones_go_on() {
    let prompt: Vec<TokenId> = (0..9).collect();
    let cold = |seed| {
        let mut bench = Bench::new(config(1));
        bench.update(1);
        let answer = bench.submit(&grouped(&prompt, 5, seed, 3));
        bench.finish();
        take(answer)
    };
    let mut bench = Bench::new(config(8));
    let old = bench.submit(&grouped(&prompt, 5, 1, 6));
    for _ in 0..4 {
        bench.scheduler.step().unwrap();
    }
    bench.update(1);
    let new = bench.submit(&grouped(&prompt, 5, 2, 3));
    bench.finish();
    let old = take(old);
    assert_eq!(old.versions(), (PolicyVersion(0), PolicyVersion(1)));
    assert_eq!(old.ids().len(), 6);
    assert_eq!(old.ids()[..3], alone(&request(&prompt, 1, 6)).ids()[..3]);
    assert_eq!(take(new), cold(2));
    assert_eq!(bench.stats().prefills, 2);

    // A prompt that is only half through when the weights change starts over.
    let mut bench = Bench::new(config(1));
    let answer = bench.submit(&grouped(&prompt, 5, 3, 3));
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
    let leader = bench.submit(&grouped(&prompt, 5, 0, 50));
    let member = bench.submit(&grouped(&prompt, 5, 1, 3));
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

#[test]
fn logprobs_are_over_the_whole_vocabulary_whatever_is_filtered() {
    let mut filtered = request(&[1, 2], 3, 1);
    filtered.sampling =
        SamplingParams { temperature: 0.7, top_k: Some(2), top_p: 0.5, min_p: 0.1, ..filtered.sampling };
    let got = alone(&filtered);
    let hash = Hash { weights: 0, draws: DRAWS.get() };
    let mut cache = hash.new_cache();
    let row = hash.extend(&mut [Work { cache: &mut cache, ids: &[1, 2], want: Want::Logits }]).unwrap();
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
    for request in [request(&[4, 2], 8, 9), filtered, greedy] {
        let here = alone(&request);
        DRAWS.set(true);
        let there = alone(&request);
        DRAWS.set(false);
        assert_eq!(here, there);
    }
}

/// Answers every row with the same token.
#[derive(Clone)]
struct Stubborn(f32);

impl Forward for Stubborn {
    type Cache = ();

    fn vocab_size(&self) -> usize {
        VOCAB
    }

    fn new_cache(&self) {}

    fn extend(&self, batch: &mut [Work<'_, ()>]) -> Result<Vec<prl_model::Answer>, String> {
        let answer = |w: &&mut Work<'_, ()>| match w.want {
            Want::Nothing => None,
            Want::Logits if self.0 == 0.0 => Some(prl_model::Answer::Token(1, -1.0)),
            Want::Logits => Some(prl_model::Answer::Logits(vec![0.0; VOCAB])),
            Want::Token(_) => Some(prl_model::Answer::Token(1, self.0)),
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
        let (reply, answer) = oneshot::channel();
        scheduler.submit(Job { request: request(&[1, 2], 3, 5), reply });
        let mut ended = Ok(());
        while ended.is_ok() && !scheduler.is_idle() {
            ended = scheduler.step();
        }
        (ended, answer)
    };
    let (ended, mut answer) = run(Stubborn(f32::NAN));
    assert!(ended.is_ok());
    assert!(matches!(answer.try_recv().unwrap(), Err(InferenceError::NonFiniteLogits { token: 1, .. })));
    let (ended, _) = run(Stubborn(0.0));
    assert!(ended.unwrap_err().contains("not what was asked for"));
}

#[derive(Clone, Debug)]
struct Plan {
    prompt: Vec<TokenId>,
    key: Option<u64>,
    seed: u64,
    max_tokens: usize,
    greedy: bool,
    arrives: usize,
}

fn plan() -> impl Strategy<Value = Plan> {
    // Few different prompts and keys, so that sharing happens.
    let prompt = prop_oneof![
        prop::collection::vec(0..VOCAB as TokenId, 1..14),
        (1usize..14).prop_map(|n| (0..n as TokenId).map(|i| i % VOCAB as TokenId).collect()),
    ];
    (prompt, prop::option::of(0u64..3), any::<u64>(), 1usize..10, any::<bool>(), 0usize..12).prop_map(
        |(prompt, key, seed, max_tokens, greedy, arrives)| Plan { prompt, key, seed, max_tokens, greedy, arrives },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Alone or in any company, in any order of arrival, with any limits: the same ids and logprobs.
    #[test]
    fn tokens_do_not_depend_on_company(
        plans in prop::collection::vec(plan(), 1..12),
        max_batch in 1usize..6, prefill_tokens in 1usize..20, shared_prompts in 0usize..3,
    ) {
        let requests: Vec<Request> = plans
            .iter()
            .map(|p| {
                let mut r = request(&p.prompt, p.seed, p.max_tokens);
                r.prefix_key = p.key;
                r.sampling.stop_token_ids = vec![0];
                if p.greedy {
                    r.sampling.temperature = 0.0;
                }
                r
            })
            .collect();
        let mut bench =
            Bench::new(EngineConfig { prefill_tokens, shared_prompts, ..EngineConfig::new(max_batch, 64) });
        let mut answers: Vec<Option<Answer>> = plans.iter().map(|_| None).collect();
        for step in 0..12 {
            for i in 0..plans.len() {
                if plans[i].arrives == step {
                    answers[i] = Some(bench.submit(&requests[i]));
                }
            }
            bench.scheduler.step().unwrap();
            prop_assert!(bench.stats().running <= max_batch);
        }
        bench.finish();
        for (request, answer) in requests.iter().zip(answers) {
            prop_assert_eq!(take(answer.unwrap()), alone(request));
        }
    }
}
