//! Rules of `prl rl`.

use super::{adapter, clean_or_resume, exact, fresh, model, optim, renderer, scheduler};
use crate::loaded::{Validator, shown};
use crate::schema::json;
use crate::tables::{
    Device, EnvHost, Filter, Grant, Kernels, MatmulPrecision, OrchestratorConfig, RlConfig, WeightBroadcast,
};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// Names that metrics use for sums over environments.
const RESERVED: &[&str] = &["agg", "all"];

/// Algorithms that compare the rollouts of a group, so that a group of one teaches nothing.
const GROUP_RELATIVE: &[&str] = &["grpo", "max_rl", "echo"];

/// Reports what does not fit together.
pub(crate) fn rl(config: &RlConfig, v: &mut Validator<'_>) {
    components(config, v);
    exact(config.exact, config.kernels, v);
    let orchestrator = &config.orchestrator;
    batch(orchestrator, v);
    groups(orchestrator, v);
    lone_rollouts(orchestrator, v);
    outside(orchestrator, v);
    environments(orchestrator, v);
    renderer(&orchestrator.renderer, "orchestrator.renderer", v);
    filters("orchestrator.pre_batch_filters", &orchestrator.pre_batch_filters, v);
    filters("orchestrator.post_batch_filters", &orchestrator.post_batch_filters, v);
    model(&config.trainer.model, "trainer.", v);
    adapter(&config.trainer.model, config.trainer.ckpt.as_ref(), "trainer.", v);
    adapters(config, v);
    broadcast(config, v);
    optim(&config.trainer.optim, "trainer.", v);
    scheduler(&config.trainer.scheduler, config.trainer.max_steps, "trainer.", v);
    let resume = config.trainer.ckpt.as_ref().and_then(|c| c.resume_step);
    clean_or_resume(config.clean_output_dir, resume, "trainer.ckpt.resume_step", v);
    fresh(config.trainer.ckpt.as_ref(), "trainer.ckpt", v);
    if orchestrator.num_train_workers > 1 {
        let message = "`orchestrator.num_train_workers` must be 1: several trainer ranks are not supported yet";
        v.fail(&["orchestrator.num_train_workers"], message);
    }
}

/// What samples an adapter must know the one that is trained.
fn adapters(config: &RlConfig, v: &mut Validator<'_>) {
    let orchestrator = &config.orchestrator;
    let lora = config.trainer.model.lora.as_ref();
    if let Some(sampled) = &orchestrator.model.lora {
        let key = "orchestrator.model.lora";
        let Some(trained) = lora else {
            return v.fail(&[key], format!("`{key}` needs `[trainer.model.lora]`: without it no adapter is trained"));
        };
        let rank = sampled.rank.unwrap_or(trained.rank);
        equal(("trainer.model.lora.rank", trained.rank), ("orchestrator.model.lora.rank", rank), v);
        let alpha = sampled.alpha.unwrap_or(trained.alpha);
        equal(("trainer.model.lora.alpha", trained.alpha), ("orchestrator.model.lora.alpha", alpha), v);
    }
    if orchestrator.model.client.is_some() && lora.is_some_and(|lora| !lora.modules_to_save.is_empty()) {
        let (key, client) = ("trainer.model.lora.modules_to_save", "orchestrator.model.client");
        let message = format!("`{key}` is not supported with `{client}`: servers take an adapter's factors alone");
        v.fail(&[key, client], message);
    }
    if orchestrator.model.client.is_some() && lora.is_some() && config.trainer.model.debug.random_init {
        let (key, client) = ("trainer.model.debug.random_init", "orchestrator.model.client");
        let message =
            format!("`{key}` is not supported with `{client}` and an adapter: servers have other weights below it");
        v.fail(&[key, client], message);
    }
}

