//! The crate's only clock. Time enters records and metrics, never a decision about what is sampled or trained.

use tokio::time::Instant;

/// Seconds since it was made; follows tokio's time, so tests can pause it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Self {
        Clock(Instant::now())
    }

    pub(crate) fn seconds(self) -> f64 {
        self.0.elapsed().as_secs_f64()
    }
}
