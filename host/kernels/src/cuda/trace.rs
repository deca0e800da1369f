//! How long each kernel and product takes, by events around them.
//!
//! Owns the record. Must not know what runs. Off by default: it costs two events an operation.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::CudaError;
use super::context::{Context, Event};

/// One kind of operation in a [`Context::trace`].
#[derive(Clone, Debug, PartialEq)]
pub struct Traced {
    /// The kernel's name, or a product's shape.
    pub name: String,
    /// How often it ran.
    pub count: usize,
    /// Milliseconds of all runs together.
    pub ms: f64,
}

/// Operations in order, while they are recorded.
#[derive(Default)]
pub(super) struct Trace(Mutex<Option<Vec<(String, Event, Event)>>>);

impl Context {
    /// Runs `f` and says how long each kind of operation that it enqueued took on the GPU, longest first. Operations do
    /// not overlap on a stream, so what is missing from the whole is the time between them.
    ///
    /// # Errors
    /// Those of `f`, and the driver's.
    pub fn trace<R, E: From<CudaError>>(&self, f: impl FnOnce() -> Result<R, E>) -> Result<(R, Vec<Traced>), E> {
        *self.traces.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
        let result = f();
        let events = self.traces.0.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default();
        let result = result?;
        let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
        for (name, start, end) in events {
            let sum = sums.entry(name).or_default();
            sum.0 += 1;
            sum.1 += f64::from(start.until_ms(&end)?);
        }
        let mut traced: Vec<Traced> = sums.into_iter().map(|(name, (count, ms))| Traced { name, count, ms }).collect();
        traced.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        Ok((result, traced))
    }

    /// Whether a trace is on.
    pub(super) fn is_traced(&self) -> bool {
        self.traces.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Enqueues an operation, between two events if a trace is on.
    pub(super) fn traced(
        &self,
        name: impl FnOnce() -> String,
        enqueue: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<(), CudaError> {
        if !self.is_traced() {
            return enqueue();
        }
        let start = self.event()?;
        enqueue()?;
        let end = self.event()?;
        if let Some(events) = self.traces.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut() {
            events.push((name(), start, end));
        }
        Ok(())
    }
}
