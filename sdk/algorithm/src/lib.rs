//! Write an algorithm plug-in in safe Rust: implement [`Algorithm`], name the type in [`export!`], build a `cdylib`.
//!
//! ```
//! use prl_sdk::{Algorithm, Credit, Error, Group, Host, NoConfig};
//!
//! /// Every rollout gets its reward as advantage.
//! struct Reinforce;
//!
//! impl Algorithm for Reinforce {
//!     const NAME: &'static str = "reinforce";
//!     type Config = NoConfig;
//!
//!     fn new(_config: NoConfig, _host: &Host) -> Result<Self, Error> {
//!         Ok(Reinforce)
//!     }
//!
//!     fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
//!         for (i, reward) in group.rewards().iter().enumerate() {
//!             credit.assign(i, *reward)?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! prl_sdk::export!(Reinforce);
//! # use prl_sdk::testing::{GroupBuilder, RolloutBuilder, score};
//! # let group = GroupBuilder::new().rollout(RolloutBuilder::new(0.5).sample(2, 1));
//! # assert_eq!(score::<Reinforce>("{}", &group).unwrap().streams[0].advantages, Some(vec![0.0, 0.0, 0.5]));
//! ```
//!
//! Owns the safe face of the ABI: typed views of groups and batches, a checked writer of streams, panics turned into
//! errors, statistics of rewards ([`stats`]), and a test harness ([`testing`]). Must not know the host beyond `prl-abi`, nor
//! any particular algorithm.

mod batch;
mod columns;
pub mod export;
mod group;
mod host;
pub mod stats;
pub mod testing;

pub use batch::{Batch, BatchSample, Loss};
pub use group::{Component, Group, Metric, Role, Rollout, Sample, Turn};
pub use host::{Credit, Host, Level, Prefixes, Stream};
pub use prl_abi as abi;

use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Any error, with a text for the user: `?` works on every error type, and `Err("text".into())` on plain text.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// The loss component that a rollout's sampled tokens feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionLoss {
    /// Policy gradient on advantages.
    Rl,
    /// Cross-entropy on the sampled tokens.
    Ce,
    /// Reverse KL to reference log-probabilities on the sampled tokens.
    RefKl,
}

impl ActionLoss {
    /// The name in the plug-in's metadata.
    pub const fn as_str(self) -> &'static str {
        match self {
            ActionLoss::Rl => "rl",
            ActionLoss::Ce => "ce",
            ActionLoss::RefKl => "ref_kl",
        }
    }

    const fn id(self) -> u32 {
        match self {
            ActionLoss::Rl => abi::ids::action::RL,
            ActionLoss::Ce => abi::ids::action::CE,
            ActionLoss::RefKl => abi::ids::action::REF_KL,
        }
    }
}

/// Log-probabilities of the sampled tokens under something else than the policy that drew them, which the host computes
/// before `score_rollout` and `score_group`: [`Sample::ref_logprobs`]. They are the sample's stream of reference
/// log-probabilities as well, which the algorithm may overwrite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// There are none.
    None,
    /// Under a frozen model that the run names.
    Teacher,
    /// Under the live policy, with other messages before the sample: those that [`Algorithm::reference`] asks for.
    Policy,
}

impl Reference {
    /// The name in the plug-in's metadata.
    pub const fn as_str(self) -> &'static str {
        match self {
            Reference::None => "none",
            Reference::Teacher => "teacher",
            Reference::Policy => "policy",
        }
    }

    const fn needs(self) -> u64 {
        match self {
            Reference::None => 0,
            Reference::Teacher => abi::ids::needs::TEACHER as u64,
            Reference::Policy => abi::ids::needs::POLICY_REFERENCE as u64,
        }
    }
}

/// What rollouts are sampled from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The policy that is trained.
    Policy,
    /// A frozen model that the run names.
    Frozen,
}

impl Source {
    /// The name in the plug-in's metadata.
    pub const fn as_str(self) -> &'static str {
        match self {
            Source::Policy => "policy",
            Source::Frozen => "frozen",
        }
    }

    const fn needs(self) -> u64 {
        match self {
            Source::Policy => 0,
            Source::Frozen => abi::ids::needs::FROZEN_SOURCE as u64,
        }
    }
}

/// An optional method of [`Algorithm`] that the host is to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// [`Algorithm::score_rollout`].
    ScoreRollout,
    /// [`Algorithm::score_group`].
    ScoreGroup,
    /// [`Algorithm::save_state`] and [`Algorithm::load_state`].
    State,
    /// [`Algorithm::loss`].
    Loss,
    /// [`Algorithm::reference`]; listed exactly when [`Algorithm::REFERENCE`] is [`Reference::Policy`].
    Reference,
}

