"""PyTorch's and transformers' sampling at the shape of Qwen3-0.6B, the figures that ours are timed beside.

    python3 tests/gpu/torch_sample.py decode 1 32 128 256         # a step of so many sequences, in CUDA graphs
    python3 tests/gpu/torch_sample.py prefill 1x8192 8x1024       # the last token's logits of so many prompts
    python3 tests/gpu/torch_sample.py static 128                  # a static batch of the first requests of mixed.py
    python3 tests/gpu/torch_sample.py --tiny decode 2             # two narrow layers, also on a CPU

Random weights in bf16. `decode` is a decoder of plain operations over static caches of 384 positions, greedy, 255 steps
behind 128 tokens; `prefill` transformers' Qwen3 with scaled_dot_product_attention, with its cache, without, and with
compiled layers (`--compile`); `static` transformers' generate with prompts padded on the left, its steps timed over the
first 32 new tokens and taken as long as that for the whole work.
"""

import argparse
import time

from common import DEVICE, fail, torch, transformers
from mixed import work

F = torch.nn.functional
FULL = dict(hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
            intermediate_size=3072, vocab_size=151936)
TINY = {**FULL, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 32, "intermediate_size": 320, "vocab_size": 512}
ROOM, BEHIND = 384, 128


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds(run, times=6):
    run(), run()
    wait()
    all_ = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        wait()
        all_.append(time.perf_counter() - start)
    return sorted(all_)[times // 2]


class Decoder:
    def __init__(self, shape, batch):
        self.s, self.batch, d = shape, batch, shape["head_dim"]
        q, kv, h = shape["num_attention_heads"] * d, shape["num_key_value_heads"] * d, shape["hidden_size"]
        rand = lambda *n: torch.randn(*n, device=DEVICE, dtype=torch.bfloat16) * 0.02
        ones = lambda n: torch.ones(n, device=DEVICE, dtype=torch.bfloat16)
        self.embed, self.norm = rand(shape["vocab_size"], h), ones(h)
        self.layers = [
            dict(qkv=rand(q + 2 * kv, h), o=rand(h, q), up=rand(2 * shape["intermediate_size"], h),
                 down=rand(h, shape["intermediate_size"]), qn=ones(d), kn=ones(d),
                 k=torch.zeros(batch, shape["num_key_value_heads"], ROOM, d, device=DEVICE, dtype=torch.bfloat16),
                 v=torch.zeros(batch, shape["num_key_value_heads"], ROOM, d, device=DEVICE, dtype=torch.bfloat16))
            for _ in range(shape["num_hidden_layers"])
        ]
        angle = torch.arange(ROOM, device=DEVICE)[:, None] * 1e6 ** (-torch.arange(0, d, 2, device=DEVICE) / d)
        self.cos, self.sin = (torch.cat([f(angle)] * 2, 1).bfloat16() for f in (torch.cos, torch.sin))
        self.places = torch.arange(ROOM, device=DEVICE)

    def step(self, ids, at):
        b, d, h = self.batch, self.s["head_dim"], self.s["hidden_size"]
        x, mask = F.embedding(ids, self.embed), (self.places <= at)[None, None, None].expand(b, 1, 1, ROOM)
        cos, sin = self.cos[at][None, None], self.sin[at][None, None]
        turn = lambda x: x * cos + torch.cat([-x[..., d // 2:], x[..., :d // 2]], -1) * sin
        for w in self.layers:
            qkv = F.linear(F.rms_norm(x, (h,), self.norm, 1e-6), w["qkv"]).view(b, 1, -1, d).transpose(1, 2)
            q, k, v = qkv.split([self.s["num_attention_heads"]] + [self.s["num_key_value_heads"]] * 2, 1)
            w["k"].index_copy_(2, at, turn(F.rms_norm(k, (d,), w["kn"], 1e-6)))
            w["v"].index_copy_(2, at, v)
            q = turn(F.rms_norm(q, (d,), w["qn"], 1e-6))
            out = F.scaled_dot_product_attention(q, w["k"], w["v"], attn_mask=mask, enable_gqa=True)
            x = x + F.linear(out.transpose(1, 2).reshape(b, 1, -1), w["o"])
            gate, up = F.linear(F.rms_norm(x, (h,), self.norm, 1e-6), w["up"]).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, w["down"])
        return F.linear(F.rms_norm(x, (h,), self.norm, 1e-6), self.embed)[:, -1].argmax(-1, keepdim=True)


def decode(shape, batch):
    model = Decoder(shape, batch)
    ids, at = torch.zeros(batch, 1, device=DEVICE, dtype=torch.long), torch.tensor([BEHIND], device=DEVICE)
    steps = ROOM - BEHIND - 1
    for _ in range(3):
        out = model.step(ids, at)
    run = lambda: ids.copy_(model.step(ids, at))
    if DEVICE == "cuda":
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model.step(ids, at)
        run = lambda: (graph.replay(), ids.copy_(out))
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        run()
        at.add_(1)
    wait()
    step = (time.perf_counter() - start) / steps
    print(f"decode {batch}: {step * 1e3:.3f} ms a step, {batch / step:.0f} tokens/s", flush=True)


def model_of(shape):
    config = transformers.Qwen3Config(**shape, rms_norm_eps=1e-6, tie_word_embeddings=True, max_position_embeddings=65536,
                                      rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    with torch.device(DEVICE):
        made = transformers.Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16)
    return made.eval().to(DEVICE)


def prefill(model, vocab, batch, length, compiled):
    ids = torch.randint(0, vocab, (batch, length), device=DEVICE)
    for cache in [False] if compiled else [True, False]:
        time_ = seconds(lambda: model(input_ids=ids, use_cache=cache, logits_to_keep=1))
        how = "layers compiled" if compiled else "with cache" if cache else "without cache"
        print(f"prefill {batch}x{length} {how}: {time_ * 1e3:.2f} ms", flush=True)


def static(model, vocab, count, new=33):
    requests = work(count, vocab)
    longest = max(len(ids) for ids, _ in requests)
    ids = torch.tensor([[0] * (longest - len(i)) + i for i, _ in requests], device=DEVICE)
    mask = torch.tensor([[0] * (longest - len(i)) + [1] * len(i) for i, _ in requests], device=DEVICE)
    times = []
    for tokens in [4, 1, new]:
        start = time.perf_counter()
        model.generate(ids, attention_mask=mask, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=True, temperature=1.0,
                       top_k=0, pad_token_id=0, eos_token_id=None)
        wait()
        times.append(time.perf_counter() - start)
    step = (times[2] - times[1]) / (new - 1)
    whole = times[1] + step * max(n for _, n in requests)
    useful = sum(n for _, n in requests)
    print(f"static batch of {count}: prompts {times[1]:.1f} s, {step * 1e3:.1f} ms a step, {useful / whole:.0f} useful tokens/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decode", "prefill", "static"])
    parser.add_argument("sizes", nargs="+")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--compile", action="store_true")
    args = parser.parse_args()
    shape = TINY if args.tiny else FULL
    with torch.no_grad():
        model = None if args.what == "decode" else model_of(shape)
        for compiled in [False, True][: 1 + args.compile]:
            if compiled:
                for layer in model.model.layers:
                    layer.compile()
            for size in args.sizes:
                try:
                    numbers = [int(n) for n in size.split("x")]
                except ValueError:
                    fail(f"`{size}`: sizes are like 8 or 8x1024")
                if len(numbers) != (2 if args.what == "prefill" else 1) or min(numbers) < 1:
                    fail(f"`{size}` is no size for {args.what}")
                if args.what == "decode":
                    decode(shape, *numbers)
                elif args.what == "prefill":
                    prefill(model, shape["vocab_size"], *numbers, compiled)
                else:
                    static(model, shape["vocab_size"], *numbers)


if __name__ == "__main__":
    main()
