//! Inference servers as the orchestrator's policy. Owns how weights get there, by a folder that both sides reach, and which
//! server is asked; what they are asked is `remote`'s.

use crate::checkpoint::{write_adapter, write_weights};
use crate::environments::seconds;
use crate::failure::Failure;
use crate::ports::policy::Scores;
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
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Dotted path of their table.
const KEY: &str = "orchestrator.model.client";
/// How long a server may take to load weights.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(720);
/// Between two lines that say that servers are waited for.
const REMINDER: Duration = Duration::from_secs(30);

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
        let sent = self.update(PolicyVersion(0), weights).await;
        sent.map_err(|error| Failure::input(format_args!("`{KEY}`: {error}; a server must take weights: {hint}")))
    }

    /// Sends `weights` to all servers.
    async fn update(&self, version: PolicyVersion, weights: &Path) -> Result<(), String> {
        let one = |(server, admin): &(RemoteModel, RemoteModel)| {
            let (door, body) = match self.adapter {
                // What samples with the one of that name before goes on with it.
                true => {
                    let body = json!({ "lora_name": server.model, "lora_path": weights, "load_inplace": true });
                    ("/load_lora_adapter", body)
                }
                false => ("/update_weights", json!({ "weight_dir": weights, "version": version.0 })),
            };
            let admin = admin.clone();
            async move { admin.post(&self.client, door, &body).await }
        };
        let sent = self.servers.iter().map(one);
        let mut sent = std::pin::pin!(try_join_all(sent));
        let answers = loop {
            tokio::select! {
                answers = &mut sent => break answers.map_err(|e| e.to_string())?,
                () = tokio::time::sleep(REMINDER) => {
                    tracing::warn!(target: "prl_orchestrator", "Waiting for servers to take the weights of policy {version}");
                }
            }
        };
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

/// The policy on servers, with the folder that its weights go through.
pub struct ServedPolicy {
    /// Where it is sampled.
    pub servers: Arc<Servers>,
    /// Where its weights are.
    pub broadcasts: Checkpoints,
}

impl Policy for ServedPolicy {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        self.servers.sample(request).map(|sampled| sampled.map_err(|e| PolicyError::Engine(e.to_string()))).boxed()
    }

    fn set_policy(&self, version: PolicyVersion) -> BoxFuture<'_, Result<(), String>> {
        async move { self.servers.update(version, &self.broadcasts.path(version.0)).await }.boxed()
    }
}

/// Writes weights where the servers read them.
pub struct Broadcast {
    /// The folder of folders.
    pub folder: Checkpoints,
    /// The folder that the tokenizer is copied from.
    pub companions: PathBuf,
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
            true => write_adapter(&self.folder, (version.0, &model), &self.companions, keep),
            false => write_weights(&self.folder, (version.0, &model), (&self.companions, false), keep),
        }
    }
}
