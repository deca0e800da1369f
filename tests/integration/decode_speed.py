"""Sampling speed of the engine beside transformers' generate in f32, in turns on the same machine.

Usage: decode_speed.py DECODE_EXAMPLE MODEL_FOLDER [BATCH...]

DECODE_EXAMPLE is what `cargo build --release -p prl-inference --example decode` makes.
"""

import statistics
import subprocess
import sys
import time

import torch
from transformers import AutoModelForCausalLM

decode, folder = sys.argv[1], sys.argv[2]
batches = [int(word) for word in sys.argv[3:]] or [1, 8, 32]
PROMPT, NEW, ROUNDS = 32, 64, 3

model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
vocab = model.config.vocab_size


def ours(batch):
    done = subprocess.run([decode, folder, str(batch), str(PROMPT), str(NEW), "2"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return float(done.stdout.split()[-1])


def theirs(batch, cache):
    ids = torch.tensor([[(i * 7919 + t * 104729) % vocab for t in range(PROMPT)] for i in range(batch)])
    words = {"cache_implementation": cache} if cache else {}
    begun = time.perf_counter()
    with torch.no_grad():
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW, min_new_tokens=NEW, pad_token_id=0, **words
        )
    assert out.shape == (batch, PROMPT + NEW)
    return batch * NEW / (time.perf_counter() - begun)


print(f"{'batch':>5} {'prl tok/s':>10} {'dynamic':>10} {'static':>10} {'ratio':>6}")
for batch in batches:
    theirs(batch, None)
    rounds = [(ours(batch), theirs(batch, None), theirs(batch, "static")) for _ in range(ROUNDS)]
    a, b, c = (statistics.median(column) for column in zip(*rounds))
    ratio = statistics.median(x / max(y, z) for x, y, z in rounds)
    print(f"{batch:>5} {a:>10.1f} {b:>10.1f} {c:>10.1f} {ratio:>6.2f}", flush=True)
