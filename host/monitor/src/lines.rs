//! The lines that tell a run's story: one per training step, batch, evaluation. Owns their wording, which scripts grep;
//! knows nothing of where they go.

use std::fmt::{self, Display, Formatter};

/// Seconds for people: `532ms`, `12.3s`, `3m 4s`, `1h 5m`, `1d 2h`.
pub fn duration(seconds: f64) -> String {
    let millis = (seconds.max(0.0) * 1e3).round();
    let tenths = (seconds.max(0.0) * 10.0).round();
    let whole = seconds.max(0.0).round() as u64;
    if millis < 1e3 {
        format!("{millis:.0}ms")
    } else if tenths < 600.0 {
        format!("{:.1}s", tenths / 10.0)
    } else if whole < 3600 {
        format!("{}m {}s", whole / 60, whole % 60)
    } else if whole < 86_400 {
        format!("{}h {}m", whole / 3600, whole % 3600 / 60)
    } else {
        format!("{}d {}h", whole / 86_400, whole % 86_400 / 3600)
    }
}

/// A number as C's `%.2e`: `3.00e-06`.
fn scientific(value: f64) -> String {
    let text = format!("{value:.2e}");
    match text.split_once('e') {
        Some((mantissa, exponent)) => {
            let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
            format!("{mantissa}e{sign}{digits:0>2}")
        }
        None => text,
    }
}

/// Four decimals; `nan` and `inf` as Python writes them.
fn decimals(value: f64) -> String {
    format!("{value:.4}").to_lowercase()
}

/// Model FLOPs utilisation in percent; on a device whose peak is not known it is not made up.
fn mfu(percent: Option<f64>) -> String {
    percent.map_or_else(|| "n/a".into(), |p| format!("{p:.1}%"))
}

/// One training step of RL.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TrainerLine {
    /// The step.
    pub step: u64,
    /// Its wall-clock seconds.
    pub seconds: f64,
    /// Mean loss; NaN where there is none.
    pub loss: f64,
    /// Mean entropy, nats.
    pub entropy: f64,
    /// Mean KL between trainer and sampler.
    pub mismatch_kl: f64,
    /// Gradient norm before clipping; NaN where there is none.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Tokens per second.
    pub throughput: f64,
    /// Model FLOPs utilisation, percent.
    pub mfu: Option<f64>,
    /// Peak memory, GiB.
    pub peak_memory_gib: f64,
    /// Expert load imbalance, for mixtures of experts.
    pub max_vio: Option<f64>,
    /// Router confidence, for mixtures of experts.
    pub routing_confidence: Option<f64>,
}

impl Display for TrainerLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Step {} | {:>7} | Loss {} | Entropy {:.4} | Mismatch KL {:.4} | Grad. Norm {} | LR {} | \
             Throughput {:.0} tokens/s | MFU {} | Peak Mem. {:.1} GiB",
            self.step,
            duration(self.seconds),
            decimals(self.loss),
            self.entropy,
            self.mismatch_kl,
            decimals(self.grad_norm),
            scientific(self.lr),
            self.throughput,
            mfu(self.mfu),
            self.peak_memory_gib
        )?;
        if let Some(value) = self.max_vio {
            write!(f, " | Max Vio {value:.4}")?;
        }
        if let Some(value) = self.routing_confidence {
            write!(f, " | Routing Conf. {value:.4}")?;
        }
        Ok(())
    }
}

/// One training step of SFT.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SftLine {
    /// The step.
    pub step: u64,
    /// Its wall-clock seconds.
    pub seconds: f64,
    /// Mean loss; NaN where there is none.
    pub loss: f64,
    /// Gradient norm before clipping; NaN where there is none.
    pub grad_norm: f64,
    /// Learning rate.
    pub lr: f64,
    /// Tokens per second.
    pub throughput: f64,
    /// Model FLOPs utilisation, percent.
    pub mfu: Option<f64>,
    /// Peak memory, GiB.
    pub peak_memory_gib: f64,
    /// Memory of the device, GiB.
    pub total_memory_gib: f64,
}

