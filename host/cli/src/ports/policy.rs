//! The in-process engine as the orchestrator's policy. Owns the snapshots that are trained but not yet visible.

use crate::ports::algorithm::PluginAlgorithm;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use prl_inference::{Class, Decode, Handle, InferenceError, Request, SamplingParams};
use prl_model::Snapshot;
use prl_orchestrator::{Policy, PolicyError, Reference, SampleRequest};
use prl_render::Renderer;
use prl_types::{Message, PolicyVersion, Rollout, Sample, Sampled, TokenId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Snapshots by policy version, from the trainer to the engine.
#[derive(Clone, Default)]
pub struct Snapshots(Arc<Mutex<BTreeMap<PolicyVersion, Arc<dyn Snapshot>>>>);

impl Snapshots {
    /// Keeps `snapshot` until it becomes visible.
    pub fn publish(&self, version: PolicyVersion, snapshot: Arc<dyn Snapshot>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(version, snapshot);
    }

    /// Takes out `version` and drops all older ones.
    ///
    /// # Errors
    /// It is not there.
    pub fn take(&self, version: PolicyVersion) -> Result<Arc<dyn Snapshot>, String> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = map.split_off(&PolicyVersion(version.0 + 1));
        let found = map.remove(&version);
        *map = newer;
        found.ok_or_else(|| format!("policy {version} was not trained"))
    }
}

/// The engine.
pub struct EnginePolicy {
    /// Where requests go.
    pub engine: Handle,
    /// Where new weights come from.
    pub snapshots: Snapshots,
    /// For stop strings.
    pub decode: Decode,
}

impl Policy for EnginePolicy {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        let sampling = SamplingParams {
            temperature: request.sampling.temperature,
            top_k: request.sampling.top_k.map(|k| k as usize),
            top_p: request.sampling.top_p,
            min_p: request.sampling.min_p,
            max_tokens: Some(request.max_tokens),
            stop_token_ids: request.stop_token_ids.to_vec(),
            stop: request.sampling.stop,
            ..SamplingParams::default()
        };
        let answer = self.engine.generate(Request {
            shared: request.shared_prompt,
            goes_on: request.goes_on,
            class: if request.eval { Class::Eval } else { Class::Train },
            decode: Some(self.decode.clone()),
            ..Request::new(request.prompt, sampling, request.seed)
        });
        answer.map(|result| result.map_err(|error| policy_error(error, self.engine.ended()))).boxed()
    }

    fn set_policy(&self, version: PolicyVersion) -> BoxFuture<'_, Result<(), String>> {
        let snapshot = self.snapshots.take(version);
        let result = snapshot.and_then(|snapshot| self.engine.update(snapshot, version).map_err(|e| e.to_string()));
        futures::future::ready(result).boxed()
    }
}

/// Scores ids under the weights of the moment.
pub trait Scores: Send + Sync {
    /// The log-probability at `temperature` of each token given those before it, 0 for the first.
    fn score(&self, ids: Arc<[TokenId]>, temperature: f32) -> BoxFuture<'_, Result<Vec<f32>, String>>;
}

impl Scores for Handle {
    fn score(&self, ids: Arc<[TokenId]>, temperature: f32) -> BoxFuture<'_, Result<Vec<f32>, String>> {
        Handle::score(self, ids, temperature).map(|scored| scored.map_err(|e| e.to_string())).boxed()
    }
}

/// The live policy's log-probabilities of what it sampled, behind messages that the algorithm puts first.
pub struct PolicyReference {
    /// Where requests go.
    pub policy: Arc<dyn Scores>,
    /// Says what stands first.
    pub algorithm: Arc<PluginAlgorithm>,
    /// Renders it.
    pub renderer: Arc<Renderer>,
}

impl Reference for PolicyReference {
    fn logprobs<'a>(&'a self, rollout: &'a Rollout) -> BoxFuture<'a, Result<Vec<Option<Vec<f32>>>, String>> {
        async {
            let (algorithm, seen) = (self.algorithm.clone(), rollout.clone());
            // Another thread may be in the plug-in for long.
            let prefixes = tokio::task::spawn_blocking(move || algorithm.reference(&seen)).await;
            let prefixes = prefixes.map_err(|error| error.to_string())??;
            let samples = prefixes.into_iter().zip(&rollout.samples);
            try_join_all(samples.map(|(prefix, sample)| self.score(prefix, sample))).await
        }
        .boxed()
    }
}

