//! Behaviour of the run directory.

use prl_store::{
    Create, Keep, Marks, RolloutLog, RunDir, RunView, Split, StoreError, Subset, files_below, read_lines, write_atomic,
};
use std::fs;
use std::path::Path;

const FRESH: Create = Create { clean: false, never_clean: false, resuming: false, allow_fresh: false, ckpt_dir: None };
const CLEAN: Create = Create { clean: true, never_clean: false, resuming: false, allow_fresh: false, ckpt_dir: None };
const RESUME: Create = Create { clean: false, never_clean: false, resuming: true, allow_fresh: false, ckpt_dir: None };

fn names(dir: &Path) -> Vec<String> {
    let mut out: Vec<String> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    out.sort();
    out
}

fn save(run: &RunDir, step: u64) {
    let w = run.checkpoints().begin(step).unwrap();
    w.write("trainer/model.bin", &[step as u8; 64]).unwrap();
    w.write("trainer/optimizer.bin", &[1; 32]).unwrap();
    w.write("orchestrator/state.json", b"{}").unwrap();
    w.commit().unwrap();
    let w = run.weights().begin(step).unwrap();
    w.write("model.safetensors", b"x").unwrap();
    w.commit().unwrap();
}

#[test]
fn a_run_is_not_overwritten_and_the_refusal_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("checkpoints")).unwrap();
    fs::create_dir(dir.path().join("configs")).unwrap();
    fs::write(dir.path().join("configs/rl.toml"), "dry run").unwrap();
    fs::write(dir.path().join("notes.txt"), "mine").unwrap();
    drop(RunDir::create(dir.path(), &FRESH).unwrap());
    assert!(dir.path().join("configs/rl.toml").exists(), "a dry run's configs are no run");

    fs::write(dir.path().join("metrics.jsonl"), "{}\n").unwrap();
    fs::remove_file(dir.path().join(".lock")).unwrap();
    let before = names(dir.path());
    let err = RunDir::create(dir.path(), &FRESH).unwrap_err();
    assert!(matches!(err, StoreError::HoldsRun { found: "metrics.jsonl", .. }));
    assert!(matches!(RunDir::check(dir.path(), &FRESH, None), Err(StoreError::HoldsRun { .. })));
    for remedy in ["--output-dir", "--clean-output-dir", "--ckpt.resume-step"] {
        assert!(err.to_string().contains(remedy), "{err}");
    }
    assert_eq!(names(dir.path()), before);

    let never = Create { never_clean: true, ..CLEAN };
    assert!(matches!(RunDir::create(dir.path(), &never), Err(StoreError::CleanForbidden { .. })));
    assert_eq!(names(dir.path()), before);

    let run = RunDir::create(dir.path(), &CLEAN).unwrap();
    assert_eq!(names(run.root()), [".lock", "configs", "logs", "notes.txt"]);
    assert!(names(&run.configs()).is_empty());
}

#[test]
fn cleaning_removes_a_link_and_not_its_target() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(elsewhere.path().join("keep"), "x").unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), dir.path().join("weights")).unwrap();
    let _run = RunDir::create(dir.path(), &CLEAN).unwrap();
    assert!(!dir.path().join("weights").exists());
    assert!(elsewhere.path().join("keep").exists());
}

#[test]
fn a_check_touches_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    RunDir::check(&out, &FRESH, None).unwrap();
    assert!(matches!(RunDir::check(&out, &RESUME, Some(-1)), Err(StoreError::NoCheckpoint { .. })));
    let missing = |step| RunDir::check(&out, &RESUME, Some(step)).unwrap_err().to_string();
    assert!(missing(2).ends_with("no such folder; there is none of another step either"), "{}", missing(2));
    assert!(!out.exists() && !RunDir::holds_run(&out));
    save(&RunDir::create(&out, &FRESH).unwrap(), 2);
    let before = names(&out);
    RunDir::check(&out, &CLEAN, None).unwrap();
    RunDir::check(&out, &RESUME, Some(2)).unwrap();
    RunDir::check(&out, &RESUME, Some(-1)).unwrap();
    assert!(missing(3).ends_with("there is one of step 2"), "{}", missing(3));
    fs::create_dir(out.join("checkpoints/step_11")).unwrap();
    assert!(missing(3).ends_with("there are those of steps 2, 11"), "{}", missing(3));
    assert!(names(&out) == before && RunDir::holds_run(&out));
}

#[test]
fn one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), &FRESH).unwrap();
    let err = RunDir::create(dir.path(), &RESUME).unwrap_err();
    assert!(matches!(&err, StoreError::InUse { pid, .. } if *pid == std::process::id().to_string()), "{err}");
    drop(run);
    RunDir::create(dir.path(), &RESUME).unwrap();
}

