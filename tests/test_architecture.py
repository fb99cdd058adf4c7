"""The picture of the architecture shows the imports as they are, and the page names files that exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_picture_is_fresh() -> None:
    command = [sys.executable, str(ROOT / "docs" / "architecture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "page", ["docs/architecture.md", "CONTRIBUTING.md", "docs/protocol.md", "docs/protocol-messages.md"]
)
def test_files_that_a_page_names_exist(page: str) -> None:
    named = re.findall(
        r"`((?:pop(?:server|client|console|port)|tests|migrations|proto)/[\w/.-]*)`", (ROOT / page).read_text()
    )
    assert [each for each in named if not (ROOT / each).exists()] == []
