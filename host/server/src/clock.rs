//! The one place where the server reads the time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// A monotonic instant, for durations only.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
