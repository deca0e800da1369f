//! Bounds on what a guest may use. Owns the numbers and the memory accounting; must not know what a call means.

use std::time::Duration;
use wasmtime::ResourceLimiter;

/// Bounds for one instance. Everything but instructions is bounded always; there is no "unlimited".
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Linear memory of one instance in bytes, over all its memories.
    pub memory_bytes: u64,
    /// Wall clock of one call, instantiation and `configure` included; waiting for a model or a server does not count.
    pub call_timeout: Duration,
    /// Wall clock of one rollout from `open` to `score`, sampling included.
    pub rollout_timeout: Duration,
    /// Instructions of one call, roughly: the same count on every machine. `None`: not counted.
    pub fuel: Option<u64>,
    /// Data the guest may hand over in one call, and may be handed by a service at once, in bytes.
    pub output_bytes: u64,
    /// Log lines of one call; what is over is counted and dropped.
    pub log_lines: u32,
    /// Bytes of one log line, fields included; what is over is cut.
    pub log_line_bytes: usize,
    /// Log lines a second, over all instances of a pool; what is over is counted and dropped.
    pub log_lines_per_second: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: 256 << 20,
            call_timeout: Duration::from_secs(30),
            rollout_timeout: Duration::from_secs(600),
            fuel: None,
            output_bytes: 4 << 20,
            log_lines: 100,
            log_line_bytes: 8 << 10,
            log_lines_per_second: 1000,
        }
    }
}

/// Core instances, tables, memories and table elements of one component: room for Python and JavaScript guests.
const INSTANCES: usize = 100;
const TABLES: usize = 200;
const MEMORIES: usize = 8;
const TABLE_ELEMENTS: usize = 20_000;

/// Counts what one store holds.
#[derive(Debug)]
pub struct Limiter {
    limit_bytes: u64,
    held_bytes: u64,
}

impl Limiter {
    pub fn new(limits: &Limits) -> Self {
        Limiter { limit_bytes: limits.memory_bytes, held_bytes: 0 }
    }
}

/// Carried out of the guest as the reason of its trap.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("memory cap of {limit_bytes} bytes reached")]
pub struct MemoryCap {
    pub wanted_bytes: u64,
    pub limit_bytes: u64,
}

impl ResourceLimiter for Limiter {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        if maximum.is_some_and(|maximum| desired > maximum) {
            return Ok(false);
        }
        let wanted_bytes = self.held_bytes + (desired - current) as u64;
        if wanted_bytes > self.limit_bytes {
            return Err(MemoryCap { wanted_bytes, limit_bytes: self.limit_bytes }.into());
        }
        self.held_bytes = wanted_bytes;
        Ok(true)
    }

    fn table_growing(&mut self, _current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        Ok(desired <= TABLE_ELEMENTS && maximum.is_none_or(|maximum| desired <= maximum))
    }

    fn instances(&self) -> usize {
        INSTANCES
    }

    fn tables(&self) -> usize {
        TABLES
    }

    fn memories(&self) -> usize {
        MEMORIES
    }
}