#[test]
fn a_file_is_no_output_directory() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let err = RunDir::create(file.path(), &FRESH).unwrap_err();
    assert!(err.to_string().contains("output directory"), "{err}");
}

#[test]
fn relocated_checkpoints_are_guarded_and_cleaned_too() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let how = Create { ckpt_dir: Some(other.path().to_path_buf()), ..FRESH };
    let run = RunDir::create(dir.path(), &how).unwrap();
    save(&run, 1);
    assert!(other.path().join("checkpoints/step_1/trainer/model.bin").exists());
    drop(run);
    assert!(matches!(RunDir::create(dir.path(), &how), Err(StoreError::HoldsRun { .. })));
    drop(RunDir::create(dir.path(), &Create { clean: true, ..how }).unwrap());
    assert!(["checkpoints", "weights"].iter().all(|name| !other.path().join(name).exists()));
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1825
/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1712
/// https://github.com/RLinf/RLinf/pull/1469
#[test]
fn the_newest_complete_checkpoint_is_found_and_the_bad_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), &FRESH).unwrap();
    let c = run.checkpoints();
    assert!(matches!(c.resolve(-1), Err(StoreError::NoCheckpoint { .. })));
    save(&run, 6);
    for file in ["trainer/model.bin", "trainer/optimizer.bin", "orchestrator/state.json", "manifest.json"] {
        save(&run, 8);
        assert_eq!(c.resolve(-1).unwrap().0, 8);
        let path = c.path(8).join(file);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / 2]).unwrap();
        assert_eq!(c.resolve(-1).unwrap().0, 6);
        let err = c.resolve(8).unwrap_err();
        assert!(err.to_string().contains(file), "{err}");
        let mut changed = whole.clone();
        changed[0] ^= 1;
        fs::write(&path, &changed).unwrap();
        assert!(c.resolve(8).unwrap_err().to_string().contains(file));
        fs::remove_file(&path).unwrap();
        assert!(c.resolve(8).unwrap_err().to_string().contains(file));
        // A damaged checkpoint does not keep its step from being written again.
        fs::remove_dir_all(run.weights().path(8)).unwrap();
        save(&run, 8);
        assert_eq!(c.latest().unwrap().unwrap().0, 8);
        fs::remove_dir_all(c.path(8)).unwrap();
        fs::remove_dir_all(run.weights().path(8)).unwrap();
    }
    assert!(matches!(c.resolve(7), Err(StoreError::BadCheckpoint { .. })));
    assert!(matches!(c.begin(6), Err(StoreError::Exists { step: 6, .. })));
}

#[test]
fn an_abandoned_checkpoint_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), &FRESH).unwrap();
    let w = run.checkpoints().begin(1).unwrap();
    w.write("trainer/x", b"x").unwrap();
    assert_eq!(run.checkpoints().latest().unwrap(), None);
    drop(w);
    assert!(names(run.checkpoints().dir()).is_empty());
}

#[test]
fn weights_have_a_marker_and_no_manifest() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), &FRESH).unwrap();
    save(&run, 3);
    assert_eq!(names(&run.weights().path(3)), ["STABLE", "model.safetensors"]);
    fs::remove_file(run.weights().path(3).join("STABLE")).unwrap();
    assert_eq!(run.weights().latest().unwrap(), None);
}

