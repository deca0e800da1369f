//! `[orchestrator]`: environments, algorithm, batches.

use super::common::{LogLevel, Tokenizer, Wandb};
use super::environment::{EvalEnv, EvalSampling, TrainEnv, TrainSampling};
use super::services::{FrozenModel, PolicyClient};
use super::trainer::DEFAULT_MODEL;
use crate::macros::{choice, section, union};
use crate::schema::{Described, Field, Key, Kind, Node, Section, json};
use serde_json::{Map, Value as Json};
use std::path::PathBuf;

/// Rollouts per step where nothing is said.
const DEFAULT_BATCH: usize = 128;

/// The algorithm: which plug-in, and what is handed to it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Algo {
    /// Name of the plug-in.
    #[serde(rename = "type")]
    pub kind: String,
    /// The model whose log-probabilities the plug-in wants.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub teacher: Option<FrozenModel>,
    /// Where rollouts come from.
    #[serde(default, skip_serializing_if = "AlgoSampling::is_policy")]
    pub sampling: AlgoSampling,
    /// The plug-in's own settings, which it checks itself.
    #[serde(flatten)]
    pub config: Map<String, Json>,
}

impl Default for Algo {
    fn default() -> Self {
        let (teacher, sampling) = (None, AlgoSampling::default());
        Algo { kind: "grpo".to_string(), teacher, sampling, config: Map::new() }
    }
}

section! {
    /// Where the rollouts of an algorithm come from.
    pub struct AlgoSampling {
        /// A model outside the run that is sampled instead of the policy; none means the policy.
        source: Option<FrozenModel> = None;
    }
}

impl AlgoSampling {
    /// Whether rollouts are the policy's.
    fn is_policy(&self) -> bool {
        self.source.is_none()
    }
}

impl Described for Algo {
    fn section() -> Section {
        let key = |name, doc, node, default| Key { name, doc, node, default, rules: Vec::new() };
        let teacher = "The model whose log-probabilities of the sampled tokens the plug-in wants.";
        Section {
            doc: "`type` names the plug-in. These keys are for the host, every other one is the plug-in's own.",
            keys: vec![
                key("teacher", teacher, Option::<FrozenModel>::node(), Json::Null),
                key("sampling", "Where rollouts come from.", AlgoSampling::node(), json(&AlgoSampling::default())),
            ],
            open: true,
            unsupported: &[],
            renamed: &[],
        }
    }
}

impl Field for Algo {
    fn node() -> Node {
        Node { kind: Kind::OpenUnion("grpo", Algo::section()), optional: false }
    }
}

section! {
    /// The adapter that the trainer trains, on servers.
    pub struct SampledLora {
        /// What servers call it; by default `r<rank>-a<alpha>`.
        name: Option<String> = None;
        /// As the trainer's.
        rank: Option<usize> = None => [Min(1.0)];
        /// As the trainer's.
        alpha: Option<f64> = None => [Above(0.0)];
    }
}

section! {
    /// The sampled model.
    pub struct OrchestratorModel {
        /// Folder in Hugging Face's layout, or hub id.
        name: String = DEFAULT_MODEL.to_string() => [Path];
        /// Servers to sample it on; none means in this process.
        client: Option<PolicyClient> = None;
        /// The adapter, where one is trained.
        lora: Option<SampledLora> = None;
    }
    unsupported ["trust_remote_code", "vlm"]
}

choice! {
    /// How messages become tokens.
    pub enum RendererName {
        /// The format below that is the model's own chat template but for what later turns do to earlier ones, else "default".
        "auto" => Auto,
        /// The model's own chat template.
        "default" => Default,
        /// Qwen3's format, with the reasoning of all turns.
        "qwen3" => Qwen3,
        /// The format of Qwen3.5 and 3.6, with the reasoning of all turns.
        "qwen3.5" => Qwen35,
        /// Qwen2.5's format.
        "qwen2.5" => Qwen25,
        /// The format of Llama 3 to 3.3.
        "llama3" => Llama3,
        /// GLM-4.5's format, with the reasoning of all turns.
        "glm-4.5" => Glm45,
        /// gpt-oss's format, with the reasoning of all turns.
        "gpt-oss" => GptOss,
        /// ChatML.
        "chatml" => ChatMl,
    }
    unsupported [
        "qwen3_vl", "qwen3.6", "glm-5", "glm-5.1", "minimax-m2", "deepseek-v3", "kimi-k2", "kimi-k2.5",
        "nemotron-3",
    ]
}

