"""Writes the tokenizer and configuration that the example's model is trained from scratch with (no weights).

Run from the repository root with `pip install tokenizers`:  python3 examples/reverse_text/make_base.py
"""

import json
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

OUT = pathlib.Path(__file__).parent / "base"
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Whole phrases of the prompt, one token each: the model is tiny and the task is about characters.
PHRASES = [
    "<reversed_text>",
    "</reversed_text>",
    "system\n",
    "user\n",
    "assistant\n",
    "tool\n",
    "Reverse the text character-by-character. Put your answer in ",
    " tags.",
]

# Byte-level without merges: every byte is a token.
vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in PHRASES])

OUT.mkdir(exist_ok=True)
tokenizer.save(str(OUT / "tokenizer.json"))
ids = tokenizer.get_vocab()


def write(name, value):
    (OUT / name).write_text(json.dumps(value, indent=2) + "\n")


write(
    "tokenizer_config.json",
    {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "chat_template": TEMPLATE,
    },
)
write(
    "config.json",
    {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": 0.04,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
        "use_cache": True,
    },
)
write("generation_config.json", {"eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]], "pad_token_id": ids["<|endoftext|>"]})
