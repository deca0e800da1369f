//! One item of `[[orchestrator.train.env]]` and `[[orchestrator.eval.env]]`.

use super::curriculum::Curriculum;
use super::orchestrator::Algo;
use super::{Grant, LlmRole};
use crate::macros::{choice, section, union};
use serde_json::{Map, Value as Json};

section! {
    /// Sampling parameters that prime-rl passes through `extra_body`.
    pub struct SamplingExtra {
        /// Sample from the most likely tokens that make up this much probability.
        top_p: f64 = 1.0 => [Above(0.0), Max(1.0)];
        /// Sample from this many most likely tokens; -1 means all.
        top_k: i64 = -1 => [Min(-1.0)];
        /// Drop tokens less likely than this share of the most likely one.
        min_p: f64 = 0.0 => [Min(0.0), Max(1.0)];
        /// Texts that end a turn.
        stop: Vec<String> = Vec::new();
    }
    unsupported [
        "seed", "return_token_ids", "presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens", "logit_bias",
        "chat_template_kwargs", "stop_token_ids", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
    ]
}

section! {
    /// Sampling of training rollouts.
    pub struct TrainSampling {
        /// Temperature.
        temperature: f64 = 1.0 => [Min(0.0), Max(2.0)];
        /// Most tokens per turn; none means as many as the context holds.
        max_completion_tokens: Option<usize> = None => [Min(1.0), Alias("max_tokens")];
        /// Further parameters.
        extra_body: SamplingExtra = SamplingExtra::default();
    }
}

section! {
    /// Sampling of evaluation rollouts.
    pub struct EvalSampling {
        /// Temperature; none means 1, and 0 picks the most likely token.
        temperature: Option<f64> = None => [Min(0.0), Max(2.0)];
        /// Sample from the most likely tokens that make up this much probability.
        top_p: Option<f64> = None => [Above(0.0), Max(1.0)];
        /// Sample from this many most likely tokens; -1 means all.
        top_k: Option<i64> = None => [Min(-1.0)];
        /// Drop tokens less likely than this share of the most likely one.
        min_p: Option<f64> = None => [Min(0.0), Max(1.0)];
        /// Most tokens per turn; none means as many as the context holds.
        max_completion_tokens: Option<usize> = None => [Min(1.0), Alias("max_tokens")];
        /// Further parameters.
        extra_body: SamplingExtra = SamplingExtra::default();
    }
    unsupported ["reasoning_effort"]
}

section! {
    /// Wall-clock limits.
    pub struct Timeout {
        /// Seconds after which a rollout is cut off and scored; none means no limit.
        rollout: Option<f64> = None => [Above(0.0)];
        /// Seconds one call into the environment may take; waiting for models and servers does not count (not in
        /// prime-rl).
        call: f64 = 10.0 => [Above(0.0)];
    }
}

choice! {
    /// What shares an instance of the environment.
    pub enum Isolation {
        /// Nothing: each rollout has a fresh instance.
        "rollout" => Rollout,
        /// The rollouts of a worker.
        "worker" => Worker,
    }
}

section! {
    /// Workers that are added as rollouts in flight need them.
    pub struct ElasticPool {
        /// Most workers; none means one per processor.
        max_workers: Option<usize> = None => [Min(1.0)];
        /// Rollouts that share a worker.
        multiplex: usize = 128 => [Min(1.0)];
    }
}

section! {
    /// A fixed number of workers.
    pub struct StaticPool {
        /// How many.
        num_workers: usize = 4 => [Min(1.0)];
    }
}

union! {
    /// The workers of an environment.
    pub enum Pool {
        /// As many as needed.
        "elastic" => Elastic(ElasticPool),
        /// A fixed number.
        "static" => Static(StaticPool),
    }
    default "elastic"
}

/// What it takes to run an environment, whatever it is used for.
#[derive(Clone, Debug, PartialEq)]
pub struct EnvHost {
    /// As written: a path, or a name that is looked up.
    pub id: String,
    /// Name in logs and metrics.
    pub name: String,
    /// The environment's own settings.
    pub args: Map<String, Json>,
    /// Weights of reward components that replace its own.
    pub weights: Map<String, Json>,
    /// Split its tasks come from.
    pub split: String,
    /// Most sampled turns of a rollout.
    pub max_turns: Option<u32>,
    /// Wall-clock limits.
    pub timeout: Timeout,
    /// Most rollouts in flight.
    pub max_concurrent: Option<usize>,
    /// What shares an instance.
    pub isolation: Isolation,
    /// Cap on an instance's memory, MiB.
    pub memory_mb: u32,
    /// Instructions of one call.
    pub fuel: Option<u64>,
    /// Workers.
    pub pool: Pool,
    /// Capabilities the environment may use.
    pub grants: Vec<Grant>,
    /// Models it may ask.
    pub llm: Vec<LlmRole>,
    /// Addresses it may reach.
    pub http_allow: Vec<String>,
    /// Bound of its scratch map, MiB.
    pub kv_mb: u32,
}

