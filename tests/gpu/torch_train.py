"""PyTorch's training step of Qwen3-0.6B, the figure that ours is timed beside.

    python3 tests/gpu/torch_train.py 8x2048 4x4096 1x16384 1x65536
    python3 tests/gpu/torch_train.py --loss chunked 8x2048          # the other loss for comparison
    python3 tests/gpu/torch_train.py --tiny 2x64 1x128              # a few layers, also on a CPU

A shape is rows x tokens of a row, random tokens and labels. Random weights, transformers' Qwen3 with
scaled_dot_product_attention, fused AdamW; a step is forward, backward, update. Every shape runs in a process of its own
with a limit on its time, so that one that fails does not cost the others. Choices, each with a flag:

--compile whole|layer|auto: torch.compile of the whole forward pass, or of each decoder layer, final norm and loss; auto
    (the default) falls back to layer when whole fails or its first step takes more than `--compile-limit` seconds.
    `--eager` compiles nothing.
--precision autocast|copy: f32 weights and bf16 autocast, where the residual stream is f32 (the default), or a bf16
    copy of the weights for the model and f32 ones in the optimiser, where everything but the norms' insides is bf16.
--loss full|chunked|auto: one cross-entropy over all logits, or checkpointed chunks of 2,048 rows so that the logits
    never exist whole; auto takes chunks from 16,384 tokens a row on.
--checkpoint on|off|auto: torch.utils.checkpoint around every decoder layer; auto from 65,536 tokens a row on.
--clip X: also clip the gradient's norm, as a trainer would. Off by default.

A line's figures: the median step by wall clock with one synchronisation a step; `MFU prime-rl` is 6·P_mm +
12·L·hidden·T operations a token (P_mm: numbers in matrices, the head included); `MFU causal` is 6·P_mm +
6·L·heads·head_dim·T, the operations that causal attention of these heads needs (for Qwen3-0.6B, whose heads are twice
as wide as its residual stream, the two are the same number); both of 990 TF/s. Peaks: PyTorch's allocated tensors, and
the device's used memory above what it was before the process touched it, from NVML every 5 ms until the timed steps
begin and once after them (the context and what the allocator keeps are part of it). `first` is the first step,
compilation included.
"""

import argparse
import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time

PEAK = 990e12
CHUNK = 2048
QWEN3 = dict(
    hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
    intermediate_size=3072, vocab_size=151936,
)
TINY = dict(
    hidden_size=128, num_hidden_layers=12, num_attention_heads=4, num_key_value_heads=2, head_dim=64,
    intermediate_size=320, vocab_size=512,
)


class DeviceMemory:
    """Most memory used on the device since the start, by NVML; `None` where there is no NVML."""

    class Info(ctypes.Structure):
        _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]

    def __init__(self):
        self.peak, self.handle, self.stopped = 0, ctypes.c_void_p(), threading.Event()
        try:
            self.nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            self.nvml = None
            return
        index = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        index = int(index) if index.isdigit() else 0
        if self.nvml.nvmlInit_v2() or self.nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(self.handle)):
            self.nvml = None
            return
        self.start = self.used()
        self.thread = threading.Thread(target=self.poll, daemon=True)
        self.thread.start()

    def used(self):
        info = self.Info()
        if self.nvml.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(info)):
            return 0
        return info.used

    def poll(self):
        while not self.stopped.wait(0.005):
            self.peak = max(self.peak, self.used())

    def pause(self):
        """No more polling: it would share the driver with the steps that are timed."""
        if self.nvml:
            self.stopped.set()
            self.thread.join()

    def gib(self):
        if not self.nvml:
            return None
        self.peak = max(self.peak, self.used())
        return (self.peak - self.start) / 2**30


