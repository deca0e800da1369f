"""PyTorch's bf16 errors and times beside those of `cuda_check`. Same shapes and distributions, inputs of its own."""

import sys
import time

import torch
import torch.nn.functional as F

torch.manual_seed(int(time.time()))
DEVICE = "cuda"


def half(*shape, scale=1.0):
    return (torch.randn(*shape, device=DEVICE) * scale).bfloat16()


def error(x, reference):
    return ((x.double() - reference).norm() / reference.norm()).item()


def timed(f, runs):
    for _ in range(3):
        f()
    times = []
    for _ in range(5):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(runs):
            f()
        b.record()
        b.synchronize()
        times.append(a.elapsed_time(b) / runs)
    return sorted(times)[2]


def computed(what, shape, ms, flops):
    print(f"TORCH {what:22} {shape:28} {ms:9.4f} ms {flops / ms / 1e9:8.0f} TF/s", flush=True)


def moved(what, shape, ms, size):
    print(f"TORCH {what:22} {shape:28} {ms:9.4f} ms {size / ms / 1e6:8.0f} GB/s", flush=True)


def norm(x, w):
    return F.rms_norm(x.float(), (x.shape[-1],), w, 1e-6).to(x.dtype)


def rope(x, w, cos, sin):
    x = norm(x, w)
    half_ = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half_:], x[..., :half_]], -1) * sin


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def grads(f, inputs, dout):
    inputs = [x.detach().requires_grad_() for x in inputs]
    out = f(*inputs)
    return out.detach(), torch.autograd.grad(out, inputs, dout)


def errors():
    def both(name, f, exact, inputs, dout, labels):
        out, g = grads(f, inputs, dout)
        want, want_g = grads(exact, [x.double() for x in inputs], dout.double())
        text = [f"out {error(out, want):.2e}"] + [f"{n} {error(a, b):.2e}" for n, a, b in zip(labels, g, want_g)]
        print(f"TORCH-ERROR {name:28} {'  '.join(text)}", flush=True)

    w = torch.randn(1024, device=DEVICE) * 0.3 + 1
    exact_norm = lambda x, w: F.rms_norm(x, (x.shape[-1],), w, 1e-6)
    both("rms_norm 301x1024", norm, exact_norm, [half(301, 1024, scale=1.5), w], half(301, 1024), ["dx", "dw"])
    both("swiglu 77x3072", swiglu, swiglu, [half(77, 6144, scale=2.0)], half(77, 3072), ["dgate_up"])
    for dim in (64, 96, 128):
        for length, heads, kv, spread in ((513, 16, 8, 1), (513, 16, 8, 2), (1700, 2, 1, 2)):
            f = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            inputs = [half(1, heads, length, dim, scale=spread), half(1, kv, length, dim), half(1, kv, length, dim)]
            both(f"attention{dim} {length} q*{spread}", f, f, inputs, half(1, heads, length, dim), ["dq", "dk", "dv"])


def times():
    for name, b, t in (("8 x 2048", 8, 2048), ("4 x 4096", 4, 4096), ("1 x 16384", 1, 16384), ("64 x 256", 64, 256)):
        q, k, v = (half(b, h, t, 128).requires_grad_() for h in (16, 8, 8))
        dout = half(b, 16, t, 128)
        f = lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        flops = 2 * b * 16 * t * t * 128
        with torch.no_grad():
            ms = timed(f, 10)
        computed("attention", name, ms, flops)
        both = timed(lambda: torch.autograd.grad(f(), (q, k, v), dout), 5)
        computed("attention both", name, both, 3.5 * flops)
    n = 16384
    for name, m, k, w, kind in (
        ("8192^3", 8192, 8192, 8192, "f"), ("qkv", n, 1024, 4096, "f"), ("qkv dX", n, 4096, 1024, "x"),
        ("qkv dW", 4096, n, 1024, "w"), ("gate up", n, 1024, 6144, "f"), ("gate up dX", n, 6144, 1024, "x"),
        ("gate up dW", 6144, n, 1024, "w"), ("down", n, 3072, 1024, "f"), ("head 2048", 2048, 1024, 151936, "f"),
        ("head dX 2048", 2048, 151936, 1024, "x"), ("head dW 2048", 151936, 2048, 1024, "w"),
    ):
        a = half(k, m).t() if kind == "w" else half(m, k)
        b = half(w, k).t() if kind == "f" else half(k, w)
        computed("gemm", name, timed(lambda: a @ b, 10), 2 * m * k * w)
        del a, b
    x, dy, w = half(n, 1024).requires_grad_(), half(n, 1024), torch.ones(1024, device=DEVICE).requires_grad_()
    wide = half(n, 24, 128).requires_grad_()
    dwide, head_w = half(n, 24, 128), torch.ones(128, device=DEVICE).requires_grad_()
    cos, sin = half(n, 1, 128), half(n, 1, 128)
    gate_up, dh = half(n, 6144).requires_grad_(), half(n, 3072)
    compiled = "compile" in sys.argv
    wrap = torch.compile if compiled else (lambda f: f)
    label = "compiled" if compiled else "eager"
    unit, head_unit, ffn_unit = n * 2048, n * 24 * 256, n * 6144
    f_norm, f_rope, f_swiglu = wrap(norm), wrap(rope), wrap(swiglu)
    for name, f, inputs, d, forward, backward in (
        ("rms_norm", f_norm, (x, w), dy, 2 * unit, 3 * unit),
        ("qk norm + rope", lambda y, v: f_rope(y, v, cos, sin), (wide, head_w), dwide, 2 * head_unit, 3 * head_unit),
        ("swiglu", f_swiglu, (gate_up,), dh, 3 * ffn_unit, 5 * ffn_unit),
    ):
        with torch.no_grad():
            moved(name, label, timed(lambda: f(*inputs), 20), forward)
        out = f(*inputs)
        moved(name + " backward", label, timed(lambda: torch.autograd.grad(out, inputs, d, retain_graph=True), 20), backward)
    p = torch.randn(596_049_920, device=DEVICE).requires_grad_()
    p.grad = torch.randn_like(p)
    step = torch.optim.AdamW([p], lr=1e-4, fused=True)
    moved("adamw fused", "596M, no bf16 copy", timed(step.step, 3), 28 * p.numel())
    moved("grad norm", "596M", timed(lambda: torch.nn.utils.get_total_norm([p.grad]), 3), 4 * p.numel())


errors()
if "time" in sys.argv:
    times()
