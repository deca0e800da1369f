//! How much memory the caches of a model take. Owns the count; must not know what is cached or who waits for room.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts the bytes that live caches take. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<AtomicUsize>);

impl Meter {
    /// Bytes that are held now. What two caches share counts once.
    pub fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts `bytes` until what this returns goes.
    pub fn hold(&self, bytes: usize) -> Held {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        Held { meter: self.clone(), bytes }
    }
}

/// Bytes that count as long as this lives.
#[derive(Debug)]
pub struct Held {
    meter: Meter,
    bytes: usize,
}

impl Held {
    /// How many.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Clone for Held {
    /// Counts them once more.
    fn clone(&self) -> Self {
        self.meter.hold(self.bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.meter.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