def measure(args, rows, tokens):
    """One shape in this process. Prints BUILT, FIRST and RESULT."""
    memory = DeviceMemory()
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import checkpoint
    from transformers import Qwen3Config, Qwen3ForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not args.tiny:
        print("error: no GPU found; use --tiny to try this on a CPU", file=sys.stderr)
        sys.exit(2)
    gpu, shape = device == "cuda", TINY if args.tiny else QWEN3
    sync = torch.cuda.synchronize if gpu else lambda: None
    chunked = args.loss == "chunked" or args.loss == "auto" and tokens >= 16384
    checkpointed = args.checkpoint == "on" or args.checkpoint == "auto" and tokens >= 65536
    copy = args.precision == "copy"
    config = Qwen3Config(
        **shape, rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6},
        tie_word_embeddings=True, max_position_embeddings=max(tokens, 40960), attention_bias=False,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    model.to(device).train()
    parameters = list(model.parameters())
    masters = parameters
    if copy:
        masters = [torch.nn.Parameter(p.detach().clone()) for p in parameters]
        model.to(torch.bfloat16)
        parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=gpu)
    if checkpointed:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ids, labels = (torch.randint(0, shape["vocab_size"], (rows, tokens), device=device) for _ in range(2))
    flat = labels.view(-1)

    def hidden_states():
        # With the mask given as "none" no one builds a matrix of tokens x tokens; attention is causal by its own flag.
        return model.model(
            input_ids=ids, attention_mask={"full_attention": None}, use_cache=False
        ).last_hidden_state.view(rows * tokens, -1)

    def loss_sum(hidden, weight, wanted):
        return F.cross_entropy((hidden.to(weight.dtype) @ weight.t()).float(), wanted, reduction="sum")

    def mean_loss():
        return loss_sum(hidden_states(), model.lm_head.weight, flat) / len(flat)

    compiled = torch.compile if args.compile != "none" else lambda f: f
    if args.compile == "layer":
        for layer in model.model.layers:
            layer.compile()
        model.model.norm.compile()
    run_hidden = compiled(hidden_states) if args.compile == "whole" else hidden_states
    run_loss = compiled(loss_sum)
    run_mean = compiled(mean_loss) if args.compile == "whole" else mean_loss
    if args.compile == "layer":
        run_mean = lambda: run_loss(hidden_states(), model.lm_head.weight, flat) / len(flat)

    def forward():
        if not chunked:
            return run_mean()
        hidden = run_hidden()
        weight = model.lm_head.weight.to(torch.bfloat16)
        total = 0
        for at in range(0, len(flat), CHUNK):
            part = slice(at, at + CHUNK)
            total = total + checkpoint(run_loss, hidden[part], weight, flat[part], use_reentrant=False)
        return total / len(flat)

    def step():
        with contextlib.nullcontext() if copy else torch.autocast(device, dtype=torch.bfloat16):
            loss = forward()
        loss.backward()
        if copy:
            for master, p in zip(masters, parameters):
                master.grad, p.grad = p.grad.float(), None
        if args.clip:
            torch.nn.utils.clip_grad_norm_(masters, args.clip)
        optimizer.step()
        optimizer.zero_grad()
        if copy:
            with torch.no_grad():
                torch._foreach_copy_(parameters, masters)
        return loss

    sync()
    if gpu:
        torch.cuda.reset_peak_memory_stats()
    print("BUILT", flush=True)
    started = time.perf_counter()
    step()
    sync()
    first = time.perf_counter() - started
    print(f"FIRST {first:.1f}", flush=True)
    long = tokens >= 65536
    for _ in range(1 if long else 3):
        step()
    sync()
    memory.pause()
    times = []
    for _ in range(args.steps or (3 if long else 10)):
        started = time.perf_counter()
        loss = step()
        sync()
        times.append(time.perf_counter() - started)
    seconds = sorted(times)[len(times) // 2]

    h, d, layers = shape["hidden_size"], shape["head_dim"], shape["num_hidden_layers"]
    heads, kv = shape["num_attention_heads"], shape["num_key_value_heads"]
    layer = 2 * h * heads * d + 2 * h * kv * d + 3 * h * shape["intermediate_size"]
    matrices = layers * layer + shape["vocab_size"] * h
    rate = rows * tokens / seconds
    prime = 6 * matrices + 12 * layers * h * tokens
    causal = 6 * matrices + 6 * layers * heads * d * tokens
    allocated = f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB" if gpu else "n/a"
    used = memory.gib()
    used = "n/a" if used is None else f"{used:.1f} GiB"
    how = [
        {"none": "eager"}.get(args.compile, f"compile {args.compile}"), args.precision,
        "loss chunked" if chunked else "loss full", *(["checkpoint"] if checkpointed else []),
        *([f"clip {args.clip:g}"] if args.clip else []),
    ]
    print(
        f"RESULT torch {rows}x{tokens} ({', '.join(how)}): step {seconds * 1e3:.1f} ms, {rate:.0f} tok/s, "
        f"MFU prime-rl {100 * prime * rate / PEAK:.1f} %, MFU causal {100 * causal * rate / PEAK:.1f} %, "
        f"peak allocated {allocated}, peak NVML {used}, first step {first:.1f} s, "
        f"loss {loss.item():.3f}{'' if gpu else ', on the CPU'}{', tiny model' if args.tiny else ''}",
        flush=True,
    )


def attempt(words, shape, how, timeout, compile_limit):
    """Runs one shape in a process of its own, passes its RESULT on. Returns what went wrong, or `None`."""
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--child", *words, "--compile", how, shape],
            stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
        )
        lines = queue.Queue()

        def read():
            for line in child.stdout:
                lines.put(line.rstrip())
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        end, first_by, problem, done = time.monotonic() + timeout, None, None, False
        while problem is None:
            left = min(end, first_by or end) - time.monotonic()
            try:
                line = lines.get(timeout=max(left, 0.001))
            except queue.Empty:
                problem = f"no result within {timeout} s" if time.monotonic() >= end else (
                    f"first step takes more than {compile_limit} s"
                )
                break
            if line is None:
                break
            if line == "BUILT" and compile_limit:
                first_by = time.monotonic() + compile_limit
            elif line.startswith("FIRST"):
                first_by = None
            elif line.startswith("RESULT"):
                print(line, flush=True)
                done = True
        if problem:
            # The group is the child's own: it and its compile workers.
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        if done:
            return None
        errors.seek(0)
        text = [line for line in errors.read().splitlines() if line.strip()]
        if child.returncode == 2:
            print("\n".join(text), file=sys.stderr)
            sys.exit(2)
        if problem is None:
            known = [line for line in text if "Error" in line or "error" in line]
            problem = f"exit code {child.returncode}: {(known or text or ['no message'])[-1].strip()[:300]}"
            print("\n".join(f"  {line}" for line in text[-15:]), file=sys.stderr, flush=True)
        return problem


