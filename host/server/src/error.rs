//! What a caller is told when a request cannot be served. Owns the status codes and OpenAI's form of an error; must not
//! know which door it happened at.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use prl_inference::InferenceError;
use serde_json::{Value, json};
use tokio::task::JoinError;

/// An error as a caller sees it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    /// The field that is wrong.
    param: Option<String>,
    code: Option<&'static str>,
}

impl ApiError {
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        ApiError { status, message: message.into(), param: None, code: None }
    }

    /// 400.
    pub fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400 for a field.
    pub fn field(name: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError { param: Some(name.into()), ..Self::bad(message) }
    }

    /// 400 for a field, or a value of it, that would change the result and is not there.
    pub fn unsupported(name: &str, what: &str) -> Self {
        Self::field(name, format!("{what} is not supported by this server"))
    }

    pub fn code(self, code: &'static str) -> Self {
        ApiError { code: Some(code), ..self }
    }

    pub fn param(self, name: &str) -> Self {
        ApiError { param: Some(name.to_owned()), ..self }
    }

    /// The body.
    pub fn json(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            501 => "not_implemented_error",
            503 => "service_unavailable_error",
            _ => "internal_error",
        };
        let code = self.code.map_or(json!(self.status.as_u16()), |code| json!(code));
        json!({"error": {"message": self.message, "type": kind, "param": self.param, "code": code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if self.status.is_server_error() && self.status != StatusCode::NOT_IMPLEMENTED {
            tracing::warn!(target: "prl_server", "{}: {}", self.status.as_u16(), self.message);
        }
        let mut response = (self.status, Json(self.json())).into_response();
        let headers = response.headers_mut();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// Work of the server's own that did not come to its end.
impl From<JoinError> for ApiError {
    fn from(error: JoinError) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
    }
}

impl From<InferenceError> for ApiError {
    fn from(error: InferenceError) -> Self {
        let message = error.to_string();
        match error {
            InferenceError::Overlong { prompt_tokens, max_model_len } => Self::bad(format!(
                "the prompt has {prompt_tokens} tokens, but the model's context holds {max_model_len}, one of them to be \
                 sampled"
            ))
            .code("context_length_exceeded"),
            InferenceError::EmptyPrompt => Self::field("prompt", message),
            InferenceError::UnknownToken { .. } => Self::field("prompt", message),
            InferenceError::NoAdapters => Self::field("model", message),
            InferenceError::BadGrammar { .. } => Self::bad(message),
            InferenceError::Astray { .. } => Self::bad(message).code("grammar_astray"),
            InferenceError::InvalidSampling { name, .. } => Self::field(name, message),
            InferenceError::Busy { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, message).code("engine_busy"),
            InferenceError::CacheFull { .. } => Self::new(StatusCode::SERVICE_UNAVAILABLE, message).code("cache_full"),
            InferenceError::Failed { .. } | InferenceError::Shutdown => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, message).code("engine_ended")
            }
            InferenceError::InvalidConfig { .. }
            | InferenceError::CacheTooSmall { .. }
            | InferenceError::NonFiniteLogits { .. } => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message),
        }
    }
}
