"""`python -m prl_env.new NAME [FOLDER]`: writes a first environment, with its own tests. Owns the names put into the
template. Exit codes: 0, or 2 with one line saying what is wrong."""

from __future__ import annotations

import sys
from pathlib import Path

from .console import Words, failing
from .names import bad_name
from .project import BadProject

TEMPLATE = Path(__file__).parent / "template"


def new(name: str, folder: str | Path | None = None) -> Path:
    """Writes the environment `name` into `folder` (default: `name` here), which must not be there. Raises
    `BadProject`."""
    reason = bad_name(name)
    if reason:
        raise BadProject(reason)
    module = name.replace("-", "_")
    folder = Path(folder or name)
    if folder.exists():
        raise BadProject(f"`{folder}` is there already; choose another name or remove it")
    folder.mkdir(parents=True)
    for source in sorted(path for path in TEMPLATE.iterdir() if path.is_file()):
        text = source.read_text(encoding="utf-8").replace("{{name}}", name).replace("{{module}}", module)
        file = source.name.replace("module", module).replace("gitignore", ".gitignore")
        (folder / file).write_text(text, encoding="utf-8")
    return folder


def main(argv: list[str] | None = None) -> int:
    """Runs the command; gives its exit code."""
    parser = Words(prog="python -m prl_env.new", description="Writes a first environment.")
    parser.add_argument("name", help="like my-env")
    parser.add_argument("folder", nargs="?", help="where to (default: NAME here)")
    given = parser.parse_args(argv)
    with failing(BadProject, OSError):
        folder = new(given.name, given.folder)
        print(f"Wrote {folder}. Next: python -m prl_env.check {folder} && python -m prl_env.build {folder}")
        return 0
    return 2


if __name__ == "__main__":
    sys.exit(main())
