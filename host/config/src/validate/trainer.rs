//! Rules of `prl trainer`.

use super::{adapter, clean_or_resume, fresh, model, optim, scheduler};
use crate::loaded::Validator;
use crate::tables::TrainerRun;

/// Reports what does not fit together.
pub(crate) fn trainer(config: &TrainerRun, v: &mut Validator<'_>) {
    if config.data.fake.is_none() {
        let message = "there is nothing to train on: batches from other processes are not supported yet. \
            `prl rl @ rl.toml` runs trainer, inference and orchestrator in one process; `--data.fake` trains on made-up \
            batches, and `--bench` measures with them";
        v.fail(&["data.fake"], message);
    }
    if config.model.seq_len < 2 {
        let message =
            format!("`model.seq_len` ({}) must be at least 2: one token predicts the next", config.model.seq_len);
        v.fail(&["model.seq_len"], message);
    }
    model(&config.model, "", v);
    adapter(&config.model, config.ckpt.as_ref(), "", v);
    optim(&config.optim, "", v);
    scheduler(&config.scheduler, config.max_steps, "", v);
    let resume = config.ckpt.as_ref().and_then(|c| c.resume_step);
    clean_or_resume(config.clean_output_dir, resume, "ckpt.resume_step", v);
    fresh(config.ckpt.as_ref(), "ckpt", v);
}
