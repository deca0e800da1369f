"""An adapter learns to reverse texts, and does so the same way after a stop.

Usage: lora_rl.py PRL_BINARY RL_TOML SCRATCH_FOLDER
"""

import json
import pathlib
import subprocess
import sys

prl, toml, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
STEPS, ENOUGH = 14, 0.65


def run(name, words):
    line = [prl, "rl", "@", toml, "--device", "cpu", "--trainer.model.lora", "--trainer.optim.lr", "1e-3"]
    line += ["--orchestrator.max-async-level", "0", "--orchestrator.eval.interval", "1000", "--orchestrator.eval.num-examples", "64"]
    done = subprocess.run(line + ["--output-dir", str(out / name), *words.split()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(row) for row in open(out / name / "metrics.jsonl")]


def last(name):
    return [(out / name / f"{folder}/{file}.safetensors").read_bytes() for folder, file in (
        (f"checkpoints/step_{STEPS}/trainer", "adapter_model"), (f"checkpoints/step_{STEPS}/trainer", "optimizer"),
        (f"weights/step_{STEPS}", "model"))]


through = run("through", f"--max-steps {STEPS}")
run("stopped", f"--max-steps {STEPS // 2}")
stopped = run("stopped", f"--max-steps {STEPS} --ckpt.resume-step -1")
assert last("through") == last("stopped"), "the resumed run is another one"
mismatch = [row["mismatch_kl/all/max"] for row in through if "mismatch_kl/all/max" in row]
assert mismatch == [0.0] * STEPS, mismatch
evaluated = lambda rows: [row["eval/reverse-text/all/avg@1"] for row in rows if "eval/reverse-text/all/avg@1" in row]
rewards = evaluated(through)
assert rewards[-1] == evaluated(stopped)[-1] >= ENOUGH, rewards
print(f"lora_rl: reward {rewards[0]:.3f} before and {rewards[-1]:.3f} after {STEPS} steps, with a stop and without; mismatch 0")
