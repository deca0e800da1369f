//! Inference servers as the orchestrator's policy. Owns how weights get there, by a folder that both sides reach or from GPU to
//! GPU, and which server is asked; what they are asked is `remote`'s.

use crate::checkpoint::{write_adapter, write_weights};
use crate::companions::Companions;
use crate::environments::seconds;
use crate::failure::Failure;
use crate::ports::broadcaster::Broadcaster;
use crate::ports::policy::{Scores, Snapshots};
use crate::remote::Client;
use crate::remote::model::{RemoteModel, key_of};
use crate::remote::tokens::Version;
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use prl_config::PolicyClient;
use prl_environment::ServiceError;
use prl_model::Learner;
use prl_orchestrator::{Policy, PolicyError, SampleRequest};
use prl_store::{Checkpoints, Keep};
use prl_types::{PolicyVersion, Sampled, TokenId};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Dotted path of their table.
const KEY: &str = "orchestrator.model.client";
/// How long a server may take to load weights.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(720);
/// How long a server may take to say that it is there.
const LIVENESS: Duration = Duration::from_secs(5);
/// How much longer the answer of a server is waited for that waits for others itself.
pub const LATER: Duration = Duration::from_secs(10);
/// Where adapters are loaded.
const ADAPTER_DOOR: &str = "/load_lora_adapter";
/// Between two lines that say that servers are waited for.
const REMINDER: Duration = Duration::from_secs(30);

/// Where servers get weights from.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// A folder.
    Folder(&'a Path),
    /// The communicator of a session.
    Nccl {
        /// Its name.
        session: &'a str,
        /// How long a server waits for it.
        patience: Duration,
    },
}

/// The servers, each with the way in for weights.
pub struct Servers {
    client: Client,
    servers: Vec<(RemoteModel, RemoteModel)>,
    /// Whether weights are those of an adapter beside the model that servers have.
    adapter: bool,
    next: AtomicUsize,
    version: AtomicU64,
    /// By server: how many updates it told of the last time.
    updates: Mutex<Vec<Option<u64>>>,
    /// Tokens that all of them take.
    context: usize,
}

impl Servers {
    /// Waits for them. `name` is the policy's; a server that has one model only may call it as it likes. Under the name `adapter`
    /// they will get an adapter to it.
    pub async fn connect(config: &PolicyClient, name: &str, adapter: Option<String>) -> Result<Self, Failure> {
        let api_key = key_of(&config.api_key_var);
        let admin_key = config.admin_api_key_var.as_deref().map_or_else(|| api_key.clone(), key_of);
        let (client, mut context, mut servers) = (Client::new(), usize::MAX, Vec::new());
        let admin_urls = config.admin_base_url.as_ref().unwrap_or(&config.base_url);
        for (base_url, admin_url) in config.base_url.iter().zip(admin_urls) {
            let (base_url, timeout) = (base_url.clone(), seconds(config.timeout));
            let (model, api_key, max_retries) = (name.to_owned(), api_key.clone(), config.max_retries);
            let mut server = RemoteModel { base_url, model, api_key, timeout, max_retries };
            let models = server.wait(&client, Duration::from_secs(config.wait_for_ready_timeout), KEY).await;
            let models = models.map_err(|e| Failure::input(format_args!("`{KEY}`: {e}")))?;
            let named = models.iter().find(|model| model["id"].as_str() == Some(name));
            // Adapters stand beside the model that they are for.
            let mut own = models.iter().filter(|model| model["parent"].is_null());
            let only = own.next().filter(|_| own.next().is_none());
            let Some(model) = named.or(only) else {
                let names: Vec<&str> = models.iter().filter_map(|model| model["id"].as_str()).collect();
                let url = &server.base_url;
                let text = format!("there is no model `{name}` at `{url}`, which has `{}`", names.join("`, `"));
                return Err(Failure::input(format_args!("`orchestrator.model.name`: {text}")));
            };
            server.model = model["id"].as_str().unwrap_or(name).to_owned();
            context = context.min(model["max_model_len"].as_u64().map_or(usize::MAX, |len| len as usize));
            let (base_url, api_key, timeout) = (admin_url.clone(), admin_key.clone(), UPDATE_TIMEOUT);
            let admin = RemoteModel { base_url, api_key, timeout, max_retries: 1, ..server.clone() };
            server.model = adapter.clone().unwrap_or(server.model);
            servers.push((server, admin));
        }
        let (next, version) = (AtomicUsize::new(0), AtomicU64::new(0));
        let updates = Mutex::new(vec![None; servers.len()]);
        Ok(Servers { client, servers, adapter: adapter.is_some(), next, version, updates, context })
    }

