"""Lists the Pythons of this machine that PopMQ supports, oldest first, each as `VERSION PATH`.

Looks along PATH and among the versions of pyenv, whose shims do not run unless their version is chosen. Says on stderr
which versions this machine lacks.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
PYENV: Final = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
# An interpreter without these modules makes no environment; on Debian they are the package python3.X-venv.
PROBE: Final = "import ensurepip, sys, venv; print(*sys.version_info[:2], sep='.')"


def main() -> int:
    for version in VERSIONS:
        name = f"python{version}"
        along_path = [Path(folder) / name for folder in os.environ.get("PATH", "").split(os.pathsep)]
        of_pyenv = sorted(PYENV.glob(f"{version}.*/bin/{name}"), key=_patch, reverse=True)
        found = next((each for each in (*along_path, *of_pyenv) if _runs(each, version)), None)
        if found is None:
            print(f"Python {version} is left out: this machine has none with its venv module", file=sys.stderr)
        else:
            print(version, found, flush=True)
    return 0


def _patch(path: Path) -> int:
    digits = path.parts[-3].rpartition(".")[2]
    return int(digits) if digits.isdecimal() else -1


def _runs(python: Path, version: str) -> bool:
    try:
        probe = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return False
    return probe.stdout.strip() == version


if __name__ == "__main__":
    sys.exit(main())
