//! What monitors ask: `/health`, `/liveness`, `/metrics`, and `/v1/models`. Owns their answers.

use crate::app::App;
use crate::error::ApiError;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::timeout;

/// Whether the engine lives.
pub(crate) async fn health(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    match app.engine.ended() {
        None => Ok(Json(json!({"status": "ok"}))),
        Some(error) => Err(error.into()),
    }
}

/// Whether the engine's own thread answers.
pub(crate) async fn liveness(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    let limit = app.options.liveness_timeout;
    match timeout(limit, app.engine.ping()).await {
        Ok(answer) => {
            answer?;
            Ok(Json(json!({"status": "ok"})))
        }
        Err(_) => {
            let message = format!("the engine has not answered within {} s", limit.as_secs_f64());
            Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, message).code("engine_unresponsive"))
        }
    }
}

/// Prometheus' text.
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> impl IntoResponse {
    let text = app.metrics.text(&app.options.model, &app.engine.stats());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}

/// The model and its adapters.
pub(crate) async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let own = &app.options.model;
    let card = |name: &str, parent: Option<&str>| {
        json!({
            "id": name, "object": "model", "created": app.started, "owned_by": "prl", "root": own, "parent": parent,
            "max_model_len": app.engine.max_model_len(),
        })
    };
    let adapters = app.adapters.names();
    let all = std::iter::once(card(own, None)).chain(adapters.iter().map(|name| card(name, Some(own))));
    Json(json!({"object": "list", "data": all.collect::<Vec<_>>()}))
}
