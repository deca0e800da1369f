//! Values that are fine alone and wrong together.
//!
//! Owns those rules and their messages. Must not know where values are written: [`crate::loaded::Validator`] finds that.

mod inference;
mod rl;
mod sft;
mod trainer;

pub(crate) use inference::inference;
pub(crate) use rl::rl;
pub(crate) use sft::sft;
pub(crate) use trainer::trainer;

use crate::loaded::Validator;
use crate::tables::{AcMode, Kernels, Optim, Renderer, RendererName, Scheduler, TrainerModel};

/// Selective recomputation must recompute something, and an adapter see something. `prefix` is `trainer.` or empty.
fn model(model: &TrainerModel, prefix: &str, v: &mut Validator<'_>) {
    if let Some(lora) = model.lora.as_ref().filter(|lora| lora.dropout >= 1.0) {
        let key = format!("{prefix}model.lora.dropout");
        v.fail(&[&key], format!("`{key}` ({}) must be below 1, or an addition would see nothing", lora.dropout));
    }
    let Some(ac) = &model.ac else { return };
    if ac.mode == AcMode::Selective && ac.targets.is_empty() {
        let (key, mode) = (format!("{prefix}model.ac.targets"), format!("{prefix}model.ac.mode"));
        let message = format!("`{key}` is empty, so `{mode} = \"selective\"` would recompute nothing: name a target");
        v.fail(&[&key, &mode], message);
    }
}

/// Only our own kernels promise bits.
fn exact(asked: bool, kernels: Kernels, v: &mut Validator<'_>) {
    if asked && kernels == Kernels::Reference {
        let message = "`exact = true` needs `kernels = \"fast\"`: the reference kernels promise no bits";
        v.fail(&["exact", "kernels"], message);
    }
}

/// A moment that keeps all of itself never moves, and without momentum there is no way to look ahead. `prefix` is
/// `trainer.` or empty.
fn optim(optim: &Optim, prefix: &str, v: &mut Validator<'_>) {
    let betas = match optim {
        Optim::AdamW(adamw) => [adamw.betas1, adamw.betas2],
        Optim::Muon(muon) => [muon.betas1, muon.betas2],
        Optim::Sgd(sgd) => {
            if sgd.nesterov && sgd.momentum == 0.0 {
                let (key, momentum) = (format!("{prefix}optim.nesterov"), format!("{prefix}optim.momentum"));
                let message =
                    format!("`{key} = true` needs `{momentum}` above 0: set `{key} = false` for plain descent");
                v.fail(&[&momentum, &key], message);
            }
            return;
        }
        Optim::SignSgd(_) => return,
    };
    for (key, beta) in ["betas1", "betas2"].into_iter().zip(betas) {
        // In f32, as it is used: 1 - 1e-9 would be 1.
        if beta as f32 >= 1.0 {
            let key = format!("{prefix}optim.{key}");
            v.fail(&[&key], format!("`{key}` ({beta}) must be below 1"));
        }
    }
}

/// A schedule must fit into the run. `prefix` is `trainer.` or empty.
fn scheduler(scheduler: &Scheduler, max_steps: Option<u64>, prefix: &str, v: &mut Validator<'_>) {
    let [kind, warmup, decay, steps] =
        ["scheduler.type", "scheduler.warmup_steps", "scheduler.decay_steps", "max_steps"]
            .map(|k| format!("{prefix}{k}"));
    let needs_end = |v: &mut Validator<'_>| {
        let message = format!("`{kind} = \"{}\"` needs `{steps}`: it decays towards the last step", scheduler.tag());
        v.fail(&[&kind, &steps], message);
    };
    match (scheduler, max_steps) {
        (Scheduler::Constant(_), _) => {}
        (Scheduler::Linear(_) | Scheduler::Cosine(_), None) => needs_end(v),
        (Scheduler::Linear(s), Some(max)) if s.warmup_steps.saturating_add(s.decay_steps) > max => {
            let (a, b) = (s.warmup_steps, s.decay_steps);
            let message = format!("`{warmup}` ({a}) + `{decay}` ({b}) must be at most `{steps}` ({max})");
            v.fail(&[&decay, &warmup, &steps, &kind], message);
        }
        (Scheduler::Cosine(s), Some(max)) if s.warmup_steps >= max => {
            let message = format!("`{warmup}` ({}) must be less than `{steps}` ({max})", s.warmup_steps);
            v.fail(&[&warmup, &steps, &kind], message);
        }
        _ => {}
    }
}

/// Cleaning would delete what a resumed run needs.
fn clean_or_resume(clean: bool, resume: Option<i64>, key: &str, v: &mut Validator<'_>) {
    if clean && resume.is_some() {
        let message = format!("`clean_output_dir` would delete the checkpoint that `{key}` resumes from: set only one");
        v.fail(&["clean_output_dir", key], message);
    }
}

/// Only where there is an adapter can it be put aside. `prefix` is `trainer.` or empty.
fn adapter(model: &TrainerModel, ckpt: Option<&crate::TrainerCkpt>, prefix: &str, v: &mut Validator<'_>) {
    if model.lora.is_none() && ckpt.is_some_and(|ckpt| ckpt.weights.save_adapter_separately) {
        let (key, lora) = (format!("{prefix}ckpt.weights.save_adapter_separately"), format!("{prefix}model.lora"));
        v.fail(&[&key], format!("`{key}` needs `[{lora}]`: without it no adapter is trained"));
    }
}

/// Starting fresh is for the newest checkpoint, not for one that is named.
fn fresh(ckpt: Option<&crate::TrainerCkpt>, section: &str, v: &mut Validator<'_>) {
    if ckpt.is_some_and(|ckpt| ckpt.allow_fresh && ckpt.resume_step != Some(-1)) {
        let (key, step) = (format!("{section}.allow_fresh"), format!("{section}.resume_step"));
        v.fail(&[&key, &step], format!("`{key}` needs `{step} = -1`: it says what to do where there is no checkpoint"));
    }
}

/// What a renderer cannot do.
fn renderer(renderer: &Renderer, section: &str, v: &mut Validator<'_>) {
    let Renderer { name, enable_thinking, preserve_all_thinking, .. } = renderer;
    let (own, key) = (name.as_str(), format!("{section}.enable_thinking"));
    if enable_thinking.is_some()
        && matches!(name, RendererName::Qwen25 | RendererName::Llama3 | RendererName::GptOss | RendererName::ChatMl)
    {
        v.fail(&[&key], format!("`{key}` has no meaning for \"{own}\": its models cannot be told whether to think"));
    }
    let key = format!("{section}.preserve_all_thinking");
    let message = match (preserve_all_thinking, name) {
        (None, _) | (Some(false), RendererName::Default) => return,
        (Some(_), RendererName::Auto) => {
            format!("`{key}` needs a renderer by name: which one \"auto\" is depends on the model")
        }
        (Some(true), RendererName::Default) => {
            format!("`{key} = true` is not in the hands of \"default\": the template decides; choose a format by name")
        }
        (Some(false), _) => format!(
            "`{key} = false` is not supported by \"{own}\", which keeps what the model saw; \"default\" can \
             do what the template does"
        ),
        (Some(true), _) => return,
    };
    v.fail(&[&key], message);
}
