"""A commit, a push and CI run the same checks."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOOKS = (ROOT / ".pre-commit-config.yaml").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()


def test_a_commit_runs_what_make_check_runs() -> None:
    [parts] = re.findall(r"^check: ([\w ]+?) *##", MAKEFILE, re.MULTILINE)
    at_commit = [hook for hook in HOOKS.split("- id: ")[1:] if "stages:" not in hook]
    assert [re.findall(r"entry: make (\w+)", hook) for hook in at_commit] == [[part] for part in parts.split()]
    assert re.search(r"^make (?:--\S+ )*check\b", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_hooks_call_the_projects_own_tools() -> None:
    assert re.findall(r"repo: (\S+)", HOOKS) == ["local"]
    assert set(re.findall(r"language: (\S+)", HOOKS)) == {"system"}
