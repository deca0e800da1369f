"""Gradients of a packed batch as transformers computes them, to hold ours against.

    python3 tests/gpu/torch_grads.py MODEL_FOLDER batch.json OUT.safetensors --dtype float32|float64|bf16|bf16-copy

The objective is Σ_t dlogprob_t · logprob_t + dentropy_t · entropy_t with logprob_t = log softmax(logits[t-1] /
temperature_t)[ids_t] within t's document and entropy_t of the same distribution; a temperature of 0 counts as 1; first
tokens of documents are left out. Documents run one at a time, without padding, so nothing of packing is shared with
ours.

batch.json: {"ids": [n ints], "doc_lens": [ints that sum up to n], "temperatures": [n], "dlogprob": [n], "dentropy": [n]
or null}.

OUT.safetensors, all f32: the gradient of every parameter under its Hugging Face name (a tied matrix once, as
`model.embed_tokens.weight`, with the sum of both uses), and `logprobs` [n] and `entropy` [n], where first tokens have
-ln V and ln V.

float32 is without TF32 and with eager attention; float64 is f64 throughout, norms, rotations and softmax included; bf16
is autocast over f32 parameters with scaled_dot_product_attention, where the residual stream stays f32; bf16-copy is the
model cast to bf16, residual stream included, with gradients summed over the documents in f32.
"""

import argparse
import contextlib
import math
import time

from common import DEVICE, autocast, exact_products, fail, head_backward, load_model, read_json, save_file, torch

SDPBackend, sdpa_kernel = torch.nn.attention.SDPBackend, torch.nn.attention.sdpa_kernel

ATTENTION = {"float32": "eager", "float64": "sdpa", "bf16": "sdpa", "bf16-copy": "sdpa"}


def read_batch(path, vocab):
    batch = read_json(path)
    n = len(batch.get("ids", []))
    if sum(batch.get("doc_lens", [])) != n or n == 0 or min(batch["doc_lens"]) < 1:
        fail(f"`{path}`: `doc_lens` must be lengths above 0 that sum up to the {n} `ids`")
    for key in ("temperatures", "dlogprob", "dentropy"):
        values = batch.get(key)
        if values is None and key == "dentropy":
            continue
        if values is None or len(values) != n:
            fail(f"`{path}`: `{key}` must have {n} entries, one for each of `ids`")
    if not all(0 <= i < vocab for i in batch["ids"]):
        fail(f"`{path}`: `ids` has a token outside the model's vocabulary of {vocab}")
    return batch


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("batch")
    parser.add_argument("out")
    parser.add_argument("--dtype", choices=list(ATTENTION), default="float32")
    parser.add_argument("--attention", choices=["eager", "sdpa"], help="another than the type's own")
    args = parser.parse_args()
    exact_products()
    model = load_model(args.model, args.dtype, args.attention or ATTENTION[args.dtype])
    vocab = model.config.vocab_size
    batch = read_batch(args.batch, vocab)
    real = torch.float64 if args.dtype == "float64" else torch.float32
    ids = torch.tensor(batch["ids"], device=DEVICE)
    column = lambda key: torch.tensor(batch[key], dtype=torch.float64, device=DEVICE).to(real)
    temperatures, dlogprob = column("temperatures"), column("dlogprob")
    temperatures = torch.where(temperatures == 0, torch.ones_like(temperatures), temperatures)
    dentropy = torch.zeros_like(dlogprob) if batch.get("dentropy") is None else column("dentropy")
    logprobs = torch.full((len(ids),), -math.log(vocab), dtype=real, device=DEVICE)
    entropy = -logprobs
    # Fused attention of f32 may use TF32 products inside; the plain formula does not.
    attention = contextlib.nullcontext() if args.dtype.startswith("bf16") else sdpa_kernel(SDPBackend.MATH)
    grads = {name: torch.zeros_like(p, dtype=real) for name, p in model.named_parameters()}
    started, start = time.perf_counter(), 0
    with attention:
        for length in batch["doc_lens"]:
            document, start = slice(start, start + length), start + length
            if length == 1:
                continue
            tokens = slice(document.start + 1, document.stop)
            with autocast(args.dtype):
                hidden = model.model(input_ids=ids[document][None], use_cache=False).last_hidden_state[0, :-1]
            logprobs[tokens], entropy[tokens] = head_backward(
                model, hidden, ids[tokens], temperatures[tokens], dlogprob[tokens], dentropy[tokens], args.dtype
            )
            for name, p in model.named_parameters():
                grads[name] += p.grad
                p.grad = None
    norm = math.sqrt(sum(g.double().square().sum().item() for g in grads.values()))
    out = {name: g.float().cpu().contiguous() for name, g in grads.items()}
    out |= {"logprobs": logprobs.float().cpu(), "entropy": entropy.float().cpu()}
    save_file(out, args.out, metadata={"dtype": args.dtype})
    print(
        f"torch_grads {args.dtype} on {DEVICE}: {len(ids)} tokens, {len(batch['doc_lens'])} documents, "
        f"{time.perf_counter() - started:.1f} s, gradient norm {norm:.6e}, mean logprob {logprobs.mean().item():.6f}"
    )


if __name__ == "__main__":
    main()
