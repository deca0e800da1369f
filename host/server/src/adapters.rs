//! LoRA adapters by name: which there are, and the doors that load and unload them. Owns the names; what adapters do is the
//! model's business.

use crate::app::{App, Weights};
use crate::asked::Asked;
use crate::error::ApiError;
use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use prl_model::Adapter;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

/// How many adapters there may be, and how large. Enabled by being there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdapterLimits {
    /// Adapters that are loaded at a time.
    pub count: usize,
    /// The largest rank.
    pub rank: usize,
}

/// The adapters that are loaded. One that is replaced or unloaded lives on in the requests that have it.
#[derive(Default)]
pub(crate) struct Adapters(RwLock<BTreeMap<String, Named>>);

/// What a name stands for.
struct Named {
    adapter: Arc<Adapter>,
    /// How often it was loaded.
    updates: u64,
}

impl Adapters {
    pub fn get(&self, name: &str) -> Option<Arc<Adapter>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(name).map(|named| named.adapter.clone())
    }

    pub fn names(&self) -> Vec<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Puts an adapter in the place of the one of that name, if there is one. Returns how often there was one of that name.
    fn put(&self, name: String, adapter: Adapter, most: usize) -> Result<u64, ApiError> {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= most && !all.contains_key(&name) {
            let message = format!("{most} adapters are loaded, as many as `max_loras` allows; unload one first");
            return Err(ApiError::field("lora_name", message));
        }
        let updates = 1 + all.get(&name).map_or(0, |named| named.updates);
        all.insert(name, Named { adapter: Arc::new(adapter), updates });
        Ok(updates)
    }

    fn remove(&self, name: &str) -> bool {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(name).is_some()
    }
}

/// Loads an adapter, or loads it anew: new requests have the new one and nothing that was computed with the old one.
pub(crate) async fn load(
    State(app): State<Arc<App>>,
    Asked { mut fields, .. }: Asked,
) -> Result<Json<Value>, ApiError> {
    let name: String = fields.required("lora_name", "a string")?;
    let path: String = fields.required("lora_path", "a string")?;
    fields.finish(&["load_inplace", "lora_int_id", "base_model_name"])?;
    let Some(limits) = app.options.adapters else {
        return Err(ApiError::bad("this server takes no adapters; start it with `enable_lora = true`"));
    };
    if name.is_empty() || name == app.options.model {
        return Err(ApiError::field("lora_name", format!("`lora_name` is \"{name}\", which cannot name an adapter")));
    }
    let (weights, folder) = (app.weights.clone(), PathBuf::from(&path));
    let loaded = tokio::task::spawn_blocking(move || fitting(weights.as_ref(), &folder, limits.rank)).await?;
    let adapter = loaded.map_err(|reason| ApiError::field("lora_path", format!("`lora_path`: {reason}")))?;
    let rank = adapter.rank();
    let updates = app.adapters.put(name.clone(), adapter, limits.count)?;
    tracing::info!(target: "prl_server", "adapter {name} of rank {rank} is in use, from {path}");
    Ok(Json(json!({"status": "loaded", "lora_name": name, "rank": rank, "updates": updates})))
}

fn fitting(weights: &dyn Weights, folder: &Path, most: usize) -> Result<Adapter, String> {
    let adapter = weights.adapter(folder)?;
    match adapter.rank() <= most {
        true => Ok(adapter),
        false => Err(format!("its rank is {}, above `max_lora_rank` = {most}", adapter.rank())),
    }
}

/// Forgets an adapter; requests that have it go on.
pub(crate) async fn unload(
    State(app): State<Arc<App>>,
    Asked { mut fields, .. }: Asked,
) -> Result<Json<Value>, ApiError> {
    let name: String = fields.required("lora_name", "a string")?;
    fields.finish(&["lora_int_id"])?;
    match app.adapters.remove(&name) {
        true => Ok(Json(json!({"status": "unloaded", "lora_name": name}))),
        false => {
            let message = format!("there is no adapter `{name}`");
            Err(ApiError::new(StatusCode::NOT_FOUND, message).param("lora_name").code("adapter_not_found"))
        }
    }
}
