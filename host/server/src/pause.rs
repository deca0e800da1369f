//! How long a pause lasts. Owns the lease, so that whoever paused and went away leaves no server that waits for ever;
//! must not know who pauses.

use prl_inference::Handle;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;

/// The end of the present pause.
#[derive(Default)]
pub(crate) struct Lease(Mutex<Option<AbortHandle>>);

impl Lease {
    /// Resumes `engine` after `time`, in place of whatever was to resume it.
    pub fn set(&self, engine: Handle, time: Duration) {
        let timer = tokio::spawn(async move {
            tokio::time::sleep(time).await;
            tracing::warn!(target: "prl_server", "nobody resumed within {time:?}: sampling goes on");
            // An engine that has ended needs no resuming.
            let _ = engine.pause(false);
        });
        self.replace(Some(timer.abort_handle()));
    }

    /// Nothing is to be resumed any more.
    pub fn clear(&self) {
        self.replace(None);
    }

    fn replace(&self, timer: Option<AbortHandle>) {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(old) = std::mem::replace(&mut *held, timer) {
            old.abort();
        }
    }
}
