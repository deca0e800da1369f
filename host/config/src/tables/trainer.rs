//! `[trainer]`, most of which `prl sft` shares, and the root of `prl trainer`.

use super::common::{Device, Kernels, Log, MatmulPrecision, Tokenizer, Wandb};
use crate::macros::{choice, section, union};
use crate::schema::{Described, Field, Key, Rule, Section};
use serde_json::{Map, Value as Json};
use std::path::PathBuf;

/// The model prime-rl uses where none is named.
pub(super) const DEFAULT_MODEL: &str = "Qwen/Qwen3-0.6B";

section! {
    /// Switches for tests and debugging.
    pub struct DebugModel {
        /// Start from random weights: only the configuration and the tokenizer of the model are read.
        random_init: bool = false;
    }
    unsupported ["num_layers", "force_balanced_routing"]
}

choice! {
    /// How much of a layer is recomputed.
    pub enum AcMode {
        /// All of it, from its input.
        "full" => Full,
        /// What `targets` names.
        "selective" => Selective,
    }
}

choice! {
    /// A part of a layer whose outputs are cheap to recompute for what they weigh.
    pub enum AcTarget {
        /// The norms.
        "norm" => Norm,
        /// The projections into and out of attention.
        "attn_proj" => AttnProj,
        /// The feed-forward block.
        "mlp" => Mlp,
    }
}

section! {
    /// Recomputation of activations in the backward pass: less memory for more time.
    pub struct ActivationCheckpoint {
        /// Recompute whole layers, or only parts of them.
        mode: AcMode = AcMode::Full;
        /// One layer in so many recomputes; the others keep their activations.
        freq: usize = 1 => [Min(1.0)];
        /// What `selective` recomputes.
        targets: Vec<AcTarget> = vec![AcTarget::Norm];
    }
}

section! {
    /// A low-rank adapter: what is added to matrices of the model is trained, the model is not; on the CPU.
    pub struct Lora {
        /// Columns of an addition's factor B.
        rank: usize = 16 => [Min(1.0), Max(8192.0)];
        /// Additions are times `alpha / rank`.
        alpha: f64 = 32.0 => [Above(0.0)];
        /// Share of what additions see that training leaves out.
        dropout: f64 = 0.0 => [Min(0.0)];
        /// Modules with an addition: parts of their paths, or regular expressions that are found in them.
        target_modules: Vec<String> =
            ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"].map(String::from).to_vec();
        /// Modules that are trained whole, named the same way.
        modules_to_save: Vec<String> = Vec::new();
    }
}

section! {
    /// The trained model.
    pub struct TrainerModel {
        /// Folder in Hugging Face's layout, or hub id.
        name: String = DEFAULT_MODEL.to_string() => [Path];
        /// Tokens of one packed row; longer samples are cut.
        seq_len: usize = 2048 => [Min(1.0), Max(1_048_576.0)];
        /// Tokens that the LM head handles at a time.
        fused_lm_head_token_chunk_size: usize = 1024 => [Min(1.0), Max(1_048_576.0)];
        /// Recomputation of activations on the GPU; none without this section.
        ac: Option<ActivationCheckpoint> = None;
        /// Train an adapter; without this section the whole model.
        lora: Option<Lora> = None;
        /// For tests and debugging.
        debug: DebugModel = DebugModel::default();
    }
    unsupported [
        "trust_remote_code", "vlm", "conversion_dir", "attn", "compile", "ac_offloading", "fsdp_cpu_offload",
        "optim_cpu_offload", "reshard_after_forward", "dp_replicate", "ep", "ep_comm_backend", "deepep_num_sms",
        "deepep_token_chunk_size", "cp", "cp_style", "impl", "optimization_dtype", "reduce_dtype", "moe_router_dtype",
        "moe_use_grouped_mm", "quantization", "index_cache", "freeze_moe_router", "full_offload",
        "moe_fused_kernel",
    ]
}

