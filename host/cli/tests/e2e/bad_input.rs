//! Bad input: one clear message, exit code 2, and files that were there before stay as they are.

use crate::support::{Finished, Scratch, files, model, repo, rl_toml};
use std::fs;
use std::path::Path;

/// The message is the only output, names every one of `words`, and is no crash.
#[track_caller]
fn assert_refused(done: &Finished, words: &[&str]) {
    assert_eq!(done.code, Some(2), "{done}");
    assert_eq!(done.stdout, "", "{done}");
    assert!(done.stderr.starts_with("error: "), "{done}");
    assert_eq!(done.stderr.matches("error: ").count(), 1, "{done}");
    for crash in ["thread '", "stack backtrace", "RUST_BACKTRACE"] {
        assert!(!done.stderr.contains(crash), "{done}");
    }
    for word in words {
        assert!(done.stderr.contains(word), "no `{word}` in: {done}");
    }
}

/// Runs the example with `words` into a folder where somebody keeps files.
#[track_caller]
fn refused_in(scratch: &Scratch, words: &str, naming: &[&str]) {
    let out = scratch.path("out");
    if !out.exists() {
        fs::create_dir_all(out.join("configs")).unwrap();
        fs::write(out.join("notes.txt"), "mine").unwrap();
        fs::write(out.join("configs/rl.toml"), "# of a dry run").unwrap();
    }
    let before = files(&out);
    assert_refused(&scratch.rl("out", words), naming);
    assert!(files(&out) == before, "{words}: now there are {:?}", files(&out).keys());
    assert_refused(&scratch.rl("fresh", words), naming);
    assert!(!scratch.path("fresh").exists(), "{words}: leaves a folder");
}

#[track_caller]
fn refused(words: &str, naming: &[&str]) {
    refused_in(&Scratch::new(), words, naming);
}

#[test]
fn models() {
    refused("--model.name ./none", &["`trainer.model.name`", "./none"]);
    refused("--model.name nobody/none", &["nobody/none"]);
    refused(&format!("--model.name {}", repo().join("examples/reverse_text/base").display()), &["model.safetensors"]);

    let scratch = Scratch::new();
    let dir = scratch.copy_of(&model(), "damaged");
    let weights = dir.join("model.safetensors");
    let whole = fs::read(&weights).unwrap();
    for len in [0, 4, 100, whole.len() / 2, whole.len() - 1] {
        fs::write(&weights, &whole[..len]).unwrap();
        refused_in(&scratch, "--model.name damaged", &["damaged/model.safetensors"]);
    }
    fs::write(&weights, &whole).unwrap();
    fs::write(dir.join("config.json"), "{\"model_type\": \"qwen3\"").unwrap();
    refused_in(&scratch, "--model.name damaged", &["config.json"]);
    fs::copy(model().join("config.json"), dir.join("config.json")).unwrap();
    fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    refused_in(&scratch, "--model.name damaged", &["tokenizer"]);
    fs::remove_file(dir.join("tokenizer.json")).unwrap();
    refused_in(&scratch, "--model.name damaged", &["tokenizer.json"]);
}

#[test]
fn a_vocabulary_smaller_than_the_tokenizers() {
    let scratch = Scratch::new();
    let dir = scratch.copy_of(&repo().join("examples/reverse_text/base"), "small");
    let config = fs::read_to_string(dir.join("config.json")).unwrap();
    fs::write(dir.join("config.json"), config.replace("\"vocab_size\": 267", "\"vocab_size\": 100")).unwrap();
    let random = "--model.name small --trainer.model.debug.random-init";
    refused_in(&scratch, random, &["small", "267", "100"]);
    let sft = repo().join("examples/reverse_text/sft.toml");
    let done = scratch.prl(&format!("sft @ {} --model.name small --output-dir sft", sft.display()));
    assert_refused(&done, &["small", "267", "100"]);
    assert!(!scratch.path("sft").exists());
}

#[test]
fn algorithms() {
    refused("--orchestrator.algo.type nope", &["`orchestrator.algo.type`", "`nope`", "`grpo`", "--plugin"]);
    refused("--plugin ./none.so", &["none.so"]);
    refused("--orchestrator.algo.surprise 1", &["surprise"]);

    let scratch = Scratch::new();
    scratch.write("text.so", "no library");
    refused_in(&scratch, "--plugin ./text.so", &["text.so is not a plug-in"]);
    // A real library of ours, but no plug-in.
    fs::copy(std::env::current_exe().unwrap(), scratch.path("foreign.so")).unwrap();
    refused_in(&scratch, "--plugin ./foreign.so", &["foreign.so", "no prl plug-in"]);
    let grpo = Path::new(env!("CARGO_BIN_EXE_prl")).with_file_name("deps").join("libgrpo.so");
    let bytes = fs::read(grpo).unwrap();
    scratch.write("cut.so", &bytes[..bytes.len() / 2]);
    refused_in(&scratch, "--plugin ./cut.so", &["cut.so"]);
}