#[test]
fn retention_keeps_the_union_and_always_the_newest() {
    for (keep, left) in [
        (Keep { last: None, interval: None }, vec![1, 2, 3, 4, 5, 6]),
        (Keep { last: Some(2), interval: None }, vec![5, 6]),
        (Keep { last: Some(1), interval: Some(2) }, vec![2, 4, 6]),
        (Keep { last: None, interval: Some(4) }, vec![4, 6]),
        (Keep { last: Some(9), interval: None }, vec![1, 2, 3, 4, 5, 6]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let run = RunDir::create(dir.path(), &FRESH).unwrap();
        (1..=6).for_each(|step| save(&run, step));
        let c = run.checkpoints();
        // An incomplete newer one does not count, and is not touched.
        fs::create_dir(c.path(7)).unwrap();
        c.prune(keep).unwrap();
        assert_eq!(c.steps().unwrap(), [left, vec![7]].concat(), "{keep:?}");
    }
}

/// https://github.com/PrimeIntellect-ai/prime-rl/pull/1537
#[test]
fn a_resumed_run_sets_later_steps_aside() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), &FRESH).unwrap();
    (1..=6).for_each(|step| save(&run, step));
    let mut log = run.rollouts();
    for step in 3..=5 {
        log.append(step, Split::Train, Subset::All, &serde_json::json!({"n": step})).unwrap();
    }
    log.end_step(9).unwrap();
    let lines = "{\"step\":3}\n{\"step\":4}\n{\"step\":5}\n{\"step\":6,\"re";
    fs::write(run.metrics(), lines).unwrap();
    drop(run);

    let run = RunDir::create(dir.path(), &RESUME).unwrap();
    let (step, _) = run.checkpoints().resolve(4).unwrap();
    run.set_aside_after(step, &Marks::default()).unwrap();
    assert_eq!(run.checkpoints().steps().unwrap(), [1, 2, 3, 4]);
    assert_eq!(run.weights().steps().unwrap(), [1, 2, 3, 4]);
    assert_eq!(fs::read_to_string(run.metrics()).unwrap(), "{\"step\":3}\n{\"step\":4}\n");
    let orphaned = dir.path().join("orphaned");
    assert_eq!(names(&orphaned), ["checkpoints", "metrics_after_step_4.jsonl", "rollouts", "weights"]);
    assert_eq!(names(&orphaned.join("checkpoints")), ["step_5", "step_6"]);
    assert_eq!(names(&orphaned.join("rollouts")), ["step_5"]);

    let keep = Keep { last: Some(2), interval: None };
    save(&run, 5);
    run.checkpoints().prune(keep).unwrap();
    assert_eq!(run.checkpoints().steps().unwrap(), [4, 5]);
    // Twice is fine: names in `orphaned` do not collide.
    run.set_aside_after(4, &Marks::default()).unwrap();
    assert_eq!(names(&orphaned.join("checkpoints")), ["step_5", "step_5.1", "step_6"]);
}

#[test]
fn records_that_belong_to_a_checkpoint_stay() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), &FRESH).unwrap();
    let mut log = run.rollouts();
    let line = |env: &str, n: u32| serde_json::json!({"task": {"env": env}, "n": n});
    log.append(4, Split::Train, Subset::All, &line("a", 0)).unwrap();
    log.append(4, Split::Eval, Subset::All, &line("a", 1)).unwrap();
    log.append(5, Split::Train, Subset::All, &line("a", 2)).unwrap();
    let marks = log.marks(4).unwrap();
    // After the checkpoint of step 4: more for step 5, a part of an evaluation, and step 6.
    log.append(5, Split::Train, Subset::All, &line("a", 3)).unwrap();
    log.append(5, Split::Train, Subset::Effective, &line("a", 3)).unwrap();
    log.append(4, Split::Eval, Subset::All, &line("b", 4)).unwrap();
    log.append(6, Split::Train, Subset::All, &line("a", 5)).unwrap();
    log.flush().unwrap();
    fs::write(run.metrics(), "{\"step\":4,\"eval/a/policy_version\":4}\n{\"step\":5}\n").unwrap();
    assert_eq!(run.evaluated(4).into_iter().collect::<Vec<_>>(), ["a"]);
    assert!(run.evaluated(5).is_empty());
    fs::write(run.metrics(), "{\"step\":4,\"val/loss\":1.5}\n{\"step\":5,\"loss/mean\":1.0}\n{\"step\":6,\"val")
        .unwrap();
    assert!(run.validated(4) && !run.validated(5) && !run.validated(6));
    fs::write(run.metrics(), "{\"step\":4,\"eval/a/policy_version\":4}\n{\"step\":5}\n").unwrap();

    let marks: Marks = serde_json::from_str(&serde_json::to_string(&marks).unwrap()).unwrap();
    let kept = |step, split, subset| {
        let lines = read_lines::<serde_json::Value>(&run.rollouts().path(step, split, subset));
        lines.map(|lines| lines.map(|l| l.unwrap()["n"].as_u64().unwrap()).collect::<Vec<_>>()).ok()
    };
    for _ in 0..2 {
        run.set_aside_after(4, &marks).unwrap();
        assert_eq!(kept(4, Split::Train, Subset::All), Some(vec![0]));
        assert_eq!(kept(4, Split::Eval, Subset::All), Some(vec![1]), "an evaluation that is not complete goes");
        assert_eq!(kept(5, Split::Train, Subset::All), Some(vec![2]), "what was sampled ahead stays");
        assert_eq!((kept(5, Split::Train, Subset::Effective), kept(6, Split::Train, Subset::All)), (None, None));
    }
    assert!(names(&dir.path().join("orphaned/rollouts")).contains(&"step_6".to_owned()));
    // Cut off between two names, and prepared again.
    let rollouts = dir.path().join("rollouts");
    fs::rename(rollouts.join("step_5"), rollouts.join("step_5.kept")).unwrap();
    run.set_aside_after(4, &marks).unwrap();
    assert_eq!(kept(5, Split::Train, Subset::All), Some(vec![2]));
    run.set_aside_all().unwrap();
    assert_eq!((kept(4, Split::Train, Subset::All), fs::read_to_string(run.metrics()).unwrap()), (None, String::new()));
}

