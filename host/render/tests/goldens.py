"""Renders cases.json with the templates of this folder through transformers and writes goldens.json.

    python goldens.py        # needs transformers; run it again whenever a template or a case changes
"""

import json
import pathlib

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).parent
SPECIAL = {"bos_token": "<|bos|>", "eos_token": "<|im_end|>"}


def chat(messages):
    out = []
    for message in messages:
        message = dict(message)
        message.setdefault("content", "")
        if "reasoning" in message:
            message["reasoning_content"] = message.pop("reasoning")
        if "tool_calls" in message:
            calls = []
            for call in message["tool_calls"]:
                arguments = call["arguments"]
                try:
                    parsed = json.loads(arguments)
                    arguments = parsed if isinstance(parsed, dict) else arguments
                except ValueError:
                    pass
                function = {"name": call["name"], "arguments": arguments}
                calls.append({"type": "function", "id": call["id"], "function": function})
            message["tool_calls"] = calls
        out.append(message)
    return out


def main():
    cases = json.loads((HERE / "cases.json").read_text())
    tools = [{"type": "function", "function": tool} for tool in cases["tools"]]
    goldens = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        for name, messages in cases["conversations"].items():
            for with_tools in (False, True):
                for generate in (False, True):
                    for variables in ({}, {"enable_thinking": False}):
                        if variables and "enable_thinking" not in path.read_text():
                            continue
                        try:
                            rendered, _ = render_jinja_template(
                                conversations=[chat(messages)],
                                tools=tools if with_tools else None,
                                chat_template=path.read_text(),
                                add_generation_prompt=generate,
                                **SPECIAL,
                                **variables,
                            )
                            text = rendered[0]
                        except Exception:
                            text = None
                        goldens.append(
                            {
                                "template": path.name,
                                "conversation": name,
                                "tools": with_tools,
                                "generate": generate,
                                "variables": variables,
                                "text": text,
                            }
                        )
    lines = ",\n".join(json.dumps(golden, ensure_ascii=False) for golden in goldens)
    (HERE / "goldens.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
