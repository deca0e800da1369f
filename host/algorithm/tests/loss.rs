//! Custom losses over the border: what they are given, what is checked of what they give, in Rust and in C.

mod common;

use common::{compile_c, gspo, in_c, load, misbehave};
use prl_algorithm::{Algorithm, AlgorithmError, Plugin};
use prl_types::{LossBatch, LossGradient};
use serde_json::json;
use std::fs;

/// Lists of a batch: samples of one prompt token and some sampled ones.
struct Lists {
    starts: Vec<u64>,
    temperatures: Vec<f32>,
    versions: Vec<u64>,
    ids: Vec<u32>,
    mask: Vec<u8>,
    trainer: Vec<f32>,
    sampling: Vec<f32>,
    advantages: Vec<f32>,
    weights: Vec<f32>,
    entropy: Vec<f32>,
}

fn lists(lens: &[usize]) -> Lists {
    let mut l = Lists {
        starts: vec![0],
        temperatures: vec![1.0; lens.len()],
        versions: vec![0; lens.len()],
        ids: vec![],
        mask: vec![],
        trainer: vec![],
        sampling: vec![],
        advantages: vec![],
        weights: vec![],
        entropy: vec![],
    };
    for (i, len) in lens.iter().enumerate() {
        for t in 0..*len {
            let sampled = t > 0;
            l.ids.push((i * 100 + t) as u32);
            l.mask.push(sampled.into());
            l.trainer.push(-1.0 - 0.125 * t as f32);
            l.sampling.push(if sampled { -1.25 } else { 0.0 });
            l.advantages.push(if sampled { [0.5, -1.0][i % 2] } else { 0.0 });
            l.weights.push(if sampled && t != 3 { 1.0 } else { 0.0 });
            l.entropy.push(0.5);
        }
        l.starts.push(l.ids.len() as u64);
    }
    l
}

impl Lists {
    fn batch(&self) -> LossBatch<'_> {
        LossBatch {
            step: 1,
            part: 0,
            normalizer: 10.0,
            starts: &self.starts,
            temperatures: &self.temperatures,
            oldest: &self.versions,
            newest: &self.versions,
            token_ids: &self.ids,
            mask: &self.mask,
            trainer_logprobs: &self.trainer,
            sampling_logprobs: &self.sampling,
            ref_logprobs: None,
            advantages: &self.advantages,
            weights: &self.weights,
            entropy: &self.entropy,
        }
    }
}

fn bad(mode: &str) -> Algorithm {
    misbehave().create_loss(&json!({"mode": mode}), 4).unwrap()
}

#[test]
fn every_bad_result_has_its_own_line() {
    let lists = lists(&[3, 4]);
    for (mode, line) in [
        ("error", "the algorithm `misbehave` failed in loss: out of ideas"),
        ("panic", "the algorithm `misbehave` panicked in loss: no loss for 7 tokens at "),
        ("nan", "gave an invalid result in loss: `d_logprob` is NaN at token 3 of sample 1"),
        ("infinite entropy", "`d_entropy` is -inf at token 3 of sample 1"),
        ("nan token", "`token_loss` is NaN at token 3 of sample 1"),
        ("nan loss", "gave an invalid result in loss: the loss is NaN"),
        ("infinite metric", "its metric `speed` is inf"),
    ] {
        let mut algorithm = bad(mode);
        // Twice: the instance survives.
        for _ in 0..2 {
            let error = algorithm.loss(&lists.batch()).unwrap_err().to_string();
            assert!(error.contains(line) && error.contains("`misbehave`"), "{mode}: {error}");
        }
    }
}

#[test]
fn gradients_of_tokens_that_are_no_members_are_cleared() {
    let lists = lists(&[3, 5]);
    let got = bad("everywhere").loss(&lists.batch()).unwrap();
    assert_eq!(got.dlogprob, [0.0, 0.5, 0.5, 0.0, 0.5, 0.5, 0.0, 0.5]);
    assert_eq!(got.dentropy.unwrap(), [0.0, -0.25, -0.25, 0.0, -0.25, -0.25, 0.0, -0.25]);
    assert_eq!((got.loss, got.token_losses), (4.0, vec![0.0; 8]), "it saw the entropies");
}

