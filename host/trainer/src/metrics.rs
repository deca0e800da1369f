//! Metric names of a training step, and the arithmetic of throughput. Owns which summaries of which values are reported;
//! must not know how the values came about.

use prl_model::{Learner, ModelConfig};
use prl_types::Summary;
use std::collections::BTreeMap;

/// Metric name → value. Every value is finite.
pub type StepMetrics = BTreeMap<String, f64>;

/// Adds a value; one that is not finite is left out, so that no sink ever meets NaN.
pub(crate) fn put(metrics: &mut StepMetrics, name: impl Into<String>, value: f64) {
    if value.is_finite() {
        metrics.insert(name.into(), value);
    }
}

/// Adds `<name>/{mean,std,max}` of the finite values.
pub(crate) fn put_spread(metrics: &mut StepMetrics, name: &str, values: &[f64]) {
    let s = Summary::of(values.iter().copied().filter(|v| v.is_finite()));
    put(metrics, format!("{name}/mean"), s.mean);
    put(metrics, format!("{name}/std"), s.std);
    put(metrics, format!("{name}/max"), s.max);
}

/// What a step cost.
pub(crate) struct Cost {
    /// Tokens of the step's samples.
    pub tokens: usize,
    /// Forward, backward and optimiser.
    pub seconds: f64,
    pub seq_len: usize,
    /// The device's peak, when known.
    pub peak_flops: Option<f64>,
}

/// Adds `perf/*`. Throughput counts the tokens that were there: rows are never padded. Peak memory is the device's, or else
/// the process's largest resident set, where the system tells it.
pub(crate) fn put_perf(metrics: &mut StepMetrics, learner: &Learner, cost: &Cost) {
    let throughput = if cost.seconds > 0.0 { cost.tokens as f64 / cost.seconds } else { 0.0 };
    put(metrics, "perf/throughput", throughput);
    put(metrics, "perf/throughput_per_gpu", throughput);
    if let Some(peak) = cost.peak_flops.filter(|p| *p > 0.0) {
        put(metrics, "perf/mfu", 100.0 * flops_per_token(learner.config(), cost.seq_len) * throughput / peak);
    }
    let device_gib = learner.device_peak_bytes().map(|bytes| bytes as f64 / (1u64 << 30) as f64);
    if let Some(gib) = device_gib.or_else(peak_memory_gib) {
        put(metrics, "perf/peak_memory", gib);
    }
}

/// Floating-point operations per trained token: 6·P_mm + 12·layers·heads·(hidden/heads)·seq_len, where P_mm counts the
/// numbers in matrices that take part in matrix products, the head included. Attention counts in full, not halved for
/// causality; nothing is counted twice for recomputation.
pub fn flops_per_token(config: &ModelConfig, seq_len: usize) -> f64 {
    let (h, d) = (config.hidden_size as f64, config.head_dim as f64);
    let (heads, kv) = (config.heads as f64, config.kv_heads as f64);
    let attention = 2.0 * h * heads * d + 2.0 * h * kv * d;
    let feed_forward = 3.0 * h * config.intermediate_size as f64;
    let layers = config.layers as f64;
    let matrices = layers * (attention + feed_forward) + config.vocab_size as f64 * h;
    6.0 * matrices + 12.0 * layers * h * seq_len as f64
}

/// The process's largest resident set so far; `None` where `/proc` does not tell it.
fn peak_memory_gib() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|l| l.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib / (1024.0 * 1024.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// https://github.com/unslothai/unsloth-zoo/pull/1262
    #[test]
    fn nothing_that_is_not_finite_gets_in() {
        let mut m = StepMetrics::new();
        put(&mut m, "a", f64::NAN);
        put_spread(&mut m, "b", &[1.0, f64::INFINITY, 3.0]);
        put_spread(&mut m, "c", &[]);
        assert!(!m.contains_key("a"));
        assert_eq!((m["b/mean"], m["b/std"], m["b/max"]), (2.0, 1.0, 3.0));
        assert_eq!(m["c/mean"], 0.0);
    }
}
