//! Ctrl-C and SIGTERM in the middle of a run.

use crate::support::{Run, Running, Scratch};

/// Starts a run without an end and waits until it trains.
fn start(scratch: &Scratch, words: &str) -> Running {
    let mut running = Running::start(scratch.command(&scratch.rl_words("out", &format!("--max-steps 100000 {words}"))));
    running.wait_for("Step 1 |");
    running
}

/// Steps without a gap, each line whole.
fn last_step(run: &Run) -> u64 {
    let steps: Vec<u64> = run.steps().iter().map(|row| row["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, (1..=steps.len() as u64).collect::<Vec<_>>());
    steps.len() as u64
}

#[test]
fn ctrl_c_flushes_and_says_how_to_start_again() {
    let scratch = Scratch::new();
    let running = start(&scratch, "");
    // Meanwhile nobody else gets the directory.
    let other = scratch.rl("out", "--max-steps 1 --clean-output-dir");
    assert_eq!(other.code, Some(2), "{other}");
    assert!(other.stderr.contains("in use by process"), "{other}");

    running.signal("INT");
    let done = running.wait();
    assert_eq!(done.code, Some(130), "{done}");
    assert_eq!(done.stderr, "");
    let step = last_step(&scratch.run("out"));
    let last = done.stdout.lines().last().unwrap();
    assert!(last.contains(&format!("Stopped after step {step}.")), "{last}");
    assert!(last.contains("--clean-output-dir"), "{last}");

    scratch.rl("out", "--max-steps 1 --clean-output-dir").ok();
    assert_eq!(last_step(&scratch.run("out")), 1);
}

#[test]
fn sigterm_flushes_and_says_how_to_go_on() {
    let scratch = Scratch::new();
    let running = start(&scratch, "--ckpt.interval 1 --ckpt.keep-last 2");
    running.signal("TERM");
    let done = running.wait();
    assert_eq!(done.code, Some(143), "{done}");
    let last = done.stdout.lines().last().unwrap();
    let advice = last.split_once("--ckpt.resume-step ").unwrap_or_else(|| panic!("{last}")).1;
    let step: u64 = advice.trim().parse().unwrap();
    assert_eq!(step, last_step(&scratch.run("out")));

    let to = step + 1;
    scratch.rl("out", &format!("--ckpt.interval 1 --ckpt.resume-step {step} --max-steps {to}")).ok();
    assert_eq!(last_step(&scratch.run("out")), to);
}

#[test]
fn ctrl_c_stops_sft_too() {
    let scratch = Scratch::new();
    let toml = crate::support::repo().join("examples/reverse_text/sft.toml");
    let words = format!("sft @ {} --output-dir out --max-steps 100000 --data.batch-size 1", toml.display());
    let mut running = Running::start(scratch.command(&words));
    running.wait_for("Step 1 |");
    running.signal("INT");
    // At once, not when the step is done.
    running.wait_for("a second signal stops now");
    let done = running.wait();
    assert_eq!(done.code, Some(130), "{done}");
    assert!(!done.stdout.contains("rollouts"), "{done}");
    last_step(&scratch.run("out"));
    assert!(done.stdout.lines().last().unwrap().contains("--clean-output-dir"), "{done}");
}
