//! What the server counts, and Prometheus' text of it under vLLM's names. Owns the counters; must not know doors.

use crate::clock;
use prl_inference::Stats;
use prl_types::FinishReason;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Why sequences end.
const REASONS: [&str; 3] = ["stop", "length", "abort"];
/// Seconds.
const TO_FIRST_TOKEN: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Seconds.
const WHOLE: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// Everything that is counted here rather than by the engine.
pub(crate) struct Metrics {
    ended: [AtomicU64; 3],
    prompt_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    to_first_token: Histogram,
    whole: Histogram,
}

struct Histogram {
    bounds: &'static [f64],
    seen: Mutex<Seen>,
}

struct Seen {
    /// One more than bounds.
    buckets: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Histogram { bounds, seen: Mutex::new(Seen { buckets: vec![0; bounds.len() + 1], sum: 0.0 }) }
    }

    fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.buckets[at] += 1;
        seen.sum += seconds;
    }

    fn write(&self, out: &mut String, name: &str, labels: &str) {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut total = 0;
        for (i, count) in seen.buckets.iter().enumerate() {
            total += count;
            let bound = self.bounds.get(i).map_or("+Inf".to_string(), f64::to_string);
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(out, "{name}_sum{{{labels}}} {}\n{name}_count{{{labels}}} {total}", seen.sum);
    }
}

impl Metrics {
    pub fn new() -> Self {
        Metrics {
            ended: Default::default(),
            prompt_tokens: AtomicU64::new(0),
            generation_tokens: AtomicU64::new(0),
            to_first_token: Histogram::new(TO_FIRST_TOKEN),
            whole: Histogram::new(WHOLE),
        }
    }

    fn end(&self, reason: &str) {
        if let Some(i) = REASONS.iter().position(|r| *r == reason) {
            self.ended[i].fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Prometheus' text. `model` is its label.
    pub fn text(&self, model: &str, stats: &Stats) -> String {
        let escaped = model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels = format!("engine=\"0\",model_name=\"{escaped}\"");
        let mut out = String::new();
        let head = |out: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        };
        let usage = stats.cache_bytes as f64 / stats.cache_budget.max(1) as f64;
        for (name, help, value) in [
            ("vllm:num_requests_running", "Sequences that hold a slot.", stats.running as f64),
            ("vllm:num_requests_waiting", "Sequences that wait for a slot.", stats.waiting as f64),
            (
                "vllm:kv_cache_usage_perc",
                "Part of the memory for keys and values in use, from 0 to 1; what is kept of past sequences counts.",
                usage,
            ),
            ("prl:paused", "Whether sampling is paused.", f64::from(u8::from(stats.paused))),
            ("prl:policy_version", "Policy version of the weights in use.", stats.version.0 as f64),
        ] {
            head(&mut out, name, "gauge", help);
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        }
        let own = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        for (name, help, value) in [
            ("vllm:prompt_tokens_total", "Prompt tokens of sequences that began.", own(&self.prompt_tokens)),
            ("vllm:generation_tokens_total", "Tokens sampled.", own(&self.generation_tokens)),
            (
                "vllm:prefix_cache_queries_total",
                "Prompt tokens that were looked for among past sequences.",
                stats.prefill_tokens + stats.cached_tokens,
            ),
            ("vllm:prefix_cache_hits_total", "Prompt tokens that were found there.", stats.cached_tokens),
            (
                "vllm:num_preemptions_total",
                "Times that a sequence gave its memory up to an older one, and started over.",
                stats.preempted,
            ),
        ] {
            head(&mut out, name, "counter", help);
            let _ = writeln!(out, "{name}{{{labels}}} {value}");
        }
        let name = "vllm:request_success_total";
        head(&mut out, name, "counter", "Sequences that ended, by how.");
        for (reason, count) in REASONS.iter().zip(&self.ended) {
            let _ = writeln!(out, "{name}{{{labels},finished_reason=\"{reason}\"}} {}", own(count));
        }
        for (name, help, histogram) in [
            ("vllm:time_to_first_token_seconds", "From a sequence's arrival to its first token.", &self.to_first_token),
            ("vllm:e2e_request_latency_seconds", "From a sequence's arrival to its end.", &self.whole),
        ] {
            head(&mut out, name, "histogram", help);
            histogram.write(&mut out, name, &labels);
        }
        out
    }
}

/// Counts one sequence; dropped before its end, it was aborted.
pub(crate) struct Watch {
    metrics: Arc<Metrics>,
    began: Instant,
    first: bool,
    over: bool,
}

impl Watch {
    pub fn new(metrics: Arc<Metrics>) -> Self {
        Watch { metrics, began: clock::now(), first: false, over: false }
    }

    pub fn prompt(&self, tokens: usize) {
        self.metrics.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }

    pub fn token(&mut self) {
        self.metrics.generation_tokens.fetch_add(1, Ordering::Relaxed);
        if !std::mem::replace(&mut self.first, true) {
            self.metrics.to_first_token.observe(self.began.elapsed());
        }
    }

    /// It ended by itself.
    pub fn end(&mut self, end: &FinishReason) {
        self.over = true;
        self.metrics.end(reason(end));
        self.metrics.whole.observe(self.began.elapsed());
    }

    /// It failed, or was refused.
    pub fn fail(&mut self) {
        self.over = true;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.over {
            self.metrics.end("abort");
        }
    }
}

/// How a sequence ended, in the words of the doors.
pub(crate) fn reason(end: &FinishReason) -> &'static str {
    match end {
        FinishReason::StopToken(_) | FinishReason::StopString(_) | FinishReason::Complete => "stop",
        FinishReason::Length => "length",
        FinishReason::Aborted => "abort",
    }
}
