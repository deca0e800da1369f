"""What a rollout keeps between its turns. Owns the names that are always there; authors add their own."""

from __future__ import annotations

from .messages import _Attributes


class State(_Attributes):
    """A dictionary whose keys are attributes too. Always there:

    `task`, `prompt` (messages), `completion` (everything after it: the model's messages and the environment's),
    `answer`, `info`, `ctx` (the rollout's `Context`), `args`, `trajectory` (one entry for each turn of the model: a
    dictionary with its `completion` messages and `finish_reason`), `turn` (how many), `truncated` (why the rollout was
    cut off, once it is scored). What is put into `trace` goes into the rollout's record.
    """

    @property
    def messages(self) -> list:
        """The whole conversation."""
        return self["prompt"] + self["completion"]
