"""Reading answers out of completions, with the names and the results of `verifiers`' parsers. Owns what counts as an
answer and as well-formed; must not know what is right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import SimpleNamespace
from typing import Any

from .messages import text_of


def strip_think(text: str) -> str:
    """The text after the last `</think>`, or without an unfinished `<think>`; stripped."""
    if "</think>" in text:
        text = text.rpartition("</think>")[2]
    else:
        text = text.partition("<think>")[0]
    return text.strip()


def extract_boxed_answer(text: str, strict: bool = False) -> str:
    r"""What stands in the last `\boxed{...}`. Without one, or if its braces do not close, the whole text; or nothing if
    `strict`."""
    start = text.rfind("\\boxed{")
    depth = 0
    for end in range(start + len("\\boxed"), len(text) if start >= 0 else 0):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[start + len("\\boxed{") : end]
    return "" if strict else text


def extract_tag(text: str, name: str) -> str | None:
    """The stripped text between the first `<name>` and the `</name>` that follows it; `None` when either is missing."""
    start = text.find(f"<{name}>")
    if start < 0:
        return None
    start += len(name) + 2
    end = text.find(f"</{name}>", start)
    return None if end < 0 else text[start:end].strip()


def last_number(text: str) -> str | None:
    """The last number of a text, without thousands separators."""
    numbers = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].replace(",", "") if numbers else None


class Parser:
    """Takes a completion's text as it is, or through `extract_fn`."""

    def __init__(self, extract_fn: Callable[[str], str] = lambda text: text) -> None:
        self.extract_fn = extract_fn

    def parse(self, text: str) -> Any:
        """The answer in a text."""
        return self.extract_fn(text)

    def parse_answer(self, completion: str | Iterable[Mapping[str, Any]]) -> str | None:
        """The answer in the last assistant message; `None` without one."""
        if isinstance(completion, str):
            return self.parse(completion)
        said = self.get_assistant_messages(completion)
        return self.parse(text_of(said[-1])) if said else None

    @staticmethod
    def get_assistant_messages(completion: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The model's own messages."""
        return [message for message in completion if message.get("role") == "assistant"]

    @staticmethod
    def get_user_messages(completion: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """The user's messages."""
        return [message for message in completion if message.get("role") == "user"]

    def follows_format(self, text: str) -> float:
        """How well one message keeps to the format, from 0 to 1."""
        return 1.0

    def get_format_reward_func(self) -> Callable[..., float]:
        """A reward function: the mean of `follows_format` over the model's messages."""

        def format_reward_func(completion: Any) -> float:
            """How well the model keeps to the format."""
            texts = [completion] if isinstance(completion, str) else []
            texts = texts or [text_of(message) for message in self.get_assistant_messages(completion)]
            return sum(self.follows_format(text) for text in texts) / len(texts) if texts else 0.0

        return format_reward_func


class ThinkParser(Parser):
    """For models that always write `<think>...</think>`: the answer is what follows, and nothing without it."""

    def parse(self, text: str) -> str:
        return self.extract_fn(text.split("</think>")[-1].strip() if "</think>" in text else "")

    def follows_format(self, text: str) -> float:
        once = text.count("<think>") == 1 and text.count("</think>") == 1
        return float(text.strip().startswith("<think>") and once and len(text.split("</think>")[-1]) > 0)


class MaybeThinkParser(Parser):
    """For models that write `<think>...</think>` or not: the answer is what follows, or the whole text."""

    def parse(self, text: str) -> str:
        return self.extract_fn(text.split("</think>")[-1].strip())


class XMLParser(Parser):
    """Reads `<field>...</field>`. A field given as a tuple may be written under any of its names; the first is
    canonical."""

    def __init__(
        self,
        fields: list[str | tuple[str, ...]],
        answer_field: str = "answer",
        extract_fn: Callable[[str], str] = lambda text: text,
    ) -> None:
        super().__init__(extract_fn)
        self.answer_field = answer_field
        self._fields = [(field,) if isinstance(field, str) else tuple(field) for field in fields]
        canonical = [names[0] for names in self._fields if names]
        if len(set(canonical)) < len(self._fields):
            raise ValueError("the fields of an XMLParser need different names")

    def parse(self, text: str, strip: bool = True, last: bool = False) -> SimpleNamespace:
        """An object with an attribute for each name: the text inside the first such tag (the last one with `last`), or
        `None`."""
        found: dict[str, str | None] = {}
        for name in (name for names in self._fields for name in names):
            tag = re.escape(name)
            matches = re.finditer(rf"<{tag}>\s*(.*?)\s*</{tag}>", text, re.DOTALL)
            found_all = list(matches) if last else []
            match = found_all[-1] if found_all else next(matches, None)
            found[name] = None if match is None else match[1].strip() if strip else match[1]
        return SimpleNamespace(**found)

    def parse_answer(self, completion: str | Iterable[Mapping[str, Any]]) -> str | None:
        """The answer field of the last assistant message that has it; of a plain text, the last such tag."""
        if isinstance(completion, str):
            return getattr(self.parse(completion, last=True), self.answer_field, None)
        for message in reversed(self.get_assistant_messages(completion)):
            answer = getattr(self.parse(text_of(message)), self.answer_field, None)
            if answer is not None:
                return answer
        return None

    def get_fields(self) -> list[str]:
        """The canonical names, in order."""
        return [names[0] for names in self._fields]

    def get_format_str(self) -> str:
        """What the format looks like, for a prompt."""
        shown = [names[0] if len(names) == 1 else f"[ {' | '.join(names)} ]" for names in self._fields]
        return "\n".join(f"<{name}>\n...\n</{name}>" for name in shown)

    def format(self, **values: Any) -> str:
        """The values in their tags, under the canonical names."""
        parts = []
        for names in self._fields:
            given = next((values[name] for name in names if values.get(name) is not None), None)
            if given is None:
                raise ValueError(f"the field `{names[0]}` has no value")
            parts.append(f"<{names[0]}>\n{given}\n</{names[0]}>")
        return "\n".join(parts)

    def follows_format(self, text: str) -> float:
        """0.4 for the share of fields that are there (if any can be read), 0.2 for readable ones, 0.2 each for
        beginning with the first field and ending with the last."""
        parsed = vars(self.parse(text))
        readable = [name for name in parsed if parsed[name] is not None]
        there = [
            names
            for names in self._fields
            if any(parsed[name] is not None or f"<{name}>" in text or f"</{name}>" in text for name in names)
        ]
        inside = text.strip()
        score = 0.4 * len(there) / len(self._fields) if readable else 0.0
        score += 0.2
        score += 0.2 * any(inside.startswith(f"<{name}>") for name in self._fields[0])
        score += 0.2 * any(inside.endswith(f"</{name}>") for name in self._fields[-1])
        return score
