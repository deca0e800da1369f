"""Algorithms that learn from other models learn: opd and sft from a served teacher, opsd from the policy behind a hint.

Usage: distill.py PRL_BINARY EXAMPLE_FOLDER SCRATCH

The teacher is what the example's RL run ends with. Mean reward of an evaluation before and after 20 steps, and for opsd the
distance to the hinted policy, which must shrink.
"""

import json
import pathlib
import subprocess
import sys

from serving import Serving

prl, example, scratch = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])


def train(name, *words):
    out = scratch / name
    command = [prl, "rl", "@", str(example / "rl.toml"), "--output-dir", str(out), "--orchestrator.eval.num-examples", "64"]
    subprocess.run([*command, *words], check=True, stdout=subprocess.DEVNULL)
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return lambda key: [row[key] for row in rows if key in row]


train("teacher", "--ckpt")
SCORE = "eval/reverse-text/avg@1"
with Serving(prl, scratch / "teacher/weights/step_40", "--served-model-name", "teacher") as server:
    model = json.dumps({"name": "teacher", "base_url": [server.url + "/v1"]})
    for algorithm, place in [("opd", "teacher"), ("sft", "sampling.source")]:
        words = ["--orchestrator.algo.type", algorithm, f"--orchestrator.algo.{place}", model]
        before, *_, after = train(algorithm, "--max-steps", "20", *words)(SCORE)
        assert after >= 0.5 and after > before + 0.1, (algorithm, before, after)
        print(f"distill: {algorithm}: evaluation {before:.2f} -> {after:.2f}")
series = train("opsd", "--max-steps", "20", "--orchestrator.algo.type", "opsd")
before, *_, after = series(SCORE)
# ref_kl is the mean of reference minus policy: minus the divergence.
far, near = -series("ref_kl/mean")[0], -series("ref_kl/mean")[-1]
assert after >= before and near < far / 2, (before, after, far, near)
print(f"distill: opsd: evaluation {before:.2f} -> {after:.2f}, divergence {far:.2f} -> {near:.2f}")
