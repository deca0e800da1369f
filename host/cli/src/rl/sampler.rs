//! Where the policy is sampled: in this process or on servers. Owns the choice, and what the trainer and the orchestrator
//! get of it.

use crate::companions::Companions;
use crate::compute::Compute;
use crate::environments::seconds;
use crate::failure::{Failure, run as running};
use crate::ports::broadcaster::Broadcaster;
use crate::ports::policy::{EnginePolicy, Scores, Snapshots};
use crate::ports::servers::{Broadcast, ServedPolicy, Servers, Way};
use crate::ports::trainer::Handover;
use prl_config::NcclBroadcast;
use prl_inference::{Decode, Engine};
use prl_model::{Learner, ModelConfig};
use prl_orchestrator::Policy;
use prl_store::RunDir;
use prl_types::PolicyVersion;
use std::sync::Arc;

/// One of the two.
pub enum Sampler {
    /// The engine of this process.
    Here(Engine),
    /// Servers, by HTTP.
    There {
        /// The servers.
        servers: Arc<Servers>,
        /// What weights go over to them with; without it, through a folder.
        broadcaster: Option<Broadcaster>,
    },
}

impl Sampler {
    /// What scores ids under the policy.
    pub fn scores(&self) -> Arc<dyn Scores> {
        match self {
            Sampler::Here(engine) => Arc::new(engine.handle()),
            Sampler::There { servers, .. } => servers.clone(),
        }
    }

    /// Joins the communicator that weights go over to servers, if there are any.
    ///
    /// # Errors
    /// As [`Broadcaster::join`].
    pub async fn join(&mut self, compute: &Compute, model: &ModelConfig, nccl: &NcclBroadcast) -> Result<(), Failure> {
        if let Sampler::There { servers, broadcaster } = self {
            *broadcaster = Some(Broadcaster::join(servers, compute, model, seconds(nccl.timeout)).await?);
        }
        Ok(())
    }

    /// The policy, and the way for its weights. Servers get those of `version` now.
    pub async fn policy(
        &mut self,
        decode: Decode,
        run: &RunDir,
        companions: &Companions,
        (version, learner): (PolicyVersion, &Learner),
        max_async_level: u64,
    ) -> Result<(Arc<dyn Policy>, Handover), Failure> {
        match self {
            Sampler::Here(engine) => {
                let snapshots = Snapshots::default();
                let policy = EnginePolicy { engine: engine.handle(), snapshots: snapshots.clone(), decode };
                Ok((Arc::new(policy), Handover::Here(snapshots)))
            }
            Sampler::There { servers, broadcaster } => {
                let (handover, way) = match broadcaster.take() {
                    Some(broadcaster) => {
                        let snapshots = Snapshots::default();
                        (Handover::Here(snapshots.clone()), Way::Nccl(broadcaster, snapshots))
                    }
                    None => {
                        // The newest version may be so many ahead of the one that is read; one more may be under way.
                        let kept = usize::try_from(max_async_level).unwrap_or(usize::MAX).saturating_add(2);
                        let (folder, companions) = (run.broadcasts(), companions.clone());
                        let broadcast = Broadcast { folder, companions, kept, adapter: servers.adapter() };
                        (Handover::Folder(broadcast), Way::Folder(run.broadcasts()))
                    }
                };
                handover.publish(version, learner).map_err(running("the first weights for the servers"))?;
                let policy = ServedPolicy { servers: servers.clone(), way };
                policy.set_policy(version).await.map_err(running("the servers and their first weights"))?;
                Ok((Arc::new(policy), handover))
            }
        }
    }

    /// Says what was sampled, where that is known.
    pub fn report(&self) {
        let Sampler::Here(engine) = self else { return };
        let stats = engine.handle().stats();
        tracing::info!(
            target: "prl_inference",
            "Sampled {} tokens for {} turns from {} prefilled prompts ({} tokens) at {:.0} tokens/s of engine time",
            stats.decode_tokens, stats.finished, stats.prefills, stats.prefill_tokens,
            stats.decode_tokens as f64 / stats.busy_seconds.max(1e-9)
        );
    }
}
