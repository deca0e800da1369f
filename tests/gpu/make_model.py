"""A random model folder with a packed batch, and if wanted rows to fine-tune on, for the comparisons of this folder.

    python3 tests/gpu/make_model.py OUT --layers 2 [--family qwen3|qwen2|llama] [--hidden 1024] [--vocab 151936] ...

OUT gets config.json and model.safetensors (f32, transformers' own initialisation; norms are scaled around 1 and biases
around 0 at random, so that a forgotten one shows) and batch.json: documents of random tokens (`--lengths`), each
token's temperature 1.0 or 0.7, normal dlogprob and dentropy (torch_grads.py says what they mean). `--rows N` adds
rows.jsonl for torch_sft.py: N lines {"ids", "mask", "doc_lens"} of at most `--row-tokens` tokens, documents of 17 to
200 tokens that count up in steps within a small vocabulary (there is something to learn), the first third of each
without loss. Every run draws anew unless `--seed` is given. No tokenizer is written.
"""

import argparse
import json
import pathlib
import random

from common import fail, torch, transformers

FAMILIES = {"qwen3": "Qwen3", "qwen2": "Qwen2", "llama": "Llama"}
COUNTED = 97


def config_of(args):
    kind = getattr(transformers, f"{FAMILIES[args.family]}Config")
    head_dim = args.head_dim or (128 if args.family == "qwen3" else args.hidden // args.heads)
    if args.heads % args.kv_heads or head_dim % 2:
        fail(f"--kv-heads {args.kv_heads} must divide --heads {args.heads}, and heads of {head_dim} be of even width")
    # Heads of the width that follows from the others are not written down, as Qwen2's own folders do.
    width = {} if args.family == "qwen2" and head_dim == args.hidden // args.heads else {"head_dim": head_dim}
    return kind(
        hidden_size=args.hidden, num_hidden_layers=args.layers, num_attention_heads=args.heads,
        num_key_value_heads=args.kv_heads, intermediate_size=args.ffn, vocab_size=args.vocab, rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=not args.untied,
        max_position_embeddings=131072, bos_token_id=0, eos_token_id=1, dtype=torch.float32, **width,
    )


def randomise(model):
    for name, p in model.named_parameters():
        if "norm" in name:
            p.copy_(1 + 0.3 * torch.randn_like(p))
        elif name.endswith("bias"):
            p.copy_(0.3 * torch.randn_like(p))


def batch(args):
    lengths = [int(n) for n in args.lengths.split(",")]
    n = sum(lengths)
    return {
        "ids": torch.randint(0, args.vocab, (n,)).tolist(),
        "doc_lens": lengths,
        "temperatures": [random.choice([1.0, 0.7]) for _ in range(n)],
        "dlogprob": torch.randn(n).tolist(),
        "dentropy": None if args.no_dentropy else torch.randn(n).tolist(),
    }


def row(args):
    out = {"ids": [], "mask": [], "doc_lens": []}
    while True:
        length = random.randint(17, 200)
        if len(out["ids"]) + length > args.row_tokens:
            return out
        first, step = random.randrange(COUNTED), random.randint(1, 5)
        out["ids"] += [(first + step * t) % min(COUNTED, args.vocab) for t in range(length)]
        out["mask"] += [int(t >= length // 3) for t in range(length)]
        out["doc_lens"].append(length)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--family", choices=list(FAMILIES), default="qwen3")
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, help="128 for qwen3, else hidden / heads")
    parser.add_argument("--ffn", type=int, default=3072)
    parser.add_argument("--vocab", type=int, default=151936)
    parser.add_argument("--untied", action="store_true")
    parser.add_argument("--lengths", default="513,1,255,64,1000", help="tokens of each document of batch.json")
    parser.add_argument("--no-dentropy", action="store_true", help="dentropy is null")
    parser.add_argument("--rows", type=int, default=0, help="lines of rows.jsonl")
    parser.add_argument("--row-tokens", type=int, default=1024)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    if args.rows and args.row_tokens < 200:
        fail("--row-tokens must be at least 200, the longest document")
    seed = args.seed if args.seed is not None else random.SystemRandom().randrange(2**31)
    random.seed(seed)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config_of(args)).float()
    with torch.no_grad():
        randomise(model)
    model.save_pretrained(args.out, max_shard_size="100GB")
    (args.out / "batch.json").write_text(json.dumps(batch(args)))
    if args.rows:
        (args.out / "rows.jsonl").write_text("".join(json.dumps(row(args)) + "\n" for _ in range(args.rows)))
    print(f"make_model {args.family}, {sum(p.numel() for p in model.parameters())} parameters, seed {seed}: {args.out}")


if __name__ == "__main__":
    main()
