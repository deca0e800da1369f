"""Fine-tunes a model folder with plain PyTorch and writes the loss of every step, to hold ours against.

    python3 tests/gpu/torch_sft.py MODEL_FOLDER rows.jsonl --steps N --rows R --lr 1e-4 [--dtype bf16|float32]
        [--out losses.json] [--compare ours.json]

rows.jsonl: one packed row a line, {"ids": [n ints], "mask": [n of 0/1 or false/true], "doc_lens": [ints that sum up to
n]}. Step k takes rows k·R … k·R + R − 1, from the top again after the last. A token is a target when its mask is set
and it is not the first of its document; the loss of a step is the mean of −log p over the step's targets, before its
update.

f32 parameters and moments, autocast to bf16 or plain f32 without TF32; AdamW with weight decay 0.01 on every parameter,
betas 0.9 and 0.999, ε 1e-8; the gradient's norm is clipped to 1. The learning rate is constant. Documents of similar
length are padded on the right and run together: causal attention never looks there, so padding changes nothing.

Prints and writes {"losses": [...], "grad_norms": [...] (before clipping)}. With `--compare` (the same form; only
"losses" is read) the exit code is 1 when a step's loss is off by more than `--limit` (0.01) of ours.
"""

import argparse
import json
import pathlib
import sys

from common import DEVICE, autocast, exact_products, fail, head_backward, load_model, read_json, torch


def read_rows(path, vocab):
    """Rows as lists of documents (ids, is_target)."""
    try:
        lines = [line for line in pathlib.Path(path).read_text().splitlines() if line.strip()]
    except OSError as e:
        fail(f"`{path}`: {e}")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            ids, mask, lengths = row["ids"], row["mask"], row["doc_lens"]
        except (ValueError, KeyError, TypeError) as e:
            fail(f"`{path}` line {number}: {e!r}; a row is {{\"ids\", \"mask\", \"doc_lens\"}}")
        if len(mask) != len(ids) or sum(lengths) != len(ids) or any(n < 1 for n in lengths):
            fail(f"`{path}` line {number}: `mask` and the sum of `doc_lens` must match the {len(ids)} `ids`")
        if not all(0 <= i < vocab for i in ids):
            fail(f"`{path}` line {number}: `ids` has a token outside the model's vocabulary of {vocab}")
        documents, at = [], 0
        for n in lengths:
            documents.append((ids[at : at + n], [t > 0 and bool(mask[at + t]) for t in range(n)]))
            at += n
        rows.append(documents)
    if not rows:
        fail(f"`{path}` has no rows")
    return rows


def batches(documents, tokens):
    """Documents from the longest to the shortest, as many together as stay below so many padded tokens."""
    documents = sorted((d for d in documents if any(d[1])), key=lambda d: -len(d[0]))
    while documents:
        count = max(1, tokens // len(documents[0][0]))
        yield documents[:count]
        documents = documents[count:]


def step_loss(model, documents, args):
    """Backward of the step's loss; returns it."""
    targets = sum(sum(is_target) for _, is_target in documents)
    if targets == 0:
        fail("a step has no target tokens; check `mask`")
    nll = 0.0
    for batch in batches(documents, args.batch_tokens):
        width = max(len(ids) for ids, _ in batch)
        ids = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in batch], device=DEVICE)
        is_target = torch.tensor([t + [False] * (width - len(t)) for _, t in batch], device=DEVICE)
        labels = ids[is_target]
        with autocast(args.dtype):
            hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        hidden = hidden[:, :-1][is_target[:, 1:]]
        one = torch.ones(len(labels), device=DEVICE)
        logprobs, _ = head_backward(model, hidden, labels, one, -one / targets, None, args.dtype)
        nll -= logprobs.double().sum().item()
    return nll / targets


def compare(losses, path, limit):
    ours = read_json(path).get("losses", [])
    if len(ours) != len(losses):
        fail(f"`{path}`: `losses` has {len(ours)} steps, this run {len(losses)}")
    off = [abs(a - b) / abs(b) if b else abs(a) for a, b in zip(ours, losses)]
    bad = [k for k, x in enumerate(off) if not x <= limit]
    print(f"{'FAILED' if bad else 'ok'}: largest difference {max(off):.3%} of the loss, limit {limit:.3%}")
    sys.exit(1 if bad else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("data")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rows", type=int, required=True, help="rows of one step")
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--weight-decay", type=float, default=0.01)
    parser.add_argument("--max-norm", type=float, default=1.0)
    parser.add_argument("--dtype", choices=["bf16", "float32"], default="bf16")
    parser.add_argument("--batch-tokens", type=int, default=16384, help="padded tokens of one forward pass")
    parser.add_argument("--out")
    parser.add_argument("--compare")
    parser.add_argument("--limit", type=float, default=0.01)
    args = parser.parse_args()
    if args.steps < 1 or args.rows < 1:
        fail("--steps and --rows must be above 0")
    exact_products()
    model = load_model(args.model, args.dtype, "sdpa").train()
    rows = read_rows(args.data, model.config.vocab_size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=args.weight_decay,
        fused=DEVICE == "cuda",
    )
    losses, norms = [], []
    for step in range(args.steps):
        documents = [d for i in range(step * args.rows, (step + 1) * args.rows) for d in rows[i % len(rows)]]
        losses.append(step_loss(model, documents, args))
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), args.max_norm).item())
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1}: loss {losses[-1]:.6f}, gradient norm {norms[-1]:.4f}", file=sys.stderr, flush=True)
    text = json.dumps({"losses": losses, "grad_norms": norms})
    print(text)
    if args.out:
        pathlib.Path(args.out).write_text(text + "\n")
    if args.compare:
        compare(losses, args.compare, args.limit)


if __name__ == "__main__":
    main()
