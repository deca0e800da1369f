//! A running algorithm replaced by another build of it.

mod common;

use common::{compile_c, group, load, misbehave, outside};
use prl_algorithm::{Algorithm, AlgorithmError, Plugin, Scored, Trial};
use serde_json::json;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;

/// Advantages are `FACTOR` times the reward; the state is the number of groups, in ASCII.
const SOURCE: &str = r#"
#include "prl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifndef NAME
#define NAME "counter"
#endif
#ifndef HOOKS
#define HOOKS ", \"state\""
#define STATE 1
#endif
#ifndef ACTION
#define ACTION "rl"
#endif
PRL_METADATA("{\"name\": \"" NAME "\", \"version\": \"" VERSION "\", \"abi\": \"1.0\", \"hooks\": [\"score_group\"" HOOKS "],"
             " \"action_loss\": \"" ACTION "\"}");
typedef struct { const prl_host *host; char groups; } counter;
static int32_t describe(prl_description *out) {
  out->action_loss = strcmp(ACTION, "rl") == 0 ? PRL_ACTION_RL : PRL_ACTION_CE;
  out->metadata = PRL_LITERAL(prl_metadata);
  return PRL_OK;
}
static int32_t create(const prl_host *host, prl_str config, void **instance) {
#ifdef REFUSE
  host->error(host->ctx, PRL_LITERAL("no such key"));
  (void)config; (void)instance;
  return PRL_ERROR;
#else
  (void)config;
  counter *self = malloc(sizeof *self);
  self->host = host;
  self->groups = '0';
  *instance = self;
  return PRL_OK;
#endif
}
static void destroy(void *instance) { free(instance); }
static int32_t score_group(void *instance, const prl_group *group) {
  counter *self = instance;
  const double *reward = prl_column_ptr(group, PRL_COL_REWARD, PRL_F64);
  self->groups++;
  self->host->metric(self->host->ctx, PRL_LITERAL("groups"), self->groups - '0');
  for (size_t i = 0; i < group->n_rollouts; i++)
    if (self->host->assign(self->host->ctx, i, FACTOR * reward[i]) != PRL_OK) return PRL_ERROR;
  return PRL_OK;
}
#ifdef STATE
static int32_t save_state(void *instance) {
  counter *self = instance;
  return self->host->save(self->host->ctx, (prl_bytes){(const uint8_t *)&self->groups, 1});
}
static int32_t load_state(void *instance, prl_bytes state) {
  counter *self = instance;
#ifdef FORGET
  self->host->error(self->host->ctx, PRL_LITERAL("an older state"));
  return PRL_ERROR;
#endif
  self->groups = (char)state.ptr[0];
  return PRL_OK;
}
#endif
static const prl_plugin table = {
    .magic = PRL_MAGIC, .abi_major = PRL_ABI_MAJOR, .abi_minor = PRL_ABI_MINOR, .struct_size = sizeof(prl_plugin),
    .describe = describe, .create = create, .destroy = destroy, .score_group = score_group,
#ifdef STATE
    .save_state = save_state, .load_state = load_state,
#endif
};
PRL_EXPORT int32_t prl_plugin_init(uint32_t host_abi, const prl_plugin **out, prl_str *error) {
  (void)host_abi; (void)error; *out = &table; return PRL_OK;
}
"#;

/// Builds versions of the counter; `None` without a compiler.
struct Builds(TempDir, &'static str);

impl Builds {
    fn new(test: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("counter.c"), SOURCE).unwrap();
        Builds(dir, test)
    }

    /// Over the same file each time.
    fn build(&self, version: &str, factor: &str, flags: &[&str]) -> Option<PathBuf> {
        let file = self.0.path().join(format!("libcounter_{}_{}.so", self.1, std::process::id()));
        let (version, factor) = (format!("-DVERSION=\"{version}\""), format!("-DFACTOR={factor}"));
        let flags = [&[version.as_str(), factor.as_str()], flags].concat();
        compile_c(self.1, &self.0.path().join("counter.c"), &file, &flags).map(|()| file)
    }
}

fn score(algorithm: &mut Algorithm) -> Scored {
    algorithm.score_group(&group(&[1.0, 0.5]).iter().collect::<Vec<_>>()).unwrap()
}

/// The first advantage and the number of groups so far.
fn seen(algorithm: &mut Algorithm) -> (f32, f64) {
    let scored = score(algorithm);
    (*scored.streams[0][0].advantages.as_ref().unwrap().last().unwrap(), scored.metrics[0].value)
}

fn mapped(file: &std::path::Path) -> usize {
    let name = file.file_name().unwrap().to_str().unwrap();
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains(name) && line.contains("r-xp")).count()
}

