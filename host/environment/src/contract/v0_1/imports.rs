//! What the track's guests import, on top of the crate's services. Owns the translation; bounds and permissions are
//! the services'.

use super::bindings::prl::env::{assets, http, kv, llm, log, types};
use super::convert;
use crate::log::LogLevel;
use crate::services::{HttpRequest, HttpResponse, LLM_OPTIONS, LlmRequest, LlmResponse, ServiceError};
use crate::state::State;
use crate::tape::{Answer, Asked, Service, of_http, of_kv, of_llm};
use futures::future::join_all;
use std::time::Duration;

/// Most requests of one `generate-many`.
const MAX_REQUESTS: usize = 64;

type Given<T> = Result<T, types::Error>;

impl types::Host for State {}

impl log::Host for State {
    fn emit(&mut self, level: log::Level, message: String, fields: Vec<(String, String)>) {
        let level = match level {
            log::Level::Trace => LogLevel::Trace,
            log::Level::Debug => LogLevel::Debug,
            log::Level::Info => LogLevel::Info,
            log::Level::Warn => LogLevel::Warn,
            log::Level::Error => LogLevel::Error,
        };
        self.log.emit(level, &message, &fields);
    }
}

/// A service that is granted by name but has nothing behind it.
fn absent(service: &str) -> ServiceError {
    ServiceError::Denied(format!("this run has no `{service}` for this environment"))
}

/// The tape's answer, or that of `live`, which the tape takes down. Its place on the tape is taken at once.
fn taped<T>(
    state: &State,
    service: Service,
    request: Vec<(String, String)>,
    live: impl Future<Output = Result<T, ServiceError>>,
) -> impl Future<Output = Result<T, ServiceError>>
where
    Answer: Into<Result<T, ServiceError>> + for<'a> From<&'a Result<T, ServiceError>>,
{
    let asked = state.tape.ask(&state.call(), service, request);
    async move {
        match asked {
            Asked::Given(answer) => answer.into(),
            Asked::Live(at) => {
                let answer = live.await;
                state.tape.answer(at, || Answer::from(&answer));
                answer
            }
        }
    }
}

/// Asks a model; a request that makes no sense goes nowhere.
fn model(
    state: &State,
    request: Result<LlmRequest, ServiceError>,
) -> impl Future<Output = Result<LlmResponse, ServiceError>> {
    let asked = request.map(|request| taped(state, Service::Llm, of_llm(&request), generate(state, request)));
    async move { asked?.await }
}

async fn generate(state: &State, request: LlmRequest) -> Result<LlmResponse, ServiceError> {
    let Some(llm) = &state.services.llm else {
        return Err(ServiceError::Denied("this run has no models for this environment".into()));
    };
    let roles = llm.roles();
    if !roles.contains(&request.role) {
        let known = roles.iter().map(|role| format!("`{role}`")).collect::<Vec<_>>().join(", ");
        return Err(ServiceError::Denied(format!("no model has the role `{}`; there are {known}", request.role)));
    }
    if let Some(option) = request.options.keys().find(|name| !LLM_OPTIONS.contains(&name.as_str())) {
        return Err(ServiceError::Invalid(format!("there is no option `{option}`")));
    }
    llm.generate(request).await
}

fn response(answer: Result<LlmResponse, ServiceError>) -> Given<llm::Response> {
    answer.map_err(convert::service_error).map(|answer| llm::Response {
        message: convert::message_to(&answer.message),
        prompt_tokens: answer.prompt_tokens,
        completion_tokens: answer.completion_tokens,
    })
}

impl llm::Host for State {
    async fn generate(&mut self, request: llm::Request) -> Given<llm::Response> {
        let request = convert::llm_request(request);
        response(self.wait(model(self, request)).await)
    }

    async fn generate_many(&mut self, requests: Vec<llm::Request>) -> Vec<Given<llm::Response>> {
        if requests.len() > MAX_REQUESTS {
            let error = ServiceError::Limit(format!("{} requests at once; {MAX_REQUESTS} may be", requests.len()));
            return requests.iter().map(|_| response(Err(error.clone()))).collect();
        }
        let state = &*self;
        let asked = requests.into_iter().map(|request| model(state, convert::llm_request(request)));
        let answers = state.wait(join_all(asked)).await;
        answers.into_iter().map(response).collect()
    }
}

impl assets::Host for State {
    fn list(&mut self) -> Given<Vec<assets::Asset>> {
        let assets = self.services.assets.as_ref().ok_or_else(|| convert::service_error(absent("assets")))?;
        let (name, digest) = assets.list_digest();
        self.tape.read(name, Ok(Some(digest)));
        Ok(assets.list().into_iter().map(|(name, size)| assets::Asset { name, size }).collect())
    }

    async fn read(&mut self, name: String, offset: u64, length: u32) -> Given<Vec<u8>> {
        let assets = self.services.assets.clone().ok_or_else(|| convert::service_error(absent("assets")))?;
        let length = u64::from(length);
        if length > self.output_bytes {
            let text = format!("{length} bytes at once; {} may be read", self.output_bytes);
            return Err(convert::service_error(ServiceError::Limit(text)));
        }
        let tape = self.tape.clone();
        let read = tokio::task::spawn_blocking(move || {
            if tape.wants(&name) {
                tape.read(&name, assets.digest(&name));
            }
            assets.read(&name, offset, length)
        });
        match self.wait(read).await {
            Ok(bytes) => bytes.map_err(convert::service_error),
            Err(error) => Err(convert::service_error(ServiceError::Upstream(error.to_string()))),
        }
    }
}

impl kv::Host for State {
    async fn get(&mut self, key: String) -> Given<Option<Vec<u8>>> {
        let kv = self.services.kv.as_ref().ok_or_else(|| absent("kv"));
        let got = taped(self, Service::Kv, of_kv(&key, None), async { Ok(kv?.get(&key)) });
        got.await.map_err(convert::service_error)
    }

    async fn set(&mut self, key: String, value: Option<Vec<u8>>) -> Given<()> {
        let kv = self.services.kv.as_ref().ok_or_else(|| absent("kv"));
        let set = taped(self, Service::Kv, of_kv(&key, Some(&value)), async { kv?.set(key, value) });
        set.await.map_err(convert::service_error)
    }
}

impl http::Host for State {
    async fn fetch(&mut self, request: http::Request) -> Given<http::Response> {
        let http = self.services.http.as_ref().ok_or_else(|| absent("http"));
        let request = HttpRequest {
            method: request.method.to_ascii_uppercase(),
            url: request.url,
            headers: request.headers,
            body: request.body,
            timeout: Duration::from_millis(u64::from(request.timeout_ms)),
            patience: Duration::ZERO,
            max_bytes: self.output_bytes,
        };
        // What stands for a served environment does not ask a service: the request is the call.
        let answer = match http {
            Ok(http) if http.is_the_environment() => http.fetch(request).await,
            http => {
                let parts = of_http(&request);
                self.wait(taped(self, Service::Http, parts, async { http?.fetch(request).await })).await
            }
        };
        let answer: HttpResponse = answer.map_err(convert::service_error)?;
        Ok(http::Response { status: answer.status, headers: answer.headers, body: answer.body })
    }
}
