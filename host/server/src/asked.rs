//! What a door is asked: the headers and the fields of the body. Owns which bodies are taken; must not know any field.

use crate::app::App;
use crate::error::ApiError;
use crate::fields::Fields;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use std::sync::Arc;

/// Headers and fields; `EMPTY` says whether there may be no body.
pub(crate) struct Asked<const EMPTY: bool = false> {
    pub headers: HeaderMap,
    pub fields: Fields,
}

impl<const EMPTY: bool> FromRequest<Arc<App>> for Asked<EMPTY> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let headers = request.headers().clone();
        let fields = read(&headers, Bytes::from_request(request, app).await, EMPTY)?;
        Ok(Asked { headers, fields })
    }
}

/// There is one engine: a request for another one is not for this server.
pub(crate) struct OneEngine;

impl FromRequestParts<Arc<App>> for OneEngine {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, ApiError> {
        match parts.headers.get("x-data-parallel-rank") {
            Some(rank) if rank.as_bytes() != b"0" => {
                Err(ApiError::bad("the header `X-data-parallel-rank` must be 0: this server has one engine"))
            }
            _ => Ok(OneEngine),
        }
    }
}

/// The fields of a request's body; `empty` says whether it may have none.
fn read(headers: &HeaderMap, body: Result<Bytes, BytesRejection>, empty: bool) -> Result<Fields, ApiError> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than this server takes")
        }
        _ => ApiError::bad(rejection.body_text()),
    })?;
    if body.is_empty() && empty {
        return Fields::of(serde_json::json!({}));
    }
    // Browsers let no page of another origin send this type.
    let json = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        value.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
    });
    if !json {
        return Err(ApiError::bad("the body must be JSON, and the header `content-type` must say `application/json`"));
    }
    let value = serde_json::from_slice(&body).map_err(|e| ApiError::bad(format!("the body is not valid JSON: {e}")))?;
    Fields::of(value)
}