choice! {
    /// How a model writes tool calls.
    pub enum ToolParser {
        /// JSON in `<tool_call>`.
        "hermes" => Hermes,
        /// A turn of bare JSON, or behind `<|python_tag|>`.
        "llama3_json" => Llama3,
        /// `<function=name>` with `<parameter=key>` in `<tool_call>`.
        "qwen3_coder" => Xml,
        /// A name with `<arg_key>` and `<arg_value>` in `<tool_call>`.
        "glm45" => Glm,
        /// A message of its own to `functions.name`.
        "openai" => Harmony,
        /// There are none: all is text.
        "none" => None,
    }
}

choice! {
    /// How a model writes reasoning.
    pub enum ReasoningParser {
        /// In `<think>`.
        "think" => Think,
        /// There is none: all is text.
        "none" => None,
    }
}

section! {
    /// Rendering of conversations.
    pub struct Renderer {
        /// Which renderer.
        name: RendererName = RendererName::Auto;
        /// Whether the model may think; none leaves it to the model's template, and means yes for a format that can be told.
        enable_thinking: Option<bool> = None;
        /// Whether the model goes on seeing the reasoning of earlier turns. Formats keep it, as "default" does where it can; false
        /// makes "default" render every turn anew, which is a sample of its own.
        preserve_all_thinking: Option<bool> = None;
        /// How the model writes tool calls; none means that it is found out.
        tool_parser: Option<ToolParser> = None;
        /// How the model writes reasoning; none means that it is found out.
        reasoning_parser: Option<ReasoningParser> = None;
    }
    unsupported ["pool_size", "preserve_thinking_between_tool_calls", "synthesize_close_on_truncation"]
}

section! {
    /// Flags rollouts with rare tokens sampled against the odds.
    pub struct GibberishFilter {
        /// Drop flagged rollouts; otherwise they are only counted.
        enforce: bool = false;
        /// Token ids above this are rare.
        token_id_threshold: i64 = 100_000;
        /// How far below uniform a token's log-probability must lie.
        logprob_offset: f64 = 2.0;
    }
}

section! {
    /// Flags rollouts with a long run of near-certain tokens.
    pub struct RepetitionFilter {
        /// Drop flagged rollouts; otherwise they are only counted.
        enforce: bool = false;
        /// Length of the run in tokens.
        window: usize = 3000 => [Min(1.0)];
        /// Probability above which a token is near-certain.
        prob_threshold: f64 = 0.99 => [Above(0.0), Max(1.0)];
    }
}

section! {
    /// Flags rollouts whose advantages are all 0.
    pub struct ZeroAdvantageFilter {
        /// Drop flagged rollouts; otherwise they are only counted.
        enforce: bool = true;
    }
}

union! {
    /// A test on rollouts.
    pub enum Filter {
        /// Rare tokens against the odds.
        "gibberish" => Gibberish(GibberishFilter),
        /// Long runs of near-certain tokens.
        "repetition" => Repetition(RepetitionFilter),
        /// Nothing to learn from.
        "zero_advantage" => ZeroAdvantage(ZeroAdvantageFilter),
    }
}

/// The default filters; before a batch is cut none is enforced, after it the one on advantages is.
fn filters(enforce_zero_advantage: bool) -> Vec<Filter> {
    vec![
        Filter::Gibberish(GibberishFilter::default()),
        Filter::Repetition(RepetitionFilter::default()),
        Filter::ZeroAdvantage(ZeroAdvantageFilter { enforce: enforce_zero_advantage }),
    ]
}

