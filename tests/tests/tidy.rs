//! House rules as tests: file headers and sizes, banned calls, who may depend on whom, documentation that exists.

use prl_tests::{files, root};
use std::collections::BTreeSet;
use std::process::Command;

/// (path relative to the root, text) of every Rust file of ours.
fn sources() -> Vec<(String, String)> {
    let root = root();
    files(&root, ".rs")
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path.strip_prefix(&root).unwrap().to_string_lossy().into_owned(), text)
        })
        .collect()
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.starts_with("tests/") || path.ends_with("_tests.rs") || path.ends_with("/tests.rs")
}

/// The part of a file before its unit tests.
fn product(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn every_file_says_what_it_owns_and_stays_small() {
    let mut bad = Vec::new();
    for (path, text) in sources() {
        if !text.starts_with("//!") {
            bad.push(format!("{path}: does not open with a `//!` paragraph"));
        }
        let lines = text.lines().count();
        if lines > 800 {
            bad.push(format!("{path}: {lines} lines, more than 800"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn nothing_is_left_undone_and_libraries_do_not_print_or_exit() {
    let own = "tests/tests/tidy.rs";
    let mut bad = Vec::new();
    for (path, text) in sources().into_iter().filter(|(path, _)| path != own) {
        for word in ["todo!(", "unimplemented!(", "dbg!(", "FIXME"] {
            if text.contains(word) {
                bad.push(format!("{path}: `{word}`"));
            }
        }
        let library = path.starts_with("host/") && !path.starts_with("host/cli/") && !path.contains("/examples/");
        if library && !is_test(&path) {
            for word in ["println!(", "eprintln!(", "process::exit"] {
                if product(&text).lines().any(|l| l.contains(word) && !l.trim_start().starts_with("//")) {
                    bad.push(format!("{path}: `{word}` in a library"));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Token-in/token-out: ids of sampled text come from the engine and from nowhere else, be it on a server that gives ids.
/// Made-up batches are no text.
#[test]
fn only_the_engine_makes_sampled_tokens() {
    let own = ["host/types/src/sample.rs", "host/trainer/src/fake.rs", "host/cli/src/remote/tokens.rs"];
    for (path, text) in sources() {
        let allowed = is_test(&path) || path.starts_with("host/inference/") || own.contains(&path.as_str());
        assert!(allowed || !product(&text).contains("Sampled::from_engine"), "{path} makes `Sampled` itself");
        let trial = allowed || path.starts_with("host/cli/src/algo/");
        assert!(trial || !product(&text).contains("Sample::made_up"), "{path} makes up a `Sample`");
    }
}

/// Dependencies between our crates, direct and not for tests only.
fn dependencies() -> Vec<(String, BTreeSet<String>)> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .current_dir(root())
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let ours: BTreeSet<&str> = packages.iter().map(|p| p["name"].as_str().unwrap()).collect();
    packages
        .iter()
        .map(|p| {
            let deps = p["dependencies"].as_array().unwrap().iter();
            let deps = deps.filter(|d| d["kind"].is_null()).map(|d| d["name"].as_str().unwrap());
            (p["name"].as_str().unwrap().to_owned(), deps.filter(|d| ours.contains(d)).map(str::to_owned).collect())
        })
        .collect()
}

#[test]
fn crates_depend_in_one_direction() {
    let rules: &[(&str, &[&str])] = &[
        ("prl-types", &[]),
        ("prl-config", &[]),
        ("prl-data", &["prl-hub"]),
        ("prl-hub", &[]),
        ("prl-kernels", &[]),
        ("prl-model", &["prl-hub", "prl-kernels", "prl-types"]),
        ("prl-render", &["prl-types"]),
        ("prl-inference", &["prl-kernels", "prl-model", "prl-types"]),
        ("prl-trainer", &["prl-config", "prl-model", "prl-types"]),
        ("prl-algorithm", &["prl-abi", "prl-types"]),
        ("prl-bridge", &["prl-env"]),
        ("prl-environment", &["prl-types"]),
        ("prl-orchestrator", &["prl-types"]),
        ("prl-registry", &[]),
        ("prl-server", &["prl-inference", "prl-model", "prl-render", "prl-types"]),
        ("prl-store", &["prl-types"]),
        ("prl-monitor", &["prl-types"]),
        ("prl-abi", &[]),
        ("prl-sdk", &["prl-abi"]),
        ("prl-env", &[]),
        ("prl-numbers", &[]),
    ];
    for (name, deps) in dependencies() {
        let allowed: BTreeSet<String> = match rules.iter().find(|(n, _)| *n == name) {
            Some((_, allowed)) => allowed.iter().map(|s| (*s).to_owned()).collect(),
            None if name.starts_with("prl-algo-") => ["prl-sdk".to_owned()].into(),
            None if name == "prl" || name == "prl-tests" => continue,
            // Environments.
            None => ["prl-env".to_owned(), "prl-numbers".to_owned()].into(),
        };
        let extra: Vec<_> = deps.difference(&allowed).collect();
        assert!(extra.is_empty(), "{name} must not depend on {extra:?}");
    }
}

/// Public reports that tests show to be no trouble here: the address stands above the test.
const REPORTS: [&str; 54] = [
    "InternLM/lmdeploy/issues/4917",
    "NVIDIA-NeMo/Gym/issues/1351",
    "NVIDIA-NeMo/Gym/issues/605",
    "NVIDIA-NeMo/Gym/issues/775",
    "NVIDIA-NeMo/RL/issues/3594",
    "NVIDIA-NeMo/RL/issues/4039",
    "NVIDIA-NeMo/RL/issues/4243",
    "NVIDIA-NeMo/RL/pull/4018",
    "PrimeIntellect-ai/prime-rl/issues/1251",
    "PrimeIntellect-ai/prime-rl/issues/2616",
    "PrimeIntellect-ai/prime-rl/issues/834",
    "PrimeIntellect-ai/prime-rl/pull/1084",
    "PrimeIntellect-ai/prime-rl/pull/1491",
    "PrimeIntellect-ai/prime-rl/pull/1513",
    "PrimeIntellect-ai/prime-rl/pull/1537",
    "PrimeIntellect-ai/prime-rl/pull/1563",
    "PrimeIntellect-ai/prime-rl/pull/1574",
    "PrimeIntellect-ai/prime-rl/pull/1596",
    "PrimeIntellect-ai/prime-rl/pull/1650",
    "PrimeIntellect-ai/prime-rl/pull/1712",
    "PrimeIntellect-ai/prime-rl/pull/1801",
    "PrimeIntellect-ai/prime-rl/pull/1805",
    "PrimeIntellect-ai/prime-rl/pull/1816",
    "PrimeIntellect-ai/prime-rl/pull/1825",
    "PrimeIntellect-ai/prime-rl/pull/2360",
    "PrimeIntellect-ai/prime-rl/pull/2896",
    "PrimeIntellect-ai/prime-rl/pull/3123",
    "PrimeIntellect-ai/prime-rl/pull/3139",
    "PrimeIntellect-ai/verifiers/issues/1982",
    "PrimeIntellect-ai/verifiers/issues/400",
    "PrimeIntellect-ai/verifiers/issues/726",
    "PrimeIntellect-ai/verifiers/pull/1763",
    "PrimeIntellect-ai/verifiers/pull/1934",
    "RLinf/RLinf/pull/1469",
    "SJTU-DENG-Lab/LightningRL/issues/1",
    "allenai/open-instruct/issues/1473",
    "huggingface/OpenEnv/issues/1232",
    "huggingface/lerobot/pull/4562",
    "huggingface/trl/issues/6369",
    "huggingface/trl/pull/3248",
    "huggingface/trl/pull/5773",
    "huggingface/trl/pull/5775",
    "huggingface/trl/pull/6439",
    "huggingface/trl/pull/6714",
    "marin-community/marin/issues/1988",
    "radixark/miles/issues/2689",
    "sgl-project/SpecForge/pull/659",
    "thinking-machines-lab/tinker-cookbook/pull/822",
    "unslothai/unsloth-zoo/pull/1262",
    "unslothai/unsloth-zoo/pull/1286",
    "vecna-labs/open-range/issues/202",
    "verl-project/verl/issues/1683",
    "verl-project/verl/issues/7155",
    "vllm-project/vllm/issues/42259",
];

#[test]
fn reports_have_their_tests() {
    let tests: String = sources()
        .into_iter()
        .filter(|(path, text)| is_test(path) || text.contains("#[cfg(test)]"))
        .map(|(_, text)| text)
        .collect();
    let above = |report: &&&str| !tests.contains(&format!("// https://github.com/{report}\n"));
    let missing: Vec<&&str> = REPORTS.iter().filter(above).collect();
    assert!(missing.is_empty(), "no test is below the address of {missing:?}");
}

/// Links between the repository's own documents lead somewhere.
#[test]
fn links_in_documents_exist() {
    let mut bad = Vec::new();
    for path in files(&root(), ".md") {
        let text = std::fs::read_to_string(&path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            if !path.parent().unwrap().join(target).exists() {
                bad.push(format!("{}: {link}", path.display()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
