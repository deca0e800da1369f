//! Rules of `prl sft`.

use super::{clean_or_resume, fresh, model, optim, renderer, scheduler};
use crate::loaded::Validator;
use crate::tables::{SftConfig, SftData};

/// Reports what does not fit together.
pub(crate) fn sft(config: &SftConfig, v: &mut Validator<'_>) {
    data("data", &config.data, v);
    if let Some(val) = &config.val {
        data("val.data", &val.data, v);
        if matches!(val.data, SftData::Fake(_)) {
            let message =
                "`val.data.type` must not be \"fake\": made-up documents have no end, and validation needs one";
            v.fail(&["val.data.type"], message);
        }
    }
    renderer(&config.renderer, "renderer", v);
    model(&config.model, "", v);
    optim(&config.optim, "", v);
    scheduler(&config.scheduler, config.max_steps, "", v);
    let resume = config.ckpt.as_ref().and_then(|c| c.resume_step);
    clean_or_resume(config.clean_output_dir, resume, "ckpt.resume_step", v);
    fresh(config.ckpt.as_ref(), "ckpt", v);
    let (row, limit) = (config.data.seq_len(), config.model.seq_len);
    if v.is_set("model.seq_len") && limit < row {
        let message = format!("`model.seq_len` ({limit}) must be at least `data.seq_len` ({row})");
        v.fail(&["model.seq_len", "data.seq_len"], message);
    }
}

fn data(section: &str, data: &SftData, v: &mut Validator<'_>) {
    let (batch, micro) = (data.batch_size(), data.micro_batch_size());
    if !batch.is_multiple_of(micro) {
        let (a, b) = (format!("{section}.batch_size"), format!("{section}.micro_batch_size"));
        v.fail(&[&a, &b], format!("`{a}` ({batch}) must be a multiple of `{b}` ({micro})"));
    }
    if data.seq_len() < 2 {
        let key = format!("{section}.seq_len");
        v.fail(&[&key], format!("`{key}` ({}) must be at least 2: one token predicts the next", data.seq_len()));
    }
    if let SftData::Env(env) = data
        && !env.hint_template.contains("{demonstration}")
    {
        let key = format!("{section}.hint_template");
        v.fail(&[&key], format!("`{key}` has no {{demonstration}}, so that no demonstration would be shown"));
    }
    let Some(mask) = data.loss_mask() else { return };
    if !(mask.system || mask.user || mask.assistant || mask.tool) {
        let key = format!("{section}.loss_mask");
        v.fail(
            &[&format!("{key}.assistant"), &key],
            format!("`{key}` is false for every role: nothing would be trained"),
        );
    }
}