section! {
    /// Policy gradient with a mask on the change of probability, and a squared log-ratio penalty.
    pub struct DefaultLoss {
        /// Tokens of negative advantage whose probability fell by more than this are masked.
        dppo_mask_low: f64 = 0.2 => [Min(0.0)];
        /// Tokens of positive advantage whose probability rose by more than this are masked.
        dppo_mask_high: f64 = 0.2 => [Min(0.0)];
        /// Factor on advantages.
        adv_tau: f64 = 1.0 => [Min(0.0)];
        /// Factor on the penalty.
        kl_tau: f64 = 1e-3 => [Min(0.0)];
    }
}

section! {
    /// Policy gradient with one threshold on the change of probability in either direction.
    pub struct IpoLoss {
        /// Tokens whose probability changed by more than this are masked.
        ipo_threshold: f64 = 0.1 => [Min(0.0)];
        /// Factor on advantages.
        adv_tau: f64 = 1.0 => [Min(0.0)];
        /// Factor on the penalty.
        kl_tau: f64 = 1e-3 => [Min(0.0)];
    }
}

/// The loss of a plug-in: `name` says of which, the other keys are handed to it.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct CustomLoss {
    /// Name of the plug-in.
    pub name: String,
    /// The plug-in's own settings, which it checks itself.
    #[serde(flatten)]
    pub config: Map<String, Json>,
}

impl Described for CustomLoss {
    fn section() -> Section {
        Section {
            doc: "The loss of a plug-in; every other key is the plug-in's own.",
            keys: vec![Key {
                name: "name",
                doc: "Name of the plug-in; see `--plugin`.",
                node: String::node(),
                default: Json::Null,
                rules: vec![Rule::Required],
            }],
            open: true,
            unsupported: &[],
            renamed: &[
                ("import_path", "`name`, the name of an algorithm plug-in that has a loss"),
                ("kwargs", "the plug-in's keys, in this table beside `name`"),
            ],
        }
    }
}

union! {
    /// The loss of the `rl` component.
    pub enum Loss {
        /// DPPO mask.
        "default" => Default(DefaultLoss),
        /// IPO mask.
        "ipo" => Ipo(IpoLoss),
        /// A plug-in's.
        "custom" => Custom(CustomLoss),
    }
    default "default"
}

section! {
    /// Adam with decoupled weight decay.
    pub struct AdamW {
        /// Learning rate.
        lr: f64 = 1e-6 => [Min(0.0)];
        /// Weight decay.
        weight_decay: f64 = 0.01 => [Min(0.0)];
        /// Largest norm of the gradient; larger ones are scaled down.
        max_norm: Option<f64> = Some(1.0) => [Min(0.0)];
        /// Decay of the first moment.
        betas1: f64 = 0.9 => [Min(0.0)];
        /// Decay of the second moment.
        betas2: f64 = 0.999 => [Min(0.0)];
    }
}

section! {
    /// Gradient descent with momentum; weight decay is part of the gradient.
    pub struct Sgd {
        /// Learning rate.
        lr: f64 = 1e-6 => [Min(0.0)];
        /// Weight decay.
        weight_decay: f64 = 0.01 => [Min(0.0)];
        /// Largest norm of the gradient; larger ones are scaled down.
        max_norm: Option<f64> = Some(1.0) => [Min(0.0)];
        /// Share of the sum of past gradients that a step keeps.
        momentum: f64 = 0.9 => [Min(0.0), Max(1.0)];
        /// Step to where the momentum will have led.
        nesterov: bool = true;
    }
}

section! {
    /// Momentum whose matrices are made orthogonal; embedding, head and vectors have AdamW.
    pub struct Muon {
        /// Learning rate.
        lr: f64 = 1e-6 => [Min(0.0)];
        /// Weight decay.
        weight_decay: f64 = 0.01 => [Min(0.0)];
        /// Largest norm of the gradient; larger ones are scaled down.
        max_norm: Option<f64> = Some(1.0) => [Min(0.0)];
        /// Share of the sum of past gradients that a step keeps.
        mu: f64 = 0.95 => [Min(0.0), Max(1.0)];
        /// AdamW's decay of the first moment.
        betas1: f64 = 0.9 => [Min(0.0)];
        /// AdamW's decay of the second moment.
        betas2: f64 = 0.95 => [Min(0.0)];
    }
}

