//! From names in the configuration to opened things: model folders, tokenizers; environments are in a file of their
//! own. Owns where relative names are looked up.

use crate::failure::{Failure, input};
use prl_config::{Loaded, ReasoningParser, RendererName, ToolParser};
use prl_hub::HubOptions;
use prl_model::{Decoder, Device, ModelConfig};
use prl_render::{Calls, Choice, FormatName, Renderer, RendererOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folder of a model. A name set in a file is first looked up beside that file, then in the working directory, then on
/// the hub.
pub fn model_dir<C>(loaded: &Loaded<C>, key: &str, name: &str) -> Result<PathBuf, Failure> {
    let beside = loaded.path_of(key, name);
    if beside.is_dir() {
        return Ok(beside);
    }
    prl_model::resolve(name, &hub()).map_err(|e| Failure::input(format_args!("`{key}`: {e}")))
}

/// The hub, as the environment says.
pub fn hub() -> HubOptions {
    HubOptions::from_vars(|variable| std::env::var(variable).ok())
}

/// The device's peak, floating-point operations per second, for `perf/mfu`; a GPU that is not in the table is told once.
pub fn peak_flops(device: Device) -> Option<f64> {
    let Device::Cuda(index) = device else { return None };
    let name = crate::machine::gpu(index)?.name;
    let peak = prl_trainer::peak_flops(&name);
    if peak.is_none() {
        tracing::warn!(target: "prl_trainer", "the peak of {name} is not known here: there is no `perf/mfu`");
    }
    peak
}

/// Weights from a folder, or random ones of the folder's shape.
pub fn decoder(dir: &Path, random: Option<u64>, device: Device) -> Result<Decoder, Failure> {
    let subject = || format!("model `{}`", dir.display());
    let device = device.open().map_err(|e| Failure::input(format_args!("`device`: {e}")))?;
    crate::budget::check_weights(dir)?;
    match random {
        Some(seed) => {
            let config = ModelConfig::load(dir).map_err(input(subject()))?;
            Ok(Decoder::init(config, seed, &device))
        }
        None => Decoder::load_hf(dir, &device).map_err(input(subject())),
    }
}

/// Tokenizer and renderer of a folder, for `model`.
pub fn renderer(
    dir: &Path,
    chat_template: Option<String>,
    config: &prl_config::Renderer,
    model: &Decoder,
) -> Result<Arc<Renderer>, Failure> {
    let choice = match config.name {
        RendererName::Auto => Choice::Auto,
        RendererName::Default => Choice::Template,
        RendererName::Qwen3 => Choice::Format(FormatName::Qwen3),
        RendererName::Qwen35 => Choice::Format(FormatName::Qwen35),
        RendererName::Qwen25 => Choice::Format(FormatName::Qwen25),
        RendererName::Llama3 => Choice::Format(FormatName::Llama3),
        RendererName::Glm45 => Choice::Format(FormatName::Glm45),
        RendererName::GptOss => Choice::Format(FormatName::GptOss),
        RendererName::ChatMl => Choice::Format(FormatName::ChatMl),
    };
    let calls = config.tool_parser.map(|parser| match parser {
        ToolParser::Hermes => Calls::Hermes,
        ToolParser::Llama3 => Calls::Llama3,
        ToolParser::Xml => Calls::Xml,
        ToolParser::Glm => Calls::Glm,
        ToolParser::Harmony => Calls::Harmony,
        ToolParser::None => Calls::None,
    });
    let options = RendererOptions {
        chat_template,
        choice,
        thinking: config.enable_thinking,
        think_blocks: config.reasoning_parser.map(|parser| parser == ReasoningParser::Think),
        calls,
        ..RendererOptions::default()
    };
    let renderer = Renderer::load(dir, options).map_err(input(format_args!("tokenizer `{}`", dir.display())))?;
    let (tokens, rows) = (renderer.tokenizer().vocab_size(), model.config().vocab_size);
    if tokens > rows {
        return Err(Failure::input(format_args!(
            "tokenizer `{}` has {tokens} tokens, but the model's vocabulary is {rows}; they do not belong together",
            dir.display()
        )));
    }
    Ok(Arc::new(renderer))
}

/// Tells which renderer "auto" is, why, and that the key `name` of `section` chooses another.
pub fn tell_renderer(renderer: &Renderer, config: &prl_config::Renderer, section: &str) {
    if config.name != RendererName::Auto {
        return;
    }
    let (name, why) = match renderer.format() {
        Some(format) => (format.as_str(), "the model's chat template writes as this format does"),
        None if renderer.marks_answers() => {
            ("default", "the model's chat template says by itself what the model writes")
        }
        None => ("default", "no format writes as the model's chat template does"),
    };
    tracing::info!(target: "prl_trainer", "Renderer \"{name}\": {why}; `{section}.name` chooses another");
}
