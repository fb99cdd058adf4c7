"""Mutants that no test needs to fail for: mypy refuses them, so `make check` does."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from proof.mutations.forks import SETTLED, Verdict
from proof.mutations.mutants import Mutant


def by_types(verdict: Verdict, mutant: Mutant, root: Path) -> Verdict:
    """The verdict, or that mypy refuses what no test has failed for."""
    return Verdict.REFUSED if verdict not in SETTLED and is_refused(mutant, root) else verdict


def is_refused(mutant: Mutant, root: Path) -> bool:
    """Whether mypy refuses the file of the mutant, by the settings of the project at `root`.

    Raises `RuntimeError` if mypy does not run.
    """
    with tempfile.NamedTemporaryFile("w", suffix=".py") as shadow:
        shadow.write(mutant.source)
        shadow.flush()
        asked = subprocess.run(
            [sys.executable, "-m", "mypy", mutant.path, "--shadow-file", mutant.path, shadow.name],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
    if asked.returncode not in (0, 1):
        raise RuntimeError(f"mypy did not run:\n{asked.stdout}{asked.stderr}")
    return asked.returncode == 1
