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
//! Owns the safe face of the ABI: typed views of a group, a checked writer of streams, panics turned into errors,
//! statistics of rewards ([`stats`]), and a test harness ([`testing`]). Must not know the host beyond `prl-abi`, nor any
//! particular algorithm.

pub mod export;
mod group;
mod host;
pub mod stats;
pub mod testing;

pub use group::{Component, Group, Metric, Role, Rollout, Sample, Turn};
pub use host::{Credit, Host, Level, Stream};
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

/// An optional method of [`Algorithm`] that the host is to call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// [`Algorithm::score_rollout`].
    ScoreRollout,
    /// [`Algorithm::score_group`].
    ScoreGroup,
    /// [`Algorithm::save_state`] and [`Algorithm::load_state`].
    State,
}

impl Hook {
    /// The name in the plug-in's metadata.
    pub const fn as_str(self) -> &'static str {
        match self {
            Hook::ScoreRollout => "score_rollout",
            Hook::ScoreGroup => "score_group",
            Hook::State => "state",
        }
    }
}

/// An algorithm: turns the rewards and token-level facts of a group of rollouts into per-token streams.
pub trait Algorithm: Sized + Send {
    /// The value of `[orchestrator.algo] type` that selects it: letters, digits, `_` and `-`.
    const NAME: &'static str;

    /// What sampled tokens feed.
    const ACTION_LOSS: ActionLoss = ActionLoss::Rl;

    /// Which of the methods below the host calls: list every one that is implemented.
    const HOOKS: &'static [Hook] = &[Hook::ScoreGroup];

    /// JSON Schema of the configuration, readable without loading the plug-in. [`testing::check_schema`] holds it against
    /// [`Algorithm::Config`].
    const CONFIG_SCHEMA: &'static str = r#"{"type":"object","additionalProperties":false}"#;

    /// The keys of `[orchestrator.algo]` other than `type`. Use `#[serde(deny_unknown_fields)]`, so that a misspelt key is
    /// an error.
    type Config: DeserializeOwned;

    /// Makes an instance; one per environment that uses the algorithm.
    ///
    /// # Errors
    /// A value the algorithm cannot work with: the text is shown to the user.
    fn new(config: Self::Config, host: &Host) -> Result<Self, Error>;

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
