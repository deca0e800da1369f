//! The one place where the engine reads the time.

use std::time::Instant;

/// A monotonic instant, for durations only.
pub(crate) fn now() -> Instant {
    Instant::now()
}