#[test]
fn random_numbers_depend_on_seed_step_and_part() {
    let lists = lists(&[3]);
    let draw = |seed: u64, step: u64, part: u64| {
        let mut algorithm = misbehave().create_loss(&json!({"mode": "random"}), seed).unwrap();
        algorithm.loss(&LossBatch { step, part, ..lists.batch() }).unwrap().metrics[0].value
    };
    assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
    for other in [draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4)] {
        assert_ne!(draw(1, 2, 3), other);
    }
}

#[test]
fn a_plugin_without_a_loss_and_lists_that_do_not_fit_are_refused() {
    let error = load("grpo").create_loss(&json!({}), 0).err().unwrap().to_string();
    assert_eq!(error, "the algorithm `grpo` has no loss: [trainer.loss] needs a plug-in with the hook `loss`");
    let error = gspo().create_loss(&json!({"clip": 1}), 0).err().unwrap().to_string();
    assert!(error.starts_with("the algorithm `gspo` rejects its configuration: clip: unknown field"), "{error}");
    let mut short = lists(&[3, 2]);
    short.advantages.pop();
    let error = bad("nothing").loss(&short.batch()).unwrap_err();
    assert!(matches!(error, AlgorithmError::Batch { list: "advantage", len: 4, due: 5 }), "{error}");
    let mut wild = lists(&[3, 2]);
    wild.starts[1] = 9;
    assert!(matches!(bad("nothing").loss(&wild.batch()).unwrap_err(), AlgorithmError::Batch { .. }));
}

#[test]
fn gspo_follows_its_formula() {
    let lists = lists(&[4, 3]);
    let mut loss = gspo().create_loss(&json!({"clip_low": 0.01, "clip_high": 0.02}), 0).unwrap();
    let got = loss.loss(&lists.batch()).unwrap();
    // Members: tokens 1 and 2 of both samples, log-ratios 0.125 and 0, so s = e^0.0625 > 1.02: clipped where A > 0.
    let s = 0.0625f64.exp();
    assert!((got.loss - (-2.0 * 0.5 * 1.02 + 2.0 * s) / 10.0).abs() < 1e-12, "{}", got.loss);
    let g = (s / 10.0) as f32;
    assert_eq!(got.dlogprob, [0.0, 0.0, 0.0, 0.0, 0.0, g, g]);
    assert_eq!(got.dentropy, None);
    let metric = |name: &str| got.metrics.iter().find(|m| m.name == name).unwrap().value;
    assert_eq!(metric("is_clipped"), 0.5);
    assert!((metric("ratio") - s).abs() < 1e-12);
}

#[test]
fn a_loss_in_c_works_from_the_header_alone() {
    let Some(plugin) = in_c("a_loss_in_c_works_from_the_header_alone", "cispo") else { return };
    let mut lists = lists(&[4, 3]);
    lists.sampling[1] = -4.0;
    let got = plugin.create_loss(&json!({}), 0).unwrap().loss(&lists.batch()).unwrap();
    let mut want = LossGradient { dlogprob: vec![0.0; 7], ..LossGradient::default() };
    for t in 0..7 {
        if lists.weights[t] != 0.0 {
            let (lp, mu) = (f64::from(lists.trainer[t]), f64::from(lists.sampling[t]));
            let pull = -(lp - mu).exp().min(5.0) * f64::from(lists.advantages[t]);
            want.loss += pull * lp / 10.0;
            want.dlogprob[t] = (pull / 10.0) as f32;
        }
    }
    assert!((got.loss - want.loss).abs() < 1e-12, "{} for {}", got.loss, want.loss);
    assert_eq!((got.dlogprob, got.metrics[0].value), (want.dlogprob, 0.25));
}

/// A loss in C that does what safe Rust cannot.
const WILD: &str = r#"
#include "prl.h"
PRL_METADATA("{\"name\": \"wild\", \"version\": \"1\", \"abi\": \"1.0\", \"hooks\": [\"loss\", \"reference\"],"
             " \"action_loss\": \"rl\", \"reference\": \"policy\"}");
