//! The trainer's doors: pause, resume, new weights. Owns their bodies; what pausing and updating mean is the engine's
//! business.

use crate::app::App;
use crate::asked::Asked;
use crate::broadcast;
use crate::error::ApiError;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use prl_model::Snapshot;
use prl_types::PolicyVersion;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Seconds that a pause lasts if nobody says otherwise.
const LEASE: f64 = 600.0;
/// Most seconds.
const LONGEST_LEASE: f64 = 86_400.0;

/// Stops sampling between two steps; sequences under way keep what they have. Answers once it has stopped.
pub(crate) async fn pause(
    State(app): State<Arc<App>>,
    query: Result<Query<BTreeMap<String, String>>, QueryRejection>,
    asked: Result<Asked<true>, ApiError>,
) -> Result<Json<Value>, ApiError> {
    let Query(query) = query.map_err(|rejection| ApiError::bad(rejection.body_text()))?;
    // vLLM has these two, and other ways to pause.
    for (field, value) in &query {
        let keeps = matches!((field.as_str(), value.as_str()), ("mode", "keep") | ("clear_cache", "false" | "False"));
        if !keeps {
            return Err(ApiError::unsupported(field, &format!("`{field}` = {value}")));
        }
    }
    let Asked { mut fields, .. } = asked?;
    fields.neutral("mode", &[json!("keep")])?;
    fields.neutral("clear_cache", &[json!(false)])?;
    let lease: f64 = fields.optional("lease_seconds", "a number")?.unwrap_or(LEASE);
    fields.finish(&[])?;
    if !(lease > 0.0 && lease <= LONGEST_LEASE) {
        let message = format!("`lease_seconds` is {lease}; it must be above 0 and at most {LONGEST_LEASE}");
        return Err(ApiError::field("lease_seconds", message));
    }
    app.engine.pause(true)?;
    app.lease.set(app.engine.clone(), Duration::from_secs_f64(lease));
    app.engine.ping().await?;
    Ok(Json(json!({"status": "paused", "lease_seconds": lease})))
}

/// Goes on sampling.
pub(crate) async fn resume(
    State(app): State<Arc<App>>,
    Asked { fields, .. }: Asked<true>,
) -> Result<Json<Value>, ApiError> {
    fields.finish(&[])?;
    app.engine.pause(false)?;
    app.lease.clear();
    app.engine.ping().await?;
    Ok(Json(json!({"status": "resumed"})))
}

/// Samples from other weights from now on: those in a folder, or without one those that its trainer sends. Where they cannot be
/// used, the old ones stay.
pub(crate) async fn update_weights(
    State(app): State<Arc<App>>,
    Asked { mut fields, .. }: Asked<true>,
) -> Result<Json<Value>, ApiError> {
    let dir = fields.string("weight_dir")?;
    let version: Option<u64> = fields.optional("version", "a non-negative integer")?;
    let session = fields.string("session_id")?;
    // Keys and values of old weights are never shared with new requests in any case.
    fields.finish(&["reset_prefix_cache"])?;
    match &dir {
        Some(dir) if dir.is_empty() => return Err(ApiError::field("weight_dir", "`weight_dir` is empty")),
        Some(_) => {}
        None => app.membership.check(session.as_deref())?,
    }
    // One at a time, so that versions count on and memory holds one further model at most.
    let loading = app.clone();
    let update = tokio::spawn(async move {
        let mut updates = loading.updating.lock().await;
        let next = || loading.engine.stats().version.0.saturating_add(1);
        let version = PolicyVersion(version.unwrap_or_else(next));
        let snapshot = match dir {
            Some(dir) => from_folder(&loading, PathBuf::from(dir)).await?,
            None => broadcast::receive(&loading, version).await?,
        };
        loading.engine.update(snapshot, version)?;
        loading.engine.ping().await?;
        *updates += 1;
        Ok::<_, ApiError>((version, *updates))
    });
    // On a task of its own: a caller who goes away in the middle leaves no lock and no half an update.
    let (version, updates) = update.await??;
    tracing::info!(target: "prl_server", "weights of policy {version} are in use");
    Ok(Json(json!({"status": "updated", "version": version.0, "updates": updates})))
}

async fn from_folder(app: &App, dir: PathBuf) -> Result<Arc<dyn Snapshot>, ApiError> {
    let weights = app.weights.clone();
    let loaded = tokio::task::spawn_blocking(move || weights.load(&dir)).await?;
    loaded.map_err(|reason| ApiError::field("weight_dir", format!("`weight_dir`: {reason}")))
}
