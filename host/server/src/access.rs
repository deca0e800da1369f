//! Who may come in. Owns keys and the check of the names by which the server is called; must not know what is behind a
//! door.

use crate::app::App;
use crate::error::ApiError;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;

/// Asks callers of public doors for their key.
pub(crate) async fn public(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    check(request.headers(), app.options.api_key.as_deref())?;
    Ok(next.run(request).await)
}

/// Asks callers of the trainer's doors for theirs.
pub(crate) async fn admin(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let key = app.options.admin_key.as_deref().or(app.options.api_key.as_deref());
    check(request.headers(), key)?;
    if key.is_none() && request.headers().contains_key(header::ORIGIN) {
        let message = "web pages may not use this door; programs do not send the header `origin`";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message).code("origin_refused"));
    }
    Ok(next.run(request).await)
}

/// A server that only this machine reaches answers to names of this machine only: a web page whose own name was made to
/// lead here asks for that name.
pub(crate) async fn host(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    if app.options.loopback && !host.is_some_and(is_here) {
        let message = "this server listens on this machine's own address only, and the request does not call it by one";
        return Err(ApiError::new(StatusCode::FORBIDDEN, message).code("host_refused"));
    }
    Ok(next.run(request).await)
}

fn is_here(host: &str) -> bool {
    let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, _)) => address,
        None => host.split(':').next().unwrap_or(host),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn check(headers: &HeaderMap, key: Option<&str>) -> Result<(), ApiError> {
    let Some(key) = key else { return Ok(()) };
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown = shown.and_then(|value| value.split_once(' ')).filter(|(kind, _)| kind.eq_ignore_ascii_case("bearer"));
    match shown {
        Some((_, token)) if same(token.trim().as_bytes(), key.as_bytes()) => Ok(()),
        Some(_) => {
            Err(ApiError::new(StatusCode::UNAUTHORIZED, "the API key is not the one of this door")
                .code("invalid_api_key"))
        }
        None => {
            let message = "this door asks for an API key: `authorization: Bearer <key>`";
            Err(ApiError::new(StatusCode::UNAUTHORIZED, message).code("missing_api_key"))
        }
    }
}

/// Takes as long wherever the two differ.
fn same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_this_machine() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8000", "127.1.2.3", "[::1]:8000", "[::1]"] {
            assert!(is_here(host), "{host}");
        }
        for host in ["example.org", "localhost.example.org:8000", "10.0.0.1", "[::2]", "", "127.0.0.1.example.org"] {
            assert!(!is_here(host), "{host}");
        }
        assert!(same(b"abc", b"abc") && !same(b"abc", b"abd") && !same(b"abc", b"ab"));
    }
}
