//! The engine's thread over a real model: exactness against the trainer's forward, errors, cancellation, shutdown.

use futures::executor::block_on;
use futures::future::join_all;
use prl_inference::{Engine, EngineConfig, InferenceError, Request, SamplingParams};
use prl_kernels::Meter;
use prl_model::{Answer, Cache, Decoder, Device, Extend, Kernels, Learner, ModelConfig, ModelError, Packed, Snapshot};
use prl_types::{FinishReason, PolicyVersion, TokenId};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const CONFIG: &str = r#"{
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 37, "hidden_size": 16,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 40, "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "rope_theta": 10000.0,
    "tie_word_embeddings": true, "initializer_range": 0.5, "hidden_act": "silu"
}"#;

fn decoder(seed: u64) -> Decoder {
    let config = ModelConfig::parse(CONFIG, Path::new("config.json")).unwrap();
    Decoder::init(config, seed, &Device::Cpu.open().unwrap())
}

fn snapshot(seed: u64) -> Arc<dyn Snapshot> {
    decoder(seed).snapshot(Kernels::Fast).unwrap()
}

fn engine(max_batch: usize) -> Engine {
    let config = EngineConfig { prefill_tokens: 7, ..EngineConfig::new(max_batch, 64) };
    Engine::start(snapshot(1), PolicyVersion(0), config).unwrap()
}

fn request(prompt: &[TokenId], seed: u64, max_tokens: usize) -> Request {
    let sampling = SamplingParams { temperature: 0.8, max_tokens: Some(max_tokens), ..Default::default() };
    Request::new(prompt, sampling, seed)
}

/// https://github.com/NVIDIA-NeMo/RL/issues/4243
/// https://github.com/marin-community/marin/issues/1988
/// https://github.com/NVIDIA-NeMo/RL/issues/4039
#[test]
fn logprobs_are_those_of_the_trainer_to_the_bit() {
    let engine = engine(3);
    let handle = engine.handle();
    let prompts: [&[TokenId]; 3] = [&[1, 2, 3, 4, 5, 6, 7, 8, 9], &[30], &[5, 4, 3]];
    let requests: Vec<Request> = (0..9).map(|i| request(prompts[i % 3], i as u64, 4 + i)).collect();
    let sampled = block_on(join_all(requests.iter().map(|r| handle.generate(r.clone()))));
    let mut packed = Packed::default();
    let mut want = Vec::new();
    for (r, s) in requests.iter().zip(&sampled) {
        let s = s.as_ref().unwrap();
        assert_eq!((s.ids().len(), s.finish()), (r.sampling.max_tokens.unwrap(), &FinishReason::Length));
        assert_eq!(s.versions(), Some((PolicyVersion(0), PolicyVersion(0))));
        let at = packed.ids.len() + r.prompt.len();
        want.extend(s.logprobs().iter().enumerate().map(|(i, lp)| (at + i, *lp)));
        packed.ids.extend_from_slice(&r.prompt);
        packed.ids.extend_from_slice(s.ids());
        packed.doc_lens.push(r.prompt.len() + s.ids().len());
        packed.temperatures.resize(packed.ids.len(), 0.8);
    }
    let stats = Learner::new(decoder(1), Kernels::Fast, 5).unwrap().forward(&packed).unwrap();
    for (at, lp) in want {
        assert_eq!(stats.logprobs[at].to_bits(), lp.to_bits(), "token {at}: {} and {lp}", stats.logprobs[at]);
    }
    let drawn: usize = sampled.iter().map(|s| s.as_ref().unwrap().ids().len()).sum();
    assert_eq!(handle.stats().decode_tokens, drawn as u64);
}

#[test]
fn a_whole_context_is_scored_as_the_trainer_would() {
    let engine = engine(2);
    let ids: Vec<TokenId> = (0..64).map(|i| i * 7 % 30).collect();
    let scored = block_on(engine.handle().score(ids.as_slice().into(), 0.7)).unwrap();
    let packed = Packed { doc_lens: vec![64], temperatures: vec![0.7; 64], ids: ids.clone() };
    let stats = Learner::new(decoder(1), Kernels::Fast, 5).unwrap().forward(&packed).unwrap();
    assert_eq!((scored.len(), scored[0]), (64, 0.0));
    assert_eq!(scored[1..], stats.logprobs[1..]);
    assert_eq!(engine.handle().stats().decode_tokens, 0);
    let longer = block_on(engine.handle().score([ids, vec![1]].concat().into(), 1.0));
    assert!(matches!(longer, Err(InferenceError::Overlong { prompt_tokens: 65, max_model_len: 64 })), "{longer:?}");
}

#[test]
fn a_group_shares_one_prefill_and_new_weights_share_nothing() {
    let engine = engine(8);
    let handle = engine.handle();
    let prompt: Arc<[TokenId]> = (0..20).collect();
    let group = |seed: u64| Request { shared: true, ..request(&prompt, seed, 5) };
    let first = block_on(join_all((0..6).map(|s| handle.generate(group(s)))));
    assert_eq!((handle.stats().prefills, handle.stats().prefill_tokens), (1, 20));
    handle.update(snapshot(2), PolicyVersion(7)).unwrap();
    let second = block_on(handle.generate(group(0))).unwrap();
    assert_eq!((handle.stats().prefills, handle.stats().version), (2, PolicyVersion(7)));
    let cold = Engine::start(snapshot(2), PolicyVersion(7), EngineConfig::new(1, 64)).unwrap();
    assert_eq!(second, block_on(cold.handle().generate(group(0))).unwrap());
    assert_ne!(first[0].as_ref().unwrap().logprobs(), second.logprobs());
}

