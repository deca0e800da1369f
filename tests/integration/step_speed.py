"""A training step of `prl sft` on the CPU beside one of transformers and torch in f32, in turns on the same machine.

Usage: step_speed.py PRL_BINARY MODEL_FOLDER [THREADS [ROWS [TOKENS [ROUNDS]]]]

A step is forward, backward, clipping and AdamW on so many rows of so many random tokens, every one a target; weights are those of
the folder. Both sides have the same number of threads. Told are medians of rounds: of the mean time of three steps behind one that is
not counted, and of the processor's time for a step, which on a busy machine says more; ours has the start of the program in it.
Nothing is asserted.
"""

import json
import os
import pathlib
import resource
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


def children():
    """Processor's seconds of all programs that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def ours():
    before = children()
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "bench.json"
        words = f"--device cpu --bench --data.type fake --data.input-ids random --data.seq-len {tokens} --optim.lr {LR}"
        words += f" --data.batch-size {rows} --data.micro-batch-size {rows}"
        command = [prl, "sft", "--model.name", folder, "--bench.output-json", out, *words.split()]
        env = {**os.environ, "RAYON_NUM_THREADS": str(threads)}
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        assert done.returncode == 0, done.stderr
        return json.loads(out.read_text())["metrics"]["step_time"]["mean"], (children() - before) / STEPS


def theirs(model, optimizer):
    times, vocab, before = [], model.config.vocab_size, time.process_time()
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
    return statistics.mean(times[1:]), (time.process_time() - before) / STEPS


torch.set_num_threads(threads)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.01, fused=True)
pairs = [(ours(), theirs(model, optimizer)) for _ in range(rounds)]
name = f"{pathlib.Path(folder).name}, {rows} x {tokens}, {threads} threads"
for at, what in enumerate(("a step", "processor's time")):
    a, b = (statistics.median(side[at] for side in sides) for sides in zip(*pairs))
    ratio = statistics.median(ours[at] / theirs[at] for ours, theirs in pairs)
    print(f"step_speed: {name}, {what}: prl {a:.3f} s, torch {b:.3f} s, ratio {ratio:.2f}")