/// NCCL takes weights from GPU to GPU, as they are sampled from.
fn broadcast(config: &RlConfig, v: &mut Validator<'_>) {
    if !matches!(config.weight_broadcast, WeightBroadcast::Nccl(_)) {
        return;
    }
    let key = "weight_broadcast.type";
    let mut refuse = |other: &str, why: &str| v.fail(&[key, other], format!("`{key} = \"nccl\"` {why}"));
    if config.orchestrator.model.client.is_none() {
        refuse(
            "orchestrator.model.client",
            "needs `[orchestrator.model.client]`: without it the policy is sampled in this process",
        );
    }
    if config.device == Device::Cpu {
        refuse("device", "needs a GPU, and `device` is \"cpu\"");
    }
    if config.kernels == Kernels::Reference {
        refuse("kernels", "is not supported with `kernels = \"reference\"`");
    }
    if config.trainer.matmul_precision == MatmulPrecision::Highest {
        let why = "is not supported with `trainer.matmul_precision = \"highest\"`: servers sample from bf16 weights";
        refuse("trainer.matmul_precision", why);
    }
    if config.trainer.model.lora.is_some() {
        refuse("trainer.model.lora", "is not supported with `[trainer.model.lora]`: adapters go through a folder");
    }
}

/// Reports `a` and `b` when they differ.
fn equal<T: PartialEq + Serialize>(a: (&str, T), b: (&str, T), v: &mut Validator<'_>) {
    if a.1 != b.1 {
        let [left, right] = [&a.1, &b.1].map(|value| shown(&json(value)));
        v.fail(&[b.0, a.0], format!("`{}` ({right}) must equal `{}` ({left})", b.0, a.0));
    }
}

/// Reports a section that one component has and the other lacks.
fn both(name: &str, trainer: bool, orchestrator: bool, v: &mut Validator<'_>) {
    if trainer != orchestrator {
        let (has, lacks) = if trainer { ("trainer", "orchestrator") } else { ("orchestrator", "trainer") };
        let (has, lacks) = (format!("{has}.{name}"), format!("{lacks}.{name}"));
        v.fail(&[&has, &lacks], format!("`{has}` is on and `{lacks}` is off: set `[{name}]`, which is for both"));
    }
}

/// Trainer, orchestrator and inference must agree.
fn components(config: &RlConfig, v: &mut Validator<'_>) {
    let RlConfig { trainer, orchestrator, inference, .. } = config;
    let name = &trainer.model.name;
    equal(("trainer.model.name", name), ("orchestrator.model.name", &orchestrator.model.name), v);
    if *name == orchestrator.model.name {
        equal(("trainer.model.name", name), ("inference.model.name", &inference.model.name), v);
    }
    let template = (&trainer.tokenizer.chat_template, &orchestrator.tokenizer.chat_template);
    let (a, b) = ("trainer.tokenizer.chat_template", "orchestrator.tokenizer.chat_template");
    equal((a, template.0), (b, template.1), v);
    if *name == orchestrator.model.name {
        let names = (&trainer.tokenizer.name, &orchestrator.tokenizer.name);
        equal(("trainer.tokenizer.name", names.0), ("orchestrator.tokenizer.name", names.1), v);
    }
    equal(("trainer.max_steps", trainer.max_steps), ("orchestrator.max_steps", orchestrator.max_steps), v);
    equal(("output_dir", &config.output_dir), ("trainer.output_dir", &trainer.output_dir), v);
    equal(("output_dir", &config.output_dir), ("orchestrator.output_dir", &orchestrator.output_dir), v);
    let (row, rollout) = (trainer.model.seq_len, orchestrator.seq_len);
    if row < rollout {
        let message = format!(
            "`trainer.model.seq_len` ({row}) must be at least `orchestrator.seq_len` ({rollout}), or rollouts would be cut"
        );
        v.fail(&["trainer.model.seq_len", "orchestrator.seq_len"], message);
    }
    both("ckpt", trainer.ckpt.is_some(), orchestrator.ckpt.is_some(), v);
    if let (Some(a), Some(b)) = (&trainer.ckpt, &orchestrator.ckpt) {
        equal(("trainer.ckpt.interval", a.interval), ("orchestrator.ckpt.interval", b.interval), v);
        equal(("trainer.ckpt.resume_step", a.resume_step), ("orchestrator.ckpt.resume_step", b.resume_step), v);
        // One checkpoint holds both parts, so the trainer's word counts.
        if b.keep_last.is_some() {
            equal(("trainer.ckpt.keep_last", a.keep_last), ("orchestrator.ckpt.keep_last", b.keep_last), v);
        }
        if b.keep_interval.is_some() {
            let (a, b) = (a.keep_interval, b.keep_interval);
            equal(("trainer.ckpt.keep_interval", a), ("orchestrator.ckpt.keep_interval", b), v);
        }
    }
    both("wandb", trainer.wandb.is_some(), orchestrator.wandb.is_some(), v);
    if let (Some(a), Some(b)) = (&trainer.wandb, &orchestrator.wandb) {
        equal(("trainer.wandb.project", &a.project), ("orchestrator.wandb.project", &b.project), v);
    }
}

