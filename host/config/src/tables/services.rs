//! What an environment may be granted beside its log, and what stands behind the grants.

use crate::macros::{choice, section};

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
