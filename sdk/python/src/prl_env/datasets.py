"""Where tasks come from. Owns lists, generators and functions of an index behind one face: `size` and `row`. Must not
know what a row means."""

from __future__ import annotations

import csv
import inspect
import json
import os
import random
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any

from .calls import Function
from .errors import EnvError, InvalidTask
from .rng import begin, stream


class Rows:
    """Rows by index: of a list, of a function, or of a generator function."""

    def __init__(self, source: Any, size: int | None = None, seed: int | None = None) -> None:
        self.size = size
        self.seed = seed
        self._list: Sequence[Any] | None = None
        self._function: Function | None = None
        self._streams: dict[int, tuple[Generator[Any, None, None], list[Any]]] = {}
        if isinstance(source, Rows):
            raise TypeError("rows are made once")
        if callable(source):
            self._function = Function(source)
        elif isinstance(source, Iterable) and not isinstance(source, (str, bytes, Mapping)):
            self._list = source if isinstance(source, Sequence) else list(source)
            self.size = len(self._list) if size is None else min(size, len(self._list))
            if not self.size:
                raise ValueError("a dataset holds no rows")
        else:
            raise TypeError("a dataset is a list of rows, a function of an index, or a generator function")

    @property
    def place(self) -> str:
        """Where the function that makes them stands, as ` (file.py:12)`; nothing for a list."""
        return "" if self._function is None else self._function.place

    @property
    def listed(self) -> bool:
        """Whether they are a list, which can be looked through."""
        return self._list is not None

    @property
    def seeded(self) -> bool:
        """Whether the rows follow from the run's seed."""
        return self._function is not None and self.seed is None

    def row(self, split: str, index: int, seed: int, known: Mapping[str, Any]) -> Any:
        """The row at `index`. A function is handed what it names of `index`, `rng`, `seed`, `split` and `known`."""
        if self.size is not None and index >= self.size:
            raise InvalidTask(f"split `{split}` has {self.size} tasks, no index {index}")
        if self._list is not None:
            return self._list[index]
        assert self._function is not None
        seed = seed if self.seed is None else self.seed
        if inspect.isgeneratorfunction(self._function.func):
            return self._generated(split, index, seed, known)
        begin("task", split, index, seed)
        return self._function(
            {**known, "index": index, "split": split, "seed": seed, "rng": stream(split, index, seed)}
        )

    def _generated(self, split: str, index: int, seed: int, known: Mapping[str, Any]) -> Any:
        """The item at `index` of a generator; items before it are made and kept, since it only goes forward."""
        assert self._function is not None
        if seed not in self._streams:
            made = self._function({**known, "split": split, "seed": seed, "rng": stream(split, seed)})
            self._streams = {seed: (made, [])}
        source, items = self._streams[seed]
        while len(items) <= index:
            # Each item is drawn from a state of its own, so that it does not depend on what else was drawn since.
            begin("task", split, len(items), seed)
            try:
                items.append(next(source))
            except StopIteration:
                raise InvalidTask(f"split `{split}` ends after {len(items)} tasks; no index {index}") from None
        return items[index]


def procedural(make: Callable[..., Any], size: int | None = None, seed: int | None = None) -> Rows:
    """Rows made on demand: `make` is a function of `index` (and `rng`, `seed`, `split`, `args`), or a generator
    function. With a `size` the split is finite; with a `seed` of its own it is the same in every run."""
    return Rows(make, size, seed)


def _beside(path: Any) -> Any:
    """A relative path leads on from the folder of the module that calls `load_...`, wherever the process was started;
    what is no path is left as it is."""
    file = sys._getframe(2).f_globals.get("__file__")
    if not isinstance(path, (str, os.PathLike)) or file is None:
        return path
    return os.path.join(os.path.dirname(os.path.abspath(file)), path)


def load_jsonl(path: Any) -> list[Any]:
    """The rows of a file of JSON lines; a relative path leads on from the caller's folder. Raises `EnvError`, which
    names a line that is no JSON."""
    rows = []
    path = _beside(path)
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except ValueError as error:
                    raise EnvError(f"line {number} of {path} is no JSON: {error}") from None
    return rows


def load_csv(path: Any) -> list[dict[str, str]]:
    """The rows of a CSV file with a header; a relative path leads on from the caller's folder."""
    with open(_beside(path), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def load_lines(path: Any) -> list[str]:
    """The lines of a text file that are not blank, stripped; a relative path leads on from the caller's folder."""
    with open(_beside(path), encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def shuffled(rows: Sequence[Any], seed: int) -> list[Any]:
    """The rows in another order, the same for each seed."""
    rows = list(rows)
    random.Random(seed).shuffle(rows)
    return rows
