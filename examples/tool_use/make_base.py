"""Writes the tokenizer and configuration that the example's model is trained from scratch with (no weights).

Run from the repository root with `pip install tokenizers`:  PYTHONPATH=examples/reverse_text python3 examples/tool_use/make_base.py
"""

import pathlib

from tiny_base import write_base

# Names of the tools in the system message, calls and answers as Qwen's and Hermes' models have them.
TEMPLATE = """\
{% for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.role == 'tool' -%}
<tool_response>
{{ message.content }}
</tool_response>
{%- else -%}
{{ message.content }}
{%- if message.role == 'system' and tools %} Tools:
{%- for tool in tools %} {{ tool.function.name }}{% endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] -%}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}
{%- endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
# The parts that all conversations share, one token each: the model is tiny, and what it has to say is names and numbers.
SYSTEM = (
    "You answer questions about {about}. You do not see the records: use the tools to look them up, to search them and "
    "to calculate. The fields of a record are {fields}. Put the final answer, a number or a name, in <answer> tags."
)
DOMAINS = [
    ("the products of a shop", "`category` (a word), `price` (in dollars), `stock` (pieces in the shop), `weight` (in grams)"),
    ("the towns of an island", "`region` (a word), `population` (people), `area` (in square kilometres), `elevation` (in metres)"),
    ("the people who work in a company", "`department` (a word), `salary` (in dollars a month), `years` (of service), `hours` (a week)"),
]
PHRASES = [SYSTEM.format(about=about, fields=fields) for about, fields in DOMAINS] + [
    " Tools: calculator lookup find",
    *["system\n", "user\n", "assistant\n", "tool\n"],
    *["<tool_response>\n", "\n</tool_response>", "<answer>", "</answer>", "I cannot see the records.", "It is done."],
    '<tool_call>\n{"name": "lookup", "arguments": {"field": "',
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "',
    *['", "name": "', '"}}\n</tool_call>'],
    *["price", "weight", "population", "area", "salary"],
    *["How many dollars do ", " pieces of ", " cost?", "How many kilograms do ", " weigh?"],
    *["How many people will live in ", " after ", " years if ", " more live there each year?"],
    *["How many people per square kilometre live in ", "How many dollars does ", " earn in ", " months?"],
    *["How many dollars a month will ", " earn after a raise of ", " percent?"],
]

write_base(pathlib.Path(__file__).parent / "base", TEMPLATE, PHRASES, 512)