#[test]
fn rollouts_are_appended_line_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), &FRESH).unwrap();
    let mut log = run.rollouts();
    for n in 0..3 {
        log.append(1, Split::Train, Subset::All, &serde_json::json!({"n": n})).unwrap();
    }
    log.append(1, Split::Eval, Subset::Effective, &serde_json::json!({"n": 9})).unwrap();
    log.end_step(1).unwrap();
    log.append(1, Split::Train, Subset::All, &serde_json::json!({"n": 3})).unwrap();
    drop(log);
    let file = dir.path().join("rollouts/step_1/train/all/traces.jsonl");
    assert_eq!(fs::read_to_string(file).unwrap(), "{\"n\":0}\n{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n");
    assert!(dir.path().join("rollouts/step_1/eval/effective/traces.jsonl").exists());
}

#[test]
fn an_atomic_write_replaces_the_whole_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.json");
    write_atomic(&path, b"one").unwrap();
    write_atomic(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(names(dir.path()), ["a.json"]);
    assert!(write_atomic(&dir.path().join("missing/a.json"), b"x").unwrap_err().to_string().contains("missing"));
}

#[test]
fn rollouts_are_read_back_up_to_the_line_that_is_being_written() {
    let dir = tempfile::tempdir().unwrap();
    let run = RunDir::create(dir.path(), &FRESH).unwrap();
    let mut written = run.rollouts();
    for step in [10, 2] {
        written.append(step, Split::Train, Subset::All, &step).unwrap();
    }
    written.flush().unwrap();
    let log = RolloutLog::of(dir.path());
    assert_eq!(log.steps().unwrap(), [2, 10]);
    let path = log.path(10, Split::Train, Subset::All);
    let read = |path| read_lines::<u64>(path).unwrap().collect::<Result<Vec<_>, _>>();
    assert_eq!(read(&path).unwrap(), [10]);
    fs::write(&path, "10\n11\n1").unwrap();
    assert_eq!(read(&path).unwrap(), [10, 11]);
    fs::write(&path, "10\nx\n12\n").unwrap();
    let mut lines = read_lines::<u64>(&path).unwrap();
    assert!(matches!(lines.next(), Some(Ok(10))));
    assert!(matches!(lines.next(), Some(Err(StoreError::Line { line: 2, .. }))));
    assert!(lines.next().is_none(), "nothing after an error");
    assert!(read_lines::<u64>(&path.with_extension("none")).is_err());
    let none = tempfile::tempdir().unwrap();
    assert!(RolloutLog::of(none.path()).steps().unwrap_err().to_string().contains("rollouts"));
}

#[test]
fn a_run_is_looked_at_without_a_change() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    assert!(!RunView::of(dir.path(), None).is_run());
    let how = Create { ckpt_dir: Some(elsewhere.path().into()), ..Create::default() };
    let run = RunDir::create(dir.path(), &how).unwrap();
    (1..=3).for_each(|step| save(&run, step));
    run.set_aside_after(2, &Marks::default()).unwrap();
    fs::write(run.metrics(), "{\"step\":3}\n").unwrap();
    run.set_aside_after(2, &Marks::default()).unwrap();
    fs::create_dir(elsewhere.path().join("weights/step_9.tmp")).unwrap();
    fs::create_dir(elsewhere.path().join("weights/other.tmp")).unwrap();

    // The lock is not asked for.
    let view = RunView::of(dir.path(), Some(elsewhere.path()));
    assert!(view.is_run());
    assert_eq!(view.last_process(), Some(std::process::id()));
    assert_eq!(view.checkpoints().steps().unwrap(), [1, 2]);
    let relative = |paths: Vec<std::path::PathBuf>, root: &Path| -> Vec<String> {
        paths.iter().map(|path| path.strip_prefix(root).unwrap().display().to_string()).collect()
    };
    let orphaned = view.orphaned().unwrap();
    assert_eq!(relative(orphaned[..1].to_vec(), dir.path()), ["orphaned/metrics_after_step_2.jsonl"]);
    let steps = relative(orphaned[1..].to_vec(), elsewhere.path());
    assert_eq!(steps, ["orphaned/checkpoints/step_3", "orphaned/weights/step_3"]);
    assert_eq!(relative(view.unfinished().unwrap(), elsewhere.path()), ["weights/step_9.tmp"]);
    let files = files_below(&view.checkpoints().path(1)).unwrap();
    assert!(files.windows(2).all(|two| two[0].0 < two[1].0) && files.iter().any(|(name, _)| name == "manifest.json"));
    assert_eq!(files_below(&dir.path().join("none")).unwrap(), []);
}
