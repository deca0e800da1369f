//! Rollouts and plug-in files for the tests.
#![allow(dead_code)] // each test file uses its part

use prl_algorithm::Plugin;
use prl_types::{
    FinishReason, Message, PolicyVersion, Role, RoleSpan, Rollout, RolloutId, Sample, Sampled, Score, Task, Timing,
    Turn,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};

/// A library that cargo built beside the tests: `target/release/deps/lib<name>.so`.
pub fn library(name: &str) -> PathBuf {
    let deps = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let places = [deps.clone(), deps.join("../examples"), deps.join("..")];
    let file = format!("lib{name}.so");
    let found = places.iter().map(|p| p.join(&file)).find(|p| p.is_file());
    found.unwrap_or_else(|| panic!("cargo built no {file} for this test; run `cargo test --release -p prl-algorithm`"))
}

pub fn load(name: &str) -> Plugin {
    Plugin::load(&library(name)).unwrap()
}

/// A plug-in of `plugins/`, built on its own as third parties build theirs. Its dependencies are all among the workspace's,
/// so that nothing is fetched.
pub fn outside(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins");
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins").join(name).join("Cargo.toml");
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--offline", "--locked", "--quiet", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join("release").join(format!("lib{name}.so"))
}

/// [`outside`], once for a test binary.
pub fn misbehave() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| Plugin::load(&outside("misbehave")).unwrap())
}

/// [`outside`], once for a test binary.
pub fn gspo() -> &'static Plugin {
    static PLUGIN: OnceLock<Plugin> = OnceLock::new();
    PLUGIN.get_or_init(|| Plugin::load(&outside("gspo")).unwrap())
}

/// A C source of `plugins/c`, compiled; `None` (and a line) without a compiler.
pub fn in_c(test: &str, name: &str) -> Option<Plugin> {
    let dir = tempfile::tempdir().unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/c").join(name).with_extension("c");
    let file = dir.path().join(format!("lib{name}.so"));
    compile_c(test, &source, &file, &[])?;
    Some(Plugin::load(&file).unwrap())
}

/// Compiles C with the header in reach into a shared library; `None` (and a line) without a compiler.
pub fn compile_c(test: &str, source: &Path, output: &Path, flags: &[&str]) -> Option<()> {
    let repo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror", "-Wno-unused-function", "-I"])
        .arg(repo.join("sdk/abi/include"))
        .args(flags)
        .arg(source)
        .arg("-o")
        .arg(output)
        .arg("-lm");
    match cc.output() {
        Ok(built) => {
            assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
            Some(())
        }
        Err(_) => {
            eprintln!("skipped {test}: no C compiler named `cc`");
            None
        }
    }
}

/// A rollout with one sample per `(prompt, completion)` and as many turns.
pub fn rollout(member: u32, reward: f64, samples: &[(usize, usize)]) -> Rollout {
    let v = PolicyVersion(3);
    let task = Task {
        env: "reverse-text".into(),
        split: "train".into(),
        index: 5,
        seed: 6,
        key: "reverse-text:5".into(),
        prompt: vec![Message::text(Role::User, "hi")],
        tools: vec![],
        answer: None,
        payload: serde_json::json!({"text": "héllo"}),
        max_turns: None,
        tags: vec![],
    };
    let samples: Vec<Sample> = samples
        .iter()
        .map(|(prompt, completion)| {
            let span = RoleSpan { start: 0, len: *prompt, role: Role::User, is_content: true };
            let mut sample = Sample::from_prompt(&vec![1; *prompt], vec![span], 1.0);
            let (ids, logprobs) = (vec![7; *completion], vec![-0.5; *completion]);
            sample.push_sampled(&Sampled::from_engine(ids, logprobs, (v, v), FinishReason::Length).unwrap());
            sample
        })
        .collect();
    let turn = |sample: &Sample| Turn {
        message: Message::text(Role::Assistant, "olleh"),
        tokens: sample.output_tokens(),
        reward: None,
        replies: vec![],
    };
    Rollout {
        id: RolloutId { group: prl_types::GroupId(2), member },
        attempt: 0,
        task: Arc::new(task),
        turns: samples.iter().map(turn).collect(),
        branches: vec![],
        samples,
        streams: vec![],
        reward,
        score: Score::default(),
        error: None,
        truncation: None,
        stop_condition: "done".into(),
        filters: vec![],
        is_filtered: false,
        policy_version: v,
        timing: Timing::default(),
    }
}

pub fn group(rewards: &[f64]) -> Vec<Rollout> {
    rewards.iter().enumerate().map(|(i, r)| rollout(i as u32, *r, &[(2, 3)])).collect()
}
