//! Every key of `prl rl` and `prl sft`: type, default, limits and help, as prime-rl names them; keys of our own say so.
//!
//! Owns the configuration structs. Must not know files, flags or how values are checked.

mod common;
mod environment;
mod orchestrator;
mod rl;
mod sft;
mod trainer;

pub use common::{Device, Kernels, Log, LogLevel, Tokenizer, Wandb};
pub use environment::{
    ElasticPool, EnvHost, EvalEnv, EvalSampling, Isolation, Pool, SamplingExtra, StaticPool, Timeout, TrainEnv,
    TrainSampling,
};
pub use orchestrator::{
    Algo, EvalConfig, Filter, GibberishFilter, OrchestratorCkpt, OrchestratorConfig, OrchestratorModel, Renderer,
    RendererName, RepetitionFilter, TrainConfig, ZeroAdvantageFilter,
};
pub use rl::{InferenceConfig, InferenceModel, RlConfig, SharedCkpt, SharedLog, SharedModel, SharedWandb};
pub use sft::{EnvData, FileData, LossMask, SftConfig, SftData, SftVal};
pub use trainer::{
    AdamW, ConstantScheduler, CosineScheduler, DebugModel, DefaultLoss, IpoLoss, LinearScheduler, Loss, Optim,
    Scheduler, TrainerCkpt, TrainerConfig, TrainerModel,
};
