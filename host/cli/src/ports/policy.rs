//! The in-process engine as the orchestrator's policy. Owns the snapshots that are trained but not yet visible.

use futures::FutureExt;
use futures::future::BoxFuture;
use prl_inference::{Class, Decode, Handle, InferenceError, Request, SamplingParams};
use prl_model::Snapshot;
use prl_orchestrator::{Policy, PolicyError, SampleRequest};
use prl_types::{PolicyVersion, Sampled};
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
    fn take(&self, version: PolicyVersion) -> Option<Arc<dyn Snapshot>> {
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let newer = map.split_off(&PolicyVersion(version.0 + 1));
        let found = map.remove(&version);
        *map = newer;
        found
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
        answer.map(|result| result.map_err(policy_error)).boxed()
    }

    fn set_policy(&self, version: PolicyVersion) -> BoxFuture<'_, Result<(), String>> {
        let result = match self.snapshots.take(version) {
            Some(snapshot) => self.engine.update(snapshot, version).map_err(|e| e.to_string()),
            None => Err(format!("policy {version} was not trained")),
        };
        futures::future::ready(result).boxed()
    }
}

fn policy_error(error: InferenceError) -> PolicyError {
    match error {
        InferenceError::Overlong { prompt_tokens, max_model_len } => {
            PolicyError::Overlong { prompt: prompt_tokens, limit: max_model_len }
        }
        other => PolicyError::Engine(other.to_string()),
    }
}
