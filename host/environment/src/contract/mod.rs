//! One adapter per track of the WIT package `prl:env`, and the choice between them. Owns names and versions; what is in
//! an adapter stays there: the rest of the crate sees the project's own types only.
//!
//! A new track is a folder beside `v0_1`, a variant of [`Pre`] and [`Guest`], and an arm in each of their methods.

mod v0_1;

use crate::state::State;
use crate::{Completion, EnvInfo, Failure, GroupMember, RolloutContext};
use prl_types::{EnvTurn, Score, Task};
use wasmtime::component::{InstancePre, Linker, ResourceAny};
use wasmtime::{Result, Store};

/// The package's name.
pub const PACKAGE: &str = "prl:env";
/// The interface a component must export.
pub const INTERFACE: &str = "prl:env/environment";
/// The newest version this host was built with: it takes the whole track, whatever the patch number.
pub const VERSION: (u64, u64, u64) = v0_1::VERSION;
/// Interfaces every component may import.
pub const ALWAYS: [&str; 2] = ["types", "log"];

/// Offers a component everything that any track may import from [`PACKAGE`].
pub fn link(linker: &mut Linker<State>) -> Result<()> {
    v0_1::link(linker)
}

/// What a guest answered, before it is checked; or its own error. The outer error is the end of the instance.
pub type Answer<T> = Result<std::result::Result<T, Failure>>;

/// A linked component of a known track, ready to be instantiated.
pub enum Pre {
    V0_1(v0_1::Pre),
}

impl Pre {
    /// # Errors
    /// Shapes that do not fit the names.
    pub fn new(pre: InstancePre<State>) -> Result<Self> {
        v0_1::Pre::new(pre).map(Pre::V0_1)
    }

    pub async fn instantiate(&self, store: &mut Store<State>) -> Result<Guest> {
        match self {
            Pre::V0_1(pre) => v0_1::Guest::new(pre, store).await.map(Guest::V0_1),
        }
    }
}

/// The exports of an instance.
pub enum Guest {
    V0_1(v0_1::Guest),
}

impl Guest {
    pub async fn describe(&self, store: &mut Store<State>) -> Result<std::result::Result<EnvInfo, String>> {
        match self {
            Guest::V0_1(guest) => guest.describe(store).await,
        }
    }

    pub async fn configure(&self, store: &mut Store<State>, args: &str) -> Answer<()> {
        match self {
            Guest::V0_1(guest) => guest.configure(store, args).await,
        }
    }

    pub async fn task(&self, store: &mut Store<State>, env: &str, asked: (&str, u64, u64)) -> Answer<Task> {
        match self {
            Guest::V0_1(guest) => guest.task(store, env, asked).await,
        }
    }

    pub async fn open(&self, store: &mut Store<State>, task: &Task, context: &RolloutContext) -> Answer<ResourceAny> {
        match self {
            Guest::V0_1(guest) => guest.open(store, task, context).await,
        }
    }

    pub async fn start(&self, store: &mut Store<State>, rollout: ResourceAny) -> Answer<EnvTurn> {
        match self {
            Guest::V0_1(guest) => guest.start(store, rollout).await,
        }
    }

    pub async fn step(&self, store: &mut Store<State>, rollout: ResourceAny, said: &Completion) -> Answer<EnvTurn> {
        match self {
            Guest::V0_1(guest) => guest.step(store, rollout, said).await,
        }
    }

    /// Weights are left at 0.
    pub async fn score(
        &self,
        store: &mut Store<State>,
        rollout: ResourceAny,
        truncated: Option<&str>,
    ) -> Answer<Score> {
        match self {
            Guest::V0_1(guest) => guest.score(store, rollout, truncated).await,
        }
    }

    /// Weights are left at 0.
    pub async fn score_group(
        &self,
        store: &mut Store<State>,
        task: &Task,
        members: &[GroupMember],
    ) -> Answer<Vec<Score>> {
        match self {
            Guest::V0_1(guest) => guest.score_group(store, task, members).await,
        }
    }
}
