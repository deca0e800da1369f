//! The root of `prl sft`.

use super::common::{Device, Kernels, Log, MatmulPrecision, Tokenizer, Wandb};
use super::orchestrator::Renderer;
use super::trainer::{AdamW, Bench, ConstantScheduler, Optim, Scheduler, TrainerCkpt, TrainerModel};
use crate::macros::{choice, section, union};
use serde_json::{Map, Value as Json};
use std::path::PathBuf;

section! {
    /// Whose tokens are trained.
    pub struct LossMask {
        /// System messages.
        system: bool = false;
        /// User messages.
        user: bool = false;
        /// What the model says.
        assistant: bool = true;
        /// Results of tools.
        tool: bool = false;
    }
}

/// The keys that all data sections share, after those of their own.
macro_rules! data_section {
    (
        $(#[doc = $doc:literal])+
        $name:ident { $($own:tt)* }
        unsupported [$($unsupported:literal),*]
    ) => {
        section! {
            $(#[doc = $doc])+
            pub struct $name {
                $($own)*
                /// Tokens of one packed row.
                seq_len: usize = 128 => [Min(1.0), Max(1_048_576.0)];
                /// Packed rows per step.
                batch_size: usize = 128 => [Min(1.0), Max(1_000_000.0)];
                /// Packed rows computed at a time; divides `batch_size`.
                micro_batch_size: usize = 1 => [Min(1.0), Max(1_000_000.0)];
                /// Seed of all that is random.
                seed: u64 = 0;
            }
            unsupported [$($unsupported),*]
            renamed [
                "fake" => "`type = \"fake\"` (`--data.type fake`)",
                "epochs" => "`max_steps`, which counts steps; the log says how many rows an epoch fills",
                "max_epochs" => "`max_steps`, which counts steps; the log says how many rows an epoch fills",
            ]
        }
    };
}

/// The keys that sections of conversations share on top, after those of their own.
macro_rules! conversations_section {
    (
        $(#[doc = $doc:literal])+
        $name:ident { $($own:tt)* }
        unsupported [$($unsupported:literal),*]
    ) => {
        data_section! {
            $(#[doc = $doc])+
            $name {
                $($own)*
                /// Shuffle every epoch.
                shuffle: bool = true;
                /// Whose tokens are trained.
                loss_mask: LossMask = LossMask::default();
            }
            unsupported [$($unsupported),*]
        }
    };
}

choice! {
    /// When an epoch of several sources has ended.
    pub enum StoppingStrategy {
        /// One source has been gone through.
        "first_exhausted" => FirstExhausted,
        /// Every source has been gone through; those that were before begin again.
        "all_exhausted" => AllExhausted,
    }
}

conversations_section! {
    /// Conversations from files.
    FileData {
        /// A file (.jsonl, .json, .parquet) or a folder of them, relative to this file, or a dataset's id on the hub.
        name: String = String::new() => [Required, Path];
        /// Branch, tag or commit of the hub's dataset; none means main (not in prime-rl).
        revision: Option<String> = None;
        /// Subsets to train on together; none means the only or the default one.
        subsets: Option<Vec<String>> = None;
        /// Splits to train on together, or that of each of `subsets`; none means train.
        splits: Option<Vec<String>> = None;
        /// Shares of draws of each subset or split, 1 together; without it they take turns one by one.
        probabilities: Option<Vec<f64>> = None;
        /// When an epoch of several subsets or splits ends.
        stopping_strategy: StoppingStrategy = StoppingStrategy::AllExhausted;
    }
    unsupported ["pack_function"]
}

/// How `opsd` shows a demonstration unless it is told otherwise.
const HINT_TEMPLATE: &str =
    "Here is an example of an expert response:\n<demonstration>\n{demonstration}\n</demonstration>";

conversations_section! {
    /// Conversations made from the tasks of an environment (not in prime-rl).
    EnvData {
        /// Path of the environment (relative to this file), or a name that is looked up.
        id: String = String::new() => [Required, Path];
        /// The environment's own settings.
        args: Map<String, Json> = Map::new();
        /// Which tasks.
        split: String = "train".to_string();
        /// How many tasks; none means all.
        num_examples: Option<usize> = None => [Min(1.0)];
        /// Key of a task's payload that holds the expert's answer: a text, or a list of messages where it takes turns.
        demonstration: String = "demonstration".to_string();
        /// Share of conversations that begin with the expert's answer as a hint, which is what `opsd` relies on.
        hint_share: f64 = 0.0 => [Min(0.0), Max(1.0)];
        /// The system message of a hint; `{demonstration}` stands for the expert's answer. The default is that of `opsd`.
        hint_template: String = HINT_TEMPLATE.to_string();
    }
    unsupported []
}

choice! {
    /// Lengths of made-up documents.
    pub enum FakeLength {
        /// A whole row each.
        "fixed" => Fixed,
        /// From 2 tokens to a whole row.
        "variable" => Variable,
    }
}

choice! {
    /// Tokens of made-up documents.
    pub enum FakeIds {
        /// The document's number, throughout.
        "increasing" => Increasing,
        /// Any of the vocabulary.
        "random" => Random,
    }
}

data_section! {
    /// Made-up documents without end, to measure with.
    FakeData {
        /// How long the documents are.
        length: FakeLength = FakeLength::Fixed;
        /// What they hold.
        input_ids: FakeIds = FakeIds::Increasing;
    }
    unsupported []
}

union! {
    /// What to train on.
    pub enum SftData {
        /// Files.
        "sft" => Files(FileData),
        /// An environment's tasks.
        "env" => Env(EnvData),
        /// Nothing real.
        "fake" => Fake(FakeData),
    }
    default "sft"
}

macro_rules! data_field {
    ($($(#[doc = $doc:literal])+ $name:ident: $ty:ty),+ $(,)?) => {
        impl SftData {
            $(
                $(#[doc = $doc])+
                pub fn $name(&self) -> $ty {
                    match self {
                        SftData::Files(data) => data.$name,
                        SftData::Env(data) => data.$name,
                        SftData::Fake(data) => data.$name,
                    }
                }
            )+
        }
    };
}

data_field! {
    /// Tokens of one packed row.
    seq_len: usize,
    /// Packed rows per step.
    batch_size: usize,
    /// Packed rows computed at a time.
    micro_batch_size: usize,
    /// Seed of all that is random.
    seed: u64,
}

impl SftData {
    /// Whether every epoch is shuffled.
    pub fn shuffle(&self) -> bool {
        match self {
            SftData::Files(data) => data.shuffle,
            SftData::Env(data) => data.shuffle,
            SftData::Fake(_) => false,
        }
    }

    /// Whose tokens are trained; made-up documents have no roles.
    pub fn loss_mask(&self) -> Option<&LossMask> {
        match self {
            SftData::Files(data) => Some(&data.loss_mask),
            SftData::Env(data) => Some(&data.loss_mask),
            SftData::Fake(_) => None,
        }
    }
}

impl Default for SftData {
    fn default() -> Self {
        SftData::Files(FileData::default())
    }
}

section! {
    /// Validation.
    pub struct SftVal {
        /// Steps between validations.
        interval: u64 = 50 => [Min(1.0)];
        /// Validate before the first step too.
        eval_on_start: bool = false;
        /// What to validate on.
        data: SftData = SftData::default();
    }
}

section! {
    /// A supervised fine-tuning run.
    pub struct SftConfig {
        /// Folder of the run.
        output_dir: PathBuf = PathBuf::from("outputs");
        /// Empty the folder of the run first.
        clean_output_dir: bool = false => [Action];
        /// Check keys and values, write the effective configuration, and stop.
        dry_run: bool = false => [Action];
        /// Steps of training; none means no end.
        max_steps: Option<u64> = None => [Min(1.0)];
        /// Measure instead of training.
        bench: Option<Bench> = None => [Action];
        /// How exactly a GPU multiplies matrices: "highest" is f32, "high" and "medium" are bf16; the CPU has f32.
        matmul_precision: MatmulPrecision = MatmulPrecision::High;
        /// Everything random follows from it, the shuffle of the data apart (not in prime-rl).
        seed: u64 = 0;
        /// Where the model computes (not in prime-rl).
        device: Device = Device::Auto;
        /// Which implementation of the model computes (not in prime-rl).
        kernels: Kernels = Kernels::Fast;
        /// Sum in a fixed order on a GPU too, so that the same seed gives the same run; the CPU always does (not in prime-rl).
        deterministic: bool = false;
        /// The trained model.
        model: TrainerModel = TrainerModel::default();
        /// Its tokenizer.
        tokenizer: Tokenizer = Tokenizer::default();
        /// Rendering of conversations.
        renderer: Renderer = Renderer::default();
        /// What to train on.
        data: SftData = SftData::default();
        /// Validation; none without this section.
        val: Option<SftVal> = None;
        /// The optimiser.
        optim: Optim = Optim::AdamW(AdamW::default());
        /// The learning rate over the run.
        scheduler: Scheduler = Scheduler::Constant(ConstantScheduler::default());
        /// Checkpoints; none without this section.
        ckpt: Option<TrainerCkpt> = None;
        /// Logging.
        log: Log = Log::default();
        /// Weights & Biases; not recorded without this section.
        wandb: Option<Wandb> = None;
    }
    unsupported [
        "env_vars", "memory_profiler_path", "gc", "trace_path", "dist_timeout_seconds",
        "heartbeat", "deployment", "slurm", "loss", "eval", "inference", "run",
    ]
    renamed [
        "clean" => "`clean_output_dir = true`",
        "resume" => "`[ckpt] resume_step = N` (-1 is the newest)",
        "epochs" => "`max_steps`, which counts steps; the log says how many rows an epoch fills",
        "max_epochs" => "`max_steps`, which counts steps; the log says how many rows an epoch fills",
        "monitors" => "`[wandb]`; metrics.jsonl is always written",
    ]
}

impl SftConfig {
    /// What follows from other values where nothing was said.
    pub(crate) fn derive(&mut self) {
        self.tokenizer.name.get_or_insert_with(|| self.model.name.clone());
    }
}
