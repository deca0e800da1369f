"""Writes template_cases.jsonl, the conversations that templates are compared on: template_cases.py"""

import json
import pathlib

OUT = pathlib.Path(__file__).parent / "template_cases.jsonl"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Tells the <weather> & "more" for Zürich\'s people.',
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Ort é 日本"},
                    "days": {"type": "integer", "minimum": 0.5, "default": 3, "tiny": 1e-7, "big": 1e16},
                    "units": {"type": "string", "enum": ["C", "F"]},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "now", "description": "The time.", "parameters": {"type": "object", "properties": {}}},
    },
]


def system(text):
    return {"role": "system", "content": text}


def user(text):
    return {"role": "user", "content": text}


def said(text, reasoning=None, calls=()):
    message = {"role": "assistant", "content": text}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [
            {"id": f"call0000{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    return message


def told(text, n=0, name="weather"):
    return {"role": "tool", "tool_call_id": f"call0000{n}", "name": name, "content": text}


CITY = ("weather", {"city": "Zürich", "days": 2, "exact": 0.5, "f": 1e-05, "list": [1, None, True, {"a": "<b>"}]})
NOW = ("now", {})
CASES = {
    "question": [user("How are you?")],
    "spaces": [user("  How  are\tyou? \n")],
    "system": [system("Be brief."), user("Hi!")],
    "answer": [user("Name a colour."), said("Blue.")],
    "system_answer": [system("You paint.\n\nOften."), user("Name a colour."), said("Blue,\n\nor é 日本 🎉.")],
    "three_turns": [user("one"), said("1"), user("two"), said("2"), user("three"), said("3")],
    "open_end": [system("Count."), user("one"), said("1"), user("two")],
    "edges": [user("a\n"), said(" b "), user("\nc"), said("d\n")],
    "code": [user("```py\nprint('{{ x }}')\n```"), said("{% if x %}`{}`{% endif %}\n\n- a\n- b")],
    "empty_answer": [user("Say nothing."), said(""), user("Well?"), said("Well.")],
    "late_system": [user("a"), said("b"), system("From now on: c."), user("d"), said("e")],
    "two_users": [user("a"), user("b"), said("c")],
    "thought": [user("17 + 4?"), said("21", "17 + 4 = 21,\nsurely.")],
    "thoughts": [user("17 + 4?"), said("21", "Adding."), user("And + 9?"), said("30", "Adding again.")],
    "thought_lines": [user("q"), said("\n\nanswer", "\nwhy\n"), user("q"), said("answer")],
    "thought_in_text": [user("q"), said("<think>\nwhy\n</think>\n\nbecause"), user("q2"), said("plain")],
    "call": [user("Weather?"), said("", None, [CITY]), told('{"temp": 3}'), said("3 degrees.")],
    "call_open": [system("Use tools."), user("Weather?"), said("", None, [CITY]), told("3")],
    "call_text": [user("Weather?"), said("I look.", None, [CITY]), told("3"), said("3."), user("Thanks"), said("Welcome.")],
    "call_thought": [
        user("Weather?"),
        said("", "I need the tool.", [CITY]),
        told("3"),
        said("3 degrees.", "It is cold."),
        user("And the time?"),
        said("", "The other tool.", [NOW]),
        told("12:00", 0, "now"),
        said("Noon.", "Easy."),
    ],
    "calls": [user("All?"), said("", None, [CITY, NOW]), told("3"), told("12:00\n", 1, "now"), said("3 at noon.")],
    "call_after_call": [
        user("All?"),
        said("", "First.", [CITY]),
        told("3"),
        said("", "Then.", [NOW]),
        told("12:00", 0, "now"),
        said("3 at noon.", "Done."),
    ],
    "call_bad_arguments": [user("Weather?"), said("", None, [("weather", '{"city": ')]), told("bad"), said("Sorry.")],
    "call_bare": [user("Weather?"), {k: v for k, v in said("", None, [CITY]).items() if k != "content"}, told("3"), said("3.")],
    "call_digits": [user("n?"), said("", None, [("now", '{"a": 18446744073709551616, "b": [-9223372036854775809, 10%s]}' % ("0" * 50))])],
    "call_last": [user("Weather?"), said("", None, [NOW])],
}


def main():
    rows = [{"name": name, "messages": messages, "tools": TOOLS} for name, messages in CASES.items()]
    OUT.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    main()
