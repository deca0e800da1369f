"""What an environment may be called. Owns the one rule for its name and its module's; must not know where they
stand."""

from __future__ import annotations

import keyword
import re
import sys

LONGEST = 64
"""Characters of a name."""

TAKEN = {"environment", "prl_env", "wit_world", "componentize_py_types", "componentize_py_runtime", "poll_loop"}
"""Modules that a component's own code has at its top level."""

_FORM = f"it must be of a-z, 0-9, `-` and `_`, begin with a letter, have at most {LONGEST} characters"


def is_test(file: str) -> bool:
    """Whether a file is one of pytest's or unittest's."""
    return file.startswith("test_") or file.endswith("_test.py") or file == "conftest.py"


def _told(name: str) -> str:
    return f"`{name if len(name) <= LONGEST else name[: LONGEST - 1] + '…'}` cannot be the name of an environment"


def bad_form(name: str) -> str | None:
    """Why `name` cannot be what an environment says it is called; `None` where it can."""
    if len(name) <= LONGEST and re.fullmatch(r"[a-z][a-z0-9]*([-_][a-z0-9]+)*", name):
        return None
    return f"{_told(name)}: {_FORM}"


def bad_name(name: str) -> str | None:
    """Why `name` cannot be an environment's, or its module's; `None` where it can. `prl env new` has the same rule."""
    module = name.replace("-", "_")
    taken = keyword.iskeyword(module) or module in sys.stdlib_module_names or module in TAKEN
    taken = taken or module == "test" or is_test(f"{module}.py")
    if not taken and not module.startswith("prl_env") and bad_form(name) is None:
        return None
    return (
        f"{_told(name)}: {_FORM}, and be neither a keyword, nor a module of the language or of prl, nor like a test's "
        "(`test`, `test_x`, `x_test`, `conftest`)"
    )