def parse_shape(text):
    try:
        rows, tokens = (int(n) for n in text.split("x"))
    except ValueError:
        rows = tokens = 0
    if rows < 1 or tokens < 1:
        print(f"error: shape `{text}` must be rows x tokens, for example 8x2048", file=sys.stderr)
        sys.exit(2)
    return rows, tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shapes", nargs="+", help="rows x tokens, for example 8x2048")
    parser.add_argument("--compile", choices=["auto", "whole", "layer", "none"], default="auto")
    parser.add_argument("--eager", action="store_true", help="the same as --compile none")
    parser.add_argument("--precision", choices=["autocast", "copy"], default="autocast")
    parser.add_argument("--loss", choices=["auto", "full", "chunked"], default="auto")
    parser.add_argument("--checkpoint", choices=["auto", "on", "off"], default="auto")
    parser.add_argument("--clip", type=float, default=0.0)
    parser.add_argument("--steps", type=int, default=0, help="timed steps; 10, and 3 from 65,536 tokens a row on")
    parser.add_argument("--tiny", action="store_true", help="a tiny model; runs without a GPU")
    parser.add_argument("--timeout", type=float, default=240, help="seconds of one process")
    parser.add_argument("--compile-limit", type=float, default=150, help="seconds of the first step under auto")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    shapes = [parse_shape(s) for s in args.shapes]
    if args.child:
        measure(args, *shapes[0])
        return
    words = ["--precision", args.precision, "--loss", args.loss, "--checkpoint", args.checkpoint]
    words += ["--clip", str(args.clip), "--steps", str(args.steps), *(["--tiny"] if args.tiny else [])]
    failed = 0
    for shape in args.shapes:
        how = "none" if args.eager else "whole" if args.compile == "auto" else args.compile
        falls_back = args.compile == "auto" and not args.eager
        problem = attempt(words, shape, how, args.timeout, args.compile_limit if falls_back else 0)
        if problem and falls_back:
            print(f"NOTE torch {shape}: compiling the whole model: {problem}; compiling each layer", flush=True)
            problem = attempt(words, shape, "layer", args.timeout, 0)
        if problem:
            failed += 1
            print(f"RESULT torch {shape}: FAILED: {problem}", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
