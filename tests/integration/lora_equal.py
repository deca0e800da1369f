"""What `prl inference` samples with a LoRA adapter equals what PEFT computes.

Usage: lora_equal.py PRL_BINARY MODEL_FOLDER SCRATCH_FOLDER
"""

import pathlib
import sys

import torch
from peft import LoraConfig, get_peft_model
from serving import Serving, post
from transformers import AutoModelForCausalLM

prl, folder, adapter = sys.argv[1], sys.argv[2], str(pathlib.Path(sys.argv[3]) / "adapter")
NEW = 16
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

torch.manual_seed(3)
plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
vocab = plain.config.vocab_size
model = get_peft_model(plain, LoraConfig(r=4, lora_alpha=12, target_modules=ALL, task_type="CAUSAL_LM")).eval()
with torch.no_grad():
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.normal_(0, 0.05)
model.save_pretrained(adapter)


def off(url, name, ids):
    """The largest difference of log-probabilities from a teacher-forced pass."""
    params = {"max_tokens": NEW, "temperature": 1.0, "seed": 5, "logprobs": 1, "ignore_eos": True}
    choice = post(url, "/inference/v1/generate", {"model": name, "token_ids": ids, "sampling_params": params})["choices"][0]
    whole = ids + choice["token_ids"]
    with torch.no_grad():
        table = torch.log_softmax(model(torch.tensor([whole])).logits[0].double(), -1)
    theirs = [float(table[i - 1, whole[i]]) for i in range(len(ids), len(whole))]
    return max(abs(a["logprob"] - b) for a, b in zip(choice["logprobs"]["content"], theirs, strict=True))


with Serving(prl, folder, "--served-model-name", "plain", "--enable-lora") as server:
    url = server.url
    post(url, "/load_lora_adapter", {"lora_name": "adapted", "lora_path": adapter})
    prompts = [[(i * 37 + j * 11) % vocab for j in range(5 + 7 * i)] for i in range(8)]
    worst = max(off(url, "adapted", ids) for ids in prompts)
    with model.disable_adapter():
        beside = max(off(url, "plain", ids) for ids in prompts)
    assert worst <= 1e-4 and beside <= 1e-4, (worst, beside)
    assert min(off(url, "plain", ids) for ids in prompts) > 1e-2, "the adapter does nothing"
    print(f"lora_equal: logprobs of {len(prompts)} prompts within {worst:.1e} with the adapter, {beside:.1e} without it")
