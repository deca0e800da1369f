//! Models outside the run as sources of rollouts and as references. Owns the way to them and the check that they are there;
//! what is asked of them is `remote`'s.

use crate::environments::seconds;
use crate::failure::Failure;
use crate::remote::Client;
use crate::remote::model::{RemoteModel, key_of};
use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use prl_config::FrozenModel;
use prl_environment::{LlmRequest, ServiceError};
use prl_orchestrator::{Answer, Question, Reference, Source};
use prl_render::Renderer;
use prl_types::{Rollout, Sample, TokenId};
use serde_json::{Map, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// A model behind one server or several.
pub struct Outside {
    client: Client,
    servers: Vec<RemoteModel>,
    next: AtomicUsize,
    room: Semaphore,
}

impl Outside {
    /// Waits for the servers and sees that they have the model. `key` is the dotted path of its table.
    pub async fn connect(config: &FrozenModel, key: &str) -> Result<Self, Failure> {
        let api_key = key_of(&config.api_key_var);
        let server = |base_url: &String| RemoteModel {
            base_url: base_url.clone(),
            model: config.name.clone(),
            api_key: api_key.clone(),
            timeout: seconds(config.timeout),
            max_retries: config.max_retries,
        };
        let outside = Outside {
            client: Client::new(),
            servers: config.base_url.iter().map(server).collect(),
            next: AtomicUsize::new(0),
            room: Semaphore::new(config.max_concurrent),
        };
        let patience = Duration::from_secs(config.wait_for_ready_timeout);
        for server in &outside.servers {
            let models = server.wait(&outside.client, patience, key).await;
            let models = models.map_err(|e| Failure::input(format_args!("`{key}`: {e}")))?;
            let names: Vec<&str> = models.iter().filter_map(|model| model["id"].as_str()).collect();
            if !config.skip_model_check && !names.contains(&config.name.as_str()) {
                let has = if names.is_empty() { "none".to_owned() } else { format!("`{}`", names.join("`, `")) };
                let text = format!("there is no model `{}` at `{}`, which has {has}", config.name, server.base_url);
                return Err(Failure::input(format_args!("`{key}.name`: {text}")));
            }
        }
        Ok(outside)
    }

    /// Sees that every server scores tokens, and means the same ones by their ids.
    pub async fn check_scores(&self, renderer: &Renderer, ids: &[TokenId], key: &str) -> Result<(), Failure> {
        for server in &self.servers {
            let words = server.words(&self.client, ids).await;
            let words = words.map_err(|e| Failure::input(format_args!("`{key}`: {e}")))?;
            let ours = |id: &TokenId| renderer.decode(std::slice::from_ref(id)).unwrap_or_default();
            let other = ids[1..].iter().zip(&words).find_map(|(id, theirs)| {
                let (ours, theirs) = (ours(id), theirs.as_ref()?);
                // Tokenizers write what is no plain text in several ways.
                let plain = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric());
                (plain(&ours) && plain(theirs) && ours != *theirs).then(|| (*id, ours, theirs.clone()))
            });
            if let Some((id, ours, theirs)) = other {
                return Err(Failure::input(format_args!(
                    "`{key}`: {server} has another vocabulary: token {id} is \"{theirs}\" there and \"{ours}\" here"
                )));
            }
        }
        Ok(())
    }

    /// Whose turn it is.
    fn server(&self) -> &RemoteModel {
        &self.servers[self.next.fetch_add(1, Ordering::Relaxed) % self.servers.len()]
    }
}

/// Chat with it instead of the policy, which is to give the same answers.
pub struct ChatSource {
    /// The model.
    pub model: Outside,
    /// The policy's renderer.
    pub renderer: Arc<Renderer>,
}

impl Source for ChatSource {
    fn answer<'a>(&'a self, question: Question<'a>) -> BoxFuture<'a, Result<Answer, String>> {
        self.ask(question).map(|answer| answer.map_err(|error| error.to_string())).boxed()
    }
}

impl ChatSource {
    async fn ask(&self, question: Question<'_>) -> Result<Answer, ServiceError> {
        let ChatSource { model, renderer } = self;
        let sampling = question.sampling;
        let mut options = Map::new();
        // Servers keep seeds in 63 bits.
        options.insert("seed".into(), json!(question.seed >> 1));
        // What is at its default is left out: not every server knows all of them.
        if sampling.top_p < 1.0 {
            options.insert("top_p".into(), json!(sampling.top_p));
        }
        if let Some(top_k) = sampling.top_k {
            options.insert("top_k".into(), json!(top_k));
        }
        if sampling.min_p > 0.0 {
            options.insert("min_p".into(), json!(sampling.min_p));
        }
        if !sampling.stop.is_empty() {
            options.insert("stop".into(), json!(sampling.stop));
        }
        let request = LlmRequest {
            role: String::new(),
            messages: question.messages.to_vec(),
            tools: question.tools.to_vec(),
            max_tokens: Some(u32::try_from(question.max_tokens).unwrap_or(u32::MAX)),
            temperature: Some(sampling.temperature.into()),
            options,
        };
        let _place = model.room.acquire().await;
        let (answer, reason) = model.server().complete(&model.client, &request).await?;
        Ok(Answer { message: renderer.adopted(answer.message), cut: reason.as_deref() == Some("length") })
    }
}

/// Its log-probabilities of what the policy sampled.
pub struct Teacher(pub Outside);

impl Reference for Teacher {
    fn logprobs<'a>(&'a self, rollout: &'a Rollout) -> BoxFuture<'a, Result<Vec<Option<Vec<f32>>>, String>> {
        let Teacher(model) = self;
        let score = move |sample: &'a Sample| async move {
            let _place = model.room.acquire().await;
            let scored = model.server().score(&model.client, sample.token_ids(), sample.temperature()).await;
            scored.map(Some).map_err(|error| error.to_string())
        };
        try_join_all(rollout.samples.iter().map(score)).boxed()
    }
}
