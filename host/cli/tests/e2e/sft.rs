//! `prl sft`: it learns, from every kind of data, goes on from a checkpoint, and what it leaves can be used.

use crate::support::{Running, Scratch, files, model, number_after, refused, repo, value};
use std::fs;

/// The example, shrunk.
fn example(max_steps: u64, words: &str) -> String {
    let toml = repo().join("examples/reverse_text/sft.toml").display().to_string();
    let scheduler = "--scheduler.warmup-steps 5 --scheduler.decay-steps 10";
    format!("sft @ {toml} {scheduler} --data.batch-size 4 --max-steps {max_steps} {words}")
}

#[test]
fn it_learns_from_scratch_and_rl_uses_what_it_leaves() {
    let scratch = Scratch::new();
    let done = scratch.prl(&example(60, "--output-dir out")).ok();
    let run = scratch.run("out");
    let losses = run.series("loss/mean");
    assert_eq!(losses.len(), 60);
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    assert!(mean(&losses[50..]) < 0.6 * losses[0], "{losses:?}");
    for name in ["logs/trainer.log", "configs/sft.toml", "checkpoints/step_60/manifest.json", "weights/step_60/STABLE"]
    {
        run.has(name);
    }
    for name in
        "optim/lr optim/grad_norm optim/zero_grad_ratio perf/throughput progress/num_tokens time/step".split(' ')
    {
        assert!(value(&run.steps()[0], name).is_finite());
    }
    let lines = done.successes();
    let printed = lines.iter().filter(|line| line.contains("Step ")).filter_map(|line| number_after(line, "Loss"));
    assert_eq!(printed.count(), 60, "{done}");

    scratch.rl("rl", "--max-steps 1 --model.name out/weights/step_60").ok();
    assert_eq!(scratch.run("rl").steps().len(), 1);
}

/// A configuration that learns a JSON-lines file.
fn on_file(scratch: &Scratch, name: &str, lines: &str) -> String {
    let data = scratch.write(&format!("{name}.jsonl"), lines);
    let text = format!(
        "max_steps = 8\noutput_dir = \"{name}\"\n[model]\nname = \"{}\"\n[data]\nname = \"{data}\"\nseq_len = 64\n\
         batch_size = 2\n[optim]\nlr = 1e-3\n[ckpt]\n",
        model().display()
    );
    scratch.write(&format!("{name}.toml"), text)
}

#[test]
fn it_learns_conversations_and_pairs() {
    let scratch = Scratch::new();
    let messages = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "there"}]}
{"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "who?"}, {"role": "assistant", "content": "me"}]}
"#;
    let pairs = r#"{"prompt": "hi", "completion": "there"}
{"prompt": [{"role": "user", "content": "who?"}], "completion": [{"role": "assistant", "content": "me"}]}
"#;
    for (name, lines) in [("messages", messages), ("pairs", pairs)] {
        let toml = on_file(&scratch, name, lines);
        let done = scratch.prl(&format!("sft @ {toml}")).ok();
        let told = "Renderer \"chatml\": the model's chat template writes as this format does; `renderer.name` chooses another";
        assert!(done.to_string().contains(told), "{done}");
        let losses = scratch.run(name).series("loss/mean");
        assert!(losses.len() == 8 && losses[7] < 0.8 * losses[0], "{name}: {losses:?}");
    }
    // The same conversation, told in both ways, is the same data.
    for (name, line) in [("one", messages.lines().next()), ("other", pairs.lines().next())] {
        scratch.prl(&format!("sft @ {} --max-steps 2", on_file(&scratch, name, line.unwrap()))).ok();
    }
    assert_eq!(scratch.run("one").series("loss/mean"), scratch.run("other").series("loss/mean"));

    scratch.rl("rl", "--max-steps 1 --model.name messages/weights/step_8").ok();
}

#[test]
fn stopping_and_going_on_changes_nothing() {
    let scratch = Scratch::new();
    let rows: String =
        (0..7).map(|i| format!("{{\"prompt\": \"say {i}\", \"completion\": \"here is {i} for you\"}}\n")).collect();
    let toml = on_file(&scratch, "data", &rows);
    let sft = |out: &str, words: &str| scratch.prl(&format!("sft @ {toml} --output-dir {out} {words}"));
    sft("through", "--max-steps 6").ok();
    sft("stopped", "--max-steps 3").ok();
    let again = sft("stopped", "--max-steps 6");
    assert_eq!(again.code, Some(2), "{again}");
    sft("stopped", "--max-steps 6 --ckpt.resume-step -1").ok();
    let (through, stopped) = (scratch.run("through"), scratch.run("stopped"));
    assert_eq!(through.series("loss/mean"), stopped.series("loss/mean"));
    assert!(through.weights(6) == stopped.weights(6), "other weights");

    let missing = sft("stopped", "--max-steps 9 --ckpt.resume-step 5");
    refused(&missing, &["step_5", "there are those of steps 3, 6"]);
}

