"""Kills a run at random moments, starts it again each time, and holds what it leaves against a run that was not killed.

Usage: kill.py PRL_BINARY RL_TOML SCRATCH KILLS [WORD...]

The words are added to both runs' commands. Both must write a checkpoint every step.
"""

import json
import pathlib
import random
import signal
import subprocess
import sys
import time

prl, toml, scratch, kills, *words = sys.argv[1:]
scratch, kills = pathlib.Path(scratch), int(kills)
scratch.mkdir(parents=True, exist_ok=True)
random.seed(0)
base = [prl, "rl", "@", toml, "--ckpt.interval", "1", *words]
# What depends on a clock or on the disk.
CLOCKED = ("time/", "timing/", "perf/", "system/", "ckpt/")


def story(out):
    """Metrics without times, tasks and turns that trained, weights."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rows = [{k: v for k, v in row.items() if not any(part in k for part in CLOCKED)} for row in rows]
    steps = max(row["step"] for row in rows)
    trained = []
    for step in range(1, steps + 1):
        for line in (out / f"rollouts/step_{step}/train/effective/traces.jsonl").read_text().splitlines():
            line = json.loads(line)
            trained.append((step, line["id"], line["task"]["key"], line["turns"]))
    return rows, trained, (out / f"weights/step_{steps}/model.safetensors").read_bytes()


whole, killed = scratch / "whole", scratch / "killed"
began = time.monotonic()
subprocess.run([*base, "--output-dir", str(whole)], check=True, stdout=subprocess.DEVNULL)
takes = time.monotonic() - began
again = [*base, "--output-dir", str(killed), "--ckpt.resume-step", "-1", "--ckpt.allow-fresh"]
done, lives = 0, 0
while done < kills:
    child = subprocess.Popen(again, stdout=subprocess.DEVNULL)
    lives += 1
    try:
        # Lives are short enough that a run comes to its end now and then only, and long enough that it moves on.
        child.wait(random.uniform(0.1, max(1.0, takes / 4)))
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.wait()
        done += 1
    else:
        assert child.returncode == 0, child.returncode
        if story(killed) != story(whole):
            break
        subprocess.run(["rm", "-rf", str(killed)], check=True)
subprocess.run(again, check=True, stdout=subprocess.DEVNULL)
for name, ours, theirs in zip(("metrics", "rollouts", "weights"), story(killed), story(whole)):
    assert ours == theirs, f"other {name}"
print(f"kill: {done} kills in {lives} lives; metrics, rollouts and weights are those of the run that was not killed")