/// A file with one training environment.
fn env_toml(scratch: &Scratch, id: &str, args: &str) -> String {
    scratch.write("env.toml", format!("[[orchestrator.train.env]]\nid = \"{id}\"\nargs = {args}\n"))
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/3139
#[test]
fn environments() {
    let scratch = Scratch::new();
    let whole = fs::read(repo().join("envs/reverse-text.wasm")).unwrap();
    let bad: [(&str, &[u8], &str); 4] = [
        ("text.wasm", b"no component", "not a WASM file"),
        ("module.wasm", b"\0asm\x01\0\0\0", "not a component"),
        ("empty.wasm", b"", "not a WASM file"),
        ("cut.wasm", &whole[..whole.len() / 2], "cut off"),
    ];
    for (name, bytes, reason) in bad {
        scratch.write(name, bytes);
        let toml = env_toml(&scratch, name, "{}");
        refused_in(&scratch, &format!("@ {toml}"), &["`orchestrator.train.env.0`", name, reason]);
    }
    let toml = env_toml(&scratch, "nowhere.wasm", "{}");
    refused_in(&scratch, &format!("@ {toml}"), &["nowhere.wasm", "PRL_ENV_PATH"]);

    let misbehave = repo().join("envs/misbehave.wasm").display().to_string();
    let first_call: [(&str, &[&str]); 5] = [
        ("{ act = \"panic\" }", &["`configure`", "it crashed", "misbehaving on purpose"]),
        ("{ act = \"bomb\" }", &["`configure`", "out of memory"]),
        ("{ act = \"stack\" }", &["`configure`", "it crashed"]),
        ("{ act = \"refuse\" }", &["`act` is a bad idea"]),
        ("{}", &["there is no split `train`", "`honest`"]),
    ];
    for (args, naming) in first_call {
        let toml = env_toml(&scratch, &misbehave, args);
        refused_in(&scratch, &format!("@ {toml}"), &[&["environment `misbehave`"], naming].concat());
    }
    let toml = env_toml(&scratch, &misbehave, "{ act = \"loop\" }\ntimeout = { call = 0.3 }");
    refused_in(&scratch, &format!("@ {toml}"), &["`configure`", "no answer within"]);
    let toml = env_toml(&scratch, &repo().join("envs/reverse-text.wasm").display().to_string(), "{ surprise = 1 }");
    refused_in(&scratch, &format!("@ {toml}"), &["`orchestrator.train.env.0`", "`args.surprise` is not an argument"]);
}

#[test]
fn capabilities_and_weights() {
    let scratch = Scratch::new();
    let probe = repo().join("envs/probe.wasm").display().to_string();
    let reverse = repo().join("envs/reverse-text.wasm").display().to_string();
    let judge = "llm = [{ role = \"ROLE\", base_url = \"http://127.0.0.1:9/v1\", model = \"m\", KEY }]";
    let all = "grants = [\"kv\", \"http\", \"llm\", \"assets\"]\nhttp_allow = [\"http://127.0.0.1:9\"]\n";
    let llm = |role: &str, key: &str| format!("{all}{}", judge.replace("ROLE", role).replace(", KEY", key));
    fs::create_dir(scratch.path("probe.assets")).unwrap();
    fs::copy(&probe, scratch.path("probe.wasm")).unwrap();
    let cases: [(&str, String, &[&str]); 7] = [
        (&probe, String::new(), &["imports `prl:env/assets@0.1.0`, which this run does not grant", "add \"assets\""]),
        (&probe, llm("judge", ""), &["`orchestrator.train.env.0.grants`", "probe.assets"]),
        ("probe.wasm", llm("user", ""), &["asks a model in the role `judge`, for which there is none"]),
        (
            "probe.wasm",
            llm("judge", ", api_key_var = \"PRL_NO_SUCH_KEY\""),
            &["env.0.llm.0.api_key_var`", "PRL_NO_SUCH_KEY"],
        ),
        ("probe.wasm", llm("judge", "").replace("127.0.0.1:9\"]", "a@b\"]"), &["env.0.http_allow`", "http://a@b"]),
        (&reverse, "weights = { format = 1 }".into(), &["`weights.format`: there is no reward component `format`"]),
        (&reverse, "split = \"test\"".into(), &["`orchestrator.train.env.0`", "no split `test`, only `train`, `eval`"]),
    ];
    for (id, more, naming) in cases {
        let toml = env_toml(&scratch, id, &format!("{{}}\n{more}"));
        refused_in(&scratch, &format!("@ {toml}"), naming);
    }
}

#[test]
fn configuration() {
    refused("--orchestrator.batch-size 18", &["`orchestrator.batch_size` (18)", "`orchestrator.group_size` (4)"]);
    refused("--orchestrator.group-sise 4", &["`orchestrator.group_sise`", "did you mean `group_size`?"]);
    refused("@ nope.toml", &["nope.toml"]);
    refused("--max-steps many", &["max_steps", "many"]);
    refused("stray", &["stray"]);

    let scratch = Scratch::new();
    let toml = scratch.write("typo.toml", "max_steps = 3\n[orchestrator]\nbatch_sise = 16\n");
    refused_in(&scratch, &format!("@ {toml}"), &["typo.toml:3", "batch_sise", "did you mean `batch_size`?"]);
    let toml = scratch.write("broken.toml", "max_steps = \n");
    refused_in(&scratch, &format!("@ {toml}"), &["broken.toml:1"]);

    if !cfg!(feature = "cuda") {
        refused("--device cuda", &["`device`", "--features cuda"]);
    }
}

#[test]
fn measuring() {
    refused("--bench", &["`bench`", "`prl trainer @ trainer.toml --bench`"]);
    refused("--trainer.data.fake", &["`trainer.data`", "`prl trainer`"]);
    refused("--matmul-precision high", &["did you mean `trainer.matmul_precision`?"]);
    refused("--trainer.model.ac.targets norm experts", &["\"norm\", \"attn_proj\", \"mlp\"", "\"experts\""]);

    let scratch = Scratch::new();
    scratch.write("file", "mine");
    let name = model().display().to_string();
    for (words, naming) in [
        ("trainer", "`prl rl @ rl.toml`"),
        ("trainer --data.fake --model.name none", "`model.name`"),
        ("trainer --data.fake.batch-size 0", "`data.fake.batch_size` must be at least 1"),
        ("trainer --bench --matmul-precision low", "\"highest\", \"high\", \"medium\""),
        ("trainer --bench.output-json .", "`bench.output_json`"),
        ("sft --bench.output-json file/below.json", "`bench.output_json`"),
        ("sft --data.type fake --data.length long", "\"fixed\", \"variable\""),
        ("sft --data.type fake --data.seq-len 1 --output-dir out", "`data.seq_len`"),
        ("sft --data.type fake --val.data.type fake", "`val.data.type`"),
        ("doctor --gpu", "--gpu"),
    ] {
        let words = if words.starts_with("sft") { format!("{words} --model.name {name}") } else { words.to_string() };
        assert_refused(&scratch.prl(&words), &[naming]);
    }
    assert_eq!(files(&scratch.path("")).len(), 1);
}

#[test]
fn commands() {
    let scratch = Scratch::new();
    for (words, naming) in [("rlx", "rlx"), ("--what", "--what"), ("rl @", "`@`"), ("sft @ none.toml", "none.toml")] {
        assert_refused(&scratch.prl(words), &[naming]);
    }
    let bare = scratch.prl("");
    assert_eq!(bare.code, Some(2), "{bare}");
    assert!(bare.stderr.contains("Usage: prl <COMMAND>"), "{bare}");
}

#[test]
fn output_directories() {
    let scratch = Scratch::new();
    scratch.rl("out", "--max-steps 1").ok();
    refused_with_run(
        &scratch,
        "--max-steps 1",
        &["out already holds a run", "--clean-output-dir", "--ckpt.resume-step"],
    );
    // Cleaning waits until everything else is known to be good.
    refused_with_run(&scratch, "--clean-output-dir --orchestrator.algo.type nope", &["`nope`"]);
    refused_with_run(&scratch, "--clean-output-dir --model.name ./none", &["./none"]);
    let mut careful = scratch.command(&scratch.rl_words("out", "--max-steps 1 --clean-output-dir"));
    careful.env("NEVER_CLEAN_OUTPUT_DIR", "1");
    assert_refused(&crate::support::Running::start(careful).wait(), &["NEVER_CLEAN_OUTPUT_DIR"]);
    fs::write(scratch.path("out/notes.txt"), "mine").unwrap();
    scratch.rl("out", "--max-steps 2 --clean-output-dir").ok();
    assert_eq!(scratch.run("out").steps().len(), 2);
    assert_eq!(fs::read_to_string(scratch.path("out/notes.txt")).unwrap(), "mine");

    scratch.write("file", "mine");
    for out in ["file", "file/below", "/proc/none"] {
        let words = format!("rl @ {} --max-steps 1 --output-dir {out}", rl_toml());
        assert_refused(&scratch.prl(&words), &[out]);
    }
    assert_eq!(fs::read_to_string(scratch.path("file")).unwrap(), "mine");
}

#[track_caller]
fn refused_with_run(scratch: &Scratch, words: &str, naming: &[&str]) {
    let before = files(&scratch.path("out"));
    assert_refused(&scratch.rl("out", words), naming);
    assert!(files(&scratch.path("out")) == before, "{words}");
}