section! {
    /// A step of the learning rate against the sign of each gradient; keeps nothing.
    pub struct SignSgd {
        /// Learning rate.
        lr: f64 = 1e-6 => [Min(0.0)];
        /// Weight decay.
        weight_decay: f64 = 0.01 => [Min(0.0)];
        /// Largest norm of the gradient; has no effect, since it leaves signs as they are.
        max_norm: Option<f64> = Some(1.0) => [Min(0.0)];
    }
}

union! {
    /// The optimiser; a GPU has "adamw" alone.
    pub enum Optim {
        /// AdamW.
        "adamw" => AdamW(AdamW),
        /// Gradient descent with momentum.
        "sgd" => Sgd(Sgd),
        /// Orthogonal momentum.
        "muon" => Muon(Muon),
        /// The gradient's signs.
        "sign_sgd" => SignSgd(SignSgd),
    }
    default "adamw"
}

section! {
    /// The same learning rate at every step.
    pub struct ConstantScheduler {}
}

section! {
    /// Linear warm-up, constant, then linear decay over the last steps.
    pub struct LinearScheduler {
        /// Steps of warm-up.
        warmup_steps: u64 = 10;
        /// Steps of decay at the end.
        decay_steps: u64 = 10;
        /// Learning rate before warm-up and at the end.
        min_lr: f64 = 0.0 => [Min(0.0)];
    }
}

section! {
    /// Linear warm-up, then a half cosine to the end.
    pub struct CosineScheduler {
        /// Steps of warm-up.
        warmup_steps: u64 = 10;
        /// Learning rate before warm-up and at the end.
        min_lr: f64 = 0.0 => [Min(0.0)];
    }
}

union! {
    /// The learning rate over the run.
    pub enum Scheduler {
        /// Constant.
        "constant" => Constant(ConstantScheduler),
        /// Warm-up, constant, linear decay.
        "linear" => Linear(LinearScheduler),
        /// Warm-up, cosine decay.
        "cosine" => Cosine(CosineScheduler),
    }
    default "constant"
}

section! {
    /// Weights for use elsewhere.
    pub struct WeightCkpt {
        /// Put a trained adapter beside the weights that it is merged into, in PEFT's layout.
        save_adapter_separately: bool = false;
    }
    unsupported ["save_sharded", "save_format"]
}

section! {
    /// Checkpoints of the trainer.
    pub struct TrainerCkpt {
        /// Folder of the checkpoints; by default that of the run.
        output_dir: Option<PathBuf> = None;
        /// Steps between checkpoints; none means only at the end.
        interval: Option<u64> = None => [Min(1.0)];
        /// Step to resume from; -1 is the newest.
        resume_step: Option<i64> = None => [Min(-1.0)];
        /// With `resume_step = -1`: start fresh where there is no complete checkpoint (not in prime-rl).
        allow_fresh: bool = false;
        /// When going on: begin with an optimiser that has seen nothing.
        skip_optimizer: bool = false;
        /// When going on: begin the learning rate's schedule anew.
        skip_scheduler: bool = false;
        /// When going on with `prl sft`: begin at the first document.
        skip_dataloader: bool = false;
        /// When going on: begin the totals of tokens, samples and skipped steps at 0; the step stays.
        skip_progress: bool = false;
        /// How many of the newest checkpoints are kept; none means all.
        keep_last: Option<u64> = None => [Min(1.0)];
        /// Checkpoints of every so many steps are kept whatever `keep_last` says.
        keep_interval: Option<u64> = None => [Min(1.0)];
        /// Save weights without the state needed to resume.
        weights_only: bool = false;
        /// What is in the folders of weights.
        weights: WeightCkpt = WeightCkpt::default();
    }
    unsupported ["skip_gather_master_weights"]
}

