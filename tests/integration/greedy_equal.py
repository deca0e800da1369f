"""Greedy answers of the engine equal those of transformers, character by character.

Usage: greedy_equal.py PRL_BINARY EXAMPLE_FOLDER SCRATCH_FOLDER [MODEL_FOLDER [NUMBER_OF_PROMPTS]]
"""

import json
import pathlib
import subprocess
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

prl, example, scratch = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
model_dir = sys.argv[4] if len(sys.argv) > 4 else str(example / "model")
count = int(sys.argv[5]) if len(sys.argv) > 5 else 32
max_tokens = 40
out = scratch / "greedy"
options = {
    "--model.name": model_dir,
    "--output-dir": str(out),
    "--max-steps": 1,
    "--orchestrator.batch-size": 16,
    "--orchestrator.group-size": 8,
    "--orchestrator.eval.num-examples": count,
    "--orchestrator.eval.sampling.temperature": 0,
    "--orchestrator.eval.sampling.max-completion-tokens": max_tokens,
}
words = [str(w) for pair in options.items() for w in pair]
# A model that cannot do the task at all ends the run for want of signal, after the evaluation that is looked at here.
run = subprocess.run([prl, "rl", "@", str(example / "rl.toml"), *words], capture_output=True, text=True)
assert run.returncode == 0 or "nothing to train on" in run.stderr, run.stderr
traces = [json.loads(line) for line in open(out / "rollouts/step_0/eval/all/traces.jsonl")]
assert len(traces) == count

tokenizer = AutoTokenizer.from_pretrained(model_dir)
model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
different = []
for trace in traces:
    messages = [{"role": m["role"], "content": m["content"]} for m in trace["task"]["prompt"]]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        ids = model.generate(**prompt, do_sample=False, max_new_tokens=max_tokens, pad_token_id=0)[0]
    expected = tokenizer.decode(ids[prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    got = trace["turns"][0]["message"]["content"]
    if got.strip() != expected.strip():
        different.append((got, expected))
assert not different, f"{len(different)} of {count} differ, for example {different[0]}"
print(f"greedy_equal: {count} of {count} greedy answers of {model_dir} are the same")
