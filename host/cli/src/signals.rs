//! Ctrl-C and SIGTERM. Owns the first signal (stop cleanly) and the second (stop at once).

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What has been asked for so far.
#[derive(Clone)]
pub struct Stop {
    /// True once a signal came.
    pub receiver: watch::Receiver<bool>,
    code: Arc<AtomicI32>,
}

impl Stop {
    /// 130 or 143 once a signal came.
    pub fn exit_code(&self) -> Option<u8> {
        u8::try_from(self.code.load(Ordering::SeqCst)).ok().filter(|code| *code != 0)
    }
}

/// Listens from now on. Must be called on a runtime.
///
/// # Errors
/// The system refuses the handlers.
pub fn listen() -> std::io::Result<Stop> {
    let (sender, receiver) = watch::channel(false);
    let code = Arc::new(AtomicI32::new(0));
    let stop = Stop { receiver, code: code.clone() };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        loop {
            let exit = tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => 143,
            };
            if code.swap(exit, Ordering::SeqCst) != 0 {
                std::process::exit(exit);
            }
            tracing::warn!("Stopping as soon as what is under way can be left; a second signal stops now");
            // Nobody waiting means that the run is over already.
            let _ = sender.send(true);
        }
    });
    Ok(stop)
}
