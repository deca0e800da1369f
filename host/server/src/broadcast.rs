//! Weights from GPU to GPU: the door by which a trainer asks the server into its communicator, and what the server keeps of it. Owns
//! whose communicator it is and that one who does not come holds nobody up for ever; NCCL is the model's business.

use crate::app::App;
use crate::asked::Asked;
use crate::error::ApiError;
use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prl_model::{COMMUNICATOR_ID_BYTES, Seat, Snapshot};
use prl_types::PolicyVersion;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How long others are waited for, where nobody says otherwise, seconds.
const PATIENCE: f64 = 1200.0;
/// The most, seconds.
const LONGEST_PATIENCE: f64 = 86_400.0;
/// Longest name of a session, bytes.
const LONGEST_SESSION: usize = 256;

/// The communicator that the server is in, or on its way into.
#[derive(Default)]
pub(crate) struct Membership(Mutex<Option<Session>>);

struct Session {
    name: String,
    called_off: Arc<AtomicBool>,
}

impl Membership {
    /// In the place of the one before, of which nothing is waited for any more.
    fn replace(&self, name: String) -> Arc<AtomicBool> {
        let called_off = Arc::new(AtomicBool::new(false));
        let session = Session { name, called_off: called_off.clone() };
        let before = self.0.lock().unwrap_or_else(PoisonError::into_inner).replace(session);
        if let Some(before) = before {
            before.called_off.store(true, Ordering::Relaxed);
        }
        called_off
    }

    /// Whether the communicator is the one of this name.
    ///
    /// # Errors
    /// There is none, or another one.
    pub fn check(&self, name: Option<&str>) -> Result<(), ApiError> {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(session) = held.as_ref() else {
            let message = "`weight_dir` is missing; weights come from a folder, or over NCCL once `/init_broadcaster` asked the server in";
            return Err(ApiError::field("weight_dir", message));
        };
        match name {
            None => {
                Err(ApiError::field("session_id", "`session_id` is missing; it must be that of `/init_broadcaster`"))
            }
            Some(name) if name == session.name => Ok(()),
            Some(name) => {
                let message = format!(
                    "the session \"{name}\" is not this server's any more: another one took it; give each run \
                                       servers of its own"
                );
                Err(ApiError::field("session_id", message))
            }
        }
    }
}

/// Joins a communicator of which the trainer is rank 0. Answers once all have joined.
pub(crate) async fn init_broadcaster(
    State(app): State<Arc<App>>,
    Asked { mut fields, .. }: Asked,
) -> Result<Json<Value>, ApiError> {
    let id: String = fields.required("unique_id", "NCCL's id of the communicator, in base64")?;
    let rank_offset: usize = fields.required("rank_offset", "a non-negative integer")?;
    let others: usize = fields.required("inference_world_size", "a positive integer")?;
    let session: String = fields.required("session_id", "a string")?;
    let timeout: f64 = fields.optional("timeout", "a number of seconds")?.unwrap_or(PATIENCE);
    let model: Value = fields.required("model", "the config.json of the model whose weights will come")?;
    fields.neutral("quantize_in_weight_transfer", &[json!(false)])?;
    fields.finish(&[])?;
    let decoded = STANDARD.decode(&id).ok().and_then(|bytes| <[u8; COMMUNICATOR_ID_BYTES]>::try_from(bytes).ok());
    let id = decoded.ok_or_else(|| {
        ApiError::field("unique_id", format!("`unique_id` must be {COMMUNICATOR_ID_BYTES} bytes in base64"))
    })?;
    if rank_offset >= others {
        let message = format!("`rank_offset` is {rank_offset}, of {others} servers; it must be below");
        return Err(ApiError::field("rank_offset", message));
    }
    if !(timeout > 0.0 && timeout <= LONGEST_PATIENCE) {
        let message = format!("`timeout` is {timeout}; it must be above 0 and at most {LONGEST_PATIENCE}");
        return Err(ApiError::field("timeout", message));
    }
    if session.is_empty() || session.len() > LONGEST_SESSION {
        let message = format!("`session_id` must have 1 to {LONGEST_SESSION} bytes");
        return Err(ApiError::field("session_id", message));
    }

    let called_off = app.membership.replace(session.clone());
    let (rank, size) = (rank_offset + 1, others.saturating_add(1));
    let seat = Seat { id, rank, size, patience: Duration::from_secs_f64(timeout), called_off };
    // On a task of its own, as new weights are, and never beside them.
    let joining = tokio::spawn(async move {
        let _updates = app.updating.lock().await;
        let weights = app.weights.clone();
        let joined = tokio::task::spawn_blocking(move || weights.join(seat, &model)).await?;
        joined.map_err(|reason| ApiError::bad(format!("no communicator was joined: {reason}")))
    });
    joining.await??;
    tracing::info!(target: "prl_server", "weights come over NCCL: rank {rank} of {size}, session {session}");
    Ok(Json(json!({"status": "joined", "rank": rank, "world_size": size})))
}

/// The weights that the trainer sends as `version`.
pub(crate) async fn receive(app: &App, version: PolicyVersion) -> Result<Arc<dyn Snapshot>, ApiError> {
    let weights = app.weights.clone();
    let received = tokio::task::spawn_blocking(move || weights.receive(version)).await?;
    received.map_err(|reason| ApiError::bad(format!("no weights came: {reason}")))
}
