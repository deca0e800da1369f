//! A model behind an OpenAI-compatible server. Owns how its answers become turns; tasks and seeds are those that a local
//! model gets.

use super::{Attempt, Eval, Outcome, Tasks};
use crate::env::drive::{self, Asked, Plan, Played, Said, Speaker};
use crate::env::open::KEY_VARIABLE;
use crate::env::record::Environment;
use crate::environments::seconds;
use crate::failure::Failure;
use crate::remote::Client;
use crate::remote::model::{RemoteModel, key_of};
use crate::signals;
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt, stream};
use prl_environment::{Finish, LlmRequest, ServiceError};
use prl_orchestrator::{derive, fnv1a, task_seed};
use prl_types::{ErrorKind, GroupId, RolloutError, RolloutId};
use serde_json::{Map, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// Asks the server for every rollout.
pub async fn run(asked: &Eval, tasks: &Tasks, url: &str) -> Result<Outcome, Failure> {
    let server = Arc::new(Server {
        client: Client::new(),
        model: RemoteModel {
            base_url: url.into(),
            model: asked.model.clone(),
            api_key: key_of(KEY_VARIABLE),
            timeout: seconds(asked.timeout),
            max_retries: asked.max_retries,
        },
        max_tokens: asked.max_tokens,
        temperature: asked.temperature,
        answered: AtomicBool::new(false),
        refused: Mutex::default(),
        gave_up: Notify::new(),
    });
    let mut plans = Vec::new();
    let name = tasks.pool.name();
    for index in 0..tasks.count {
        let seed = task_seed(asked.seed, "eval-task", name, index);
        let task = Arc::new(tasks.pool.task(&tasks.split, index, seed).await.map_err(Failure::input)?);
        let group = derive(derive(asked.seed, "eval", fnv1a(name), 0), "group", index, 0);
        plans.extend((0..asked.rollouts_per_example).map(|member| Plan {
            task: task.clone(),
            id: RolloutId { group: GroupId(index), member },
            group_size: asked.rollouts_per_example,
            seed: derive(group, "member", u64::from(member), 0),
            eval: true,
            max_turns: asked.max_turns,
        }));
    }
    let environment = Environment::of(&tasks.pool, tasks.opened.args.clone(), BTreeMap::new());
    let stop = signals::listen().map_err(Failure::run)?;
    let play = |plan: Plan| {
        let (server, environment) = (server.clone(), &environment);
        async move { drive::play(&tasks.pool, &plan, environment, &mut Chat { server, seed: plan.seed }).await }
    };
    let mut signal = stop.receiver.clone();
    let over = async {
        tokio::select! {
            // A closed channel never stops anything.
            Ok(_) = signal.wait_for(|stop| *stop) => {}
            () = server.gave_up.notified() => {}
        }
    };
    let all = stream::iter(plans).map(play).buffer_unordered(asked.max_concurrent as usize);
    let mut played: Vec<Played> = all.take_until(over.boxed()).collect().await;
    if let Some(reason) = server.refused.lock().unwrap_or_else(PoisonError::into_inner).take() {
        return Err(Failure::input(format_args!("`--base-url`: {reason}")));
    }
    played.sort_by_key(|played| played.rollout.id);
    if tasks.pool.info().features.group_scoring {
        score_groups(tasks, &environment, &mut played).await;
    }
    let results = played.into_iter().map(|p| Attempt { rollout: p.rollout, replay: Some(p.replay) }).collect();
    Ok(Outcome { results, interrupted: stop.exit_code() })
}

/// Whole groups, as far as they did not fail.
async fn score_groups(tasks: &Tasks, environment: &Environment, played: &mut [Played]) {
    for group in played.chunk_by_mut(|one, other| one.rollout.id.group == other.rollout.id.group) {
        let mut group: Vec<&mut Played> = group.iter_mut().filter(|played| played.rollout.error.is_none()).collect();
        let members: Vec<_> = group.iter().map(|played| played.member()).collect();
        let Some(task) = group.first().map(|played| played.rollout.task.clone()) else { continue };
        let tape = environment.tape();
        let scored = tasks.pool.score_group_taped(&task, &members, tape.clone()).await;
        if let Some(first) = group.first_mut() {
            first.replay.group_services = environment.served(&tape);
        }
        match scored {
            Ok(scores) => group.iter_mut().zip(scores).for_each(|(played, score)| played.rescore(score)),
            Err(error) => group.iter_mut().for_each(|played| played.fail(format!("`score_group` failed: {error}"))),
        }
    }
}

struct Server {
    client: Client,
    model: RemoteModel,
    max_tokens: Option<u32>,
    temperature: Option<f64>,
    /// Whether it ever answered.
    answered: AtomicBool,
    /// Why it never will.
    refused: Mutex<Option<String>>,
    gave_up: Notify,
}

/// The server in one rollout.
struct Chat {
    server: Arc<Server>,
    seed: u64,
}

impl Speaker for Chat {
    fn say<'a>(&'a mut self, asked: Asked<'a>) -> BoxFuture<'a, Result<Said, RolloutError>> {
        self.ask(asked).boxed()
    }
}

impl Chat {
    async fn ask(&mut self, asked: Asked<'_>) -> Result<Said, RolloutError> {
        let server = &self.server;
        let mut options = Map::new();
        // Servers keep seeds in 63 bits.
        options.insert("seed".into(), json!(derive(self.seed, "turn", u64::from(asked.turn), 0) >> 1));
        if !asked.hints.stop.is_empty() {
            options.insert("stop".into(), json!(asked.hints.stop));
        }
        let request = LlmRequest {
            role: String::new(),
            messages: asked.messages.to_vec(),
            tools: asked.tools.to_vec(),
            max_tokens: [server.max_tokens, asked.hints.max_tokens].into_iter().flatten().min(),
            temperature: server.temperature,
            options,
        };
        let (mut answer, reason) =
            server.model.complete(&server.client, &request).await.map_err(|error| server.failed(error))?;
        server.answered.store(true, Ordering::Relaxed);
        for (at, call) in answer.message.tool_calls.iter_mut().enumerate().filter(|(_, call)| call.id.is_empty()) {
            call.id = format!("call_{}_{at}", asked.turn);
        }
        let finish = match reason.as_deref() {
            Some("length") => Finish::Length,
            Some("content_filter") => Finish::ContentFilter,
            _ if !answer.message.tool_calls.is_empty() => Finish::ToolCalls,
            _ => Finish::Stop,
        };
        Ok(Said { message: answer.message, finish, tokens: answer.completion_tokens })
    }
}

impl Server {
    /// A server that fails before it ever answered will not do better later: the evaluation ends.
    fn failed(&self, error: ServiceError) -> RolloutError {
        if !self.answered.load(Ordering::Relaxed) {
            let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
            refused.get_or_insert_with(|| error.to_string());
            self.gave_up.notify_one();
        }
        RolloutError { kind: ErrorKind::ProviderError, message: error.to_string() }
    }
}
