//! Every key of `prl rl`, `prl sft`, `prl trainer` and `prl inference`: type, default, limits and help, as prime-rl names them; keys of our own say so.
//!
//! Owns the configuration structs. Must not know files, flags or how values are checked.

mod common;
mod curriculum;
mod environment;
mod inference;
mod orchestrator;
mod rl;
mod services;
mod sft;
mod trainer;

pub use common::{Device, Kernels, Log, LogLevel, MatmulPrecision, Tokenizer, Wandb};
pub use curriculum::{Curriculum, DifficultyPool, DifficultyPoolSampler, Gate, Sampler, StandardSampler};
pub use environment::{
    ElasticPool, EnvHost, EvalEnv, EvalSampling, Isolation, Pool, SamplingExtra, StaticPool, Timeout, TrainEnv,
    TrainSampling,
};
pub use inference::{InferenceConfig, InferenceModel, InferenceRun, ServedModel, Server};
pub use orchestrator::{
    Algo, AlgoSampling, EvalConfig, Filter, GibberishFilter, OrchestratorCkpt, OrchestratorConfig, OrchestratorLog,
    OrchestratorModel, ReasoningParser, Renderer, RendererName, RepetitionFilter, SampledLora, ToolParser, TrainConfig,
    ZeroAdvantageFilter,
};
pub use rl::{RlConfig, SharedCkpt, SharedLog, SharedModel, SharedWandb};
pub use services::{FilesystemBroadcast, FrozenModel, Grant, LlmRole, NcclBroadcast, PolicyClient, WeightBroadcast};
pub use sft::{
    EnvData, FakeData, FakeIds, FakeLength, FileData, LossMask, SftConfig, SftData, SftVal, StoppingStrategy,
};
pub use trainer::{
    AcMode, AcTarget, ActivationCheckpoint, AdamW, Bench, ConstantScheduler, CosineScheduler, CustomLoss, DebugModel,
    DefaultLoss, FakeBatches, IpoLoss, LinearScheduler, Lora, Loss, Muon, Optim, Scheduler, Sgd, SignSgd, TrainerCkpt,
    TrainerConfig, TrainerData, TrainerModel, TrainerRun, WeightCkpt,
};
