//! The root of `prl rl` and its shared sections.

use super::common::{Device, Kernels, LogLevel, Tokenizer};
use super::inference::InferenceConfig;
use super::orchestrator::OrchestratorConfig;
use super::services::{FilesystemBroadcast, WeightBroadcast};
use super::trainer::{DEFAULT_MODEL, TrainerConfig};
use crate::macros::section;
use std::path::PathBuf;

section! {
    /// The model of all components.
    pub struct SharedModel {
        /// Folder in Hugging Face's layout, or hub id.
        name: String = DEFAULT_MODEL.to_string() => [Path];
    }
    unsupported ["vlm", "trust_remote_code"]
}

section! {
    /// Logging of all components.
    pub struct SharedLog {
        /// Least severe level that is logged.
        level: Option<LogLevel> = None;
        /// One JSON object per line instead of text.
        json_logging: bool = false;
        /// Seconds between lines that say what is under way; the orchestrator has them.
        interval: Option<f64> = None => [Above(0.0)];
    }
    unsupported ["vf_level", "log_data"]
}

section! {
    /// Checkpoints of all components.
    pub struct SharedCkpt {
        /// Folder of the checkpoints; by default that of the run.
        output_dir: Option<PathBuf> = None;
        /// Steps between checkpoints; none means only at the end.
        interval: Option<u64> = None => [Min(1.0)];
        /// Step to resume from; -1 is the newest.
        resume_step: Option<i64> = None => [Min(-1.0)];
        /// With `resume_step = -1`: start fresh where there is no complete checkpoint (not in prime-rl).
        allow_fresh: bool = false;
        /// How many of the newest checkpoints are kept; none means all.
        keep_last: Option<u64> = None => [Min(1.0)];
        /// Checkpoints of every so many steps are kept whatever `keep_last` says.
        keep_interval: Option<u64> = None => [Min(1.0)];
    }
}

section! {
    /// Weights & Biases for all components.
    pub struct SharedWandb {
        /// Project.
        project: Option<String> = Some("prime-rl".to_string());
        /// Team or user.
        entity: Option<String> = None;
        /// Name of the run.
        name: Option<String> = None;
        /// Group of runs.
        group: Option<String> = None;
        /// Labels.
        tags: Option<Vec<String>> = None;
        /// Accepted as in prime-rl; runs are always recorded on disk only.
        offline: Option<bool> = Some(false);
    }
    unsupported ["log_extras"]
}

section! {
    /// A reinforcement-learning run.
    pub struct RlConfig {
        /// Folder of the run.
        output_dir: PathBuf = PathBuf::from("outputs");
        /// Empty the folder of the run first.
        clean_output_dir: bool = false => [Action];
        /// Check keys and values, write the effective configuration, and stop.
        dry_run: bool = false => [Action];
        /// Steps of training; none means no end.
        max_steps: Option<u64> = None => [Min(1.0)];
        /// Tokens of a packed row and of a rollout.
        seq_len: Option<usize> = None => [Min(1.0)];
        /// Everything random follows from it (not in prime-rl).
        seed: u64 = 0;
        /// Where the model computes (not in prime-rl).
        device: Device = Device::Auto;
        /// Which implementation of the model computes (not in prime-rl).
        kernels: Kernels = Kernels::Fast;
        /// Order events, and sums on a GPU, so that the same seed gives the same run; by default on the CPU only (not in prime-rl).
        deterministic: Option<bool> = None;
        /// On a GPU, compute the same bits for a token in sampling and training, whatever runs beside it and however its prompt is split; the CPU always does, and servers that sample have an `exact` of their own (not in prime-rl).
        exact: bool = false;
        /// Algorithm plug-ins to load, one flag per file (not in prime-rl).
        plugin: Vec<PathBuf> = Vec::new() => [Repeat, Path];
        /// The model of all components.
        model: Option<SharedModel> = None;
        /// The tokenizer of all components.
        tokenizer: Option<Tokenizer> = None;
        /// Logging of all components.
        log: SharedLog = SharedLog::default();
        /// Checkpoints of all components; none without this section.
        ckpt: Option<SharedCkpt> = None;
        /// Weights & Biases for all components; not recorded without this section.
        wandb: Option<SharedWandb> = None;
        /// How new weights get to servers that sample; in one process they are there.
        weight_broadcast: WeightBroadcast = WeightBroadcast::Filesystem(FilesystemBroadcast::default());
        /// Training.
        trainer: TrainerConfig = TrainerConfig::default();
        /// Rollouts.
        orchestrator: OrchestratorConfig = OrchestratorConfig::default();
        /// The inference engine.
        inference: InferenceConfig = InferenceConfig::default();
    }
    unsupported ["env_vars", "deployment", "slurm", "run", "rollout_transport"]
    renamed [
        "bench" => "`prl trainer @ trainer.toml --bench`, which measures the trainer alone",
        "clean" => "`clean_output_dir = true`",
        "resume" => "`[ckpt] resume_step = N` (-1 is the newest)",
        "monitors" => "`[wandb]`; metrics.jsonl is always written",
    ]
}

impl RlConfig {
    /// What follows from other values where nothing was said.
    pub(crate) fn derive(&mut self) {
        let RlConfig { trainer, orchestrator, .. } = self;
        trainer.tokenizer.name.get_or_insert_with(|| trainer.model.name.clone());
        orchestrator.tokenizer.name.get_or_insert_with(|| orchestrator.model.name.clone());
    }
}