#[test]
fn other_optimisers_learn_and_go_on() {
    let scratch = Scratch::new();
    let toml = repo().join("examples/reverse_text/sft.toml").display().to_string();
    for (name, lr) in [("muon", "5e-3"), ("sgd", "0.2")] {
        let sft = |out: &str, words: &str| {
            let optim = format!("--optim.type {name} --optim.lr {lr} --scheduler.type constant");
            scratch.prl(&format!("sft @ {toml} {optim} --data.batch-size 4 --ckpt --output-dir {name}_{out} {words}"))
        };
        sft("through", "--max-steps 10").ok();
        let through = scratch.run(&format!("{name}_through"));
        let losses = through.series("loss/mean");
        assert!(losses[9] < 0.9 * losses[0], "{name}: {losses:?}");
        sft("parts", "--max-steps 5").ok();
        let other = sft("parts", "--max-steps 10 --ckpt.resume-step -1 --optim.type sign_sgd");
        let naming = format!("is what the optimiser \"{name}\" remembers, and this run has \"sign_sgd\"");
        refused(&other, &[&naming, "`ckpt.skip_optimizer = true`"]);
        sft("parts", "--max-steps 10 --ckpt.resume-step -1").ok();
        let parts = scratch.run(&format!("{name}_parts"));
        assert_eq!(parts.series("loss/mean"), losses, "{name}");
        assert!(parts.weights(10) == through.weights(10), "{name}: other weights");
    }
}

#[test]
fn bad_data_is_refused() {
    let scratch = Scratch::new();
    for (name, lines, naming) in [
        ("broken", "{\"prompt\": \"a\"", "broken.jsonl:1"),
        ("other", "{\"text\": \"a\"}\n", "`messages`"),
        ("empty", "", "empty.jsonl"),
        (
            "nothing",
            "{\"messages\": [{\"role\": \"user\", \"content\": \"nobody answers\"}]}\n",
            "`data.name`: none of the 1 conversations has a token to train on",
        ),
    ] {
        let done = scratch.prl(&format!("sft @ {}", on_file(&scratch, name, lines)));
        assert_eq!(done.code, Some(2), "{done}");
        assert!(done.stderr.starts_with("error: ") && done.stderr.contains(naming), "{done}");
        assert!(!scratch.path(name).exists(), "{name}");
    }
    fs::remove_file(scratch.path("empty.jsonl")).unwrap();
    let done = scratch.prl("sft @ empty.toml");
    assert_eq!(done.code, Some(2), "{done}");
    assert!(done.stderr.contains("empty.jsonl"), "{done}");
}

#[test]
fn rows_that_cannot_be_rendered_are_skipped_and_too_many_stop() {
    let scratch = Scratch::new();
    let good = "{\"prompt\": \"hi\", \"completion\": \"there\"}\n";
    let bad = "{\"prompt\": \"hi\", \"completion\": [{\"role\": \"assistant\", \"content\": \"there\", \
               \"reasoning_content\": \"why\"}]}\n";
    let done = scratch.prl(&format!("sft @ {}", on_file(&scratch, "few", &(good.repeat(19) + bad)))).ok();
    let why = "few.jsonl:20: row skipped: the format chatml has no place for what message 1 has: reasoning";
    assert!(done.to_string().contains(why), "{done}");
    let done = scratch.prl(&format!("sft @ {}", on_file(&scratch, "many", &(good.repeat(3) + bad))));
    assert_eq!(done.code, Some(2), "{done}");
    assert!(done.stderr.contains("`data.name`") && done.stderr.contains("1 of 4 rows are unusable"), "{done}");
    assert!(done.stderr.contains("many.jsonl:4: the format chatml"), "{done}");
}

