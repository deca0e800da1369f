"""Seeds. Owns how a call's seed becomes the state of `random`: the same on every machine and in every instance."""

from __future__ import annotations

import random

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def _mix(z: int) -> int:
    """SplitMix64's finaliser."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def seed_of(*parts: int | str) -> int:
    """64 bits that differ for each list of numbers and texts."""
    state = 0
    for part in parts:
        if isinstance(part, str):
            value = 0
            for byte in part.encode():
                value = _mix(value ^ byte ^ _GOLDEN)
        else:
            value = part & _MASK
        state = _mix(((state + _GOLDEN) & _MASK) ^ _mix((value + _GOLDEN) & _MASK))
    return state


def stream(*parts: int | str) -> random.Random:
    """A generator of its own for each list of numbers and texts."""
    return random.Random(seed_of(*parts))


def begin(*parts: int | str) -> None:
    """Seeds the module `random`, for code that draws from it directly."""
    random.seed(seed_of(*parts))
