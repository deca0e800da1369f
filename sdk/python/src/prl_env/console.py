"""What the commands print. Owns the form of an error: one line, saying what, where, and how to fix it."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from typing import NoReturn

from .errors import fix


_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD = sysconfig.get_path("stdlib") + os.sep


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
    own = [f for f in frames if not f.filename.startswith(("<", _PACKAGE, _STANDARD))]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


@contextlib.contextmanager
def failing(plain: type[BaseException] | tuple[type[BaseException], ...], *kinds: type[BaseException]) -> Iterator[None]:
    """Turns an exception into one line on standard error: of the type `plain` as it says, of `kinds` with its type and
    place."""
    try:
        yield
    except plain as error:
        print(f"error: {one_line(str(error), 1000)}", file=sys.stderr)
    except kinds as error:
        name, place = type(error).__name__, where(error)
        said = one_line(str(error), 1000)
        # An environment's own words say where they are from, as far as there is such a place.
        named = re.search(r"\(\S+\.py:\d+(, in `\S+`)?\)$", said)
        print(f"error: {name}: {said}{fix(error)}{'' if named else place}", file=sys.stderr)