/// Templates that strip the reasoning of earlier turns are no obstacle, whoever renders.
#[test]
fn the_reasoning_of_every_turn_is_learnt() {
    let scratch = Scratch::new();
    let turn = |text: &str| {
        format!(
            "{{\"role\": \"user\", \"content\": \"q\"}}, {{\"role\": \"assistant\", \"content\": \"{text}\", \
             \"reasoning_content\": \"why {text}\"}}"
        )
    };
    let row = format!("{{\"messages\": [{}, {}, {}]}}\n", turn("a"), turn("b"), turn("c"));
    let toml = on_file(&scratch, "data", &row.repeat(4));
    let template = repo().join("host/render/tests/templates/thinking.jinja");
    let run = |name: &str, words: &str| {
        let words = format!("sft @ {toml} --data.seq-len 256 --tokenizer.chat-template {} {words}", template.display());
        scratch.prl(&format!("{words} --output-dir {name} --renderer.name {name}"))
    };
    for name in ["auto", "qwen3"] {
        run(name, "").ok();
    }
    assert_eq!(scratch.run("auto").series("loss/mean"), scratch.run("qwen3").series("loss/mean"));
    run("default", "").ok();
    for (name, words, why) in [
        ("llama3", "", "the tokenizer has no special token <|start_header_id|>. Choose another `renderer.name`"),
        ("chatml", "--renderer.enable-thinking false", "`renderer.enable_thinking` has no meaning for \"chatml\""),
        (
            "qwen3",
            "--renderer.preserve-all-thinking false",
            "`renderer.preserve_all_thinking = false` is not supported",
        ),
        ("qwen3", "--renderer.enable-thinking false", "reasoning while `enable_thinking` is false"),
        ("qwen3", "--renderer.tool-parser hermit", "tool_parser"),
        ("kimi-k2", "", "prl does not support it yet"),
    ] {
        let done = run(name, &format!("{words} --clean-output-dir"));
        assert_eq!(done.code, Some(2), "{done}");
        assert!(done.stderr.contains(why), "{done}");
    }
}

#[test]
fn a_checkpoint_of_rl_is_not_gone_on_from() {
    let scratch = Scratch::new();
    scratch.rl("out", "--max-steps 1 --ckpt").ok();
    let toml = on_file(&scratch, "data", "{\"prompt\": \"hi\", \"completion\": \"there\"}\n");
    let done = scratch.prl(&format!("sft @ {toml} --output-dir out --max-steps 3 --ckpt.resume-step -1"));
    refused(&done, &["is of `prl rl`", "out/weights/step_1`"]);
    scratch.prl(&format!("sft @ {toml} --output-dir new --max-steps 1 --model.name out/weights/step_1")).ok();
}

#[test]
fn training_that_diverges_ends_with_the_reason_and_the_trainers_log() {
    let scratch = Scratch::new();
    let done = scratch.prl(&example(40, "--optim.lr 1e30 --output-dir out"));
    let log = scratch.path("out/logs/trainer.log");
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.stderr.contains("training has diverged") && done.stderr.lines().count() == 1, "{done}");
    assert!(done.stderr.ends_with(&format!("; see {}\n", log.display())), "{done}");
    let told = fs::read_to_string(log).unwrap();
    assert!(told.lines().last().unwrap().contains("training has diverged"), "{told}");
}

/// Rows of which the second half is cut at 64 tokens, and one that nobody answers.
fn long_rows() -> String {
    let row = |i| format!("{{\"prompt\": \"say {i}\", \"completion\": \"{}\"}}\n", "here it is ".repeat(10));
    (0..6).map(row).collect::<String>() + "{\"messages\": [{\"role\": \"user\", \"content\": \"nobody\"}]}\n"
}

#[test]
fn validation_has_its_own_rows_and_what_is_left_out_or_cut_is_told() {
    let scratch = Scratch::new();
    let toml = on_file(&scratch, "rows", &long_rows());
    let val = "--val.data.name rows.jsonl --val.interval 4 --val.eval-on-start";
    let run = |out: &str, words: &str| {
        let done = scratch.prl(&format!("sft @ {toml} --max-steps 4 {val} --output-dir {out} {words}")).ok();
        (scratch.run(out).metrics().iter().find_map(|row| row.get("val/loss")?.as_f64()).unwrap(), done)
    };
    let (whole, done) = run("whole", "--val.data.seq-len 256 --val.data.micro-batch-size 3");
    let (one, cut) = (run("one", "--val.data.seq-len 256").0, run("cut", "--val.data.seq-len 64").0);
    assert!((whole - one).abs() < 1e-9 && (whole - cut).abs() > 1e-3, "{whole} {one} {cut}");
    let log = fs::read_to_string(scratch.path("whole/logs/trainer.log")).unwrap();
    for told in [
        "`data.name`: 1 of the 7 documents (train) have no token to train on within 64 tokens and are left out",
        "`data.name`: 6 of the 7 documents (train) are longer than 64 tokens and are cut",
        "which fill at least 6 rows of 64 tokens an epoch",
    ] {
        assert!(done.stdout.contains(told) && log.contains(told), "{told}: {done}");
    }
    assert!(!done.stdout.contains("`val.data.name`: 6 of"), "{done}");
    let row = &scratch.run("whole").steps()[3];
    assert_eq!((value(row, "ckpt/failed"), value(row, "ckpt/skipped")), (0.0, 0.0));
}

