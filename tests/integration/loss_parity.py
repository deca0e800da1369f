"""Losses, gradient norms and learning rates of `prl sft` equal those of transformers and torch, step by step.

Usage: loss_parity.py PRL_BINARY MODEL_FOLDER OUT_FOLDER

Both sides fine-tune the model in f32 for 20 steps on the conversations in chat_rows.jsonl, in the file's order, two packed rows
a step, one row a pass, with AdamW, a clipped gradient and a learning rate that warms up and decays. The reference shares no code
with ours: ids and targets are those of chat_rows.py, every document is a row of its own, and optimiser, clipping and schedule are
torch's.
"""

import json
import os
import pathlib
import subprocess
import sys

# Threads that wait for each other sleep: the machine may have others to serve.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import chat_rows
import torch
from torch.optim.lr_scheduler import ConstantLR, LinearLR, SequentialLR
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, SEQ_LEN, BATCH = 20, 152, 2
LR, MIN_LR, WARMUP, DECAY = 5e-5, 5e-6, 5, 10
WEIGHT_DECAY, BETAS, MAX_NORM = 0.1, (0.9, 0.95), 1.0
prl, folder, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])


def ours():
    options = {
        "--model.name": folder,
        "--device": "cpu",
        "--data.name": chat_rows.PATH,
        "--data.shuffle": "false",
        "--data.seq-len": SEQ_LEN,
        "--data.batch-size": BATCH,
        "--data.micro-batch-size": 1,
        "--optim.lr": LR,
        "--optim.weight-decay": WEIGHT_DECAY,
        "--optim.betas1": BETAS[0],
        "--optim.betas2": BETAS[1],
        "--optim.max-norm": MAX_NORM,
        "--scheduler.type": "linear",
        "--scheduler.warmup-steps": WARMUP,
        "--scheduler.decay-steps": DECAY,
        "--scheduler.min-lr": MIN_LR,
        "--max-steps": STEPS,
        "--output-dir": out,
    }
    words = [str(word) for pair in options.items() for word in pair]
    done = subprocess.run([prl, "sft", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "loss/mean" in line]


def batches(tokenizer):
    """The documents of each step: rows are filled in order, and one that does not fit begins the next."""
    all_documents, rows, at = list(chat_rows.documents(tokenizer)), [], 0
    assert max(len(ids) for ids, _ in all_documents) <= SEQ_LEN
    while len(rows) < STEPS * BATCH:
        row = []
        while sum(len(ids) for ids, _ in row) + len(all_documents[at % len(all_documents)][0]) <= SEQ_LEN:
            row.append(all_documents[at % len(all_documents)])
            at += 1
        rows.append(row)
    assert any(len(row) > 1 for row in rows)
    return [sum(rows[n : n + BATCH], []) for n in range(0, len(rows), BATCH)]


def theirs():
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train()
    # Else torch drops what a lookup of the padding token gives to its embedding, and here that is the token that ends turns.
    model.get_input_embeddings().padding_idx = None
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, eps=1e-8, weight_decay=WEIGHT_DECAY)
    phases = [
        LinearLR(optimizer, MIN_LR / LR, 1.0, WARMUP),
        ConstantLR(optimizer, 1.0, 1),
        LinearLR(optimizer, 1.0, MIN_LR / LR, DECAY - 1),
    ]
    schedule = SequentialLR(optimizer, phases, [WARMUP, STEPS - DECAY])
    for batch in batches(tokenizer):
        width = max(len(ids) for ids, _ in batch)
        # Causal attention never looks at what fills up the shorter ones.
        padded = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in batch])
        document, place = torch.tensor([(n, t) for n, (_, targets) in enumerate(batch) for t in targets]).T
        logits = model(input_ids=padded, use_cache=False).logits[document, place - 1]
        loss = torch.nn.functional.cross_entropy(logits, padded[document, place])
        loss.backward()
        norms = [torch.linalg.vector_norm(p.grad, dtype=torch.float64) for p in model.parameters()]
        # clip_grad_norm_ adds up millions of squares in f32, which is off in the fourth digit.
        norm = torch.linalg.vector_norm(torch.stack(norms))
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), MAX_NORM, norm)
        yield {"loss/mean": loss.item(), "optim/grad_norm": norm.item(), "optim/lr": schedule.get_last_lr()[0]}
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


# Of the value. A step divides by the gradient's own size, so what is rounding in one step is more in the next gradient.
LIMITS = {"loss/mean": 1e-3, "optim/grad_norm": 1e-2, "optim/lr": 1e-6}
FIRST = {"loss/mean": 1e-5, "optim/grad_norm": 3e-5, "optim/lr": 1e-6}
worst = dict.fromkeys(LIMITS, 0.0)
got = ours()
assert len(got) == STEPS, f"{len(got)} steps"
for step, (a, b) in enumerate(zip(got, theirs(), strict=True), 1):
    off = {name: abs(a[name] - b[name]) / abs(b[name]) for name in LIMITS}
    print(f"step {step}: loss {a['loss/mean']:.5f}, " + ", ".join(f"{name} {x:.1e}" for name, x in off.items()), flush=True)
    for name, limit in (FIRST if step == 1 else LIMITS).items():
        assert off[name] <= limit, f"step {step}: {name} is {a[name]}, torch's {b[name]}"
        worst[name] = max(worst[name], off[name])
first, last = got[0]["loss/mean"], got[-1]["loss/mean"]
assert last < first, f"nothing was learned: {first} to {last}"
print(f"loss_parity: {STEPS} steps from {first:.4f} to {last:.4f} equal torch's to {worst['loss/mean']:.1e}, "
      f"gradient norms to {worst['optim/grad_norm']:.1e}")
