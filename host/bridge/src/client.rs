//! Requests and answers as JSON. Owns paths, statuses and the words for an answer that cannot be read; must not know what is
//! said in them.

use crate::wire;
use prl_env::services::http::{Request, fetch};
use prl_env::{Error, ErrorCode, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The protocol's version, in front of every path.
const VERSION: &str = "/v0.1";
/// Characters of an unreadable answer that are shown.
const SHOWN: usize = 200;

/// Asks for something.
pub fn get<T: DeserializeOwned>(path: &str) -> Result<T> {
    send("GET", path, None)
}

/// Makes a call.
pub fn post<T: DeserializeOwned>(path: &str, said: &impl Serialize) -> Result<T> {
    let body = serde_json::to_vec(said).map_err(|error| Error::internal(format!("`{path}`: {error}")))?;
    send("POST", path, Some(body))
}

/// Frees something.
pub fn delete(path: &str) -> Result<()> {
    send("DELETE", path, None).map(|wire::Nothing {}| ())
}

/// The error of an answer that is not what the protocol says.
pub fn wrong(path: &str, reason: impl std::fmt::Display) -> Error {
    let message = format!("the server's answer to `{VERSION}{path}` is not of the protocol: {reason}");
    Error::new(ErrorCode::Upstream, message)
}

fn send<T: DeserializeOwned>(method: &str, path: &str, body: Option<Vec<u8>>) -> Result<T> {
    let mut headers = vec![("accept".to_owned(), "application/json".to_owned())];
    if body.is_some() {
        headers.push(("content-type".to_owned(), "application/json".to_owned()));
    }
    // The host's limit for the whole call is shorter.
    let timeout_ms = u32::MAX;
    let response =
        fetch(&Request { method: method.into(), url: format!("{VERSION}{path}"), headers, body, timeout_ms })?;
    if response.status == 200 {
        return serde_json::from_slice(&response.body).map_err(|error| wrong(path, error));
    }
    match serde_json::from_slice::<wire::Failed>(&response.body) {
        Ok(failed) => Err(failed.error.into()),
        Err(_) => {
            let text = String::from_utf8_lossy(&response.body);
            let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(SHOWN).collect();
            Err(wrong(path, format_args!("status {} without an `error`, but {text:?}", response.status)))
        }
    }
}