/// The keys that train and eval environments share, around those of their own.
macro_rules! env_section {
    ($(#[doc = $doc:literal])+ $name:ident { $($own:tt)* } unsupported [$($unsupported:literal),*]) => {
        section! {
            $(#[doc = $doc])+
            pub struct $name {
                /// Path of the environment (relative to this file), or a name that is looked up.
                id: String = String::new() => [Required, Path];
                /// Name in logs and metrics, unique; by default the last part of the id.
                name: String = String::new();
                /// The environment's own settings.
                args: Map<String, Json> = Map::new();
                /// Weights of reward components, by name, that replace the environment's own (not in prime-rl).
                weights: Map<String, Json> = Map::new();
                /// Relative share of the tasks.
                ratio: f64 = 1.0 => [Above(0.0)];
                /// Rollouts per task.
                group_size: usize = 1 => [Min(1.0), Alias("rollouts_per_example")];
                $($own)*
                /// Most sampled turns of a rollout; none means the environment's own limit.
                max_turns: Option<u32> = None => [Min(1.0)];
                /// Wall-clock limits.
                timeout: Timeout = Timeout::default();
                /// Most rollouts of this environment in flight; none means no limit of its own.
                max_concurrent: Option<usize> = None => [Min(1.0)];
                /// What shares an instance of the environment (not in prime-rl).
                isolation: Isolation = Isolation::Rollout;
                /// Cap on an instance's memory, MiB (not in prime-rl).
                memory_mb: u32 = 256 => [Min(1.0), Max(4096.0)];
                /// Instructions one call may take, counted alike on every machine; none means not counted (not in prime-rl).
                fuel: Option<u64> = None => [Min(1.0)];
                /// Workers.
                pool: Pool = Pool::Elastic(ElasticPool::default());
                /// Capabilities the environment may use: "assets", "http", "kv", "llm" (not in prime-rl).
                grants: Vec<Grant> = Vec::new();
                /// Models it may ask, by role; needs the grant "llm" (not in prime-rl).
                llm: Vec<LlmRole> = Vec::new();
                /// Addresses it may reach, and all below them; needs the grant "http" (not in prime-rl).
                http_allow: Vec<String> = Vec::new();
                /// Bound of its scratch map, MiB; needs the grant "kv" (not in prime-rl).
                kv_mb: u32 = 64 => [Min(1.0), Max(4096.0)];
            }
            unsupported [
                "address", "taskset", "harness", "extra_env_kwargs", "max_output_tokens", "agent", "serve"
                $(, $unsupported)*
            ]
            renamed ["num_workers" => "`pool = { type = \"static\", num_workers = N }`"]
        }

        impl $name {
            /// What it takes to run it.
            pub fn host(&self) -> EnvHost {
                EnvHost {
                    id: self.id.clone(),
                    name: self.name.clone(),
                    args: self.args.clone(),
                    weights: self.weights.clone(),
                    split: self.split.clone(),
                    max_turns: self.max_turns,
                    timeout: self.timeout.clone(),
                    max_concurrent: self.max_concurrent,
                    isolation: self.isolation,
                    memory_mb: self.memory_mb,
                    fuel: self.fuel,
                    pool: self.pool.clone(),
                    grants: self.grants.clone(),
                    llm: self.llm.clone(),
                    http_allow: self.http_allow.clone(),
                    kv_mb: self.kv_mb,
                }
            }
        }
    };
}

env_section! {
    /// An environment to train on.
    TrainEnv {
        /// Split its tasks come from (not in prime-rl).
        split: String = "train".to_string();
        /// Sampling; keys not set here come from `orchestrator.train.sampling`.
        sampling: TrainSampling = TrainSampling::default();
        /// An algorithm of its own, whole: nothing of it comes from `orchestrator.algo`, which is the algorithm of
        /// environments without one.
        algo: Option<Algo> = None;
        /// Which of its tasks are sampled and which groups train.
        curriculum: Curriculum = Curriculum::default();
    }
    unsupported []
}

env_section! {
    /// An environment to evaluate on.
    EvalEnv {
        /// Split its tasks come from (not in prime-rl).
        split: String = "eval".to_string();
        /// Sampling; keys not set here come from `orchestrator.eval.sampling`.
        sampling: EvalSampling = EvalSampling::default();
        /// Tasks per evaluation; -1 means all.
        num_examples: i64 = -1 => [Min(-1.0)];
        /// Steps between evaluations.
        interval: u64 = 100 => [Min(1.0)];
    }
    unsupported ["curriculum"]
}
