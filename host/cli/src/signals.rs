//! Ctrl-C and SIGTERM. Owns the first signal (stop cleanly) and the second (stop at once).

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The exit code after SIGTERM.
const TERMINATED: i32 = 143;

/// What has been asked for so far.
#[derive(Clone)]
pub struct Stop {
    /// True once a signal came.
    pub receiver: watch::Receiver<bool>,
    code: Arc<AtomicI32>,
    sender: Arc<watch::Sender<bool>>,
}

impl Stop {
    /// Stops as SIGTERM does.
    pub fn ask(&self) {
        if self.code.compare_exchange(0, TERMINATED, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            tracing::warn!("Stopping, as was asked, as soon as what is under way can be left");
            let _ = self.sender.send(true);
        }
    }

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
    let (code, sender) = (Arc::new(AtomicI32::new(0)), Arc::new(sender));
    let stop = Stop { receiver, code: code.clone(), sender: sender.clone() };
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::spawn(async move {
        loop {
            let exit = tokio::select! {
                _ = interrupt.recv() => 130,
                _ = terminate.recv() => TERMINATED,
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