section! {
    /// What to train on.
    pub struct TrainConfig {
        /// Environments, at least one.
        env: Vec<TrainEnv> = Vec::new();
        /// Sampling of environments that do not say otherwise.
        sampling: TrainSampling = TrainSampling::default();
    }
    unsupported ["filter_zero_advantages"]
    renamed ["source" => "`env`"]
}

section! {
    /// What to evaluate on.
    pub struct EvalConfig {
        /// Environments, at least one.
        env: Vec<EvalEnv> = Vec::new();
        /// Sampling of environments that do not say otherwise.
        sampling: EvalSampling = EvalSampling::default();
        /// Tasks per evaluation of environments that do not say otherwise; -1 means all.
        num_examples: i64 = -1 => [Min(-1.0)];
        /// Rollouts per task of environments that do not say otherwise.
        group_size: usize = 1 => [Min(1.0), Alias("rollouts_per_example")];
        /// Steps between evaluations of environments that do not say otherwise.
        interval: u64 = 100 => [Min(1.0)];
        /// No evaluation before the first step.
        skip_first_step: bool = false;
    }
    unsupported ["retrigger_on_resume"]
    renamed ["source" => "`env`"]
}

section! {
    /// Checkpoints of the orchestrator.
    pub struct OrchestratorCkpt {
        /// Steps between checkpoints; none means only at the end.
        interval: Option<u64> = None => [Min(1.0)];
        /// Step to resume from; -1 is the newest.
        resume_step: Option<i64> = None => [Min(-1.0)];
        /// How many of the newest checkpoints are kept; none means all.
        keep_last: Option<u64> = None => [Min(1.0)];
        /// Checkpoints of every so many steps are kept whatever `keep_last` says.
        keep_interval: Option<u64> = None => [Min(1.0)];
        /// When going on: begin the totals of tokens, rollouts and tasks at 0; the step stays.
        skip_progress: bool = false;
    }
    unsupported ["wait_for_weights_timeout"]
}

section! {
    /// Logging of the orchestrator.
    pub struct OrchestratorLog {
        /// Least severe level that is logged.
        level: LogLevel = LogLevel::Info;
        /// One JSON object per line instead of text.
        json_logging: bool = false;
        /// Seconds between lines that say what is under way.
        interval: f64 = 10.0 => [Above(0.0)];
    }
    unsupported ["vf_level", "log_data", "ranks_filter"]
}

