//! The track 0.1.x: its bindings and the calls of its exports. Owns nothing of a call's deadline or checks.

mod convert;
mod imports;

use super::Answer;
use crate::state::State;
use crate::{Completion, EnvInfo, Failure, GroupMember, RolloutContext};
use bindings::exports::prl::env::environment as wit;
use bindings::prl::env::types as wit_types;
use prl_types::{EnvTurn, Score, Task};
use wasmtime::component::{HasSelf, InstancePre, Linker, ResourceAny};
use wasmtime::{Result, Store};

#[allow(missing_docs, clippy::all)]
mod bindings {
    wasmtime::component::bindgen!({
        path: "../../sdk/wit/since_v0.1.0",
        world: "full-env",
        imports: {
            "prl:env/llm.generate": async,
            "prl:env/llm.generate-many": async,
            "prl:env/http.fetch": async,
            "prl:env/assets.read": async,
            "prl:env/kv.get": async,
            "prl:env/kv.set": async,
        },
        exports: { default: async },
    });
}

/// The version these bindings are made from.
pub const VERSION: (u64, u64, u64) = (0, 1, 0);

/// Offers all imports of the track; what a component may use of them is decided before.
pub fn link(linker: &mut Linker<State>) -> Result<()> {
    bindings::FullEnv::add_to_linker::<_, HasSelf<_>>(linker, |state: &mut State| state)
}

/// A linked component.
pub struct Pre(bindings::FullEnvPre<State>);

impl Pre {
    pub fn new(pre: InstancePre<State>) -> Result<Self> {
        bindings::FullEnvPre::new(pre).map(Pre)
    }
}

/// The exports of an instance.
pub struct Guest(bindings::FullEnv);

/// The guest's answer in the project's terms.
fn answer<A, B>(
    given: std::result::Result<A, wit_types::Error>,
    convert: impl FnOnce(A) -> std::result::Result<B, String>,
) -> std::result::Result<B, Failure> {
    given.map_err(convert::error).and_then(|given| convert(given).map_err(Failure::Invalid))
}

impl Guest {
    pub async fn new(pre: &Pre, store: &mut Store<State>) -> Result<Self> {
        pre.0.instantiate_async(store).await.map(Guest)
    }

    fn exports(&self) -> &wit::Guest {
        self.0.prl_env_environment()
    }

    pub async fn describe(&self, store: &mut Store<State>) -> Result<std::result::Result<EnvInfo, String>> {
        self.exports().call_describe(store).await.map(convert::info)
    }

    pub async fn configure(&self, store: &mut Store<State>, args: &str) -> Answer<()> {
        let given = self.exports().call_configure(store, &args.to_owned()).await?;
        Ok(answer(given, Ok))
    }

    pub async fn task(&self, store: &mut Store<State>, env: &str, asked: (&str, u64, u64)) -> Answer<Task> {
        let given = self.exports().call_get_task(store, asked.0, asked.1, asked.2).await?;
        Ok(answer(given, |task| convert::task(env, task)))
    }

    pub async fn open(&self, store: &mut Store<State>, task: &Task, context: &RolloutContext) -> Answer<ResourceAny> {
        let (task, context) = (convert::task_to(task), convert::context_to(context));
        let given = self.exports().rollout().call_open(store, &task, &context).await?;
        Ok(answer(given, Ok))
    }

    pub async fn start(&self, store: &mut Store<State>, rollout: ResourceAny) -> Answer<EnvTurn> {
        let given = self.exports().rollout().call_start(store, rollout).await?;
        Ok(answer(given, convert::turn))
    }

    pub async fn step(&self, store: &mut Store<State>, rollout: ResourceAny, said: &Completion) -> Answer<EnvTurn> {
        let given = self.exports().rollout().call_step(store, rollout, &convert::completion_to(said)).await?;
        Ok(answer(given, convert::turn))
    }

    pub async fn score(
        &self,
        store: &mut Store<State>,
        rollout: ResourceAny,
        truncated: Option<&str>,
    ) -> Answer<Score> {
        let given = self.exports().rollout().call_score(store, rollout, truncated).await?;
        Ok(answer(given, convert::score))
    }

    pub async fn score_group(
        &self,
        store: &mut Store<State>,
        task: &Task,
        members: &[GroupMember],
    ) -> Answer<Vec<Score>> {
        let members: Vec<_> = members.iter().map(convert::member_to).collect();
        let given = self.exports().call_score_group(store, &convert::task_to(task), &members).await?;
        Ok(answer(given, |scores| scores.into_iter().map(convert::score).collect()))
    }
}
