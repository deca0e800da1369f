"""Virtual environments with exactly the peers that a test holds ours against."""

import subprocess
import venv

from prl_env import toolchain

V0 = ("verifiers==0.1.14", "reasoning-gym==0.1.25", "staros-stardata==0.1.1")
V1 = ("verifiers==0.4.0", "marble-v1==0.1.0")


def python_of(name: str, *packages: str) -> str:
    """A Python with exactly these packages, made once."""
    folder = toolchain.cache_dir().parent / f"venv-{name}"
    marker = folder / "packages"
    wanted = "\n".join(packages)
    if not marker.is_file() or marker.read_text() != wanted:
        venv.create(folder, with_pip=True, clear=True)
        pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True)
        marker.write_text(wanted)
    return str(folder / "bin/python")
