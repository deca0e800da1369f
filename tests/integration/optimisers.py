"""Steps of `prl sft` under `sgd` and `muon` equal torch's on the same gradients.

Usage: optimisers.py PRL_BINARY SFT_TOML OUT_FOLDER

The gradient of a step is read out of the momentum that its checkpoint holds: d = b - momentum * b_before, less what weight
decay put in. SGD is held against torch.optim.SGD; Muon against singular value decompositions in float64, and its updates
point where torch.optim.Muon's do, whose iterations have other coefficients.
"""

import pathlib
import subprocess
import sys

import torch
from safetensors.torch import load_file

STEPS, LR, DECAY = 4, 0.02, 0.1
ITERATIONS = [
    (4.0848, -6.8946, 2.9270), (3.9505, -6.3029, 2.6377), (3.7418, -5.5913, 2.3037), (2.8769, -3.1427, 1.2046),
    (2.8366, -3.0525, 1.2012),
]
prl, toml, out = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])


def run(name, words):
    """Weights and momenta after each step."""
    dir = out / name
    words = f"--optim.lr {LR} --optim.weight-decay {DECAY} --scheduler.type constant --device cpu {words}"
    # One step at a time: of steps faster than the disk not every one is saved, but the last of a run always is.
    for step in range(1, STEPS + 1):
        resume = ["--ckpt"] if step == 1 else ["--ckpt.resume-step", "-1"]
        line = [prl, "sft", "@", toml, "--max-steps", str(step), "--data.batch-size", "4", "--output-dir", str(dir)]
        done = subprocess.run(line + words.split() + resume, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    folders = [dir / f"checkpoints/step_{step}/trainer" for step in range(1, STEPS + 1)]
    return [(load_file(f / "model.safetensors"), load_file(f / "optimizer.safetensors")) for f in folders]


def held(name, got, want, start):
    """Equal to 1e-4 of how far the parameter went."""
    went = (want - start).abs().max().item()
    worst = (got - want).abs().max().item()
    assert worst <= 1e-4 * went + 1e-7, f"{name}: off by {worst} of {went}"


def sgd(nesterov):
    momentum = 0.9
    steps = run(f"sgd_{nesterov}", f"--optim.type sgd --optim.momentum {momentum} --optim.nesterov {nesterov}".lower())
    for name in steps[0][0]:
        start, buffer = steps[0][0][name], steps[0][1][f"{name}.momentum_buffer"]
        p = torch.nn.Parameter(start.clone())
        optimizer = torch.optim.SGD([p], lr=LR, momentum=momentum, nesterov=nesterov, weight_decay=DECAY)
        optimizer.state[p]["momentum_buffer"] = buffer.clone()
        for weights, memory in steps[1:]:
            after = memory[f"{name}.momentum_buffer"]
            p.grad = after - momentum * buffer - DECAY * p.detach()
            optimizer.step()
            held(name, weights[name], p.detach(), start)
            held(f"{name}'s momentum", optimizer.state[p]["momentum_buffer"], after, torch.zeros_like(after))
            buffer = after
    return len(steps[0][0])


def muon():
    steps, cosines = run("muon", "--optim.type muon"), []
    for name in [n.removesuffix(".momentum_buffer") for n in steps[0][1] if n.endswith(".momentum_buffer")]:
        for (weights, _), (after, memory) in zip(steps, steps[1:]):
            before, buffer = weights[name].double(), memory[f"{name}.momentum_buffer"].double()
            u, s, v = torch.linalg.svd(buffer, full_matrices=False)
            s = s / buffer.norm()
            for a, b, c in ITERATIONS:
                s = a * s + b * s**3 + c * s**5
            update = 0.2 * max(before.shape) ** 0.5 * (u * s) @ v
            held(name, after[name].double(), before - LR * (DECAY * before + update), before)
            p = torch.nn.Parameter(before.clone())
            theirs = torch.optim.Muon([p], lr=1.0, weight_decay=0.0, nesterov=False, adjust_lr_fn="match_rms_adamw")
            p.grad = buffer
            theirs.step()
            cosines.append(torch.cosine_similarity((before - p.detach()).flatten(), update.flatten(), 0).item())
    assert min(cosines) > 0.95, f"the updates are {min(cosines)} off torch's"
    return min(cosines)


print(f"optimisers: sgd equals torch's on {sgd(True)} parameters, {sgd(False)} without looking ahead; "
      f"muon equals its formula, cosine with torch's at least {muon():.3f}")
