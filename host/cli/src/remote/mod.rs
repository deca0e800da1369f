//! Servers outside the process: HTTP for environments that are granted it, and models behind OpenAI-compatible
//! servers. Owns the client; who may reach what is decided before.

pub mod chat;
pub mod model;
pub mod tokens;

use futures::FutureExt;
use futures::future::BoxFuture;
use prl_environment::{HttpClient, HttpRequest, HttpResponse, ServiceError, origin};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use ureq::http;

/// Connections that are kept open, of them all and to one server: as many as a busy run's rollouts use.
const KEPT: usize = 64;

/// Between two tries where nobody listens.
const PAUSE: Duration = Duration::from_millis(100);

/// Whether nobody listens there.
fn is_refused(error: &ureq::Error) -> bool {
    matches!(error, ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// A client that follows no redirects.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    /// Since when nobody listens. Who asks later than the first does not wait anew.
    refused: Arc<Mutex<Option<Instant>>>,
}

impl Client {
    /// One pool of connections.
    pub fn new() -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(2 * KEPT)
            .max_idle_connections_per_host(KEPT)
            .user_agent(concat!("prl/", env!("CARGO_PKG_VERSION")))
            .build();
        Client { agent: ureq::Agent::new_with_config(config), refused: Arc::default() }
    }

    /// Sends a request and reads the answer, on this thread.
    pub fn send(&self, request: HttpRequest) -> Result<HttpResponse, ServiceError> {
        let mut wanted = http::Request::builder().method(request.method.as_str()).uri(&request.url);
        for (name, value) in &request.headers {
            wanted = wanted.header(name, value);
        }
        let wanted = wanted.body(request.body.unwrap_or_default());
        let wanted = wanted.map_err(|error| ServiceError::Invalid(format!("no valid request: {error}")))?;
        let address = origin(&request.url);
        let failed = |error: ureq::Error| match error {
            ureq::Error::BodyExceedsLimit(limit) => {
                ServiceError::Limit(format!("`{address}` answered with more than {limit} bytes"))
            }
            error => ServiceError::Upstream(format!("`{address}`: {error}")),
        };
        let begun = Instant::now();
        let once = || {
            let left = request.timeout.saturating_sub(begun.elapsed());
            self.agent.run(self.agent.configure_request(wanted.clone()).timeout_global(Some(left)).build())
        };
        let mut answer = loop {
            match once() {
                // Nobody took it, so it can be asked again.
                Err(error) if is_refused(&error) => {
                    let since =
                        *self.refused.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
                    if since.elapsed() >= request.patience || begun.elapsed() >= request.timeout {
                        return Err(failed(error));
                    }
                    std::thread::sleep(PAUSE);
                }
                answer => {
                    *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    break answer.map_err(failed)?;
                }
            }
        };
        let headers = answer.headers().iter();
        let headers = headers.map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into()));
        let (status, headers) = (answer.status().as_u16(), headers.collect());
        let body = answer.body_mut().with_config().limit(request.max_bytes).read_to_vec().map_err(failed)?;
        Ok(HttpResponse { status, headers, body })
    }
}

impl HttpClient for Client {
    fn fetch(&self, request: HttpRequest) -> BoxFuture<'static, Result<HttpResponse, ServiceError>> {
        let client = self.clone();
        async move {
            let sent = tokio::task::spawn_blocking(move || client.send(request)).await;
            sent.unwrap_or_else(|error| Err(ServiceError::Upstream(error.to_string())))
        }
        .boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    #[test]
    fn who_is_just_starting_is_waited_for_once() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        drop(listener);
        let client = Client::new();
        let ask = |patience: u64| {
            let (method, url, timeout) = ("GET".into(), format!("http://{there}/"), Duration::from_secs(10));
            let patience = Duration::from_millis(patience);
            client.send(HttpRequest { method, url, headers: Vec::new(), body: None, timeout, patience, max_bytes: 9 })
        };
        assert!(ask(0).unwrap_err().to_string().contains("refused"));
        assert!(ask(400).is_err() && ask(300).is_err());
        let server = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            let (mut stream, _) = TcpListener::bind(there).unwrap().accept().unwrap();
            let _ = stream.read(&mut [0; 1 << 12]).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi").unwrap();
        });
        assert_eq!(ask(9_000).unwrap().body, b"hi");
        server.join().unwrap();
    }
}
