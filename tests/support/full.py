"""Which tests `make test` leaves to `make test-all`: those marked `full`, and those that `tests/full.txt` names.

The file is a list in one place, so that the time of `make test` can be kept by moving lines.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.rows import is_whole_suite

LIST = Path(__file__).parents[1] / "full.txt"


class Full:
    """A pytest plugin."""

    def __init__(self, text: str | None = None) -> None:
        lines = [line for line in (text or LIST.read_text()).splitlines() if line and not line.startswith("#")]
        self._kept = tuple(line.removeprefix("! ") for line in lines if line.startswith("! "))
        self._named = tuple(line for line in lines if not line.startswith("! "))

    @pytest.hookimpl(tryfirst=True)  # before -m takes tests away
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for item in items:
            if self.is_full(item.nodeid, getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.full)
        if is_whole_suite(config) and (unused := self.unused([item.nodeid for item in items])):
            raise pytest.UsageError(f"{LIST.name} names tests that there are not: {', '.join(unused)}")

    def is_full(self, name: str, fixtures: Iterable[str]) -> bool:
        """Whether the list leaves this test to `make test-all`."""
        return not name.startswith(self._kept) and (name.startswith(self._named) or "spark" in fixtures)

    def unused(self, names: Iterable[str]) -> list[str]:
        """Lines that no test's name begins with."""
        known = list(names)
        return [line for line in self._kept + self._named if not any(name.startswith(line) for name in known)]
