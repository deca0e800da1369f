//! The crate's one use of the wall clock: how long a call took. Nothing computed depends on it.

use std::time::{Duration, Instant};

/// Runs `call` and says how long it took.
pub(crate) fn timed<T>(call: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = call();
    (result, start.elapsed())
}
