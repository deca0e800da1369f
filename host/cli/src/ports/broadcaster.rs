//! The trainer's end of the communicator that weights go over from GPU to GPU. Owns joining it together with the servers, sending, and
//! naming who did not come; must not know when weights are sent.

use crate::compute::Compute;
use crate::failure::Failure;
use crate::ports::servers::{LATER, Servers, Source};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prl_model::{Communicator, ModelConfig, Seat, Snapshot};
use prl_types::PolicyVersion;
use serde_json::{Value, json};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Dotted path of the table that asks for it.
const KEY: &str = "weight_broadcast";

/// The communicator of the trainer, which is rank 0, and all servers.
pub struct Broadcaster {
    communicator: Arc<Communicator>,
    /// Tells servers this run's communicator from another's.
    session: String,
    patience: Duration,
    called_off: Arc<AtomicBool>,
}

impl Broadcaster {
    /// Joins it together with the servers, which must serve the model of this shape.
    ///
    /// # Errors
    /// Whatever keeps this process or a server from it; each waits so long for the others.
    pub async fn join(
        servers: &Servers,
        compute: &Compute,
        model: &ModelConfig,
        patience: Duration,
    ) -> Result<Broadcaster, Failure> {
        let Some(gpu) = compute.gpu().cloned() else {
            return Err(Failure::input(format_args!(
                "`{KEY}.type = \"nccl\"` needs a GPU, and this run uses the device {}; leave it out to send weights through a \
                 folder",
                compute.device
            )));
        };
        let input = |e: String| Failure::input(format_args!("`{KEY}`: {e}"));
        let id = gpu.communicator_id().map_err(|e| input(e.to_string()))?;
        let session = format!("{:016x}", RandomState::new().hash_one(std::process::id()));
        let (others, called_off) = (servers.count(), Arc::new(AtomicBool::new(false)));
        let seat = Seat { id, rank: 0, size: others + 1, patience, called_off: called_off.clone() };
        let asked = servers.ask_all("join the communicator", Some(patience + LATER), |n, _| {
            let body = json!({
                "unique_id": STANDARD.encode(id), "rank_offset": n, "inference_world_size": others,
                "session_id": session, "timeout": patience.as_secs_f64(), "model": Value::Object(model.raw.clone()),
            });
            ("/init_broadcaster", body)
        });
        let joined = both(move || gpu.join(seat), asked, &called_off, servers).await;
        let communicator = Arc::new(joined.map_err(input)?);
        Ok(Broadcaster { communicator, session, patience, called_off })
    }

    /// Sends a policy's weights to all servers, which sample from them when this returns.
    ///
    /// # Errors
    /// Whatever keeps this process or a server from it; the communicator is of no use then.
    pub async fn send(
        &self,
        servers: &Servers,
        version: PolicyVersion,
        snapshot: Arc<dyn Snapshot>,
    ) -> Result<(), String> {
        let communicator = self.communicator.clone();
        let told = servers.update(version, Source::Nccl { session: &self.session, patience: self.patience });
        both(move || snapshot.send(&communicator, version.0), told, &self.called_off, servers).await
    }
}

/// This process's part and the servers' at the same time; one that fails ends the other.
async fn both<T: Send + 'static, A, E: std::fmt::Display + Send + 'static>(
    own: impl FnOnce() -> Result<T, E> + Send + 'static,
    theirs: impl Future<Output = Result<A, String>>,
    called_off: &AtomicBool,
    servers: &Servers,
) -> Result<T, String> {
    let own = tokio::task::spawn_blocking(own);
    let own = async { own.await.map_err(|e| e.to_string())?.map_err(|e| e.to_string()) };
    match tokio::try_join!(own, theirs) {
        Ok((own, _)) => Ok(own),
        Err(error) => {
            called_off.store(true, Ordering::Relaxed);
            let silent = servers.silent().await;
            Err(match silent.is_empty() {
                true => error,
                false => format!("{error}; there is no answer from {}", silent.join(", ")),
            })
        }
    }
}
