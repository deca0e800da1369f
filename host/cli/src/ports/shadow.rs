//! Algorithms that score the same groups as the real one and train nothing. Owns the comparison of their streams.

use crate::ports::algorithm::PluginAlgorithm;
use prl_orchestrator::{Algorithm, Scored};
use prl_types::{Metric, Rollout, Step, Streams, Summary};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The real one with its shadows.
pub struct Shadowed {
    real: Arc<PluginAlgorithm>,
    shadows: Vec<Shadow>,
}

struct Shadow {
    algorithm: PluginAlgorithm,
    /// Its part of the names of metrics.
    label: String,
    /// Whether it was said that it fails.
    told: AtomicBool,
}

impl Shadowed {
    /// `shadows` score what `real` scores. Of several of one name the second is labelled `NAME_2`, and so on.
    pub fn new(real: Arc<PluginAlgorithm>, shadows: Vec<PluginAlgorithm>) -> Self {
        let mut seen = BTreeMap::<String, usize>::new();
        let shadow = |algorithm: PluginAlgorithm| {
            let name = algorithm.name().to_owned();
            let count = seen.entry(name.clone()).and_modify(|count| *count += 1).or_insert(1);
            let label = if *count == 1 { name } else { format!("{name}_{count}") };
            Shadow { algorithm, label: format!("shadow/{label}"), told: AtomicBool::new(false) }
        };
        Shadowed { real, shadows: shadows.into_iter().map(shadow).collect() }
    }
}

impl Algorithm for Shadowed {
    fn score_group(&self, step: Step, group: &[&Rollout]) -> Result<Scored, String> {
        let mut scored = self.real.score_group(step, group)?;
        if self.shadows.is_empty() {
            return Ok(scored);
        }
        let real = advantages(group, &scored.streams);
        about(self.real.name(), (group, &scored.streams), &real, &mut scored.metrics);
        for Shadow { algorithm, label: name, told } in &self.shadows {
            let failed = match algorithm.score_group(step, group) {
                Ok(other) => {
                    let own = |m: &Metric| m.name.strip_prefix(algorithm.name()).unwrap_or_default().to_owned();
                    let metrics = other.metrics.into_iter();
                    scored.metrics.extend(metrics.map(|m| Metric { name: format!("{name}{}", own(&m)), ..m }));
                    let values = advantages(group, &other.streams);
                    about(name, (group, &other.streams), &values, &mut scored.metrics);
                    if let Some(value) = correlation(&real, &values) {
                        scored.metrics.push(Metric { name: format!("{name}/correlation"), value });
                    }
                    0.0
                }
                Err(error) => {
                    if !told.swap(true, Ordering::Relaxed) {
                        tracing::warn!(target: "prl_orchestrator", "shadow algorithm: {error}; the run goes on");
                    }
                    1.0
                }
            };
            scored.metrics.push(Metric { name: format!("{name}/failed"), value: failed });
        }
        Ok(scored)
    }

    fn state(&self) -> Result<Option<String>, String> {
        self.real.state()
    }
}

/// The advantage of every sampled token of the group, 0 where there is none.
fn advantages(group: &[&Rollout], streams: &[Option<Vec<Streams>>]) -> Vec<f64> {
    let mut values = Vec::new();
    for (rollout, streams) in group.iter().zip(streams) {
        for (i, sample) in rollout.samples.iter().enumerate() {
            let own = streams.as_ref().and_then(|all| all[i].advantages.as_ref());
            let sampled = (0..sample.len()).filter(|t| sample.mask()[*t]);
            values.extend(sampled.map(|t| own.map_or(0.0, |own| f64::from(own[t]))));
        }
    }
    values
}

/// Statistics of one algorithm's streams over a group.
fn about(
    name: &str,
    (group, streams): (&[&Rollout], &[Option<Vec<Streams>>]),
    advantages: &[f64],
    metrics: &mut Vec<Metric>,
) {
    let summary = Summary::of(advantages.iter().copied());
    let mut put = |key: &str, value: f64| metrics.push(Metric { name: format!("{name}/{key}"), value });
    put("advantages/mean", summary.mean);
    put("advantages/std", summary.std);
    put("advantages/min", summary.min);
    put("advantages/max", summary.max);
    put("dropped", streams.iter().filter(|s| s.is_none()).count() as f64 / streams.len().max(1) as f64);
    let (mut rl, mut ce, mut ref_kl) = (0.0, 0.0, 0.0);
    let sum = |weights: &Option<Vec<f32>>| weights.iter().flatten().map(|w| f64::from(*w)).sum::<f64>();
    let kept = group.iter().zip(streams).filter_map(|(rollout, streams)| Some((rollout, streams.as_ref()?)));
    for (sample, streams) in kept.flat_map(|(rollout, streams)| rollout.samples.iter().zip(streams)) {
        // Without a stream every sampled token has weight 1.
        rl += if streams.rl_weights.is_none() { sample.output_tokens() as f64 } else { sum(&streams.rl_weights) };
        ce += sum(&streams.ce_weights);
        ref_kl += sum(&streams.ref_kl_weights);
    }
    put("rl_weights/sum", rl);
    put("ce_weights/sum", ce);
    put("ref_kl_weights/sum", ref_kl);
}

/// Pearson's correlation; none where one of the two does not vary.
fn correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let n = a.len() as f64;
    let (mean_a, mean_b) = (a.iter().sum::<f64>() / n, b.iter().sum::<f64>() / n);
    let (mut ab, mut aa, mut bb) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(b) {
        let (a, b) = (a - mean_a, b - mean_b);
        (ab, aa, bb) = (ab + a * b, aa + a * a, bb + b * b);
    }
    (aa > 0.0 && bb > 0.0).then(|| ab / (aa * bb).sqrt())
}

#[cfg(test)]
mod tests {
    use super::correlation;

    #[test]
    fn correlation_is_of_what_varies() {
        let close = |value: Option<f64>, want: f64| (value.unwrap() - want).abs() < 1e-12;
        assert!(close(correlation(&[1.0, 2.0, 3.0], &[10.0, 20.0, 30.0]), 1.0));
        assert!(close(correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0));
        assert_eq!(correlation(&[1.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(correlation(&[], &[]), None);
    }
}
