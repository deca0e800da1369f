//! Requests and answers as JSON. Owns paths, statuses and the words for an answer that cannot be read; must not know what is
//! said in them.

use crate::wire;
use prl_env::services::http::{Request, fetch};
use prl_env::{Error, ErrorCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The protocol's version, in front of every path.
const VERSION: &str = "/v0.1";
/// Characters of an unreadable answer that are shown.
const SHOWN: usize = 200;
/// Of an answer that what it names is not there any more.
const GONE: u16 = 410;

/// What came of a call.
pub type Answer<T> = std::result::Result<T, Failed>;

/// A call that gave nothing.
pub struct Failed {
    error: Error,
    status: Option<u16>,
}

impl Failed {
    /// Whether the server does not know the configuration that was named. An environment's own `invalid_state` is none.
    pub fn is_unknown(&self) -> bool {
        self.error.code == ErrorCode::InvalidState && self.status == Some(GONE)
    }
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Failed { error, status: None }
    }
}

/// Asks for something.
pub fn get<T: DeserializeOwned>(path: &str) -> Answer<T> {
    send("GET", path, None)
}

/// Makes a call.
pub fn post<T: DeserializeOwned>(path: &str, said: &impl Serialize) -> Answer<T> {
    let body = serde_json::to_vec(said).map_err(|error| Error::internal(format!("`{path}`: {error}")))?;
    send("POST", path, Some(body))
}

/// Frees something.
pub fn delete(path: &str) -> Answer<()> {
    send("DELETE", path, None).map(|wire::Nothing {}| ())
}

/// The error of an answer that is not what the protocol says.
pub fn wrong(path: &str, reason: impl std::fmt::Display) -> Error {
    let message = format!("the server's answer to `{VERSION}{path}` is not of the protocol: {reason}");
    Error::new(ErrorCode::Upstream, message)
}

fn send<T: DeserializeOwned>(method: &str, path: &str, body: Option<Vec<u8>>) -> Answer<T> {
    let mut headers = vec![("accept".to_owned(), "application/json".to_owned())];
    if body.is_some() {
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
    }
    // The host's limit for the whole call is shorter.
    let timeout_ms = u32::MAX;
    let response =
        fetch(&Request { method: method.into(), url: format!("{VERSION}{path}"), headers, body, timeout_ms })?;
    if response.status == 200 {
        return serde_json::from_slice(&response.body).map_err(|error| wrong(path, error).into());
    }
    let error = match serde_json::from_slice::<wire::Failed>(&response.body) {
        Ok(failed) => failed.error.into(),
        Err(_) => {
            let text = String::from_utf8_lossy(&response.body);
            let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN).collect();
            wrong(path, format_args!("status {} without an `error`, but {text:?}", response.status))
        }
    };
    Err(Failed { error, status: Some(response.status) })
}
