"""The official W&B client reads the offline run file.

Usage: wandb_reads.py OUTPUT_DIR
"""

import json
import pathlib
import subprocess
import sys

output_dir = pathlib.Path(sys.argv[1])
(run,) = (output_dir / "wandb").glob("offline-run-*")
wandb = pathlib.Path(sys.executable).parent / "wandb"
text = subprocess.run(
    [wandb, "leet", "inspect", "--summary", "--json", run], check=True, capture_output=True, text=True
).stdout
summary = json.loads(text)
assert "finished" in text, text
last = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text().splitlines()][-1]
assert json.dumps(last["step"]) in text, text
print("wandb_reads:", json.dumps(summary)[:200])
