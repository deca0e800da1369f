//! The crate's only clock. Time enters records, metrics and the pace of starts, never a decision about what is
//! sampled or trained.

use std::time::Duration;
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

    /// The moment so many seconds after it was made; now, if that is past or beyond all clocks.
    pub(crate) fn at(self, seconds: f64) -> Instant {
        let after = Duration::try_from_secs_f64(seconds).ok();
        after.and_then(|after| self.0.checked_add(after)).unwrap_or_else(Instant::now)
    }
}
