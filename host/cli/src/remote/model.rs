//! A model behind a server. Owns requests to it, the tries and what is said when they fail; must not know what a model is
//! asked for.

use super::Client;
use prl_environment::{HttpRequest, HttpResponse, ServiceError};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Longest answer, bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Pause before the second try; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// Between two looks for a server that is not there yet.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);
/// How long a look may take.
const LONGEST_LOOK: Duration = Duration::from_secs(10);
/// Between two lines that say so.
const REMINDER: Duration = Duration::from_secs(30);

/// The key in an environment variable, if it is there and not empty.
pub fn key_of(variable: &str) -> Option<String> {
    std::env::var(variable).ok().filter(|key| !key.is_empty())
}

/// One model on one server.
#[derive(Clone)]
pub struct RemoteModel {
    /// Address of the server up to its version, such as `http://localhost:8000/v1`.
    pub base_url: String,
    /// The model's name there.
    pub model: String,
    /// The key, if it wants one.
    pub api_key: Option<String>,
    /// How long one try may take.
    pub timeout: Duration,
    /// Further tries of a request that failed in a way that may pass.
    pub max_retries: u32,
}

impl RemoteModel {
    /// Sends `body` to a door of OpenAI's interface, such as `chat/completions`, or, with a leading `/`, to one at the
    /// server's root; tries again where that may help.
    ///
    /// # Errors
    /// [`ServiceError::Upstream`] when the server does not answer, is overloaded or says what is no JSON,
    /// [`ServiceError::Invalid`] when it refuses the request.
    pub async fn post(&self, client: &Client, door: &str, body: &Value) -> Result<Value, ServiceError> {
        let body = body.to_string().into_bytes();
        self.ask(client, "POST", door, Some(body)).await
    }

    /// Reads a door; otherwise as [`RemoteModel::post`].
    ///
    /// # Errors
    /// As there.
    pub async fn get(&self, client: &Client, door: &str) -> Result<Value, ServiceError> {
        self.ask(client, "GET", door, None).await
    }

    /// Waits until the server is there; gives the models that it has. `key` is the dotted path of its table, for messages.
    ///
    /// # Errors
    /// As [`RemoteModel::post`], when `patience` is over.
    pub async fn wait(&self, client: &Client, patience: Duration, key: &str) -> Result<Vec<Value>, ServiceError> {
        let (begun, mut told) = (Instant::now(), None::<Instant>);
        loop {
            // A server that accepts and says nothing is not there either.
            let left = patience.saturating_sub(begun.elapsed()).clamp(BETWEEN_LOOKS, LONGEST_LOOK);
            let once = RemoteModel { max_retries: 0, timeout: left.min(self.timeout), ..self.clone() };
            match once.get(client, "models").await {
                Ok(mut models) => match models["data"].take() {
                    Value::Array(models) => return Ok(models),
                    _ => return Err(self.unusable("the answer is no list of models")),
                },
                Err(ServiceError::Upstream(why)) if begun.elapsed() < patience => {
                    if told.is_none_or(|told| told.elapsed() >= REMINDER) {
                        tracing::info!(target: "prl_orchestrator", "Waiting for `{key}`: {why}");
                        told = Some(Instant::now());
                    }
                    tokio::time::sleep(BETWEEN_LOOKS).await;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What cannot be made sense of.
    pub fn unusable(&self, what: impl std::fmt::Display) -> ServiceError {
        ServiceError::Upstream(format!("{self}: {what}"))
    }

    async fn ask(
        &self,
        client: &Client,
        method: &str,
        door: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Value, ServiceError> {
        let (mut pause, mut tries) = (FIRST_PAUSE, 0);
        loop {
            let answer = self.once(client, method, door, body.clone()).await;
            match answer {
                Err(ServiceError::Upstream(_)) if tries < self.max_retries => {
                    tokio::time::sleep(pause).await;
                    pause *= 2;
                    tries += 1;
                }
                answer => return answer,
            }
        }
    }

    async fn once(
        &self,
        client: &Client,
        method: &str,
        door: &str,
        body: Option<Vec<u8>>,
    ) -> Result<Value, ServiceError> {
        let base = self.base_url.trim_end_matches('/');
        let url = match door.starts_with('/') {
            true => format!("{}{door}", base.strip_suffix("/v1").unwrap_or(base)),
            false => format!("{base}/{door}"),
        };
        let mut headers = vec![("content-type".to_owned(), "application/json".to_owned())];
        headers.extend(self.api_key.as_ref().map(|key| ("authorization".to_owned(), format!("Bearer {key}"))));
        let (timeout, patience) = (self.timeout, Duration::ZERO);
        let sent = HttpRequest { method: method.into(), url, headers, body, timeout, patience, max_bytes: MAX_BYTES };
        let client = client.clone();
        let answer = tokio::task::spawn_blocking(move || client.send(sent)).await;
        self.read(&answer.map_err(|error| ServiceError::Upstream(error.to_string()))??)
    }

    fn read(&self, answer: &HttpResponse) -> Result<Value, ServiceError> {
        let body: Option<Value> = serde_json::from_slice(&answer.body).ok();
        if !(200..300).contains(&answer.status) {
            let said = body.as_ref().and_then(|body| body["error"]["message"].as_str());
            let said = said.map_or_else(|| String::from_utf8_lossy(&answer.body).into_owned(), str::to_owned);
            let said: String = said.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(300).collect();
            let hint = match answer.status == 404 && !self.base_url.trim_end_matches('/').ends_with("/v1") {
                true => "; addresses usually end in /v1",
                false => "",
            };
            let text = format!("{self}: status {}: {said}{hint}", answer.status);
            return Err(match answer.status {
                408 | 409 | 425 | 429 | 500.. => ServiceError::Upstream(text),
                _ => ServiceError::Invalid(text),
            });
        }
        body.ok_or_else(|| self.unusable("the answer is no JSON"))
    }
}

impl std::fmt::Display for RemoteModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "model `{}` at `{}`", self.model, self.base_url)
    }
}
