//! How often rollouts may start: a bucket that takes `tasks_per_minute` starts at once and empties evenly within a minute.
//! Pure; the time is handed in.

/// What two readings of a clock may differ by, seconds: well below the time between two starts.
const TOLERANCE: f64 = 1e-6;

/// The bucket. Its level falls by `1 / interval` starts a second.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pace {
    /// Seconds between two starts in the long run.
    interval: f64,
    /// When the bucket is empty.
    empty_at: f64,
}

impl Pace {
    pub(super) fn new(per_minute: u32) -> Self {
        Pace { interval: 60.0 / f64::from(per_minute), empty_at: 0.0 }
    }

    /// Counts a start at `now`, seconds, or says when the next one may be.
    pub(super) fn take(&mut self, now: f64) -> Result<(), f64> {
        let from = self.empty_at + self.interval - 60.0;
        if now + TOLERANCE < from {
            return Err(from);
        }
        self.empty_at = self.empty_at.max(now) + self.interval;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_minute_of_starts_at_once_and_then_evenly() {
        let mut pace = Pace::new(7);
        assert!((0..7).all(|_| pace.take(0.0).is_ok()));
        let next = pace.take(0.0).unwrap_err();
        assert!((next - 60.0 / 7.0).abs() < 1e-9);
        assert_eq!(pace.take(next), Ok(()));
        assert!(pace.take(next).is_err());
        // An hour later it is empty, and no fuller than that.
        assert!((0..7).all(|_| pace.take(3600.0).is_ok()) && pace.take(3600.0).is_err());
    }

    #[test]
    fn no_minute_has_more_than_twice_the_rate_and_none_in_the_long_run() {
        let mut pace = Pace::new(30);
        let (mut now, mut starts) = (0.0, 0);
        while now < 600.0 {
            match pace.take(now) {
                Ok(()) => starts += 1,
                Err(at) => now = at,
            }
        }
        assert!((300..=331).contains(&starts), "{starts}");
    }
}