/// A batch is counted in rollouts or in tokens, and rollouts in flight in one way.
fn batch(orchestrator: &OrchestratorConfig, v: &mut Validator<'_>) {
    let [batch, tokens, factor, inflight] =
        ["batch_size", "token_batch_size", "oversampling_factor", "max_inflight_rollouts"]
            .map(|key| format!("orchestrator.{key}"));
    let has_factor = orchestrator.oversampling_factor.is_some();
    if orchestrator.max_inflight_rollouts.is_some() && has_factor {
        let message = format!("`{factor}` and `{inflight}` say the same thing twice: set only one");
        v.fail(&[&factor, &inflight], message);
    }
    if orchestrator.token_batch_size.is_none() {
        return;
    }
    if orchestrator.batch_size.is_some() {
        v.fail(&[&tokens, &batch], format!("`{batch}` and `{tokens}` both say how large a batch is: set only one"));
    }
    if has_factor {
        let message = format!("`{factor}` is a multiple of `{batch}`, which `{tokens}` replaces: set `{inflight}`");
        v.fail(&[&factor, &tokens], message);
    } else if orchestrator.max_inflight_rollouts.is_none() {
        let message = format!("`{tokens}` needs `{inflight}`: it does not say how many rollouts may be in flight");
        v.fail(&[&tokens], message);
    }
}

/// Batches are made of whole groups.
fn groups(orchestrator: &OrchestratorConfig, v: &mut Validator<'_>) {
    let OrchestratorConfig { group_size, max_inflight_rollouts, .. } = orchestrator;
    let batch_size = orchestrator.rollouts_per_step();
    let general = "orchestrator.group_size".to_string();
    let mut sizes = Vec::new();
    for (i, env) in orchestrator.train.env.iter().enumerate() {
        let key = format!("orchestrator.train.env.{i}.group_size");
        if v.is_own(&key) {
            sizes.push((Some(env.name.as_str()), key, env.group_size));
        } else if !sizes.iter().any(|(env, ..)| env.is_none()) {
            sizes.push((None, general.clone(), *group_size));
        }
    }
    if sizes.is_empty() {
        sizes.push((None, general, *group_size));
    }
    for (env, key, size) in sizes {
        let of = env.map(|name| format!(" of environment `{name}`")).unwrap_or_default();
        let shown = if env.is_some() { "group_size" } else { key.as_str() };
        if let Some(batch_size) = batch_size
            && !batch_size.is_multiple_of(size)
        {
            let message = format!(
                "`orchestrator.batch_size` ({batch_size}) must be a multiple of `{shown}`{of} ({size}): a batch is made of whole groups"
            );
            v.fail(&["orchestrator.batch_size", &key], message);
        }
        if let Some(inflight) = max_inflight_rollouts
            && *inflight < size
        {
            let message = format!(
                "`orchestrator.max_inflight_rollouts` ({inflight}) must be at least `{shown}`{of} ({size}), or no group could start"
            );
            v.fail(&["orchestrator.max_inflight_rollouts", &key], message);
        }
    }
}

