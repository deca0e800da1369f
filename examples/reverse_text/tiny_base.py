"""The tokenizer and configuration of a tiny model that is trained from scratch (no weights), for an example's `base/`."""

import json

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def write_base(out, template, phrases, length):
    """Writes into the folder `out` a Qwen3 of `length` tokens' context; each of `phrases` is one token."""
    # Byte-level without merges: every byte is a token.
    vocab = {c: i for i, c in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in phrases])
    out.mkdir(exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    ids = tokenizer.get_vocab()
    end, pad = ids["<|im_end|>"], ids["<|endoftext|>"]
    files = {
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<|im_end|>",
            "pad_token": "<|endoftext|>",
            "model_max_length": length,
            "clean_up_tokenization_spaces": False,
            "chat_template": template,
        },
        "config.json": {
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
            "max_position_embeddings": length,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.04,
            "tie_word_embeddings": True,
            "torch_dtype": "float32",
            "eos_token_id": end,
            "pad_token_id": pad,
            "use_cache": True,
        },
        "generation_config.json": {"eos_token_id": [end, pad], "pad_token_id": pad},
    }
    for name, value in files.items():
        (out / name).write_text(json.dumps(value, indent=2) + "\n")