impl Display for SftLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Step {} | {:>7} | Loss {} | Grad. Norm {} | LR {} | Throughput {:.0} tokens/s | MFU {} | \
             Peak Mem. {:.1}/{:.1} GiB ({:.1}%)",
            self.step,
            duration(self.seconds),
            decimals(self.loss),
            decimals(self.grad_norm),
            scientific(self.lr),
            self.throughput,
            mfu(self.mfu),
            self.peak_memory_gib,
            self.total_memory_gib,
            percent(self.peak_memory_gib, self.total_memory_gib)
        )
    }
}

/// One validation of SFT.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ValidationLine {
    /// The step after which it ran.
    pub step: u64,
    /// Mean loss; NaN where there is none.
    pub loss: f64,
}

impl Display for ValidationLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Validation | Step {} | Loss {}", self.step, decimals(self.loss))
    }
}

/// What a batch says about one environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EnvLine {
    /// The environment's name.
    pub env: String,
    /// Its share of the batch's rollouts, 0 to 1.
    pub ratio: f64,
    /// Mean reward.
    pub reward: f64,
    /// Rollouts that train.
    pub trainable: usize,
    /// All rollouts.
    pub rollouts: usize,
    /// Mean turns.
    pub turns: f64,
    /// Mean branches.
    pub branches: f64,
    /// Largest number of policy updates a rollout has seen.
    pub max_off_policy: u64,
    /// Share of rollouts with an error, 0 to 1.
    pub error: f64,
    /// Share of rollouts cut off, 0 to 1.
    pub truncation: f64,
}

impl Display for EnvLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Reward {:.4} | Trainable {}/{} ({:.1}%) | Turns {:.1} | Branches {:.1} | Max Off-Policy {} | \
             Error {:.1}% | Truncation {:.1}%",
            self.reward,
            self.trainable,
            self.rollouts,
            percent(self.trainable as f64, self.rollouts as f64),
            self.turns,
            self.branches,
            self.max_off_policy,
            self.error * 100.0,
            self.truncation * 100.0
        )
    }
}

/// One batch of the orchestrator; with more than one environment each gets a line of its own below.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OrchestratorLine {
    /// The step.
    pub step: u64,
    /// Its wall-clock seconds.
    pub seconds: f64,
    /// Over all environments; its name and ratio are not shown.
    pub all: EnvLine,
    /// Each environment.
    pub envs: Vec<EnvLine>,
}

impl Display for OrchestratorLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "Step {} | {:>7} | {}", self.step, duration(self.seconds), self.all)?;
        if self.envs.len() > 1 {
            for env in &self.envs {
                write!(f, "\n╰─ {} | Ratio {:.1}% | {env}", env.env, env.ratio * 100.0)?;
            }
        }
        Ok(())
    }
}

/// What is under way between two steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PipelineLine {
    /// The step that is sampled for.
    pub step: u64,
    /// Rollouts (or tokens) that wait for a batch.
    pub waiting: usize,
    /// Rollouts (or tokens) that a batch takes.
    pub batch: usize,
    /// Training rollouts under way.
    pub train: usize,
    /// Evaluation rollouts under way.
    pub eval: usize,
}

impl Display for PipelineLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let PipelineLine { step, waiting, batch, train, eval } = *self;
        let (filled, buffered) = (waiting.min(batch), waiting.saturating_sub(batch));
        write!(
            f,
            "Pipeline | Step {step} | Train batch {filled}/{batch} ({:.1}%) (+{buffered} buffered); {} inflight rollouts \
             (train={train}, eval={eval})",
            percent(filled as f64, batch as f64),
            train + eval,
        )
    }
}

/// One evaluation of one environment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EvalLine {
    /// The environment's name.
    pub env: String,
    /// The step after which it ran.
    pub step: u64,
    /// The policy version evaluated.
    pub policy_version: u64,
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Mean reward.
    pub reward: f64,
    /// Mean turns.
    pub turns: f64,
    /// Mean branches.
    pub branches: f64,
    /// Share of rollouts with an error, 0 to 1.
    pub error: f64,
    /// Share of rollouts cut off, 0 to 1.
    pub truncation: f64,
}

impl Display for EvalLine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Evaluated {} (Step {}) | Policy v{} | {:>7} | Reward {:.4} | Turns {:.1} | Branches {:.1} | \
             Error {:.1}% | Truncation {:.1}%",
            self.env,
            self.step,
            self.policy_version,
            duration(self.seconds),
            self.reward,
            self.turns,
            self.branches,
            self.error * 100.0,
            self.truncation * 100.0
        )
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}