impl Hook {
    /// The name in the plug-in's metadata.
    pub const fn as_str(self) -> &'static str {
        match self {
            Hook::ScoreRollout => "score_rollout",
            Hook::ScoreGroup => "score_group",
            Hook::State => "state",
            Hook::Loss => "loss",
            Hook::Reference => "reference",
        }
    }
}

/// An algorithm: turns the rewards and token-level facts of a group of rollouts into per-token streams.
pub trait Algorithm: Sized + Send {
    /// The value of `[orchestrator.algo] type` that selects it: letters, digits, `_` and `-`.
    const NAME: &'static str;

    /// What sampled tokens feed.
    const ACTION_LOSS: ActionLoss = ActionLoss::Rl;

    /// Which reference log-probabilities it needs.
    const REFERENCE: Reference = Reference::None;

    /// What rollouts must be sampled from.
    const SOURCE: Source = Source::Policy;

    /// Whether its loss needs entropies: [`Batch::entropy`], [`Loss::d_entropy`].
    const ENTROPY: bool = false;

    /// Which of the methods below the host calls: list every one that is implemented.
    const HOOKS: &'static [Hook] = &[Hook::ScoreGroup];

    /// JSON Schema of the configuration, readable without loading the plug-in. [`testing::check_schema`] holds it against
    /// [`Algorithm::Config`].
    const CONFIG_SCHEMA: &'static str = r#"{"type":"object","additionalProperties":false}"#;

    /// The keys of `[orchestrator.algo]` other than those the host reads (`type`, `teacher`, `sampling`), or for an instance
    /// that is a loss those of `[trainer.loss]` other than `type` and `name`. Use `#[serde(deny_unknown_fields)]`, so that
    /// a misspelt key is an error.
    type Config: DeserializeOwned;

    /// Makes an instance; one per environment that uses the algorithm, and one of its own for the loss.
    ///
    /// # Errors
    /// A value the algorithm cannot work with: the text is shown to the user.
    fn new(config: Self::Config, host: &Host) -> Result<Self, Error>;

    /// Sees one rollout when it finishes ([`Hook::Reference`], [`Reference::Policy`]), and says for each of its samples
    /// which messages stand before the sample's tokens when the live policy scores them. Samples that are not asked for
    /// have no reference.
    ///
    /// # Errors
    /// Ends the run with the text.
    fn reference(&mut self, rollout: &Rollout, prefixes: &mut Prefixes) -> Result<(), Error> {
        let _ = (rollout, prefixes);
        Ok(())
    }

    /// Sees one rollout when it finishes ([`Hook::ScoreRollout`]). What it writes is there when the group is scored.
    ///
    /// # Errors
    /// Ends the run with the text.
    fn score_rollout(&mut self, rollout: &Rollout, credit: &mut Credit) -> Result<(), Error> {
        let _ = (rollout, credit);
        Ok(())
    }

    /// Sees a group when all its rollouts have ended ([`Hook::ScoreGroup`]): those that finished without an error, at
    /// least one. With [`ActionLoss::Rl`] each of them must get advantages or be dropped.
    ///
    /// # Errors
    /// Ends the run with the text.
    fn score_group(&mut self, group: &Group, credit: &mut Credit) -> Result<(), Error> {
        let _ = (group, credit);
        Ok(())
    }

    /// The loss of a packed micro-batch and its derivatives ([`Hook::Loss`]), in place of the host's rl component, where
    /// the run says `[trainer.loss] type = "custom"` with this name. Called once for each micro-batch that has a member.
    /// Which samples share one depends on their lengths and on memory: the sum over a step must not.
    ///
    /// # Errors
    /// Ends the run with the text.
    fn loss(&mut self, batch: &Batch, out: &mut Loss) -> Result<(), Error> {
        let _ = (batch, out);
        Ok(())
    }

    /// What a checkpoint must hold ([`Hook::State`]).
    ///
    /// # Errors
    /// Fails the checkpoint with the text.
    fn save_state(&self) -> Result<Vec<u8>, Error> {
        Ok(Vec::new())
    }

    /// Takes back what [`Algorithm::save_state`] gave, right after [`Algorithm::new`].
    ///
    /// # Errors
    /// A state that is not its own: the text is shown to the user.
    fn load_state(&mut self, state: &[u8]) -> Result<(), Error> {
        let _ = state;
        Ok(())
    }
}

/// The configuration of an algorithm without options: every key is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NoConfig {}