#[test]
fn greedy_decoding_ends_at_a_stop_token() {
    let engine = engine(1);
    let mut greedy = request(&[1, 2, 3], 0, 12);
    greedy.sampling.temperature = 0.0;
    let free = block_on(engine.handle().generate(greedy.clone())).unwrap();
    let stop = free.ids()[3];
    greedy.sampling.stop_token_ids = vec![stop];
    let stopped = block_on(engine.handle().generate(greedy)).unwrap();
    assert_eq!(stopped.finish(), &FinishReason::StopToken(stop));
    assert_eq!(stopped.ids().last(), Some(&stop));
    assert_eq!(stopped.ids(), &free.ids()[..stopped.ids().len()]);
}

#[test]
fn bad_requests_are_refused_at_once() {
    let engine = engine(1);
    let refused = |r: Request| block_on(engine.handle().generate(r)).unwrap_err();
    assert_eq!(refused(request(&[], 0, 1)), InferenceError::EmptyPrompt);
    assert_eq!(refused(request(&[1; 64], 0, 1)), InferenceError::Overlong { prompt_tokens: 64, max_model_len: 64 });
    assert_eq!(refused(request(&[1, 37], 0, 1)), InferenceError::UnknownToken { index: 1, token: 37, vocab_size: 37 });
    let mut undecodable = request(&[1], 0, 1);
    undecodable.sampling.stop = vec!["x".into()];
    assert!(refused(undecodable).to_string().contains("empty where the request has no decoder"));
    let zero = Engine::start(snapshot(1), PolicyVersion(0), EngineConfig::new(0, 64));
    assert_eq!(zero.err(), Some(InferenceError::InvalidConfig { name: "max_batch" }));
}

/// A model that fails at its n-th step.
struct Faulty {
    inner: Arc<dyn Snapshot>,
    steps: AtomicUsize,
    fails_at: usize,
    panics: bool,
}

impl Snapshot for Faulty {
    fn config(&self) -> &ModelConfig {
        self.inner.config()
    }

    fn new_cache(&self, meter: &Meter) -> Cache {
        self.inner.new_cache(meter)
    }

    fn extend(&self, batch: &mut [Extend<'_>]) -> Result<Vec<Answer>, ModelError> {
        if self.steps.fetch_add(1, Ordering::SeqCst) + 1 == self.fails_at {
            if self.panics {
                panic!("kernel exploded");
            }
            return Err(ModelError::Input("device lost".into()));
        }
        self.inner.extend(batch)
    }

    fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32 {
        self.inner.logprob(logits, id, temperature)
    }
}

#[test]
fn a_failing_model_fails_every_request_and_says_why() {
    for (panics, want) in [(false, "device lost"), (true, "kernel exploded")] {
        let faulty = Faulty { inner: snapshot(1), steps: AtomicUsize::new(0), fails_at: 3, panics };
        let engine = Engine::start(Arc::new(faulty), PolicyVersion(0), EngineConfig::new(2, 64)).unwrap();
        let handle = engine.handle();
        let answers = block_on(join_all((0..5).map(|s| handle.generate(request(&[1, 2], s, 50)))));
        for answer in answers {
            assert!(answer.unwrap_err().to_string().contains(want));
        }
        assert!(block_on(handle.generate(request(&[1], 0, 1))).unwrap_err().to_string().contains(want));
        assert!(handle.update(snapshot(1), PolicyVersion(1)).unwrap_err().to_string().contains(want));
        engine.shutdown();
    }
}

#[test]
fn a_panicking_decoder_is_reported_too() {
    let engine = engine(2);
    let mut bad = request(&[1, 2], 0, 5);
    bad.sampling.stop = vec!["x".into()];
    bad.decode = Some(Arc::new(|_: &[TokenId]| panic!("no such token")));
    let answers = block_on(join_all([engine.handle().generate(bad), engine.handle().generate(request(&[1], 1, 50))]));
    for answer in answers {
        assert!(answer.unwrap_err().to_string().contains("no such token"));
    }
}

#[test]
fn dropped_futures_are_cancelled_and_shutdown_answers_the_rest() {
    let engine = engine(1);
    let handle = engine.handle();
    drop(handle.generate(request(&[1], 0, 60)));
    assert!(block_on(handle.generate(request(&[2], 0, 3))).is_ok());
    assert_eq!(handle.stats().finished, 1);
    assert_eq!(handle.stats().cancelled, 1);
    let pending: Vec<_> = (0..40).map(|s| handle.generate(request(&[1, 2, 3], s, 60))).collect();
    engine.shutdown();
    for answer in block_on(join_all(pending)) {
        assert!(matches!(answer, Ok(_) | Err(InferenceError::Shutdown)));
    }
    assert_eq!(block_on(handle.generate(request(&[1], 0, 1))), Err(InferenceError::Shutdown));
}

#[test]
fn a_ping_is_answered_behind_what_was_asked_before_and_not_after_the_end() {
    let engine = engine(1);
    let handle = engine.handle();
    handle.pause(true).unwrap();
    handle.update(snapshot(2), PolicyVersion(4)).unwrap();
    block_on(handle.ping()).unwrap();
    assert!(handle.stats().paused);
    assert_eq!((handle.stats().version, handle.ended()), (PolicyVersion(4), None));
    engine.shutdown();
    assert_eq!(block_on(handle.ping()), Err(InferenceError::Shutdown));
    assert_eq!(handle.ended(), Some(InferenceError::Shutdown));
}
