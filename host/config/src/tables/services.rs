//! What an environment may be granted beside its log, and what stands behind the grants.

use crate::macros::{choice, section, union};

choice! {
    /// A capability of an environment.
    pub enum Grant {
        /// Files published with it.
        "assets" => Assets,
        /// HTTP to the addresses in `http_allow`.
        "http" => Http,
        /// A scratch map that outlives rollouts.
        "kv" => Kv,
        /// The models in `llm`.
        "llm" => Llm,
    }
}

section! {
    /// A model outside the run, behind an OpenAI-compatible server.
    pub struct FrozenModel {
        /// The model's name on that server.
        name: String = String::new() => [Required];
        /// Addresses of servers of the model up to their version, such as "http://localhost:8001/v1"; requests go to them in
        /// turn.
        base_url: Vec<String> = Vec::new();
        /// Variable of the process's environment that holds the key, if there is one.
        api_key_var: String = "VLLM_API_KEY".to_string();
        /// Seconds that a server may take to be there when the run starts.
        wait_for_ready_timeout: u64 = 300 => [Max(86_400.0)];
        /// Take the server's word for it that it has the model.
        skip_model_check: bool = false;
        /// Seconds one request may take (not in prime-rl).
        timeout: f64 = 600.0 => [Above(0.0), Max(3600.0)];
        /// Further tries of a request that failed in a way that may pass (not in prime-rl).
        max_retries: u32 = 3 => [Max(10.0)];
        /// Requests under way at once (not in prime-rl).
        max_concurrent: usize = 64 => [Min(1.0)];
    }
    unsupported [
        "headers", "headers_from_env", "extra_headers_from_state", "dp_rank_count", "admin_base_url", "elastic",
        "router_url", "trust_remote_code", "vlm",
    ]
}

section! {
    /// Servers that the policy is sampled on instead of in this process; they take new weights after every step.
    pub struct PolicyClient {
        /// Addresses of the servers up to their version; requests go to them in turn.
        base_url: Vec<String> = vec!["http://localhost:8000/v1".to_string()];
        /// Addresses that take new weights, as many; none means those of `base_url`.
        admin_base_url: Option<Vec<String>> = None;
        /// Variable of the process's environment that holds the key, if there is one.
        api_key_var: String = "VLLM_API_KEY".to_string();
        /// Variable of the process's environment that holds the key of the doors that take weights; none means the same key
        /// (not in prime-rl).
        admin_api_key_var: Option<String> = None;
        /// Seconds that a server may take to be there when the run starts.
        wait_for_ready_timeout: u64 = 300 => [Max(86_400.0)];
        /// Seconds one turn may take (not in prime-rl).
        timeout: f64 = 600.0 => [Above(0.0), Max(86_400.0)];
        /// Further tries of a request that failed in a way that may pass (not in prime-rl).
        max_retries: u32 = 3 => [Max(10.0)];
    }
    unsupported [
        "headers", "headers_from_env", "extra_headers_from_state", "skip_model_check", "dp_rank_count", "elastic",
        "router_url",
    ]
}

section! {
    /// Weights go by a folder that trainer and servers both reach.
    pub struct FilesystemBroadcast {}
    unsupported ["save_format", "save_sharded"]
}

section! {
    /// Weights go from GPU to GPU.
    pub struct NcclBroadcast {
        /// Seconds that trainer and servers wait for each other.
        timeout: f64 = 1200.0 => [Above(0.0), Max(86_400.0)];
    }
    unsupported ["quantize_in_weight_transfer"]
    renamed [
        "host" => "the variable NCCL_SOCKET_IFNAME of the trainer's environment, which names the network interface",
        "port" => "nothing: servers get the address that NCCL listens on with its id",
        "inference_world_size" => "nothing: it is the number of `orchestrator.model.client.base_url`",
    ]
}

union! {
    /// How new weights get to servers that sample.
    pub enum WeightBroadcast {
        /// Through a folder.
        "filesystem" => Filesystem(FilesystemBroadcast),
        /// From GPU to GPU.
        "nccl" => Nccl(NcclBroadcast),
    }
    default "filesystem"
    unsupported ["nixl"]
}

section! {
    /// A model that an environment may ask, behind an OpenAI-compatible server.
    pub struct LlmRole {
        /// What the environment calls it, such as "judge".
        role: String = String::new() => [Required];
        /// Address of the server up to its version, such as "https://api.openai.com/v1".
        base_url: String = String::new() => [Required];
        /// The model's name on that server.
        model: String = String::new() => [Required];
        /// Variable of the process's environment that holds the key; none means no key.
        api_key_var: Option<String> = None;
        /// Seconds one request may take.
        timeout: f64 = 60.0 => [Above(0.0), Max(3600.0)];
        /// Further tries of a request that failed in a way that may pass.
        max_retries: u32 = 2 => [Max(10.0)];
        /// Requests under way at once.
        max_concurrent: usize = 32 => [Min(1.0)];
    }
}
