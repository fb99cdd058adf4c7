"""Programs that tests build from sources, once per version of the sources, beside the environment of the tests."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest


class CannotBuild(Exception):
    """A tool is missing, or a registry does not answer."""


# Builds the sources of one folder into another; returns the command that runs the program.
Build = Callable[[Path, Path], list[str]]


def built(name: str, sources: Path, build: Build) -> list[str]:
    """The command that runs what `build` makes. Raises CannotBuild."""
    digest = hashlib.sha256()
    for path in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(path.read_bytes())
    made = Path(sys.prefix) / f".{name}-{digest.hexdigest()[:12]}"
    made.mkdir(exist_ok=True)
    command = made / "command.json"
    with (made / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes start at once
        if not command.exists():
            command.write_text(json.dumps(build(sources, made)))
    parts: list[str] = json.loads(command.read_text())
    return parts


def do(command: list[str], folder: Path) -> None:
    """Run one step of a build. Raises CannotBuild."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotBuild(f"{command[0]} not found; install it for the tests of the programs that it builds") from None
    if done.returncode:
        raise CannotBuild(f"{' '.join(command)} failed: {(done.stderr + done.stdout).strip()[-1_000:]}")


def do_without(reason: str) -> NoReturn:
    """Skips the test on a developer's machine; in CI it must run."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