impl PolicyReference {
    async fn score(&self, prefix: Option<Vec<Message>>, sample: &Sample) -> Result<Option<Vec<f32>>, String> {
        let Some(prefix) = prefix else { return Ok(None) };
        let first = self.renderer.render_ids(&prefix, &[], false).map_err(|e| e.to_string())?.ids;
        let scored = self.policy.score([&first, sample.token_ids()].concat().into(), sample.temperature()).await?;
        // The first token of the sample has no log-probability where nothing stands before it.
        Ok(Some(scored[first.len()..].to_vec()))
    }
}

/// `ended` is why the engine has ended, if it has: whatever the request was told, that is the cause.
fn policy_error(error: InferenceError, ended: Option<InferenceError>) -> PolicyError {
    if let Some(reason) = ended {
        return PolicyError::Ended(reason.to_string());
    }
    match error {
        InferenceError::Overlong { prompt_tokens, max_model_len } => {
            PolicyError::Overlong { prompt: prompt_tokens, limit: max_model_len }
        }
        other => PolicyError::Engine(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prl_inference::{Engine, EngineConfig};
    use prl_kernels::Meter;
    use prl_model::{Answer, Cache, Decoder, Device, Extend, Kernels, ModelConfig, ModelError};
    use prl_orchestrator::Sampling;
    use std::path::Path;

    const CONFIG: &str = r#"{
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 37, "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
        "intermediate_size": 40, "rms_norm_eps": 1e-6, "max_position_embeddings": 128, "rope_theta": 10000.0,
        "tie_word_embeddings": true, "initializer_range": 0.5, "hidden_act": "silu"
    }"#;

    /// A model whose first step panics.
    struct Panics(Arc<dyn Snapshot>);

    impl Snapshot for Panics {
        fn config(&self) -> &ModelConfig {
            self.0.config()
        }

        fn new_cache(&self, meter: &Meter) -> Cache {
            self.0.new_cache(meter)
        }

        fn extend(&self, _: &mut [Extend<'_>]) -> Result<Vec<Answer>, ModelError> {
            panic!("kernel exploded")
        }

        fn logprob(&self, logits: &[f32], id: TokenId, temperature: f32) -> f32 {
            self.0.logprob(logits, id, temperature)
        }
    }

    fn snapshot() -> Arc<dyn Snapshot> {
        let config = ModelConfig::parse(CONFIG, Path::new("config.json")).unwrap();
        Decoder::init(config, 1, &Device::Cpu.open().unwrap()).snapshot(Kernels::Fast).unwrap()
    }

    fn ask(policy: &EnginePolicy, prompt: &[TokenId]) -> Result<Sampled, PolicyError> {
        futures::executor::block_on(policy.sample(SampleRequest {
            prompt: prompt.into(),
            sampling: Sampling::default(),
            max_tokens: 2,
            stop_token_ids: [].into(),
            seed: 0,
            shared_prompt: false,
            goes_on: false,
            eval: false,
        }))
    }

    fn policy(snapshot: Arc<dyn Snapshot>) -> (Engine, EnginePolicy) {
        let engine = Engine::start(snapshot, PolicyVersion(0), EngineConfig::new(2, 64)).unwrap();
        let decode: Decode = Arc::new(|_| String::new());
        let policy = EnginePolicy { engine: engine.handle(), snapshots: Snapshots::default(), decode };
        (engine, policy)
    }

    #[test]
    fn an_engine_that_has_ended_is_told_from_a_request_that_failed() {
        let (engine, alive) = policy(snapshot());
        assert_eq!(ask(&alive, &[1; 64]), Err(PolicyError::Overlong { prompt: 64, limit: 64 }));
        assert!(matches!(ask(&alive, &[99]), Err(PolicyError::Engine(_))));
        assert!(ask(&alive, &[1, 2]).is_ok());
        engine.shutdown();
        assert!(matches!(ask(&alive, &[1, 2]), Err(PolicyError::Ended(reason)) if reason.contains("shut down")));

        let (_engine, dead) = policy(Arc::new(Panics(snapshot())));
        for _ in 0..2 {
            let Err(PolicyError::Ended(reason)) = ask(&dead, &[1, 2]) else { panic!("it lives") };
            assert_eq!(reason, "the inference engine failed: panic in the engine's thread: kernel exploded");
        }
    }
}
