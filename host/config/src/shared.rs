//! Shared keys: what is set at the root of `prl rl` and fills the sections of the components, what a list of
//! environments says for its items, and what a measurement forces.
//!
//! Owns which key fills which. Runs on the merged tree before it is checked, so that "set" means set by the user.

use crate::engine::layers::Load;
use crate::engine::value::{Data, Entry, Origin, Val};
use crate::error::ProblemKind;
use crate::loaded::shown;
use serde_json::Value as Json;
use std::collections::BTreeSet;
use std::sync::Arc;

/// A root key and the keys it fills.
const SHARED: &[(&str, &[&str])] = &[
    ("model.name", &["trainer.model.name", "orchestrator.model.name", "inference.model.name"]),
    ("tokenizer.name", &["trainer.tokenizer.name", "orchestrator.tokenizer.name"]),
    ("tokenizer.chat_template", &["trainer.tokenizer.chat_template", "orchestrator.tokenizer.chat_template"]),
    ("log.level", &["trainer.log.level", "orchestrator.log.level", "inference.log.level"]),
    ("log.json_logging", &["trainer.log.json_logging", "orchestrator.log.json_logging", "inference.log.json_logging"]),
    ("log.interval", &["orchestrator.log.interval"]),
    ("ckpt.output_dir", &["trainer.ckpt.output_dir"]),
    ("ckpt.interval", &["trainer.ckpt.interval", "orchestrator.ckpt.interval"]),
    ("ckpt.resume_step", &["trainer.ckpt.resume_step", "orchestrator.ckpt.resume_step"]),
    ("ckpt.allow_fresh", &["trainer.ckpt.allow_fresh"]),
    ("ckpt.keep_last", &["trainer.ckpt.keep_last", "orchestrator.ckpt.keep_last"]),
    ("ckpt.keep_interval", &["trainer.ckpt.keep_interval", "orchestrator.ckpt.keep_interval"]),
    ("wandb.project", &["trainer.wandb.project", "orchestrator.wandb.project"]),
    ("wandb.entity", &["trainer.wandb.entity", "orchestrator.wandb.entity"]),
    ("wandb.name", &["trainer.wandb.name", "orchestrator.wandb.name"]),
    ("wandb.group", &["trainer.wandb.group", "orchestrator.wandb.group"]),
    ("wandb.tags", &["trainer.wandb.tags", "orchestrator.wandb.tags"]),
    ("wandb.offline", &["trainer.wandb.offline", "orchestrator.wandb.offline"]),
    ("max_steps", &["trainer.max_steps", "orchestrator.max_steps"]),
    ("seq_len", &["trainer.model.seq_len", "orchestrator.seq_len"]),
    ("output_dir", &["trainer.output_dir", "orchestrator.output_dir"]),
];

/// Root sections whose mere presence creates the same section of the trainer and of the orchestrator.
const SECTIONS: &[&str] = &["ckpt", "wandb"];

/// What a list of environments says for items that do not say it: the list, the section, its keys.
const INHERITED: &[(&str, &str, &[&str])] = &[
    ("orchestrator.train.env", "orchestrator", &["group_size"]),
    ("orchestrator.train.env", "orchestrator.train.sampling", &["temperature", "max_completion_tokens", "extra_body"]),
    ("orchestrator.eval.env", "orchestrator.eval", &["num_examples", "group_size", "interval"]),
    (
        "orchestrator.eval.env",
        "orchestrator.eval.sampling",
        &["temperature", "top_p", "top_k", "min_p", "max_completion_tokens", "extra_body"],
    ),
];

/// Fills `prl rl`'s sections. Returns the keys of pairs that differ, which are reported.
pub(crate) fn rl(tree: &mut Val, load: &mut Load) -> BTreeSet<String> {
    for name in SECTIONS {
        let Some(section) = tree.get(name).filter(|v| v.as_table().is_some()) else { continue };
        let empty = Val::table(section.at.clone()).copied_from(&Arc::from(*name));
        for component in ["trainer", "orchestrator"] {
            fill(tree, &format!("{component}.{name}"), &empty);
        }
    }
    let mut pairs = Vec::new();
    let mut keys = BTreeSet::new();
    let mut place = None;
    for (shared, targets) in SHARED {
        let Some(value) = tree.get(shared).filter(|v| !matches!(v.data, Data::Null)).cloned() else { continue };
        let copy = value.clone().copied_from(&Arc::from(*shared));
        for target in *targets {
            match tree.get(target) {
                None => fill(tree, target, &copy),
                Some(own) if same(own, &value) => {}
                Some(own) => {
                    let show =
                        |key: &str, v: &Val| format!("{key} = {} ({})", shown(&v.to_json()), load.describe(&v.at));
                    pairs.push(format!("{} and {}", show(shared, &value), show(target, own)));
                    keys.extend([shared.to_string(), target.to_string()]);
                    place.get_or_insert_with(|| own.at.clone());
                }
            }
        }
    }
    if !pairs.is_empty() {
        load.fail(ProblemKind::Conflict(pairs), place.as_ref());
    }
    environments(tree);
    tokenizer(tree, "trainer.");
    tokenizer(tree, "orchestrator.");
    keys
}

/// Whether writing `value` for a shared key would contradict a section that the key fills. Keys that fill nothing in
/// this configuration (those of `prl sft`) never do.
pub(crate) fn would_conflict(root: &Json, key: &str, value: &Json) -> bool {
    let pointer = |path: &str| root.pointer(&format!("/{}", path.replace('.', "/")));
    let fills = root.get("orchestrator").is_some();
    let targets = SHARED.iter().find(|(shared, _)| *shared == key).map_or(&[] as &[&str], |(_, targets)| targets);
    fills && !targets.iter().all(|target| pointer(target) == Some(value))
}