#[test]
fn a_stop_during_validation_is_heard_and_the_validation_made_up_for() {
    let scratch = Scratch::new();
    let toml = on_file(&scratch, "data", &long_rows());
    scratch.write("many.jsonl", long_rows().repeat(4000));
    let words = |more: &str| {
        format!(
            "sft @ {toml} --output-dir out --max-steps 1 --val.data.seq-len 256 --val.interval 1 --ckpt.interval 1 {more}"
        )
    };
    let mut running = Running::start(scratch.command(&words("--val.data.name many.jsonl")));
    // It is written before the validation has ended.
    running.wait_for("Saved checkpoint of step 1");
    running.signal("TERM");
    let done = running.wait();
    assert_eq!(done.code, Some(143), "{done}");
    assert!(!done.stdout.contains("Validation |") && done.stdout.contains("--ckpt.resume-step 1"), "{done}");
    let again = words("--val.data.name data.jsonl --ckpt.resume-step 1");
    let done = scratch.prl(&again).ok();
    assert!(done.stdout.contains("Validation | Step 1 |"), "{done}");
    assert!(!scratch.prl(&again).ok().stdout.contains("Validation |"), "it is on record now");
}

#[test]
fn a_run_that_learns_nothing_fails_and_shows_no_zero() {
    let scratch = Scratch::new();
    let toml = on_file(&scratch, "data", "{\"prompt\": \"hi\", \"completion\": \"there\"}\n");
    let broken = scratch.copy_of(&model(), "broken");
    let weights = fs::read(broken.join("model.safetensors")).unwrap();
    let header = 8 + u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    // All ones is not a number, in any format.
    let spoilt: Vec<u8> = weights.iter().enumerate().map(|(at, b)| if at < header { *b } else { 0xff }).collect();
    fs::write(broken.join("model.safetensors"), spoilt).unwrap();
    let val = "--val.data.name data.jsonl --val.interval 2";
    let done = scratch.prl(&format!("sft @ {toml} --max-steps 3 --model.name broken {val}"));
    assert_eq!(done.code, Some(1), "{done}");
    assert!(done.stderr.contains("not finite in every step (3)"), "{done}");
    assert!(done.stdout.contains("Loss nan | Grad. Norm nan") && !done.stdout.contains("SUCCESS"), "{done}");
    assert!(done.stdout.contains("1 documents of the validation have a loss that is not finite"), "{done}");
    assert!(done.stdout.contains("Validation | Step 2 | Loss nan"), "{done}");
    let metrics = scratch.run("data").metrics();
    assert!(metrics.iter().any(|row| row.get("val/nan_count").and_then(|n| n.as_f64()) == Some(1.0)));
    assert!(metrics.iter().all(|row| !row.contains_key("loss/mean") && !row.contains_key("val/loss")));
}

#[test]
fn what_is_saved_renders_as_what_was_trained() {
    let scratch = Scratch::new();
    let toml = on_file(&scratch, "data", "{\"prompt\": \"hi\", \"completion\": \"there\"}\n");
    let template = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}";
    scratch.write("own.jinja", template);
    let words = format!("sft @ {toml} --max-steps 1 --tokenizer.chat-template own.jinja --data.loss-mask.user");
    scratch.prl(&words).ok();
    let weights = scratch.path("data/weights/step_1");
    assert_eq!(fs::read_to_string(weights.join("chat_template.jinja")).unwrap(), template);
    let config = fs::read_to_string(weights.join("tokenizer_config.json")).unwrap();
    assert!(!config.contains("chat_template"), "{config}");
    // Rendered by what was saved, the data is the same.
    let again = format!("sft @ {toml} --max-steps 1 --data.loss-mask.user --output-dir again --tokenizer.name");
    scratch.prl(&format!("{again} data/weights/step_1")).ok();
    assert_eq!(scratch.run("again").series("loss/mean"), scratch.run("data").series("loss/mean"));
    assert_eq!(fs::read_to_string(scratch.path("again/weights/step_1/chat_template.jinja")).unwrap(), template);
}

#[test]
fn a_run_that_saves_nothing_says_so_and_dry_runs_touch_no_run() {
    let scratch = Scratch::new();
    let toml = on_file(&scratch, "data", "{\"prompt\": \"hi\", \"completion\": \"there\"}\n");
    let done = scratch.prl(&format!("sft @ {toml} --max-steps 1 --no-ckpt")).ok();
    assert!(done.stdout.contains("WARNING Nothing of this run is saved: --ckpt saves its last step"), "{done}");
    assert!(done.stdout.contains("finished after step 1; nothing is saved, --ckpt would"), "{done}");
    let before = files(&scratch.path("data"));
    let dry = scratch.prl(&format!("sft @ {toml} --max-steps 9 --dry-run --clean-output-dir")).ok();
    assert!(dry.stdout.contains("It is not written: `data` holds a run"), "{dry}");
    assert!(files(&scratch.path("data")) == before);
    scratch.prl(&format!("sft @ {toml} --max-steps 1 --output-dir other")).ok();
    let diff = scratch.prl("diff data other");
    assert!(diff.stdout.contains("data order: not recorded"), "{diff}");
}
