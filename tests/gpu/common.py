"""What the scripts of this folder share: messages, model folders, and the output head's forward and backward by chunks.

The scripts hold PyTorch and transformers against our own kernels on a GPU, and run small on a CPU. They need
`pip install torch transformers safetensors`. Bad input ends with one message and exit code 2, a broken limit with 1.
"""

import contextlib
import json
import pathlib
import sys
import types

try:
    import torch
    import torch.nn.attention
    import transformers
    from safetensors import safe_open
    from safetensors.torch import save_file
except ImportError as e:
    print(f"error: {e}; install it with `pip install torch transformers safetensors`", file=sys.stderr)
    sys.exit(2)

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HEAD_CHUNK = 1024


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def read_json(path):
    try:
        return json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as e:
        fail(f"`{path}`: {e}")


def exact_products():
    """No TF32 and no half-precision partial sums: f32 means f32."""
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


def load_model(folder, dtype, attention):
    """The model of a folder on the device: f64 in all it does for "float64", bf16 for "bf16-copy", else f32."""
    for file in ("config.json", "model.safetensors"):
        if not (pathlib.Path(folder) / file).is_file():
            fail(f"`{folder}` has no {file}; make a model folder with make_model.py")
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention, local_files_only=True
    )
    model.to(DEVICE).eval()
    if dtype == "float64":
        double_everywhere(model)
    elif dtype == "bf16-copy":
        model.bfloat16()
    return model


def double_everywhere(model):
    """transformers computes norms, rotations and frequencies in f32 whatever the model's type; here they are f64."""

    def rms_norm(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon) * self.weight

    def rotary(self, x, position_ids):
        angles = position_ids[..., None].double() * self.inv_freq
        angles = torch.cat([angles, angles], -1)
        return angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling

    model.double()
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = types.MethodType(rms_norm, module)
        elif type(module).__name__.endswith("RotaryEmbedding"):
            rope = getattr(module.config, "rope_parameters", None) or {}
            if rope.get("rope_type") == "default":
                half = module.inv_freq.numel()
                powers = torch.arange(half, dtype=torch.float64, device=module.inv_freq.device) / half
                module.inv_freq = float(rope["rope_theta"]) ** -powers
            module.forward = types.MethodType(rotary, module)


def autocast(dtype):
    """bf16 for products and attention over f32 parameters, or nothing."""
    return torch.autocast(DEVICE, dtype=torch.bfloat16) if dtype == "bf16" else contextlib.nullcontext()


def head_backward(model, hidden, labels, temperatures, dlogprob, dentropy, dtype):
    """Logprob of each row's label and entropy, and the backward pass of Σ dlogprob·logprob + dentropy·entropy through
    head and decoder. `hidden` [rows, hidden] has its graph; the other lists have one entry per row. Logits exist for
    `HEAD_CHUNK` rows at a time. Without `dentropy` the entropies are not computed."""
    top = hidden.detach().requires_grad_()
    logprobs, entropies = [], []
    for at in range(0, len(labels), HEAD_CHUNK):
        rows = slice(at, at + HEAD_CHUNK)
        with autocast(dtype):
            logits = model.lm_head(top[rows])
        logits = logits if dtype == "float64" else logits.float()
        logp = torch.log_softmax(logits / temperatures[rows, None], -1)
        taken = logp.gather(1, labels[rows, None])[:, 0]
        objective = (dlogprob[rows] * taken).sum()
        logprobs.append(taken.detach())
        if dentropy is not None:
            entropy = -(logp.exp() * logp).sum(-1)
            objective = objective + (dentropy[rows] * entropy).sum()
            entropies.append(entropy.detach())
        objective.backward()
    hidden.backward(top.grad)
    return torch.cat(logprobs), torch.cat(entropies) if entropies else None