/// Groups must teach something, under the algorithm of their environment.
fn lone_rollouts(orchestrator: &OrchestratorConfig, v: &mut Validator<'_>) {
    let mut told = BTreeSet::new();
    for (i, env) in orchestrator.train.env.iter().enumerate() {
        let (algo_key, algo) = orchestrator.algo_of(i);
        let own = format!("orchestrator.train.env.{i}.group_size");
        let key = if v.is_own(&own) { own } else { "orchestrator.group_size".to_string() };
        if env.group_size > 1 || !GROUP_RELATIVE.contains(&algo.kind.as_str()) {
            continue;
        }
        if told.insert((key.clone(), algo_key.clone())) {
            let general = key == "orchestrator.group_size";
            let shown = if general { key.as_str() } else { "group_size" };
            let of = format!(" of environment `{}`", env.name);
            let of_size = if general { "" } else { of.as_str() };
            let of_algo = if general && env.algo.is_some() { of.as_str() } else { "" };
            let message = format!(
                "`{shown}`{of_size} is 1, but `{}`{of_algo} compares the rollouts of a group: all advantages would be 0; set it to 2 or more",
                algo.kind
            );
            v.fail(&[&key, &format!("{algo_key}.type")], message);
        }
    }
}

/// Models outside the run, and the policy's servers, have addresses.
fn outside(orchestrator: &OrchestratorConfig, v: &mut Validator<'_>) {
    let algorithms: BTreeMap<_, _> = (0..orchestrator.train.env.len()).map(|i| orchestrator.algo_of(i)).collect();
    for (key, algo) in algorithms {
        for (place, model) in [("teacher", &algo.teacher), ("sampling.source", &algo.sampling.source)] {
            if let Some(model) = model {
                addresses(&format!("{key}.{place}"), "base_url", &model.base_url, v);
            }
        }
    }
    let Some(client) = &orchestrator.model.client else { return };
    let table = "orchestrator.model.client";
    addresses(table, "base_url", &client.base_url, v);
    if let Some(admin) = &client.admin_base_url {
        addresses(table, "admin_base_url", admin, v);
        if admin.len() != client.base_url.len() {
            let (a, b) = (format!("{table}.admin_base_url"), format!("{table}.base_url"));
            let (has, wants) = (admin.len(), client.base_url.len());
            v.fail(&[&a, &b], format!("`{a}` has {has} addresses for the {wants} of `{b}`: give one for each"));
        }
    }
}

fn addresses(table: &str, key: &str, urls: &[String], v: &mut Validator<'_>) {
    let (list, form) = (format!("{table}.{key}"), "http://localhost:8001/v1");
    if urls.is_empty() {
        v.fail(&[&list, table], format!("`{list}` is missing: give the address of a server, such as [\"{form}\"]"));
    }
    for (i, url) in urls.iter().enumerate() {
        if !["http://", "https://"].iter().any(|scheme| url.len() > scheme.len() && url.starts_with(scheme)) {
            let item = format!("{list}.{i}");
            v.fail(&[&item, &list], format!("`{item}` is \"{url}\", which is no address such as {form}"));
        }
    }
}

