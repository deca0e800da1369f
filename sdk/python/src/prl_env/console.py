"""What the commands print. Owns the form of an error: one line, saying what, where, and how to fix it."""

from __future__ import annotations

import argparse
import contextlib
import sys
import traceback
from collections.abc import Iterator
from typing import NoReturn


class Words(argparse.ArgumentParser):
    """A command's words; what is wrong with them is one line, too."""

    def error(self, message: str) -> NoReturn:
        print(f"error: {one_line(message, 1000)}; see {self.prog} --help", file=sys.stderr)
        raise SystemExit(2)


def one_line(text: str, width: int = 300) -> str:
    """A text on one line, cut at `width` characters."""
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def where(error: BaseException) -> str:
    """The last place of an author's own code that an exception came through, as ` (file.py:12)`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "/prl_env/" not in f.filename and not f.filename.startswith("<")]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


@contextlib.contextmanager
def failing(plain: type[Exception], *kinds: type[Exception]) -> Iterator[None]:
    """Turns an exception into one line on standard error: of type `plain` as it says, of `kinds` with its type and
    place."""
    try:
        yield
    except plain as error:
        print(f"error: {one_line(str(error), 1000)}", file=sys.stderr)
    except kinds as error:
        name = type(error).__name__
        print(f"error: {name}: {one_line(str(error), 1000)}{where(error)}", file=sys.stderr)
