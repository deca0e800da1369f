//! An algorithm built outside the workspace, against the SDK alone.

use crate::support::{Scratch, repo};
use std::path::Path;
use std::process::Command;

/// Builds a plug-in of `plugins/`. Its dependencies are all among the workspace's, so that nothing is fetched.
pub fn built(name: &str) -> String {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("plugins");
    let built = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--offline", "--locked", "--quiet", "--manifest-path"])
        .arg(repo().join("plugins").join(name).join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    target.join(format!("release/lib{name}.so")).display().to_string()
}

#[test]
fn a_plugin_changes_the_advantages() {
    let plugin = built("hello");
    let scratch = Scratch::new();
    scratch.rl("grpo", "--max-steps 2").ok();
    let done = scratch.rl("hello", &format!("--max-steps 2 --plugin {plugin} --orchestrator.algo.type hello")).ok();
    assert!(done.stdout.contains("algorithm hello"), "{done}");
    let (grpo, hello) = (scratch.run("grpo"), scratch.run("hello"));
    assert_eq!(grpo.series("reward/all/mean")[0], hello.series("reward/all/mean")[0], "the rollouts are the same");
    assert_ne!(grpo.series("loss/mean")[0], hello.series("loss/mean")[0]);
    assert!(grpo.weights(2) != hello.weights(2), "the same weights");

    // Its own key, from the same configuration.
    let words = format!("--max-steps 1 --plugin {plugin} --orchestrator.algo.type hello --orchestrator.algo.scale 0.5");
    scratch.rl("half", &words).ok();
    let (whole, half) = (hello.series("loss/mean")[0], scratch.run("half").series("loss/mean")[0]);
    assert!((whole / 2.0 - half).abs() < 1e-6 && half != 0.0, "{whole} and {half}");

    // Without `--plugin` the name is unknown; a key that the plug-in does not know is refused.
    let bad =
        scratch.rl("bad", &format!("--plugin {plugin} --orchestrator.algo.type hello --orchestrator.algo.scael 1"));
    assert_eq!(bad.code, Some(2), "{bad}");
    assert!(bad.stderr.starts_with("error: ") && bad.stderr.contains("scael"), "{bad}");
}

#[test]
fn a_plugin_supplies_the_loss() {
    let plugin = built("gspo");
    let scratch = Scratch::new();
    let words = |more: &str| {
        format!("--max-steps 2 --plugin {plugin} --trainer.loss.type custom --trainer.loss.name gspo {more}")
    };
    scratch.rl("default", "--max-steps 2").ok();
    scratch.rl("gspo", &words("")).ok();
    let (default, gspo) = (scratch.run("default"), scratch.run("gspo"));
    assert_eq!(default.series("reward/all/mean")[0], gspo.series("reward/all/mean")[0], "the rollouts are the same");
    assert!(default.weights(2) != gspo.weights(2), "the same weights");
    let ratio = gspo.series("loss/gspo/ratio")[0];
    assert!((ratio - 1.0).abs() < 1e-6, "the first step is on policy: {ratio}");
    assert_eq!(gspo.series("mismatch_kl/all/max").len(), 2, "what is compared stays the host's");
    // With both of its parts, from the same file.
    scratch.rl("both", &words("--orchestrator.algo.type gspo --trainer.loss.clip_high 0.5")).ok();
    assert!(scratch.run("both").weights(2) != gspo.weights(2));

    for (name, more, line) in [
        ("key", "--trainer.loss.clip 1", "the algorithm `gspo` rejects its configuration: clip: unknown field `clip`"),
        ("value", "--trainer.loss.clip_low 3", "clip_low: 3 is not a number from 0 to 1"),
        ("none", "--trainer.loss.name grpo", "`trainer.loss.name`: the plug-in `grpo` has no loss"),
        ("unknown", "--trainer.loss.name gpso", "`trainer.loss.name`: there is no algorithm `gpso`: known are "),
    ] {
        for dry in ["", "--dry-run"] {
            let bad = scratch.rl(name, &words(&format!("{more} {dry}")));
            assert_eq!(bad.code, Some(2), "{bad}");
            assert!(bad.stderr.starts_with("error: ") && bad.stderr.contains(line), "{bad}");
        }
    }
    assert!(scratch.rl("dry", &words("--dry-run")).ok().stdout.contains("The configuration is valid"));
}
