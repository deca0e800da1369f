//! What `prl sft` makes of its data: mixtures, splits, validation, memory, and the way from SFT to RL and back.

use crate::stand_in::{StandIn, TOKEN};
use crate::support::{Finished, Row, Running, Scratch, model, refused, rows, value};
use std::collections::HashMap;
use std::fs;

/// Lines of conversations; the numbers make them different.
fn lines(from: usize, to: usize) -> String {
    (from..to).map(|i| format!("{{\"prompt\": \"say {i}\", \"completion\": \"here is {i} for you\"}}\n")).collect()
}

/// A configuration that learns what is in `data`.
fn toml(scratch: &Scratch, data: &str) -> String {
    let text = format!(
        "max_steps = 6\n[model]\nname = \"{}\"\n[optim]\nlr = 1e-3\n[data]\nseq_len = 64\nbatch_size = 2\nname = {data}\n",
        model().display()
    );
    scratch.write("sft.toml", text)
}

fn sft(scratch: &Scratch, toml: &str, out: &str, words: &str) -> Finished {
    scratch.prl(&format!("sft @ {toml} --output-dir {out} {words}"))
}

/// Folders are subsets, names are splits.
fn dataset(scratch: &Scratch) {
    for (folder, from, to) in [("math", 0, 6), ("code", 100, 103)] {
        let dir = scratch.path("chats").join(folder);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("train.jsonl"), lines(from, to)).unwrap();
        fs::write(dir.join("test.jsonl"), lines(from + 50, to + 50)).unwrap();
    }
}

/// Without what depends on the clock.
fn timeless(rows: Vec<Row>) -> Vec<Row> {
    let timeless = |name: &String| !["time/", "perf/", "_timestamp", "_runtime"].iter().any(|p| name.starts_with(p));
    rows.into_iter().map(|row| row.into_iter().filter(|(name, _)| timeless(name)).collect()).collect()
}

