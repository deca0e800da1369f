//! `[inference]` of `prl rl`, and the root of `prl inference`.

use super::common::{Device, Kernels, Log};
use super::trainer::DEFAULT_MODEL;
use crate::macros::section;
use std::path::PathBuf;

section! {
    /// The model as the inference engine sees it.
    pub struct InferenceModel {
        /// Folder in Hugging Face's layout, or hub id.
        name: String = DEFAULT_MODEL.to_string() => [Path];
        /// Most tokens of a request, prompt included; none means what the model allows.
        max_model_len: Option<usize> = None => [Min(1.0)];
    }
    unsupported [
        "dtype", "enforce_eager", "trust_remote_code", "chat_template", "tool_call_parser", "reasoning_parser",
        "rope_scaling", "vlm",
    ]
}

section! {
    /// The model that is served.
    pub struct ServedModel {
        /// Folder in Hugging Face's layout, or hub id.
        name: String = DEFAULT_MODEL.to_string() => [Path];
        /// Most tokens of a request, prompt included; none means what the model allows.
        max_model_len: Option<usize> = None => [Min(1.0)];
        /// Chat template (text, or the path of a file) in place of the model's own.
        chat_template: Option<String> = None => [Path];
    }
    unsupported [
        "dtype", "enforce_eager", "trust_remote_code", "tool_call_parser", "reasoning_parser", "rope_scaling", "vlm",
    ]
}

section! {
    /// Where and for whom the server listens.
    pub struct Server {
        /// Address to listen on; none means 127.0.0.1, which only this machine reaches.
        host: Option<String> = None;
        /// Port to listen on; 0 takes a free one.
        port: u32 = 8000 => [Max(65535.0)];
        /// Seconds within which the engine must answer `/liveness`.
        liveness_timeout_seconds: f64 = 30.0 => [Above(0.0), Max(3600.0)];
        /// Variable of the process's environment that holds the key which callers must show; none lets everybody in (not in prime-rl).
        api_key_var: Option<String> = None;
        /// The same for the trainer's doors, `/pause` and the like; none asks for the key of `api_key_var` (not in prime-rl).
        admin_api_key_var: Option<String> = None;
    }
}

/// The keys of `[inference]` in `prl rl` and of the root of `prl inference`, after those of their own.
macro_rules! inference_section {
    (
        $(#[doc = $doc:literal])+
        $name:ident { $($own:tt)* }
        unsupported [$($unsupported:literal),* $(,)?]
    ) => {
        section! {
            $(#[doc = $doc])+
            pub struct $name {
                $($own)*
                /// Most requests decoded together (not in prime-rl).
                max_num_seqs: usize = 128 => [Min(1.0)];
                /// Most prompt tokens that go through the model in one step, beside the requests that decode; none means 8192 on a GPU and 2048 on the CPU (not in prime-rl).
                max_num_batched_tokens: Option<usize> = None => [Min(1.0)];
                /// Keep what past requests computed for those that begin like them; none means that it is kept.
                enable_prefix_caching: Option<bool> = None;
                /// Memory for keys and values, 2^30 bytes; none means no bound in `prl rl`, and what is free in `prl inference` (not in prime-rl).
                kv_cache_gb: Option<f64> = None => [Above(0.0), Max(1_000_000.0)];
                /// Logging.
                log: Log = Log::default();
            }
            unsupported [
                "parallel", "env_vars", "max_cpu_loras", "lora_target_modules", "quantization", "api_server_count", "data_parallel_size_local",
                "data_parallel_rpc_port", "enable_expert_parallel", "all2all_backend", "enable_eplb", "enable_dbo",
                "use_deep_gemm", "weight_broadcast", "kv_cache_offload", "use_pd_kv_transfer",
                "enable_return_routed_experts", "enable_fp32_lm_head", "enable_fp32_router_logits", "vllm_extra",
                "deployment", "slurm", "vllm", $($unsupported),*
            ]
        }
    };
}

inference_section! {
    /// The inference engine.
    InferenceConfig {
        /// The model.
        model: InferenceModel = InferenceModel::default();
    }
    unsupported [
        "seed", "server", "gpu_memory_utilization", "output_dir", "dry_run", "enable_lora", "max_loras", "max_lora_rank"
    ]
}

inference_section! {
    /// A model served over HTTP.
    InferenceRun {
        /// Folder that `dry_run` writes the effective configuration to.
        output_dir: PathBuf = PathBuf::from("outputs");
        /// Check keys and values, write the effective configuration, and stop.
        dry_run: bool = false => [Action];
        /// The seeds of requests that bring none follow from it.
        seed: u64 = 0;
        /// Where the model computes (not in prime-rl).
        device: Device = Device::Auto;
        /// Which implementation of the model computes (not in prime-rl).
        kernels: Kernels = Kernels::Fast;
        /// Whether a request's tokens must not depend on what runs beside it. On the CPU they never do; on a GPU it costs speed (not in prime-rl).
        exact: bool = false;
        /// The model.
        model: ServedModel = ServedModel::default();
        /// The name by which callers know the model; none means `model.name` (not in prime-rl).
        served_model_name: Option<String> = None;
        /// Where and for whom the server listens.
        server: Server = Server::default();
        /// Most requests that wait; further ones are refused with status 503 (not in prime-rl).
        max_waiting: usize = 4096 => [Min(1.0)];
        /// Whether LoRA adapters may be loaded.
        enable_lora: bool = false;
        /// Most adapters that are loaded at a time.
        max_loras: usize = 8 => [Min(1.0)];
        /// Largest rank of an adapter; none means 512.
        max_lora_rank: Option<usize> = None => [Min(1.0)];
        /// Part of a GPU's memory that model, keys and values may take; `kv_cache_gb` wins.
        gpu_memory_utilization: f64 = 0.9 => [Above(0.0), Max(1.0)];
    }
    unsupported []
}