    /// Sends weights that the policy is like, to see that servers take them before anything depends on it.
    pub async fn check_update(&self, weights: &Path) -> Result<(), Failure> {
        let hint = "see `admin_base_url` and `admin_api_key_var`, and that it serves this model";
        let sent = self.update(PolicyVersion(0), Source::Folder(weights)).await;
        sent.map_err(|error| Failure::input(format_args!("`{KEY}`: {error}; a server must take weights: {hint}")))
    }

    /// Sees that servers take adapters: one that does has something to say about an adapter without a folder.
    pub async fn check_adapters(&self) -> Result<(), Failure> {
        for (server, admin) in &self.servers {
            let body = json!({ "lora_name": server.model, "lora_path": "" });
            match admin.post(&self.client, ADAPTER_DOOR, &body).await {
                Err(ServiceError::Invalid(text)) if text.contains("lora_path") => {}
                Ok(_) => {}
                Err(error) => {
                    let hint = "start it with `enable_lora = true`; see `admin_base_url` and `admin_api_key_var`";
                    return Err(Failure::input(format_args!("`{KEY}`: {error}; a server must take adapters: {hint}")));
                }
            }
        }
        Ok(())
    }

    /// How many they are.
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// Asks every server, by its number, at one door; gives what they say. `what` they do completes "Waiting for servers to". With
    /// `patience` it may take that long and is not tried again.
    pub async fn ask_all(
        &self,
        what: &str,
        patience: Option<Duration>,
        ask: impl Fn(usize, &RemoteModel) -> (&'static str, Value),
    ) -> Result<Vec<Value>, String> {
        let one = |(n, (server, admin)): (usize, &(RemoteModel, RemoteModel))| {
            let (door, body) = ask(n, server);
            let admin = match patience {
                Some(timeout) => RemoteModel { timeout, max_retries: 0, ..admin.clone() },
                None => admin.clone(),
            };
            async move { admin.post(&self.client, door, &body).await }
        };
        let asked = self.servers.iter().enumerate().map(one);
        let mut asked = std::pin::pin!(try_join_all(asked));
        loop {
            tokio::select! {
                answers = &mut asked => return answers.map_err(|e| e.to_string()),
                () = tokio::time::sleep(REMINDER) => {
                    tracing::warn!(target: "prl_orchestrator", "Waiting for servers to {what}");
                }
            }
        }
    }

    /// Servers that do not answer.
    pub async fn silent(&self) -> Vec<String> {
        let mut silent = Vec::new();
        for (_, admin) in &self.servers {
            let quick = RemoteModel { timeout: LIVENESS, max_retries: 0, ..admin.clone() };
            if let Err(ServiceError::Upstream(_)) = quick.get(&self.client, "/liveness").await {
                silent.push(admin.base_url.clone());
            }
        }
        silent
    }

    /// Has all servers take weights.
    pub async fn update(&self, version: PolicyVersion, source: Source<'_>) -> Result<(), String> {
        let what = format!("take the weights of policy {version}");
        let patience = match source {
            Source::Folder(_) => None,
            Source::Nccl { patience, .. } => Some(patience + LATER),
        };
        let answers = self.ask_all(&what, patience, |_, server| match source {
            // What samples with the one of that name before goes on with it.
            Source::Folder(weights) if self.adapter => {
                (ADAPTER_DOOR, json!({ "lora_name": server.model, "lora_path": weights, "load_inplace": true }))
            }
            Source::Folder(weights) => ("/update_weights", json!({ "weight_dir": weights, "version": version.0 })),
            Source::Nccl { session, .. } => ("/update_weights", json!({ "session_id": session, "version": version.0 })),
        });
        let answers = answers.await?;
        let mut known = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        for ((known, answer), (server, _)) in known.iter_mut().zip(&answers).zip(&self.servers) {
            let told = answer["updates"].as_u64();
            if let (Some(before), Some(now)) = (*known, told)
                && now != before + 1
            {
                return Err(format!(
                    "{server}: it took weights that this run did not send, so another run uses it, or it was started again; \
                     give each run servers of its own"
                ));
            }
            *known = told;
        }
        self.version.store(version.0, Ordering::Relaxed);
        Ok(())
    }

    /// Tokens of a whole rollout that every server takes, as far as they tell: scoring one takes room for a token more.
    pub fn context(&self) -> usize {
        self.context - 1
    }

    /// Whether they get an adapter.
    pub fn adapter(&self) -> bool {
        self.adapter
    }

    fn server(&self) -> &RemoteModel {
        &self.servers[self.next.fetch_add(1, Ordering::Relaxed) % self.servers.len()].0
    }

    async fn sample(&self, request: SampleRequest) -> Result<Sampled, ServiceError> {
        let version = PolicyVersion(self.version.load(Ordering::Relaxed));
        let (sampling, salt) = (&request.sampling, version.0.to_string());
        let mut params = json!({
            "temperature": sampling.temperature, "top_p": sampling.top_p, "min_p": sampling.min_p,
            "max_tokens": request.max_tokens, "stop": sampling.stop, "stop_token_ids": &*request.stop_token_ids,
            // Servers keep seeds in 63 bits.
            "seed": request.seed >> 1, "logprobs": 1,
        });
        if let Some(top_k) = sampling.top_k {
            params["top_k"] = json!(top_k);
        }
        // Of adapters a server does not know the version.
        let version = if self.adapter { Version::Is(version) } else { Version::UnlessTold(version) };
        self.server().sample(&self.client, &request.prompt, params, &salt, version).await
    }
}

impl Scores for Servers {
    fn score(&self, ids: Arc<[TokenId]>, temperature: f32) -> BoxFuture<'_, Result<Vec<f32>, String>> {
        async move { self.server().score(&self.client, &ids, temperature).await.map_err(|e| e.to_string()) }.boxed()
    }
}

