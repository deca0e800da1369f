"""A training step of `prl sft` on the CPU beside one of transformers and torch in f32, in turns on the same machine.

Usage: step_speed.py PRL_BINARY MODEL_FOLDER [THREADS [ROWS [TOKENS [ROUNDS]]]]

A step is forward, backward, clipping and AdamW on so many rows of so many random tokens, every one a target; weights are those of
the folder. Both sides have the same number of threads. Told are means over three steps of a round, the one before them not counted, and the median of rounds; nothing is asserted.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

# Threads that wait for each other sleep: the machine may have others to serve.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch
from transformers import AutoModelForCausalLM

prl, folder = sys.argv[1], sys.argv[2]
threads, rows, tokens, rounds = [*map(int, sys.argv[3:]), *[os.cpu_count(), 4, 512, 3][len(sys.argv) - 3 :]]
STEPS, LR = 4, 1e-5


def ours():
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "bench.json"
        words = f"--device cpu --bench --data.type fake --data.input-ids random --data.seq-len {tokens} --optim.lr {LR}"
        words += f" --data.batch-size {rows} --data.micro-batch-size {rows}"
        command = [prl, "sft", "--model.name", folder, "--bench.output-json", out, *words.split()]
        env = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())["metrics"]["step_time"]["mean"]


def theirs(model, optimizer):
    times, vocab = [], model.config.vocab_size
    for _ in range(STEPS):
        ids = torch.randint(0, vocab, (rows, tokens))
        begun = time.perf_counter()
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1].reshape(-1, vocab)
        torch.nn.functional.cross_entropy(logits, ids[:, 1:].reshape(-1)).backward()
        del logits
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - begun)
    return statistics.mean(times[1:])


torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01, fused=True)
pairs = []
for _ in range(rounds):
    pairs.append((ours(), theirs(model, optimizer)))
    a, b = pairs[-1]
    print(f"prl {a:.3f} s, torch {b:.3f} s: {a / b:.2f}", flush=True)
a, b = (statistics.median(side) for side in zip(*pairs))
ratio = statistics.median(a / b for a, b in pairs)
name = pathlib.Path(folder).name
print(f"step_speed: {name}, {rows} x {tokens}, {threads} threads: prl {a:.3f} s, torch {b:.3f} s, ratio {ratio:.2f}")
