//! The command line: layering, flags, sections, lists, unions, sources and dumps.

use prl_config::{
    AdamW, ConfigErrors, Device, Filter, Loaded, Loss, Optim, Pool, RlConfig, Scheduler, SftConfig, SftData, Source,
    TrainerRun, load_rl, load_sft, load_trainer,
};
use serde_json::json;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const BASE: &str = "[orchestrator]\ngroup_size = 8\n[[orchestrator.train.env]]\nid = \"a\"\n";

/// A folder with files, and the words of a command line over them (`DIR` is the folder).
fn words(dir: &TempDir, files: &[(&str, &str)], line: &[&str]) -> Vec<String> {
    for (name, text) in files {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    line.iter().map(|w| w.replace("DIR", dir.path().to_str().unwrap())).collect()
}

fn try_rl(files: &[(&str, &str)], line: &[&str]) -> Result<Loaded<RlConfig>, ConfigErrors> {
    let dir = TempDir::new().unwrap();
    load_rl(&words(&dir, files, line))
}

fn rl(files: &[(&str, &str)], line: &[&str]) -> Loaded<RlConfig> {
    try_rl(files, line).unwrap_or_else(|e| panic!("{e}"))
}

/// `BASE`, then the given words.
fn flags(line: &[&str]) -> Loaded<RlConfig> {
    rl(&[("base.toml", BASE)], &[&["@", "DIR/base.toml"], line].concat())
}

fn failing(line: &[&str]) -> String {
    let line = [&["@", "DIR/base.toml"], line].concat();
    try_rl(&[("base.toml", BASE)], &line).map(|_| ()).expect_err("should fail").to_string()
}

fn sft(text: &str, line: &[&str]) -> Result<Loaded<SftConfig>, ConfigErrors> {
    let dir = TempDir::new().unwrap();
    load_sft(&words(&dir, &[("sft.toml", text)], &[&["@", "DIR/sft.toml"], line].concat()))
}

fn adamw(config: &RlConfig) -> &AdamW {
    match &config.trainer.optim {
        Optim::AdamW(adamw) => adamw,
        other => panic!("{other:?}"),
    }
}

#[test]
fn later_files_win_and_flags_win_over_files() {
    let files = [
        ("a.toml", "max_steps = 1\nseed = 1\n[trainer.optim]\nlr = 1.0\nbetas1 = 0.5\n"),
        ("b.toml", "seed = 2\n[trainer.optim]\nlr = 2.0\n"),
        ("base.toml", BASE),
    ];
    let line = ["--seed", "3", "@", "DIR/a.toml", "@DIR/base.toml", "@", "DIR/b.toml"];
    let config = rl(&files, &line).config;
    let adamw = adamw(&config);
    assert_eq!((config.seed, config.max_steps, adamw.lr, adamw.betas1), (3, Some(1), 2.0, 0.5));
}

#[test]
fn lists_are_replaced_and_tables_merged() {
    let files = [
        ("base.toml", BASE),
        ("b.toml", "[[orchestrator.train.env]]\nid = \"b\"\n[[orchestrator.train.env]]\nid = \"c\"\n"),
    ];
    let config = rl(&files, &["@", "DIR/base.toml", "@", "DIR/b.toml"]).config;
    let names: Vec<_> = config.orchestrator.train.env.iter().map(|e| e.name.as_str()).collect();
    assert_eq!(names, ["b", "c"]);
}

#[test]
fn files_nest_under_sections() {
    let files = [("t.toml", "[optim]\nlr = 0.5\n"), ("o.toml", "lr = 0.25\n"), ("base.toml", BASE)];
    for line in [
        ["--trainer", "@", "DIR/t.toml", "@", "DIR/base.toml", "--trainer.optim", "@DIR/o.toml"],
        ["@", "DIR/base.toml", "--trainer", "@", "DIR/t.toml", "--trainer.optim", "@DIR/o.toml"],
    ] {
        assert_eq!(adamw(&rl(&files, &line).config).lr, 0.25);
    }
}

#[test]
fn kebab_and_snake_equals_and_space() {
    for line in [["--orchestrator.batch-size", "64"], ["--orchestrator.batch_size=64", "--dry-run"]] {
        assert_eq!(flags(&line).config.orchestrator.batch_size, Some(64));
    }
    assert_eq!(flags(&["--model.name", "5"]).config.trainer.model.name, "5");
    let resumed = flags(&["--ckpt.resume-step", "-1"]).config.trainer.ckpt.unwrap();
    assert_eq!(resumed.resume_step, Some(-1));
}

#[test]
fn switches() {
    assert!(flags(&["--dry-run", "--clean-output-dir"]).config.clean_output_dir);
    assert!(!flags(&["--clean-output-dir", "--no-clean-output-dir"]).config.clean_output_dir);
    assert!(!flags(&["--clean-output-dir", "false", "--dry-run"]).config.clean_output_dir);
    let config = flags(&[
        "--no-orchestrator.pre-batch-filters.0.enforce",
        "--orchestrator.pre-batch-filters.0.type",
        "repetition",
    ]);
    assert_eq!(config.config.orchestrator.pre_batch_filters.len(), 1);
}

#[test]
fn bare_sections() {
    let both = |config: &RlConfig| (config.trainer.ckpt.is_some(), config.orchestrator.ckpt.is_some());
    assert_eq!(both(&flags(&[]).config), (false, false));
    assert_eq!(both(&flags(&["--ckpt"]).config), (true, true));
    let set = flags(&["--ckpt.interval", "25", "--ckpt"]).config;
    assert_eq!(set.trainer.ckpt.as_ref().unwrap().interval, Some(25));
    assert_eq!(set.orchestrator.ckpt.as_ref().unwrap().interval, Some(25));
    assert_eq!(both(&flags(&["--ckpt", "--no-ckpt"]).config), (false, false));
    let file = [("base.toml", BASE), ("c.toml", "[ckpt]\ninterval = 5\n[wandb]\n")];
    let off = rl(&file, &["@", "DIR/base.toml", "@", "DIR/c.toml", "--no-ckpt", "--wandb", "None"]).config;
    assert!(off.trainer.ckpt.is_none() && off.orchestrator.wandb.is_none() && off.ckpt.is_none());
    let kept = rl(&file, &["@", "DIR/base.toml", "@", "DIR/c.toml", "--ckpt"]).config;
    assert_eq!(kept.trainer.ckpt.unwrap().interval, Some(5));
    // A shared section may be bare while the component sets keys of its own.
    let own = flags(&["--ckpt", "--trainer.ckpt.keep-last", "3"]).config;
    assert_eq!(own.trainer.ckpt.unwrap().keep_last, Some(3));
}

#[test]
fn lists() {
    let tags = |line: &[&str]| flags(line).config.wandb.unwrap().tags.unwrap();
    assert_eq!(tags(&["--wandb.tags", "a", "b", "--dry-run"]), ["a", "b"]);
    assert_eq!(tags(&["--wandb.tags", r#"["a", "b c"]"#]), ["a", "b c"]);
    assert_eq!(tags(&["--wandb.tags=a"]), ["a"]);
    assert_eq!(tags(&["--wandb.tags", "[]"]).len(), 0);
    let plugins = flags(&["--plugin", "a.so", "--plugin", "b.so", "--seed", "1"]).config.plugin;
    assert_eq!(plugins, [Path::new("a.so"), Path::new("b.so")]);
}

#[test]
fn items_of_lists_and_tables_of_others() {
    let loaded = flags(&[
        "--orchestrator.train.env.0.args",
        r#"{"words": 3, "nested": {"a": 1}}"#,
        "--orchestrator.train.env.0.args.nested.b-c",
        "text",
        "--orchestrator.train.env.0.args.count=7",
        "--orchestrator.train.env.1.id",
        "second",
    ]);
    let env = &loaded.config.orchestrator.train.env;
    assert_eq!(json!(env[0].args), json!({"words": 3, "nested": {"a": 1, "b-c": "text"}, "count": 7}));
    assert_eq!((env[0].name.as_str(), env[1].name.as_str(), env[1].group_size), ("a", "second", 8));
    let whole = flags(&["--orchestrator.train.env", r#"[{"id": "x"}]"#, "--orchestrator.train.env.0.ratio", "2"]);
    assert_eq!((whole.config.orchestrator.train.env[0].ratio, whole.config.orchestrator.train.env.len()), (2.0, 1));
}

#[test]
fn algorithm_settings_are_passed_on() {
    let files = [(
        "base.toml",
        &format!("{BASE}\n[orchestrator.algo]\ntype = \"grpo\"\nlength_penalty = {{ type = \"linear\" }}\n") as &str,
    )];
    let same = rl(&files, &["@", "DIR/base.toml", "--orchestrator.algo.extra", "1"]).config.orchestrator.algo;
    assert_eq!(
        (same.kind.as_str(), json!(same.config)),
        ("grpo", json!({"length_penalty": {"type": "linear"}, "extra": 1}))
    );
    let other = rl(&files, &["@", "DIR/base.toml", "--orchestrator.algo.type", "mine", "--orchestrator.algo.k", "v"]);
    assert_eq!(
        (other.config.orchestrator.algo.kind.as_str(), json!(other.config.orchestrator.algo.config)),
        ("mine", json!({"k": "v"}))
    );
    // A group of one is fine where rollouts are not compared.
    flags(&["--orchestrator.algo.type", "opd", "--orchestrator.group-size", "1"]);
}

#[test]
fn a_custom_loss_takes_keys_of_its_own() {
    let line = ["--trainer.loss.clip_low", "0.1", "--trainer.loss.type", "custom", "--trainer.loss.name", "gspo"];
    let Loss::Custom(custom) = flags(&line).config.trainer.loss else { panic!() };
    assert_eq!((custom.name.as_str(), json!(custom.config)), ("gspo", json!({"clip_low": 0.1})));
    let files =
        [("base.toml", BASE), ("a.toml", "[trainer.loss]\ntype = \"custom\"\nname = \"a\"\nmine = { deep = [1] }\n")];
    let loaded = rl(&files, &["@", "DIR/base.toml", "@", "DIR/a.toml"]);
    let Loss::Custom(custom) = &loaded.config.trainer.loss else { panic!() };
    assert_eq!(json!(custom.config), json!({"mine": {"deep": [1]}}));
    assert!(loaded.dump()[1].text.contains("[loss]\ntype = \"custom\"\nname = \"a\"\n"), "{}", loaded.dump()[1].text);
    assert!(loaded.explain().contains("trainer.loss.mine.deep"), "{}", loaded.explain());
    // Keys of the plug-in go with it.
    let line = ["@", "DIR/base.toml", "@", "DIR/a.toml", "--trainer.loss.type", "ipo"];
    assert!(matches!(rl(&files, &line).config.trainer.loss, Loss::Ipo(_)));
}

#[test]
fn environments_may_have_an_algorithm_of_their_own() {
    let text = format!(
        "{BASE}[orchestrator.train.env.algo]\ntype = \"max_rl\"\n[[orchestrator.train.env]]\nid = \"b\"\n\
         [orchestrator.algo]\nlength_penalty = {{ type = \"linear\" }}\n"
    );
    let files = [("base.toml", text.as_str())];
    let of = |line: &[&str]| {
        let config = rl(&files, &[&["@", "DIR/base.toml"], line].concat()).config.orchestrator;
        [0, 1].map(|i| {
            let (key, algo) = config.algo_of(i);
            (key, algo.kind.clone(), json!(algo.config))
        })
    };
    let general = || ("orchestrator.algo".into(), "grpo".into(), json!({"length_penalty": {"type": "linear"}}));
    let own = |i: usize, kind: &str, keys| (format!("orchestrator.train.env.{i}.algo"), kind.to_string(), keys);
    assert_eq!(of(&[]), [own(0, "max_rl", json!({})), general()], "nothing comes from `orchestrator.algo`");
    assert_eq!(
        of(&["--orchestrator.train.env.0.algo.type", "echo", "--orchestrator.train.env.1.algo.k", "2"]),
        [own(0, "echo", json!({})), own(1, "grpo", json!({"k": 2}))]
    );
    assert_eq!(of(&["--no-orchestrator.train.env.0.algo"])[0], general());
    // What the whole run's algorithm would make of a group of one does not matter where no environment has it.
    let line = ["--orchestrator.group-size", "1", "--orchestrator.train.env.0.algo", r#"{"type": "opd"}"#];
    flags(&line);
}

#[test]
fn unions_keep_their_variant_or_switch() {
    let loss = |line: &[&str]| flags(line).config.trainer.loss;
    let Loss::Default(default) = loss(&["--trainer.loss.kl-tau", "0.5"]) else { panic!() };
    assert_eq!((default.kl_tau, default.dppo_mask_low), (0.5, 0.2));
    let files = [
        ("base.toml", BASE),
        ("s.toml", "max_steps = 100\n[trainer.scheduler]\ntype = \"linear\"\ndecay_steps = 3\nmin_lr = 0.1\n"),
    ];
    let switched = rl(&files, &["@", "DIR/base.toml", "@", "DIR/s.toml", "--trainer.scheduler.type", "cosine"]).config;
    let Scheduler::Cosine(cosine) = switched.trainer.scheduler else { panic!() };
    assert_eq!((cosine.min_lr, cosine.warmup_steps), (0.1, 10));
    // Only a lower layer's keys are dropped.
    let line = [
        "@",
        "DIR/base.toml",
        "@",
        "DIR/s.toml",
        "--trainer.scheduler.type",
        "constant",
        "--trainer.scheduler.min-lr",
        "1",
    ];
    let error = try_rl(&files, &line).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("unknown key `trainer.scheduler.min_lr`; it belongs to type = \"linear\""), "{error}");
    // A misspelt key is reported although its variant is gone.
    let files = [("base.toml", BASE), ("s.toml", "[trainer.loss]\ntype = \"ipo\"\nipo_treshold = 1\n")];
    let line = ["@", "DIR/base.toml", "@", "DIR/s.toml", "--trainer.loss.type", "default"];
    let error = try_rl(&files, &line).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("ipo_treshold"), "{error}");
    let Pool::Elastic(pool) =
        &flags(&["--orchestrator.train.env.0.pool.multiplex", "4"]).config.orchestrator.train.env[0].pool
    else {
        panic!()
    };
    assert_eq!(pool.multiplex, 4);
}

#[test]
fn defaults_of_filters() {
    let config = flags(&[]).config.orchestrator;
    let enforced =
        |filters: &[Filter]| filters.iter().filter(|f| matches!(f, Filter::ZeroAdvantage(z) if z.enforce)).count();
    assert_eq!((config.pre_batch_filters.len(), enforced(&config.pre_batch_filters)), (3, 0));
    assert_eq!((config.post_batch_filters.len(), enforced(&config.post_batch_filters)), (3, 1));
}

#[test]
fn none_and_devices() {
    assert_eq!(adamw(&flags(&["--trainer.optim.max-norm", "None"]).config).max_norm, None);
    assert_eq!(adamw(&flags(&["--no-trainer.optim.max-norm"]).config).max_norm, None);
    for (text, device) in
        [("auto", Device::Auto), ("cpu", Device::Cpu), ("cuda", Device::Cuda(0)), ("cuda:3", Device::Cuda(3))]
    {
        assert_eq!(flags(&["--device", text]).config.device, device);
    }
}

#[test]
fn inheritance_of_environments() {
    let text = "[orchestrator]\ngroup_size = 4\n[orchestrator.train.sampling]\nmax_tokens = 9\n\
        [orchestrator.train.sampling.extra_body]\ntop_p = 0.5\ntop_k = 3\n[[orchestrator.train.env]]\nid = \"x/one.wasm\"\n\
        sampling = { extra_body = { top_p = 0.25 } }\n[orchestrator.eval]\ninterval = 7\nnum_examples = 5\n\
        [[orchestrator.eval.env]]\nid = \"two@1.0\"\ninterval = 9\n";
    let loaded = rl(&[("a.toml", text)], &["@", "DIR/a.toml"]);
    let train = &loaded.config.orchestrator.train.env[0];
    assert_eq!((train.name.as_str(), train.group_size, train.sampling.max_completion_tokens), ("one", 4, Some(9)));
    assert_eq!((train.sampling.extra_body.top_p, train.sampling.extra_body.top_k), (0.25, 3));
    let eval = &loaded.config.orchestrator.eval.as_ref().unwrap().env[0];
    assert_eq!((eval.name.as_str(), eval.interval, eval.num_examples, eval.group_size), ("two", 9, 5, 1));
    let Source::Shared { key, .. } = loaded.source("orchestrator.train.env.0.group_size") else { panic!() };
    assert_eq!(key, "orchestrator.group_size");
}

#[test]
fn sources_and_folders() {
    let dir = TempDir::new().unwrap();
    let files = [("sub/base.toml", BASE), ("m.toml", "\n[model]\nname = \"./m\"\n")];
    let line = ["@", "DIR/sub/base.toml", "@", "DIR/m.toml", "--seed=4", "--plugin", "p.so"];
    let loaded = load_rl(&words(&dir, &files, &line)).unwrap();
    assert_eq!(loaded.dir_of("orchestrator.train.env.0.id"), dir.path().join("sub"));
    assert_eq!(loaded.dir_of("trainer.model.name"), dir.path());
    assert_eq!(loaded.dir_of("inference.model.name"), dir.path());
    assert_eq!(loaded.dir_of("orchestrator.tokenizer.name"), dir.path());
    assert_eq!(loaded.path_of("plugin.0", "p.so"), Path::new("p.so"));
    assert_eq!(loaded.source("seed"), Source::Flag("--seed=4".to_string()));
    assert_eq!(loaded.source("model.name"), Source::File { path: dir.path().join("m.toml"), line: 3, column: 8 });
    assert_eq!(loaded.source("max_steps"), Source::Default);
    let explained = loaded.explain();
    assert!(explained.contains("seed = 4 ") && explained.contains("(--seed=4)"), "{explained}");
    assert!(!explained.contains("batch_size"), "{explained}");
}

#[test]
fn errors_name_the_flag() {
    let cases: &[(&[&str], &str)] = &[
        (&["--trainer.optim.lrr", "1"], "unknown key `trainer.optim.lrr`; did you mean `lr`?"),
        (&["--no-dry-runn"], "unknown key `dry_runn`; did you mean `dry_run`?"),
        (&["--trainer.optim", "7"], "`trainer.optim` must be a table, not the string \"7\""),
        (&["--orchestrator.train.env.0.args", "{bad"], "`orchestrator.train.env.0.args` must be a table"),
        (&["--no-ckpt=1"], "takes no value"),
        (&["--trainer.model.cp", "2"], "`trainer.model.cp` is known from prime-rl"),
        (
            &["--trainer.optim.type", "muom"],
            "one of \"adamw\", \"sgd\", \"muon\", \"sign_sgd\", not \"muom\"; did you mean \"muon\"?",
        ),
        (&["--trainer.optim.type", "sgd", "--trainer.optim.mu", "0.5"], "unknown key `trainer.optim.mu`"),
        (
            &["--trainer.optim.type", "sgd", "--trainer.optim.momentum", "0"],
            "`trainer.optim.nesterov = true` needs `trainer.optim.momentum` above 0",
        ),
        (
            &["--trainer.optim.type", "muon", "--trainer.optim.betas2", "1"],
            "`trainer.optim.betas2` (1) must be below 1",
        ),
        (&["stray"], "unexpected word `stray`"),
        (&["--max-steps", "4", "5"], "unexpected word `5`"),
        (&["--max-steps"], "`max_steps` needs a value"),
        (&["--orchestrator.batch-size", "12"], "must be a multiple of `orchestrator.group_size` (8)"),
        (
            &["--max-steps", "4", "--trainer.max-steps", "5"],
            "max_steps = 4 (--max-steps 4) and trainer.max_steps = 5 (--trainer.max-steps 5)",
        ),
    ];
    for (line, expected) in cases {
        let text = failing(line);
        assert!(text.starts_with("command line: ") || text.contains(".toml:"), "{text}");
        assert!(text.contains(expected), "{line:?}: {text}");
    }
}

#[test]
fn consequences_of_a_typing_error_are_not_reported() {
    let text = "[orchestrator]\ngroup_sise = 8\n[[orchestrator.train.env]]\nid = \"a\"\n";
    let errors = try_rl(&[("a.toml", text)], &["@", "DIR/a.toml"]).map(|_| ()).unwrap_err();
    assert_eq!(errors.problems.len(), 1, "{errors}");
}

#[test]
fn equal_shared_and_own_values_are_accepted() {
    let config = flags(&["--max-steps", "4", "--trainer.max-steps", "4"]).config;
    assert_eq!((config.trainer.max_steps, config.orchestrator.max_steps), (Some(4), Some(4)));
}

#[test]
fn sft_data() {
    let config = sft("[data]\nname = \"x.jsonl\"\n", &["--data.batch-size", "4", "--max-steps", "3"]).unwrap().config;
    assert_eq!((config.data.batch_size(), config.data.seq_len(), config.data.tag()), (4, 128, "sft"));
    let config =
        sft("[data]\nname = \"x.jsonl\"\nseq_len = 8\n", &["--data.type", "env", "--data.id", "e"]).unwrap().config;
    let SftData::Env(env) = &config.data else { panic!() };
    assert_eq!((env.id.as_str(), env.seq_len, env.demonstration.as_str()), ("e", 8, "demonstration"));
    let errors = sft("", &[]).map(|_| ()).unwrap_err();
    assert_eq!((errors.problems.len(), &errors.problems[0].place), (1, &None), "{errors}");
}

fn trainer(text: &str, line: &[&str]) -> Result<Loaded<TrainerRun>, ConfigErrors> {
    let dir = TempDir::new().unwrap();
    load_trainer(&words(&dir, &[("trainer.toml", text)], &[&["@", "DIR/trainer.toml"], line].concat()))
}

#[test]
fn measuring_forces_few_steps_of_fake_data_and_nothing_else() {
    let text = "max_steps = 99\n[ckpt]\ninterval = 2\n[val.data]\nname = \"v\"\n[scheduler]\ntype = \"cosine\"\n";
    let forced = |text: &str, line: &[&str]| {
        let config = sft(text, line).unwrap_or_else(|e| panic!("{e}")).config;
        assert_eq!((config.max_steps, config.ckpt, config.val), (Some(4), None, None));
        assert!(config.bench.is_some() && matches!(config.scheduler, Scheduler::Constant(_)));
        config.data
    };
    let data = forced(text, &["--bench", "--data.seq-len", "512", "--data.batch-size", "8"]);
    assert_eq!((data.tag(), data.seq_len(), data.batch_size()), ("fake", 512, 8));
    // Configured data stays.
    assert_eq!(forced("[data]\nname = \"x.jsonl\"\n", &["--bench"]).tag(), "sft");
    assert_eq!(forced("[bench]\noutput_json = \"b.json\"\n", &["--data.id", "e", "--data.type", "env"]).tag(), "env");
    // Off is off.
    assert!(sft(text, &["--bench", "--no-bench", "--data.name", "x"]).unwrap().config.ckpt.is_some());

    let config = trainer(text.split_once("[val").unwrap().0, &["--bench.output-json", "b.json"]).unwrap().config;
    assert_eq!((config.max_steps, config.ckpt.is_some(), config.data.fake.unwrap().batch_size), (Some(4), false, 2));
    let config = trainer("[data.fake]\nbatch_size = 6\n", &["--bench"]).unwrap().config;
    assert_eq!(config.data.fake.unwrap().batch_size, 6);
}

#[test]
fn the_trainer_runs_alone_on_fake_data_only() {
    let config = trainer("[data.fake]\n", &["--device", "cpu", "--seed", "3"]).unwrap().config;
    assert_eq!((config.device, config.seed, config.tokenizer.name), (Device::Cpu, 3, Some(config.model.name)));
    let error = trainer("max_steps = 3\n", &[]).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("not supported yet") && error.contains("`prl rl @ rl.toml`"), "{error}");
    let error = trainer("", &["--no-data.fake"]).map(|_| ()).unwrap_err().to_string();
    assert!(error.starts_with("command line: "), "{error}");
    // What `prl rl` dumps for its trainer is what `prl trainer` reads.
    let dump = flags(&["--ckpt", "--trainer.model.ac"]).dump();
    let part = dump.iter().find(|d| d.name == "trainer.toml").unwrap();
    let config = trainer(&part.text, &["--data.fake"]).unwrap().config;
    assert!(config.ckpt.is_some() && config.model.ac.is_some());
}

/// Loads what was dumped.
fn reload(loaded: &Loaded<RlConfig>) -> (Loaded<RlConfig>, Loaded<RlConfig>) {
    let dir = TempDir::new().unwrap();
    let dump = loaded.dump();
    let files: Vec<(&str, &str)> = dump.iter().map(|d| (d.name, d.text.as_str())).collect();
    let whole = load_rl(&words(&dir, &files, &["@", "DIR/rl.toml"])).unwrap_or_else(|e| panic!("{e}"));
    let output = loaded.config.output_dir.display().to_string();
    let mut line = vec!["--output-dir", &output];
    for (section, file) in [("--trainer", "DIR/trainer.toml"), ("--orchestrator", "DIR/orchestrator.toml")] {
        line.extend([section, "@", file]);
    }
    line.extend(["--inference", "@", "DIR/inference.toml"]);
    let parts = load_rl(&words(&dir, &files, &line)).unwrap_or_else(|e| panic!("{e}"));
    (whole, parts)
}

#[test]
fn dumps_load_to_the_same_configuration() {
    let file = |name: &str| vec!["@".to_string(), format!("tests/ui/valid/{name}.toml")];
    let cases = [
        load_rl(&file("rl_maximal")).unwrap(),
        load_rl(&file("rl_reverse_text")).unwrap(),
        flags(&[]),
        flags(&["--ckpt", "--wandb", "--trainer.optim.max-norm", "None", "--seed", "5"]),
        // Components that differ from the defaults of shared keys that nobody set.
        flags(&["--trainer.log.json-logging", "--inference.max-num-seqs", "9"]),
        flags(&["--wandb", "--trainer.wandb.project", "x", "--orchestrator.wandb.project", "x"]),
        flags(&["--wandb.tags", "[]", "--orchestrator.post-batch-filters", "[]", "--trainer.optim.lr", "1e-300"]),
    ];
    for loaded in &cases {
        let (whole, parts) = reload(loaded);
        // What to do in this one run is no part of a dump.
        let settings = RlConfig { dry_run: false, clean_output_dir: false, ..loaded.config.clone() };
        assert_eq!(whole.config, settings);
        assert_eq!(whole.dump(), loaded.dump());
        assert_eq!(parts.config.trainer, loaded.config.trainer);
        assert_eq!(parts.config.orchestrator, loaded.config.orchestrator);
        assert_eq!(parts.config.inference, loaded.config.inference);
    }
}

#[test]
fn dumps_of_other_commands_load_to_the_same_configuration() {
    for name in ["sft_files", "sft_env", "sft_fake", "sft_bench_files"] {
        let loaded =
            load_sft(&["@".to_string(), format!("tests/ui/valid/{name}.toml"), "--bench".to_string()]).unwrap();
        let again = sft(&loaded.dump()[0].text, &[]).unwrap();
        assert_eq!(again.config, SftConfig { bench: None, ..loaded.config.clone() });
    }
    for name in ["trainer_fake", "trainer_bench"] {
        let loaded = load_trainer(&["@".to_string(), format!("tests/ui/valid/{name}.toml")]).unwrap();
        let again = trainer(&loaded.dump()[0].text, &[]).unwrap();
        assert_eq!(again.config, TrainerRun { bench: None, clean_output_dir: false, ..loaded.config.clone() });
    }
}

#[test]
fn dumps_name_existing_files_absolutely() {
    let dir = TempDir::new().unwrap();
    let files = [("base.toml", &BASE.replace("\"a\"", "\"env.wasm\"") as &str), ("env.wasm", "")];
    let loaded = load_rl(&words(&dir, &files, &["@", "DIR/base.toml"])).unwrap();
    assert_eq!(loaded.config.orchestrator.train.env[0].id, "env.wasm");
    let (again, _) = reload(&loaded);
    assert_eq!(again.config.orchestrator.train.env[0].id, dir.path().join("env.wasm").display().to_string());
    assert_eq!(again.config.orchestrator.train.env[0].name, "env");
    assert_eq!(again.dump(), loaded.dump());
}

#[test]
fn help_names_every_key() {
    let help = prl_config::help_rl();
    let config = serde_json::to_value(flags(&["--ckpt", "--wandb"]).config).unwrap();
    let names = |section: &str| -> Vec<String> {
        config.pointer(section).unwrap().as_object().unwrap().keys().map(|k| k.replace('_', "-")).collect()
    };
    for section in ["", "/trainer/model", "/orchestrator", "/orchestrator/train/env/0", "/trainer/ckpt"] {
        for name in names(section) {
            let section_name = name.replace('-', "_");
            assert!(help.contains(&name) || help.contains(&section_name), "{name} is not in the help");
        }
    }
    assert!(help.contains("--trainer.optim.lr  <a number>  [default 1e-6]\n      Learning rate."), "{help}");
    assert!(prl_config::help_sft().contains("--data.micro-batch-size"));
    assert!(prl_config::help_trainer().contains("--data.fake.generate-samples"));
}
