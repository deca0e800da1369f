"""Files beside a script that are called like one of Python's modules. Owns that they are named before anything trips
over them, which is why it imports nothing that is not there from the start."""

import os
import sys


def found() -> str | None:
    """The first file of the script's own folder that Python would import in place of one of its own modules."""
    folder = sys.path[0] if sys.path else ""
    # The builder looks at the folder by itself, and a component has no script.
    own = os.path.abspath(folder) == os.path.dirname(os.path.abspath(os.__file__))
    if sys.platform == "wasi" or sys.flags.safe_path or own:
        return None
    try:
        entries = sorted(os.listdir(folder or "."))
    except OSError:
        return None
    for entry in entries:
        file = os.path.join(folder, entry)
        file = file if entry.endswith(".py") else os.path.join(file, "__init__.py")
        name = entry.removesuffix(".py")
        # What Python has loaded by itself nothing stands in for any more.
        known = getattr(sys.modules.get(name), "__file__", None) or file
        free = os.path.realpath(known) == os.path.realpath(file)
        if name in sys.stdlib_module_names and os.path.isfile(file) and free:
            return file
    return None


def refuse() -> None:
    """Ends the process with one line where there is such a file."""
    file = found()
    if file is not None:
        told = "Python would import it in place of its own module of this name; rename the file"
        print(f"error: {file}: {told}", file=sys.stderr)
        raise SystemExit(2)