static const prl_host *host;
static int32_t describe(prl_description *out) {
  out->action_loss = PRL_ACTION_RL;
  out->needs = PRL_NEEDS_POLICY_REFERENCE;
  out->metadata = PRL_LITERAL(prl_metadata);
  return PRL_OK;
}
static int32_t create(const prl_host *h, prl_str config, void **instance) {
  (void)config; (void)instance; host = h; return PRL_OK;
}
static void destroy(void *instance) { (void)instance; }
static int32_t loss(void *instance, const prl_batch *batch, prl_loss *out) {
  (void)instance;
  static float own[64];
  (void)own;
  if (batch->normalizer == 1) out->d_logprob[batch->n_tokens] = 1;
  if (batch->normalizer == 2) out->d_logprob = own;
  if (batch->normalizer == 3) return 7;
  if (batch->normalizer == 4) out->token_loss[batch->n_tokens + 3] = 0;
  if (batch->normalizer == 5) host->reference(host->ctx, 0, PRL_LITERAL("[]"));
  if (batch->normalizer == 6) out->d_entropy = own;
  return PRL_OK;
}
static int32_t reference(void *instance, const prl_group *rollout) {
  (void)instance; (void)rollout;
  return host->reference(host->ctx, 0, PRL_LITERAL(MESSAGES));
}
static const prl_plugin table = {
    .magic = PRL_MAGIC, .abi_major = PRL_ABI_MAJOR, .abi_minor = PRL_ABI_MINOR, .struct_size = sizeof(prl_plugin),
    .describe = describe, .create = create, .destroy = destroy, .loss = loss, .reference = reference,
};
PRL_EXPORT int32_t prl_plugin_init(uint32_t host_abi, const prl_plugin **out, prl_str *error) {
  (void)host_abi; (void)error; *out = &table; return PRL_OK;
}
"#;

#[test]
fn what_only_native_code_can_do_is_found_out() {
    let dir = tempfile::tempdir().unwrap();
    let (source, file) = (dir.path().join("wild.c"), dir.path().join("libwild.so"));
    fs::write(&source, WILD).unwrap();
    let test = "what_only_native_code_can_do_is_found_out";
    let Some(()) = compile_c(test, &source, &file, &["-DMESSAGES=\"[]\""]) else { return };
    let mut wild = Plugin::load(&file).unwrap().create_loss(&json!({}), 0).unwrap();
    let lists = lists(&[3]);
    for (case, line) in [
        (1.0, "it wrote past the end of `d_logprob`"),
        (2.0, "it put a list of its own in the place of one it was given to write to"),
        (3.0, "failed in loss: it returned 7 without a reason"),
        (4.0, "it wrote past the end of `token_loss`"),
        (5.0, "it called `reference` outside of reference"),
        (6.0, "it put a list of its own in the place of one it was given to write to"),
    ] {
        let error = wild.loss(&LossBatch { normalizer: case, ..lists.batch() }).unwrap_err().to_string();
        assert!(error.contains(line), "{case}: {error}");
    }
    wild.loss(&LossBatch { normalizer: 9.0, ..lists.batch() }).unwrap();

    for (messages, line) in [
        ("{}", "its messages for sample 0 are no list of messages: "),
        ("[{\\\"role\\\": \\\"oracle\\\", \\\"content\\\": \\\"\\\"}]", "unknown variant `oracle`"),
        ("[{\\\"role\\\": \\\"user\\\"}]", "missing field `content`"),
        ("[{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"\\\", \\\"name\\\": 1}]", "unknown field `name`"),
    ] {
        compile_c(test, &source, &file, &[&format!("-DMESSAGES=\"{messages}\"")]);
        let mut wild = Plugin::load(&file).unwrap().create(&json!({}), 0).unwrap();
        let error = wild.reference(&common::rollout(0, 1.0, &[(1, 1)])).unwrap_err().to_string();
        assert!(error.contains(line), "{messages}: {error}");
    }
}
