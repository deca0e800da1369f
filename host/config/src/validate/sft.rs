//! Rules of `prl sft`.

use super::{adapter, clean_or_resume, fresh, model, optim, renderer, scheduler};
use crate::loaded::Validator;
use crate::tables::{FileData, SftConfig, SftData};

/// Reports what does not fit together.
pub(crate) fn sft(config: &SftConfig, v: &mut Validator<'_>) {
    data("data", &config.data, v);
    batch(&config.data, v);
    if let Some(val) = &config.val {
        data("val.data", &val.data, v);
        everything_once(&val.data, v);
        if matches!(val.data, SftData::Fake(_)) {
            let message =
                "`val.data.type` must not be \"fake\": made-up documents have no end, and validation needs one";
            v.fail(&["val.data.type"], message);
        }
    }
    renderer(&config.renderer, "renderer", v);
    model(&config.model, "", v);
    adapter(&config.model, config.ckpt.as_ref(), "", v);
    optim(&config.optim, "", v);
    scheduler(&config.scheduler, config.max_steps, "", v);
    let resume = config.ckpt.as_ref().and_then(|c| c.resume_step);
    clean_or_resume(config.clean_output_dir, resume, "ckpt.resume_step", v);
    fresh(config.ckpt.as_ref(), "ckpt", v);
    let rows = [("data.seq_len", Some(&config.data)), ("val.data.seq_len", config.val.as_ref().map(|val| &val.data))];
    let limit = config.model.seq_len;
    for (key, row) in rows.into_iter().filter_map(|(key, data)| Some((key, data?.seq_len()))) {
        if v.is_set("model.seq_len") && limit < row {
            let message = format!("`model.seq_len` ({limit}) must be at least `{key}` ({row})");
            v.fail(&["model.seq_len", key], message);
        }
    }
}

/// Keys that say what a step takes, or how sources take turns, mean nothing where all documents are taken once. Effective
/// configurations name them with their defaults.
fn everything_once(data: &SftData, v: &mut Validator<'_>) {
    let usual = FileData::default();
    let mut without_effect = Vec::new();
    if data.batch_size() != usual.batch_size {
        without_effect.push("batch_size");
    }
    if let SftData::Files(files) = data {
        if files.probabilities.is_some() {
            without_effect.push("probabilities");
        }
        if files.stopping_strategy != usual.stopping_strategy {
            without_effect.push("stopping_strategy");
        }
    }
    for name in without_effect {
        let key = format!("val.data.{name}");
        let message = format!(
            "`{key}` has no meaning: a validation takes every document once; leave it out (passes have \
             `val.data.micro_batch_size` rows of `val.data.seq_len` tokens)"
        );
        v.fail(&[&key], message);
    }
}

/// A step is made of whole passes.
fn batch(data: &SftData, v: &mut Validator<'_>) {
    let (batch, micro) = (data.batch_size(), data.micro_batch_size());
    if !batch.is_multiple_of(micro) {
        let (a, b) = ("data.batch_size", "data.micro_batch_size");
        v.fail(&[a, b], format!("`{a}` ({batch}) must be a multiple of `{b}` ({micro})"));
    }
}

fn data(section: &str, data: &SftData, v: &mut Validator<'_>) {
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
    if let SftData::Files(files) = data {
        mixture(section, files, v);
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

/// Lists that say what is mixed must belong together.
fn mixture(section: &str, files: &FileData, v: &mut Validator<'_>) {
    let [subsets_key, splits_key, key] = ["subsets", "splits", "probabilities"].map(|k| format!("{section}.{k}"));
    let (subsets, splits) = (files.subsets.as_deref(), files.splits.as_deref());
    for (key, list) in [(&subsets_key, subsets), (&splits_key, splits)] {
        if list.is_some_and(<[String]>::is_empty) {
            v.fail(&[key], format!("`{key}` is empty: leave it out"));
            return;
        }
    }
    if let (Some(a), Some(b)) = (subsets, splits)
        && a.len() != b.len()
    {
        let message = format!(
            "`{subsets_key}` ({}) and `{splits_key}` ({}) must be as long as each other: a split for each subset",
            a.len(),
            b.len()
        );
        v.fail(&[&splits_key, &subsets_key], message);
        return;
    }
    let parts = subsets.or(splits).map_or(0, <[String]>::len);
    // A folder is the same with a slash behind it.
    let named = |at: usize| (subsets.map(|names| names[at].trim_matches('/')), splits.map(|names| &names[at]));
    let twice = (0..parts).find_map(|at| Some((at, (at + 1..parts).find(|other| named(*other) == named(at))?)));
    if let Some((at, other)) = twice {
        let key = if subsets.is_some() { &subsets_key } else { &splits_key };
        v.fail(&[key], format!("`{key}` names the same data twice, at places {} and {}", at + 1, other + 1));
    }
    let Some(probabilities) = &files.probabilities else { return };
    let sum: f64 = probabilities.iter().sum();
    let message = match parts {
        0 => format!("`{key}` needs `{subsets_key}` or `{splits_key}`: it says how often each is drawn from"),
        n if n != probabilities.len() => {
            format!("`{key}` has {} entries for {n} subsets or splits", probabilities.len())
        }
        _ if probabilities.iter().any(|p| !p.is_finite() || *p <= 0.0) => {
            format!("`{key}` must all be above 0: leave out what is not to be drawn from")
        }
        _ if (sum - 1.0).abs() > 1e-6 => format!("`{key}` must be 1 together, not {sum}"),
        _ => return,
    };
    v.fail(&[&key], message);
}