#[test]
fn a_rebuilt_file_takes_over_with_the_state() {
    let builds = Builds::new("a_rebuilt_file_takes_over_with_the_state");
    let Some(file) = builds.build("1", "1.0", &[]) else { return };
    let mut algorithm = Plugin::load(&file).unwrap().create(&json!({}), 3).unwrap();
    assert_eq!((seen(&mut algorithm), seen(&mut algorithm)), ((1.0, 1.0), (1.0, 2.0)));
    assert_eq!(mapped(&file), 1);

    builds.build("2", "3.0", &[]).unwrap();
    let metadata =
        algorithm.swap(&file, &json!({}), Trial::Group(&group(&[0.0, 1.0]).iter().collect::<Vec<_>>())).unwrap();
    assert_eq!(metadata.version, "2");
    assert_eq!(seen(&mut algorithm), (3.0, 3.0), "the trial left no trace in the state");
    assert_eq!(mapped(&file), 2, "the old library stays");

    builds.build("3", "5.0", &["-DHOOKS=\"\""]).unwrap();
    algorithm.swap(&file, &json!({}), Trial::Group(&group(&[0.0]).iter().collect::<Vec<_>>())).unwrap();
    assert_eq!(seen(&mut algorithm), (5.0, 1.0), "a version without a state starts anew");
}

#[test]
fn what_cannot_take_over_changes_nothing() {
    let builds = Builds::new("what_cannot_take_over_changes_nothing");
    let Some(file) = builds.build("1", "1.0", &[]) else { return };
    let mut algorithm = Plugin::load(&file).unwrap().create(&json!({}), 3).unwrap();
    assert_eq!(seen(&mut algorithm), (1.0, 1.0));
    let mut groups = 1.0;
    for (factor, flags, line) in [
        ("1.0", vec!["-DNAME=\"other\""], "its name is `other`, not `counter`"),
        ("1.0", vec!["-DACTION=\"ce\""], "its action loss is Ce, not Rl"),
        ("(0.0 / 0.0)", vec![], "gave an invalid result in score_group: the advantage of rollout 0 is "),
        ("1e300", vec![], "the advantage of rollout 0 is 1000"),
        ("1.0", vec!["-DREFUSE"], "the algorithm `counter` rejects its configuration: no such key"),
        ("1.0", vec!["-DFORGET"], "the algorithm `counter` failed in load_state: an older state"),
    ] {
        builds.build("2", factor, &flags).unwrap();
        let error = algorithm
            .swap(&file, &json!({}), Trial::Group(&group(&[1.0, 0.0]).iter().collect::<Vec<_>>()))
            .unwrap_err();
        assert!(matches!(error, AlgorithmError::Swap { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(line) && text.contains(file.to_str().unwrap()), "{line}: {text}");
        groups += 1.0;
        assert_eq!(seen(&mut algorithm), (1.0, groups), "{line}");
    }
    fs::write(&file, b"still being written").unwrap();
    let text = algorithm
        .swap(&file, &json!({}), Trial::Group(&group(&[1.0]).iter().collect::<Vec<_>>()))
        .unwrap_err()
        .to_string();
    assert!(text.ends_with("is not a plug-in: it is not an ELF shared library"), "{text}");
    assert_eq!(seen(&mut algorithm), (1.0, groups + 1.0));
}

#[test]
fn a_plugin_that_panics_in_the_trial_does_not_take_over() {
    let mut running = misbehave().create(&json!({"mode": "random"}), 7).unwrap();
    let path = outside("misbehave");
    for (mode, line) in [
        ("panic", "panicked in save_state: no state"),
        ("nan", "`advantages` is NaN at token 0 of sample 0"),
        ("nothing", "sample 0 of rollout 0 is left without advantages"),
        ("no such sample", "in reference: it asked for a reference of sample 1"),
        ("bad state", "the state is not 8 bytes"),
    ] {
        // The state of a "random" instance is one that all of them take, but what "bad state" saves is not.
        let mut old = match mode {
            "bad state" => misbehave().create(&json!({"mode": "bad state"}), 7).unwrap(),
            "panic" => misbehave().create(&json!({"mode": "panic"}), 7).unwrap(),
            _ => misbehave().create(&json!({"mode": "random"}), 7).unwrap(),
        };
        let text = old
            .swap(&path, &json!({"mode": mode}), Trial::Group(&group(&[1.0]).iter().collect::<Vec<_>>()))
            .unwrap_err()
            .to_string();
        assert!(text.contains(line), "{mode}: {text}");
    }
    let before = score(&mut running).metrics;
    running.swap(&path, &json!({"mode": "random"}), Trial::Group(&group(&[1.0]).iter().collect::<Vec<_>>())).unwrap();
    let after = score(&mut running).metrics;
    assert_eq!(before[0], after[0], "the random numbers of a group are those of seed and group");
    assert_eq!((before[1].value, after[1].value), (1.0, 2.0));

    let mut grpo = load("grpo").create(&json!({}), 0).unwrap();
    assert!(
        grpo.swap(&path, &json!({"mode": "random"}), Trial::Group(&group(&[1.0]).iter().collect::<Vec<_>>())).is_err()
    );
}
