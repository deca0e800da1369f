#!/usr/bin/env bash
# Holds the product against its real peers. Usage: run.sh PRL_BINARY BINARY_DIR. Installs what it needs with pip into a
# cached virtual environment; a missing tool is a failure here.
set -euo pipefail
prl="$1"
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
venv="${XDG_CACHE_HOME:-$HOME/.cache}/prl/venv"
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt"
py="$venv/bin/python"
out="$(mktemp -d)"
trap 'rm -rf "$out"' EXIT

# A short real run from the shipped model, recorded in every format.
"$prl" rl @ "$root/examples/reverse_text/rl.toml" --max-steps 4 --orchestrator.batch-size 32 --orchestrator.group-size 8 \
    --orchestrator.eval.num-examples 16 --wandb --wandb.offline --output-dir "$out/rl"
"$py" "$here/export_loads.py" "$root/examples/reverse_text/model" "$out/rl/weights/step_4"
"$py" "$here/wandb_reads.py" "$out/rl"
"$py" "$here/greedy_equal.py" "$prl" "$root/examples/reverse_text" "$out"
