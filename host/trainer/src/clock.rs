//! The one place where the trainer reads the time.

use std::time::Instant;

/// A monotonic instant, for durations only.
pub(crate) fn now() -> Instant {
    Instant::now()
}
