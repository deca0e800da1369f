"""`echo` learns to act and to foresee what tools answer, over several turns.

Usage: echo.py PRL_BINARY EXAMPLE_FOLDER SCRATCH
"""

import json
import pathlib
import subprocess
import sys

prl, example, out = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
command = [prl, "rl", "@", str(example / "rl.toml"), "--output-dir", str(out)]
subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def ends(key):
    """Mean of the first and of the last three steps."""
    values = [row[key] for row in rows if key in row]
    return sum(values[:3]) / 3, sum(values[-3:]) / 3


(reward, rewarded), (loss, learned) = ends("reward/tool-use/mean"), ends("nll/mean")
assert max(row.get("num_turns/tool-use/mean", 0) for row in rows) > 2, "several turns"
assert rewarded > 0.8 > 0.5 > reward and learned < 0.6 * loss, (reward, rewarded, loss, learned)
print(f"echo: reward {reward:.2f} -> {rewarded:.2f}, loss of tool results {loss:.2f} -> {learned:.2f}")