fn environments(orchestrator: &OrchestratorConfig, v: &mut Validator<'_>) {
    let train: Vec<&str> = orchestrator.train.env.iter().map(|e| e.name.as_str()).collect();
    names("orchestrator.train.env", &train, v);
    for (i, env) in orchestrator.train.env.iter().enumerate() {
        services(&format!("orchestrator.train.env.{i}"), &env.host(), v);
        if env.sampling.temperature == 0.0 {
            let key = format!("orchestrator.train.env.{i}.sampling.temperature");
            let message =
                "the temperature of training rollouts must be more than 0: greedy rollouts of a task are all equal";
            v.fail(&[&key], message);
        }
        let table = format!("orchestrator.train.env.{i}.curriculum");
        let wrong = [env.curriculum.pools().err(), env.curriculum.gates().err()];
        for (key, why) in wrong.into_iter().flatten() {
            let key = format!("{table}.{key}");
            v.fail(&[&key, &table], format!("`{key}` {why}"));
        }
    }
    if let Some(eval) = &orchestrator.eval {
        let eval: Vec<&str> = eval.env.iter().map(|e| e.name.as_str()).collect();
        names("orchestrator.eval.env", &eval, v);
    }
    for (i, env) in orchestrator.eval.iter().flat_map(|eval| eval.env.iter().enumerate()) {
        services(&format!("orchestrator.eval.env.{i}"), &env.host(), v);
    }
}

/// The largest weight of a reward component: beyond it sums of rewards lose what others add.
const MOST_WEIGHT: f64 = 1e9;

/// What stands behind grants is there where they are, weights are numbers, roles are unique.
fn services(env: &str, host: &EnvHost, v: &mut Validator<'_>) {
    let (grants, weights) = (format!("{env}.grants"), format!("{env}.weights"));
    for (name, weight) in &host.weights {
        if weight.as_f64().is_none_or(|weight| weight.abs() > MOST_WEIGHT) {
            let key = format!("{weights}.{name}");
            v.fail(&[&key, &weights], format!("`{key}` is {weight}: a weight is a number of at most {MOST_WEIGHT}"));
        }
    }
    for (grant, key, given) in
        [(Grant::Llm, "llm", !host.llm.is_empty()), (Grant::Http, "http_allow", !host.http_allow.is_empty())]
    {
        let key = format!("{env}.{key}");
        match (host.grants.contains(&grant), given) {
            (true, false) => {
                v.fail(&[&grants], format!("`{grants}` has \"{}\", but there is no `{key}`", grant.as_str()))
            }
            (false, true) => {
                v.fail(&[&key], format!("`{key}` is set, but `{grants}` does not have \"{}\"", grant.as_str()));
            }
            _ => {}
        }
    }
    for (i, role) in host.llm.iter().enumerate() {
        let key = format!("{env}.llm.{i}.role");
        if host.llm[..i].iter().any(|other| other.role == role.role) {
            v.fail(&[&key], format!("`{key}` is \"{}\" for the second time: a role has one model", role.role));
        }
    }
}

/// There is at least one environment, and names are unique, free and usable as folder names.
fn names(list: &str, names: &[&str], v: &mut Validator<'_>) {
    if names.is_empty() {
        v.fail(&[list], format!("`[[{list}]]` is missing: at least one environment is needed"));
    }
    let mut first = BTreeMap::new();
    for (i, name) in names.iter().enumerate() {
        let (key, id) = (format!("{list}.{i}.name"), format!("{list}.{i}.id"));
        if RESERVED.contains(name) {
            v.fail(
                &[&key, &id],
                format!("`{key}` must not be \"{name}\": metrics use that name for sums over environments"),
            );
        } else if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\']) {
            v.fail(&[&key, &id], format!("`{key}` is \"{name}\", which cannot name a folder: set a plain name"));
        } else if let Some(other) = first.insert(*name, i) {
            let message = format!("`{key}` is \"{name}\", like that of `{list}.{other}`: set different names");
            v.fail(&[&key, &id], message);
        }
    }
}

/// A slot holds each type of filter once.
fn filters(slot: &str, filters: &[Filter], v: &mut Validator<'_>) {
    let mut seen = Vec::new();
    for (i, filter) in filters.iter().enumerate() {
        let tag = filter.tag();
        if seen.contains(&tag) {
            v.fail(&[&format!("{slot}.{i}.type")], format!("`{slot}` has two filters of type \"{tag}\": keep one"));
        }
        seen.push(tag);
    }
}
