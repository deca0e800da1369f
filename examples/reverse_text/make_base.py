"""Writes the tokenizer and configuration that the example's model is trained from scratch with (no weights).

Run from the repository root with `pip install tokenizers`:  python3 examples/reverse_text/make_base.py
"""

import pathlib

from tiny_base import write_base

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
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

write_base(pathlib.Path(__file__).parent / "base", TEMPLATE, PHRASES, 512)
