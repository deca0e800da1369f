#!/usr/bin/env python3
"""Makes the golden fixtures of this crate: tiny random models in Hugging Face layout, and what transformers computes.

    python host/model/tests/make_fixtures.py        # needs torch, transformers, safetensors, numpy

For each model it writes `fixtures/<name>/`: the model folder as transformers saves it (f32), and `expected.safetensors`:
    ids             [20] int32     two prompts, one after the other
    doc_lens        [2] int32      their lengths
    temperatures    [20] float32   per token
    weights         [20] float32   per token; 0 for the first token of each prompt
    logits          [20, vocab]    of the model
    logprobs        [20]           log softmax(logits / temperature)[next token], at the next token's place
    entropy         [20]           of the same distribution
    loss            [1]            sum of -weight * logprob - 0.1 * weight * entropy
    grad.<name>     gradient of that loss with respect to some parameters
Seeds are fixed, so that a run changes nothing but rounding.
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config

HERE = Path(__file__).parent / "fixtures"
VOCAB = 300
COMMON = dict(
    vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, bos_token_id=1, eos_token_id=2, initializer_range=0.2,
)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
    original_max_position_embeddings=16,
)
MODELS = {
    "qwen3": Qwen3Config(
        **COMMON, head_dim=16, tie_word_embeddings=True, max_position_embeddings=512,
        rope_parameters=dict(rope_type="default", rope_theta=1e6),
    ),
    "qwen2": Qwen2Config(
        **{**COMMON, "num_hidden_layers": 3}, tie_word_embeddings=True, max_position_embeddings=512,
        rope_parameters=dict(rope_type="default", rope_theta=1e4), rms_norm_eps=1e-5,
    ),
    "llama": LlamaConfig(
        **COMMON, tie_word_embeddings=False, max_position_embeddings=128, rope_parameters=LLAMA3,
    ),
    "llama-linear": LlamaConfig(
        **{**COMMON, "num_hidden_layers": 1}, tie_word_embeddings=True, max_position_embeddings=128,
        rope_parameters=dict(rope_type="linear", rope_theta=1e4, factor=4.0),
    ),
    "llama-yarn": LlamaConfig(
        **{**COMMON, "num_hidden_layers": 1}, tie_word_embeddings=True, max_position_embeddings=128, head_dim=32,
        rope_parameters=dict(rope_type="yarn", rope_theta=1e4, factor=4.0, original_max_position_embeddings=32),
    ),
}
LENGTHS = [13, 7]


def randomise(model):
    """Norms and biases away from 1 and 0, so that a forgotten one shows."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.3 * torch.randn_like(p))
            elif name.endswith("bias"):
                p.copy_(0.3 * torch.randn_like(p))


def expected(model, seed):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, VOCAB, (sum(LENGTHS),), generator=generator)
    temperatures = 0.5 + torch.rand(sum(LENGTHS), generator=generator)
    weights = torch.randn(sum(LENGTHS), generator=generator)
    weights[[0, LENGTHS[0]]] = 0
    logits, logprobs, entropies, loss, start = [], [], [], 0.0, 0
    for length in LENGTHS:
        part = slice(start, start + length)
        out = model(ids[part][None]).logits[0]
        logits.append(out)
        logp = torch.log_softmax(out[:-1] / temperatures[part][1:, None], -1)
        taken = logp.gather(1, ids[part][1:, None])[:, 0]
        entropy = -(logp.exp() * logp).sum(-1)
        loss = loss - (weights[part][1:] * taken).sum() - 0.1 * (weights[part][1:] * entropy).sum()
        uniform = torch.log(torch.tensor([float(VOCAB)]))
        logprobs += [-uniform, taken]
        entropies += [uniform, entropy]
        start += length
    loss.backward()
    last = model.config.num_hidden_layers - 1
    wanted = [
        "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight", "model.layers.0.input_layernorm.weight",
        *(f"model.layers.0.self_attn.{p}" for p in (
            "q_proj.weight", "k_proj.weight", "v_proj.weight", "o_proj.weight", "q_proj.bias", "k_proj.bias",
            "v_proj.bias", "q_norm.weight", "k_norm.weight")),
        f"model.layers.{last}.post_attention_layernorm.weight",
        *(f"model.layers.{last}.mlp.{p}_proj.weight" for p in ("gate", "up", "down")),
    ]
    grads = {f"grad.{n}": p.grad for n, p in model.named_parameters() if n in wanted}
    return {
        "ids": ids.int(), "doc_lens": torch.tensor(LENGTHS).int(), "temperatures": temperatures, "weights": weights,
        "logits": torch.cat(logits), "logprobs": torch.cat(logprobs), "entropy": torch.cat(entropies),
        "loss": loss.reshape(1), **grads,
    }


def main():
    for seed, (name, config) in enumerate(MODELS.items(), 1):
        folder = HERE / name
        shutil.rmtree(folder, ignore_errors=True)
        torch.manual_seed(seed)
        config.dtype = torch.float32
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        randomise(model)
        model.save_pretrained(folder)
        tensors = {k: v.detach().contiguous() for k, v in expected(model, seed).items()}
        save_file(tensors, folder / "expected.safetensors")
        size = sum(f.stat().st_size for f in folder.iterdir())
        print(f"{name}: {sum(p.numel() for p in model.parameters())} parameters, {size} bytes, "
              f"{json.loads((folder / 'config.json').read_text())['model_type']}, loss {tensors['loss'].item():.4f}")


if __name__ == "__main__":
    main()