/// The policy on servers.
pub struct ServedPolicy {
    /// Where it is sampled.
    pub servers: Arc<Servers>,
    /// How its weights get there.
    pub way: Way,
}

/// How weights get to servers.
pub enum Way {
    /// Through the folders in this one.
    Folder(Checkpoints),
    /// Over NCCL, from the trainer's copies.
    Nccl(Broadcaster, Snapshots),
}

impl Policy for ServedPolicy {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        self.servers.sample(request).map(|sampled| sampled.map_err(|e| PolicyError::Engine(e.to_string()))).boxed()
    }

    fn set_policy(&self, version: PolicyVersion) -> BoxFuture<'_, Result<(), String>> {
        async move {
            let begun = Instant::now();
            match &self.way {
                Way::Folder(broadcasts) => {
                    self.servers.update(version, Source::Folder(&broadcasts.path(version.0))).await?;
                }
                Way::Nccl(broadcaster, snapshots) => {
                    broadcaster.send(&self.servers, version, snapshots.take(version)?).await?;
                }
            }
            let took = begun.elapsed().as_secs_f64() * 1e3;
            tracing::debug!(target: "prl_orchestrator", "Servers took the weights of policy {version} in {took:.1} ms");
            Ok(())
        }
        .boxed()
    }
}

/// Writes weights where the servers read them.
pub struct Broadcast {
    /// The folder of folders.
    pub folder: Checkpoints,
    /// What is put beside weights.
    pub companions: Companions,
    /// Folders that are kept: of every version that servers may still be told to read.
    pub kept: usize,
    /// Whether it is the adapter's weights alone.
    pub adapter: bool,
}

impl Broadcast {
    /// Writes the weights of `version`, and drops old ones.
    pub fn write(&self, version: PolicyVersion, learner: &Learner) -> Result<(), String> {
        let model = learner.weights().map_err(|e| e.to_string())?;
        let keep = Keep { last: Some(self.kept), interval: None };
        match self.adapter {
            true => write_adapter(&self.folder, (version.0, &model), &self.companions.model, keep),
            false => write_weights(&self.folder, (version.0, &model), (&self.companions, false), keep),
        }
    }
}
