"""The exported weights load in transformers as they are, with the shape of the model they came from.

Usage: export_loads.py BASE_FOLDER EXPORTED_FOLDER
"""

import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

base_dir, exported_dir = sys.argv[1:]
base = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
exported, info = AutoModelForCausalLM.from_pretrained(exported_dir, dtype=torch.float32, output_loading_info=True)
problems = {k: v for k, v in info.items() if v}
assert not problems, problems
names = dict(base.named_parameters())
moved = 0.0
for name, value in exported.named_parameters():
    assert value.shape == names[name].shape, name
    assert torch.isfinite(value).all(), name
    moved = max(moved, (value - names[name]).abs().max().item())
assert 0 < moved < 0.1, f"training moved the weights by {moved}"
tokenizer = AutoTokenizer.from_pretrained(exported_dir)
text = tokenizer.apply_chat_template([{"role": "user", "content": "hello world"}], tokenize=False)
assert "hello world" in text and tokenizer.eos_token in text, text
print(f"export_loads: {len(names)} tensors, largest change {moved:.2e}")