#[test]
fn subsets_are_mixed_and_a_stopped_mixture_goes_on_over_the_end_of_an_epoch() {
    let scratch = Scratch::new();
    dataset(&scratch);
    let toml = toml(&scratch, "\"chats\"\nsubsets = [\"math\", \"code\"]\nprobabilities = [0.6, 0.4]");
    let done = sft(&scratch, &toml, "through", "--ckpt").ok();
    assert!(done.stdout.contains("`data.name`: 6 conversations (math) are 6 documents of "), "{done}");
    let told = done.stdout.lines().find(|line| line.contains("Epoch 0 has ended with step ")).unwrap();
    assert!(told.contains(" | code ") && told.contains("% of tokens | math "), "{told}");
    let through = scratch.run("through");
    let last = &through.steps()[5];
    for what in ["samples", "tokens"] {
        let share = |name: &str| value(last, &format!("progress/{name}/ratio_{what}"));
        assert!((share("math") + share("code") - 1.0).abs() < 1e-9 && share("code") > 0.15, "{last:?}");
    }
    // The border lies before, in or after the first part.
    assert!(value(last, "progress/epoch") > 0.0);
    sft(&scratch, &toml, "parts", "--ckpt --max-steps 2").ok();
    sft(&scratch, &toml, "parts", "--ckpt --ckpt.resume-step -1").ok();
    let parts = scratch.run("parts");
    assert_eq!(timeless(parts.steps()), timeless(through.steps()));
    assert!(parts.weights(6) == through.weights(6), "other weights");

    for (words, naming) in [
        (r#"--data.splits ["dev"]"#, "`data.subsets` (2) and `data.splits` (1)"),
        (r#"--data.splits ["train","dev"]"#, "there is no split `dev`; it has test, train"),
        (r#"--data.subsets ["math","a"]"#, "there is no subset `a`; it has code, math"),
        (r#"--data.probabilities [0.5,0.6]"#, "`data.probabilities` must be 1 together"),
        (r#"--data.probabilities [0.9999999999,0.0000000001]"#, "mix less unevenly"),
        ("--data.revision v1", "`data.revision` is for datasets of the hub"),
    ] {
        let done = sft(&scratch, &toml, "refused", words);
        assert_eq!(done.code, Some(2), "{done}");
        assert!(done.stderr.contains(naming), "{words}: {done}");
    }
}

#[test]
fn a_folder_without_a_split_asked_for_is_its_train_split() {
    let scratch = Scratch::new();
    dataset(&scratch);
    let toml = toml(&scratch, "\"chats/math\"");
    let done = sft(&scratch, &toml, "train", "--max-steps 1").ok();
    assert!(done.stdout.contains("6 conversations (train)"), "{done}");
    let done = sft(&scratch, &toml, "both", r#"--max-steps 1 --data.splits ["train","test"]"#).ok();
    for split in ["train", "test"] {
        assert!(done.stdout.contains(&format!("6 conversations ({split})")), "{done}");
    }
}

#[test]
fn validation_comes_at_its_interval_and_at_the_end_and_says_what_training_says() {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", lines(0, 8));
    let same = "--val.data.name rows.jsonl --val.data.seq-len 64 --val.interval 2 --val.eval-on-start";
    // One step is all rows: its loss before an update is what validation says.
    let toml = toml(&scratch, "\"rows.jsonl\"\nshuffle = false");
    let done = sft(&scratch, &toml, "still", &format!("{same} --optim.lr 0 --max-steps 5 --data.batch-size 4")).ok();
    let run = scratch.run("still");
    let of = |name: &str| run.metrics().into_iter().filter(|row| row.contains_key(name)).collect::<Vec<_>>();
    let steps: Vec<_> = of("val/loss").iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [0, 2, 4, 5], "{done}");
    let losses: Vec<f64> = of("val/loss").iter().map(|row| value(row, "val/loss")).collect();
    assert!(losses.iter().all(|loss| *loss == losses[0]), "{losses:?}");
    assert_eq!(value(&run.steps()[0], "progress/num_samples"), 8.0, "a step is an epoch here");
    for loss in run.series("loss/mean") {
        assert!((loss - losses[0]).abs() < 1e-6, "{loss} {losses:?}");
    }
    assert_eq!(done.successes().iter().filter(|line| line.contains("Validation | Step ")).count(), 4, "{done}");

    sft(&scratch, &toml, "learns", &format!("{same} --data.batch-size 4 --max-steps 4")).ok();
    let learns = scratch.run("learns").metrics();
    let losses: Vec<f64> = learns.iter().filter_map(|row| row.get("val/loss")?.as_f64()).collect();
    assert!(losses.len() == 3 && losses[2] < losses[0], "{losses:?}");
}

/// Documents lie on disk: twenty times the data takes no more memory.
#[test]
fn memory_does_not_grow_with_the_data() {
    let scratch = Scratch::new();
    let peak = |name: &str, rows: usize| {
        let long = "the same words over and over ".repeat(150);
        let data: String =
            (0..rows).map(|i| format!("{{\"prompt\": \"{i}\", \"completion\": \"{long}{i}\"}}\n")).collect();
        let data = format!("\"{}\"", scratch.write(&format!("{name}.jsonl"), data));
        let done = sft(&scratch, &toml(&scratch, &data), name, "--max-steps 2").ok();
        let told = done.stdout.lines().find(|line| line.contains(" conversations (train) are ")).unwrap();
        let tokens: f64 = told.split(" documents of ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        (value(&scratch.run(name).steps()[1], "perf/peak_memory") * 1024.0, tokens * 5.0 / (1 << 20) as f64)
    };
    let ((small, _), (large, tokens)) = (peak("small", 100), peak("large", 2000));
    assert!(tokens > 20.0, "{tokens} MiB of tokens are no test");
    assert!(large - small < 0.3 * tokens, "{small} → {large} MiB with {tokens} MiB of tokens");
}

/// Weights and rollouts of one command are the model and the data of the next, as they are.
#[test]
fn from_sft_to_rl_and_back() {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", lines(0, 8));
    let toml = toml(&scratch, "\"rows.jsonl\"");
    sft(&scratch, &toml, "sft", "--max-steps 2 --ckpt").ok();
    scratch.rl("rl", "--max-steps 2 --ckpt --model.name sft/weights/step_2").ok();
    let rollouts = "rl/rollouts/step_1/train/all/traces.jsonl";
    let count = rows(&scratch.path(rollouts)).len();
    let words = format!("--max-steps 2 --ckpt --model.name rl/weights/step_2 --data.name {rollouts}");
    let done = sft(&scratch, &toml, "again", &words).ok();
    assert!(done.stdout.contains(&format!("`data.name`: {count} conversations")), "{done}");
    let (before, after) = (scratch.run("rl").weights(2), scratch.run("again").weights(2));
    assert!(before.len() == after.len() && before != after);
    // The whole log is data, too, with each rollout once.
    let steps = fs::read_dir(scratch.path("rl/rollouts")).unwrap();
    let logs = steps.map(|step| step.unwrap().path().join("train/effective/traces.jsonl"));
    let count: usize = logs.filter(|log| log.exists()).map(|log| rows(&log).len()).sum();
    let done = sft(&scratch, &toml, "log", "--max-steps 1 --data.name rl/rollouts").ok();
    assert!(done.stdout.contains(&format!("`data.name`: {count} conversations")), "{done}");
    assert!(done.stdout.contains("those that were trained on, in `effective/traces.jsonl` again"), "{done}");
    // A checkpoint's trainer folder is a model, too.
    sft(&scratch, &toml, "third", "--max-steps 1 --model.name rl/checkpoints/step_2/trainer").ok();
}

/// Sources of the validation do not take turns: it is the mean over all of their tokens.
#[test]
fn validation_counts_every_document_of_every_source_once() {
    let scratch = Scratch::new();
    dataset(&scratch);
    let both = fs::read_to_string(scratch.path("chats/math/train.jsonl")).unwrap()
        + &fs::read_to_string(scratch.path("chats/code/train.jsonl")).unwrap();
    scratch.write("both.jsonl", both);
    let toml = toml(&scratch, "\"both.jsonl\"");
    let loss = |out: &str, data: &str| {
        let words = format!("--max-steps 1 --optim.lr 0 --val.data.seq-len 64 --val.data.name {data}");
        sft(&scratch, &toml, out, &words).ok();
        let rows = scratch.run(out).metrics();
        let row = rows.iter().find(|row| row.contains_key("val/loss")).unwrap();
        assert_eq!(value(row, "val/nan_count"), 0.0);
        value(row, "val/loss")
    };
    let subsets = r#"chats --val.data.subsets ["math","code"]"#;
    let parts = loss("parts", subsets);
    let whole = loss("whole", "both.jsonl");
    assert!((parts - whole).abs() < 1e-9, "{parts} {whole}");
    let turns = format!("--val.data.name {subsets} --val.data.probabilities [0.1,0.9] --max-steps 1");
    let done = sft(&scratch, &toml, "no", &turns);
    assert!(done.code == Some(2) && done.stderr.contains("`val.data.probabilities` has no meaning"), "{done}");
}

#[test]
fn a_run_does_not_go_on_with_other_data() {
    let scratch = Scratch::new();
    scratch.write("rows.jsonl", lines(0, 8));
    let toml = toml(&scratch, "\"rows.jsonl\"");
    sft(&scratch, &toml, "out", "--max-steps 2 --ckpt").ok();
    let on = |words: &str| sft(&scratch, &toml, "out", &format!("--max-steps 3 --ckpt.resume-step 2 {words}"));
    let told = ["`ckpt.resume_step`: the data is not that of the checkpoint: ", "`ckpt.skip_dataloader = true`"];
    let naming = |what: &'static str| [&told[..], &[what]].concat();
    refused(&on("--data.seed 5"), &naming("`data.seed` is 5, and was 0"));
    refused(&on("--data.shuffle false"), &naming("`data.shuffle` is false, and was true"));
    scratch.write("rows.jsonl", lines(0, 7));
    refused(&on(""), &naming("`train` is 7 documents of "));
    scratch.write("rows.jsonl", lines(0, 7) + &lines(9, 10));
    refused(&on(""), &naming("`train` has as many tokens as before, but others"));
    assert!(!scratch.path("out/weights/step_3").exists());
    // Moved, it is the same.
    fs::create_dir(scratch.path("there")).unwrap();
    scratch.write("there/same.jsonl", lines(0, 8));
    on("--data.name there/same.jsonl").ok();
    on("--ckpt.skip-dataloader").ok();
}

#[test]
fn what_is_no_data_is_told_before_all_of_it_is_read() {
    let scratch = Scratch::new();
    let refuse = |file: &str, words: &[&str]| {
        refused(&sft(&scratch, &toml(&scratch, &format!("\"{file}\"")), "out", ""), words);
    };
    // A terabyte without a line's end; a hole takes no room on the disk.
    let file = scratch.write("hole.jsonl", "");
    fs::File::options().write(true).open(&file).unwrap().set_len(1 << 40).unwrap();
    refuse(&file, &["`data.name`", "hole.jsonl as training data: line 1 has more than 32 MiB"]);
    // More than a fifth of what comes first is bad: the rest, which never ends, is not read.
    let file = scratch.write("bad.jsonl", lines(0, 600) + &"none\n".repeat(500));
    fs::File::options().write(true).open(&file).unwrap().set_len(1 << 40).unwrap();
    refuse(&file, &["`data.name`", " of 1024 rows are unusable; the first is ", "bad.jsonl:601: expected ident"]);
}

#[test]
fn images_are_told_as_what_cannot_be_used() {
    let scratch = Scratch::new();
    let image = r#"{"messages": [{"role": "user", "content": [{"type": "image", "image": "x"}]}, {"role": "assistant", "content": "a cat"}]}"#;
    let few = scratch.write("few.jsonl", lines(0, 12) + image + "\n");
    let done = sft(&scratch, &toml(&scratch, &format!("\"{few}\"")), "few", "--max-steps 1").ok();
    let why = "few.jsonl:13: row skipped: a part of `content` has the type \"image\": only text can be trained on";
    assert!(done.stdout.contains(why), "{done}");
    let all = scratch.write("all.jsonl", image);
    refused(
        &sft(&scratch, &toml(&scratch, &format!("\"{all}\"")), "all", ""),
        &["1 of 1 rows are unusable", "\"image\""],
    );
}

#[test]
fn datasets_of_the_hub_are_fetched_once() {
    let scratch = Scratch::new();
    let file = |name: &str, lines: String| HashMap::from([(name.to_string(), lines.into_bytes())]);
    let hub = StandIn::start(HashMap::from([
        ("datasets/some-one/chats", file("data/train.jsonl", lines(0, 6))),
        ("datasets/gated/chats", file("train.jsonl", lines(0, 6))),
    ]));
    let run = |id: &str, out: &str, variables: &[(&str, &str)]| {
        let toml = toml(&scratch, &format!("\"{id}\""));
        let mut command = scratch.command(&format!("sft @ {toml} --output-dir {out} --max-steps 1"));
        command.env("HF_HOME", scratch.path("hf")).env("HF_ENDPOINT", &hub.endpoint).env_remove("HF_TOKEN");
        command.env("HF_HUB_OFFLINE", "0").envs(variables.iter().copied());
        Running::start(command).wait()
    };
    refused(&run("some-one/chats", "no", &[("HF_HUB_OFFLINE", "1")]), &["`data.name`", "is not in the cache"]);
    let done = run("some-one/chats", "one", &[]).ok();
    assert!(done.stdout.contains("`data.name`: 6 conversations (train)"), "{done}");
    run("some-one/chats", "two", &[]).ok();
    run("some-one/chats", "three", &[("HF_HUB_OFFLINE", "1")]).ok();
    assert_eq!(hub.downloads(), ["train.jsonl"]);
    assert_eq!(scratch.run("one").series("loss/mean"), scratch.run("three").series("loss/mean"));

    refused(&run("gated/chats", "no", &[]), &["`data.name`", "gated/chats", "(401)", "set HF_TOKEN"]);
    run("gated/chats", "four", &[("HF_TOKEN", TOKEN)]).ok();
    refused(&run("some-one/gone", "no", &[]), &["there is no such file or folder here and no such dataset at"]);
    // What ends like a file is not asked for.
    refused(&run("some-one/gone.jsonl", "no", &[]), &["some-one/gone.jsonl as training data: No such file"]);
    assert!(!scratch.path("no").exists());
}