/// What `prl sft` fills: the tokenizer, and for a measurement what belongs to it.
pub(crate) fn sft(tree: &mut Val) {
    tokenizer(tree, "");
    let configured = ["data.type", "data.name", "data.id"].iter().any(|key| tree.get(key).is_some());
    if let Some(at) = bench(tree) {
        set(tree, "val", Val { data: Data::Null, at: at.clone() });
        if !configured {
            fill(tree, "data.type", &Val { data: Data::Text("fake".to_string()), at });
        }
    }
}

/// What `prl trainer` fills: the same.
pub(crate) fn trainer(tree: &mut Val) {
    tokenizer(tree, "");
    let configured = tree.get("data.fake").is_some();
    if let Some(at) = bench(tree).filter(|_| !configured) {
        fill(tree, "data.fake", &Val::table(at));
    }
}

/// Steps of a measurement, the first of which warms up.
const BENCH_STEPS: i64 = 4;

/// Where `bench` is a section, sets what it forces; returns the origin of what follows from it.
fn bench(tree: &mut Val) -> Option<Origin> {
    let section = tree.get("bench").filter(|v| v.as_table().is_some())?;
    let at = Origin { via: Some(Arc::from("bench")), ..section.at.clone() };
    let val = |data: Data| Val { data, at: at.clone() };
    let constant = Entry { key: at.clone(), val: val(Data::Text("constant".to_string())) };
    set(tree, "max_steps", val(Data::Int(BENCH_STEPS)));
    set(tree, "ckpt", val(Data::Null));
    set(tree, "scheduler", val(Data::Table([("type".to_string(), constant)].into_iter().collect())));
    Some(at)
}

/// Puts a value at the root, whatever was there.
fn set(tree: &mut Val, key: &str, val: Val) {
    if let Data::Table(entries) = &mut tree.data {
        entries.insert(key.to_string(), Entry { key: val.at.clone(), val });
    }
}

/// A tokenizer that is not named is the model's.
fn tokenizer(tree: &mut Val, component: &str) {
    let from = format!("{component}model.name");
    let Some(name) = tree.get(&from) else { return };
    let copy = name.clone().copied_from(&Arc::from(from.as_str()));
    fill(tree, &format!("{component}tokenizer.name"), &copy);
}

/// Fills the items of environment lists, and names them.
fn environments(tree: &mut Val) {
    for list in ["orchestrator.train.env", "orchestrator.eval.env"] {
        let count = match tree.get(list).map(|v| &v.data) {
            Some(Data::List(items)) => items.len(),
            _ => 0,
        };
        for i in 0..count {
            let item = format!("{list}.{i}");
            for (_, section, keys) in INHERITED.iter().filter(|(of, _, _)| *of == list) {
                let into = if section.ends_with("sampling") { format!("{item}.sampling") } else { item.clone() };
                for key in *keys {
                    let from = format!("{section}.{key}");
                    let Some(value) = tree.get(&from).cloned() else { continue };
                    fill(tree, &format!("{into}.{key}"), &value.copied_from(&Arc::from(from.as_str())));
                }
            }
            let id = format!("{item}.id");
            if let Some(Val { data: Data::Text(text), at }) = tree.get(&id) {
                let name = Val { data: Data::Text(stem(text)), at: at.clone() };
                fill(tree, &format!("{item}.name"), &name.copied_from(&Arc::from(id.as_str())));
            }
        }
    }
}

/// The last part of an environment's id, without version and `.wasm`.
fn stem(id: &str) -> String {
    let last = id.trim_end_matches('/').rsplit('/').next().unwrap_or(id);
    let last = last.split_once('@').map_or(last, |(name, _)| name);
    let last = if id.starts_with("oci://") { last.split_once(':').map_or(last, |(name, _)| name) } else { last };
    last.strip_suffix(".wasm").unwrap_or(last).to_string()
}

/// Equal up to `1` and `1.0`.
fn same(a: &Val, b: &Val) -> bool {
    match (&a.data, &b.data) {
        (Data::Int(i), Data::Float(f)) | (Data::Float(f), Data::Int(i)) => *i as f64 == *f,
        _ => a.to_json() == b.to_json(),
    }
}

/// Puts a value where nothing is, creating tables on the way, or the keys of a table where they are not; where something else than a table is in the way (a section
/// that was switched off), nothing happens.
fn fill(tree: &mut Val, path: &str, value: &Val) {
    match (&mut tree.data, path.split_once('.')) {
        (Data::Table(entries), Some((head, rest))) => {
            let empty = || Entry { key: value.at.clone(), val: Val::table(value.at.clone()) };
            fill(&mut entries.entry(head.to_string()).or_insert_with(empty).val, rest, value);
        }
        (Data::Table(entries), None) => match entries.get_mut(path) {
            Some(own) => {
                for (name, entry) in value.as_table().into_iter().flatten() {
                    fill(&mut own.val, name, &entry.val);
                }
            }
            None => {
                entries.insert(path.to_string(), Entry { key: value.at.clone(), val: value.clone() });
            }
        },
        (Data::List(items), Some((head, rest))) => {
            if let Some(item) = head.parse::<usize>().ok().and_then(|i| items.get_mut(i)) {
                fill(item, rest, value);
            }
        }
        _ => {}
    }
}
