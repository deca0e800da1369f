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
mkdir "$out/export"
"$py" "$here/export_logits.py" "$prl" "$root/examples/reverse_text/model" "$out/export"
# Gradients of every parameter, against transformers in f32, of every family.
gpu="$root/tests/gpu"
for family in "qwen3" "qwen2" "llama --untied"; do
    "$py" "$gpu/make_model.py" "$out/m" --layers 2 --hidden 128 --ffn 192 --heads 4 --kv-heads 2 --vocab 301 --seed 7 --family $family
    "$py" "$gpu/torch_grads.py" "$out/m" "$out/m/batch.json" "$out/theirs.safetensors" --dtype float32
    "$2/examples/gpu_peer" grads "$out/m" "$out/m/batch.json" "$out/ours.safetensors" cpu
    "$py" "$gpu/compare_grads.py" "$out/theirs.safetensors" "$out/ours.safetensors" --limit 1e-4
    rm -r "$out/m"
done
# Fine-tuning of a real model on real conversations, step by step.
smol="${XDG_CACHE_HOME:-$HOME/.cache}/prl/models/smollm2-135m"
"$py" "$here/real_model.py" "$smol"
"$py" "$here/loss_parity.py" "$prl" "$smol" "$out/parity"
# The cache of the hub's repositories, shared with huggingface_hub.
"$py" "$here/hub_cache.py" "$prl" "$root/examples/reverse_text/model" "$out/hub_cache"
# Optimisers, against torch's on the same gradients.
"$py" "$here/optimisers.py" "$prl" "$root/examples/reverse_text/sft.toml" "$out/optimisers"
# Adapters: training and export against PEFT, and a run that learns, with a stop.
"$py" "$here/lora_train.py" "$prl" "$root/examples/reverse_text" "$out/lora_train"
python3 -u "$here/lora_rl.py" "$prl" "$root/examples/reverse_text/rl.toml" "$out/lora_rl"
"$py" "$here/greedy_equal.py" "$prl" "$root/examples/reverse_text" "$out"

# Chat templates: texts, loss masks and the ids of the hand-written formats, against transformers.
"$py" "$here/template_parity.py" "$2/examples/render" "$out/templates"

# Algorithms and losses, against float64 formulas in numpy; those of plug-ins that are built outside the workspace too.
plugins="$2/../tmp/plugins"
for plugin in rae gspo; do
    cargo build --release --locked --quiet --manifest-path "$root/plugins/$plugin/Cargo.toml" --target-dir "$plugins"
done
cc -O2 -fPIC -shared -I "$root/sdk/abi/include" "$root/plugins/c/cispo.c" -o "$out/libcispo.so" -lm
"$py" "$here/algorithms_equal.py" "$prl" "$plugins/release/librae.so" "$plugins/release/libgspo.so" "$out/libcispo.so"

# Learning from other models, on servers and behind a hint.
"$py" "$here/distill.py" "$prl" "$root/examples/reverse_text" "$out/distill"
"$py" "$here/echo.py" "$prl" "$root/examples/tool_use" "$out/echo"

# Killed at random moments and gone on with.
"$py" "$here/kill.py" "$prl" "$root/examples/reverse_text/rl.toml" "$out/kill" 10 --max-steps 8 --orchestrator.batch-size 16 \
    --orchestrator.group-size 4 --orchestrator.eval.interval 3 --orchestrator.eval.num-examples 8

# The server: OpenAI's client, guided output, transformers and PEFT beside it, and many callers at once while weights change.
tiny="$root/examples/reverse_text/model"
"$py" "$here/openai_client.py" "$prl" "$tiny"
"$py" "$here/guided.py" "$prl" "$tiny" "$out"
"$py" "$here/server_equal.py" "$prl" "$tiny" 50
"$py" "$here/lora_equal.py" "$prl" "$tiny" "$out"
"$py" "$here/server_load.py" "$prl" "$tiny" "$out" 20 256

# Python environments in the sandbox against the same code outside it, and ports of environments for verifiers against it.
PYTHONPATH="$root/sdk/python/src" python3 -m unittest discover --quiet --start-directory "$root/sdk/python/tests"
python3 -u "$here/python_envs.py" "$2/examples/rollouts" "$out/python_envs"
python3 -u "$here/served_env.py" "$prl" "$out/python_envs/alphabet-sort.wasm" "$out/served_env"
# Publishing, with a real registry server.
python3 -u "$here/real_registry.py" "$prl" "$out/registry"