section! {
    /// Rollouts: environments, algorithm, batches.
    pub struct OrchestratorConfig {
        /// The algorithm of environments that have none of their own: `type` names the plug-in, the other keys are handed to
        /// it.
        algo: Algo = Algo::default();
        /// Further algorithms that score the same groups and train nothing; their streams' statistics are recorded beside those of
        /// the algorithms that train (not in prime-rl).
        shadow_algo: Vec<Algo> = Vec::new();
        /// The sampled model.
        model: OrchestratorModel = OrchestratorModel::default();
        /// What to train on.
        train: TrainConfig = TrainConfig::default();
        /// What to evaluate on; nothing without this section.
        eval: Option<EvalConfig> = None;
        /// The model's tokenizer.
        tokenizer: Tokenizer = Tokenizer::default();
        /// Rendering of conversations.
        renderer: Renderer = Renderer::default();
        /// Tests on scored rollouts before they enter a batch; a dropped rollout is replaced.
        pre_batch_filters: Vec<Filter> = filters(false);
        /// Tests on the rollouts of a batch; a dropped rollout is not replaced.
        post_batch_filters: Vec<Filter> = filters(true);
        /// Logging.
        log: OrchestratorLog = OrchestratorLog::default();
        /// Weights & Biases; not recorded without this section.
        wandb: Option<Wandb> = None;
        /// Checkpoints; none without this section.
        ckpt: Option<OrchestratorCkpt> = None;
        /// Folder of the run.
        output_dir: PathBuf = PathBuf::from("outputs");
        /// Rollouts per step; 128 where neither this nor `token_batch_size` is set.
        batch_size: Option<usize> = None => [Min(1.0), Max(1_000_000.0)];
        /// Tokens per step instead: whole rollouts until there are at least so many; needs `max_inflight_rollouts`.
        token_batch_size: Option<usize> = None => [Min(1.0), Max(1_000_000_000.0)];
        /// Rollouts in flight as a multiple of `batch_size`; 1 where neither this nor `max_inflight_rollouts` is set.
        oversampling_factor: Option<f64> = None => [Above(0.0)];
        /// Rollouts that may start in a minute, evaluations included: so many at once, then evenly; none means no limit.
        tasks_per_minute: Option<u32> = None => [Min(1.0)];
        /// How often a rollout that fails in its environment or engine is started again, with the same seed (not in prime-rl).
        max_retries: u32 = 0;
        /// Rollouts in flight.
        max_inflight_rollouts: Option<usize> = None => [Min(1.0), Max(1_000_000.0)];
        /// Rollouts per task of environments that do not say otherwise.
        group_size: usize = 1 => [Min(1.0), Alias("rollouts_per_example")];
        /// Most tokens of a rollout, prompt included.
        seq_len: usize = 2048 => [Min(1.0)];
        /// Ranks of the trainer that share a batch.
        num_train_workers: usize = 1 => [Min(1.0)];
        /// Steps of training; none means no end.
        max_steps: Option<u64> = None => [Min(1.0)];
        /// Weight updates that may land while a rollout is in flight before it is dropped.
        max_off_policy_steps: u64 = 8;
        /// Steps that sampling may run ahead of training; 0 is synchronous (not in prime-rl, which has 1).
        max_async_level: u64 = 1;
        /// Share of failed rollouts among the last `max(32, 2 * batch_size)` of one environment above which the run ends
        /// (not in prime-rl).
        max_error_rate: f64 = 0.9 => [Min(0.0), Max(1.0)];
    }
    unsupported [
        "pool_size", "optim", "env_vars", "prime_monitor", "collect_inference_metrics", "inference_metrics_roles",
        "weight_broadcast", "rollout_transport", "bench", "heartbeat", "concurrency", "env_server_base_port", "pad_to_multiple_of", "monitors",
    ]
    renamed [
        "env" => "`[[orchestrator.train.env]]`",
        "sampling" => "`[orchestrator.train.sampling]`",
        "strict_async_level" => "`max_async_level = 0` for a synchronous run",
    ]
}

impl OrchestratorConfig {
    /// Rollouts per step, or `None` where it is counted in tokens.
    pub fn rollouts_per_step(&self) -> Option<usize> {
        self.batch_size.or_else(|| self.token_batch_size.is_none().then_some(DEFAULT_BATCH))
    }

    /// The algorithm of training environment `index`, and the dotted key it stands at.
    pub fn algo_of(&self, index: usize) -> (String, &Algo) {
        match self.train.env.get(index).and_then(|env| env.algo.as_ref()) {
            Some(algo) => (format!("orchestrator.train.env.{index}.algo"), algo),
            None => ("orchestrator.algo".to_string(), &self.algo),
        }
    }

    /// Rollouts in flight: `max_inflight_rollouts` (which a step counted in tokens has), or the rollouts of a step times
    /// the oversampling factor, and at least one group of the largest size.
    pub fn inflight_rollouts(&self) -> usize {
        let largest = self.train.env.iter().map(|e| e.group_size).max().unwrap_or(self.group_size);
        let factor = self.oversampling_factor.unwrap_or(1.0);
        let batch = self.rollouts_per_step().unwrap_or(DEFAULT_BATCH);
        let wanted = self.max_inflight_rollouts.unwrap_or((batch as f64 * factor) as usize);
        wanted.max(largest)
    }
}