/// The keys of `[trainer]` in `prl rl` and of the root of `prl trainer`, after those of their own.
macro_rules! trainer_section {
    (
        $(#[doc = $doc:literal])+
        $name:ident { $($own:tt)* }
        renamed [$($old:literal => $new:literal),*]
    ) => {
        section! {
            $(#[doc = $doc])+
            pub struct $name {
                $($own)*
                /// The trained model.
                model: TrainerModel = TrainerModel::default();
                /// Its tokenizer.
                tokenizer: Tokenizer = Tokenizer::default();
                /// The loss of the `rl` component.
                loss: Loss = Loss::Default(DefaultLoss::default());
                /// The optimiser.
                optim: Optim = Optim::AdamW(AdamW::default());
                /// The learning rate over the run.
                scheduler: Scheduler = Scheduler::Constant(ConstantScheduler::default());
                /// Checkpoints; none without this section.
                ckpt: Option<TrainerCkpt> = None;
                /// Weights & Biases; not recorded without this section.
                wandb: Option<Wandb> = None;
                /// Logging.
                log: Log = Log::default();
                /// Folder of the run.
                output_dir: PathBuf = PathBuf::from("outputs");
                /// Steps of training; none means no end.
                max_steps: Option<u64> = None => [Min(1.0)];
                /// How exactly a GPU multiplies matrices: "highest" is f32, "high" and "medium" are bf16; the CPU has f32.
                matmul_precision: MatmulPrecision = MatmulPrecision::High;
            }
            unsupported [
                "weight_broadcast", "rollout_transport", "enable_router_replay", "memory_profiler_path", "gc",
                "trace_path", "dist_timeout_seconds", "heartbeat", "metrics_server", "max_concurrent_runs",
                "enable_token_export", "env_vars",
            ]
            renamed [$($old => $new),*]
        }
    };
}

trainer_section! {
    /// Training: model, loss, optimiser.
    TrainerConfig {}
    renamed [
        "bench" => "`prl trainer @ trainer.toml --bench`, which measures the trainer alone",
        "data" => "`[data.fake]` for `prl trainer`; `prl rl` trains on rollouts"
    ]
}

section! {
    /// Made-up batches, to measure with.
    pub struct FakeBatches {
        /// Packed rows per step, each of `model.seq_len` tokens.
        batch_size: usize = 2 => [Min(1.0), Max(1_000_000.0)];
        /// Fill a row with documents of random lengths instead of one.
        generate_samples: bool = false;
    }
}

section! {
    /// Where batches come from.
    pub struct TrainerData {
        /// Made-up batches; without this section there are none yet.
        fake: Option<FakeBatches> = None;
    }
}

section! {
    /// Measuring instead of training: 4 steps, of which the first warms up, at a constant rate and without checkpoints, on
    /// made-up data unless data is configured. No folder is written.
    pub struct Bench {
        /// File for the result.
        output_json: Option<PathBuf> = None;
    }
}

trainer_section! {
    /// The trainer of reinforcement learning alone.
    TrainerRun {
        /// Empty the folder of the run first.
        clean_output_dir: bool = false => [Action];
        /// Check keys and values, write the effective configuration, and stop (not in prime-rl).
        dry_run: bool = false => [Action];
        /// Everything random follows from it (not in prime-rl).
        seed: u64 = 0;
        /// Where the model computes (not in prime-rl).
        device: Device = Device::Auto;
        /// Which implementation of the model computes (not in prime-rl).
        kernels: Kernels = Kernels::Fast;
        /// Sum in a fixed order on a GPU too, so that the same seed gives the same run; the CPU always does (not in prime-rl).
        deterministic: bool = false;
        /// Where batches come from.
        data: TrainerData = TrainerData::default();
        /// Measure instead of training.
        bench: Option<Bench> = None => [Action];
    }
    renamed [
        "clean" => "`clean_output_dir = true`",
        "resume" => "`[ckpt] resume_step = N` (-1 is the newest)",
        "monitors" => "`[wandb]`; metrics.jsonl is always written"
    ]
}

impl TrainerRun {
    /// What follows from other values where nothing was said.
    pub(crate) fn derive(&mut self) {
        self.tokenizer.name.get_or_insert_with(|| self.model.name.clone());
    }
}
