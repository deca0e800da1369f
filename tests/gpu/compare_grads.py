"""Holds one file of gradients against another: ‖a − b‖ / ‖b‖ for each parameter and for all together.

    python3 tests/gpu/compare_grads.py REFERENCE.safetensors OURS.safetensors [TORCH_BF16.safetensors]

With two files (ours in f32) no parameter may be off by more than `--limit` (1e-3). With three (ours in bf16, torch's
bf16 beside it) our error may be at most `--ratio` (1.5) times torch's, by the median over the layers for each kind of
parameter and for all parameters together. `logprobs` and `entropy`, where both files have them, come under the same
limits by the root mean square of their differences in nats, and do not count into the whole. Exit code 1 when a limit
is broken, 2 when the files do not hold the same parameters.
"""

import argparse
import math
import re
import statistics
import sys
from collections import defaultdict

from common import fail, safe_open

FACTS = ("logprobs", "entropy")


def opened(path):
    try:
        return safe_open(path, "pt")
    except Exception as e:
        fail(f"`{path}`: {e}")


def errors(reference, path):
    """Name → (‖a − b‖², ‖b‖²); for the facts the second is the number of tokens."""
    a, b = opened(path), opened(reference)
    missing = (set(b.keys()) ^ set(a.keys())) - set(FACTS)
    if missing:
        listed = ", ".join(sorted(missing)[:5])
        fail(f"`{path}` and `{reference}` do not hold the same parameters: {listed} in one of them")
    found = {}
    for name in sorted(set(a.keys()) & set(b.keys())):
        x, y = a.get_tensor(name).double(), b.get_tensor(name).double()
        if x.shape != y.shape:
            fail(f"`{path}`: {name} is {list(x.shape)}, in `{reference}` it is {list(y.shape)}")
        size = y.numel() if name in FACTS else y.square().sum().item()
        found[name] = ((x - y).square().sum().item(), size)
    for name in set(FACTS) - set(found):
        print(f"note: `{name}` is not in both files and not compared")
    return found


def relative(pair):
    """Not a number, and a difference where the reference is 0, are errors without bound."""
    difference, size = pair
    if difference == 0:
        return 0.0
    value = math.sqrt(difference / size) if size > 0 else math.inf
    return value if math.isfinite(value) else math.inf


def whole(found):
    pairs = [pair for name, pair in found.items() if name not in FACTS]
    return relative((sum(p[0] for p in pairs), sum(p[1] for p in pairs)))


def by_kind(found):
    kinds = defaultdict(list)
    for name, pair in found.items():
        kinds[re.sub(r"\.layers\.\d+\.", ".layers.*.", name)].append(relative(pair))
    return {kind: statistics.median(values) for kind, values in kinds.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reference")
    parser.add_argument("ours")
    parser.add_argument("torch_bf16", nargs="?")
    parser.add_argument("--limit", type=float, default=1e-3)
    parser.add_argument("--ratio", type=float, default=1.5)
    args = parser.parse_args()
    ours = errors(args.reference, args.ours)
    worst = sorted(((relative(pair), name) for name, pair in ours.items()), reverse=True)
    for value, name in worst[:5]:
        print(f"worst  {value:.3e}  {name}")
    print(f"global {whole(ours):.3e}  over {len(set(ours) - set(FACTS))} parameters")
    if args.torch_bf16 is None:
        broken = [name for value, name in worst if value > args.limit]
        rule = f"at most {args.limit:g}"
    else:
        torch = errors(args.reference, args.torch_bf16)
        our_kinds, torch_kinds = by_kind(ours), by_kind(torch)
        rows = [(kind, our_kinds[kind], torch_kinds[kind]) for kind in our_kinds if kind in torch_kinds]
        rows.append(("all parameters", whole(ours), whole(torch)))
        ratio = lambda row: row[1] / row[2] if row[2] > 0 else (math.inf if row[1] > 0 else 1.0)
        for row in sorted(rows, key=ratio, reverse=True):
            print(f"kind   ours {row[1]:.3e}  torch bf16 {row[2]:.3e}  ratio {ratio(row):.2f}  {row[0]}")
        broken = [row[0] for row in rows if not ratio(row) <= args.ratio]
        rule = f"at most {args.ratio:g} times torch's bf16 error"
    which = f", broken by {len(broken)}: {', '.join(broken[:5])}" if broken else ""
    print(f"{'FAILED' if broken else 'ok'}: {rule}{which}")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
