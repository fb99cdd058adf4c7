"""Which tests are heavy: those marked `full`, and those that `tests/full.txt` names.

`make test` runs none of them, `make test-all` all. With `POPMQ_TEST_PART=K/N`, as in CI, only the part K of N of them
is run, by their names.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.requirement_rows import is_whole_suite

LIST = Path(__file__).parents[1] / "full.txt"


class Full:
    """A pytest plugin."""

    def __init__(self, text: str | None = None, part: str | None = None) -> None:
        self._part, self._parts = map(int, (part or "0/1").split("/"))
        lines = [line for line in (text or LIST.read_text()).splitlines() if line and not line.startswith("#")]
        self._kept = [_Line(line.removeprefix("! ")) for line in lines if line.startswith("! ")]
        self._together = [_Line(line.removeprefix("& ")) for line in lines if line.startswith("& ")]
        self._named = [_Line(line) for line in lines if not line.startswith(("! ", "& "))]

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
        for item in items:
            if self.is_full(item.nodeid, getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.full)
        if is_whole_suite(config) and (unused := self.unused([item.nodeid for item in items])):
            raise pytest.UsageError(f"{LIST.name} names tests that there are not: {', '.join(unused)}")
        yield  # -m takes tests away, and requirements are counted
        if others := [item for item in items if item.get_closest_marker("full") and not self.is_in_part(item.nodeid)]:
            config.hook.pytest_deselected(items=others)
            items[:] = [item for item in items if item not in others]

    def is_full(self, name: str, fixtures: Iterable[str]) -> bool:
        """Whether the list says that this test is heavy."""
        is_named = "spark" in fixtures or any(line.names(name) for line in self._named)
        return is_named and not any(line.names(name) for line in self._kept)

    def is_in_part(self, name: str) -> bool:
        key = next((line.text for line in self._together if line.names(name)), name)
        return zlib.crc32(key.encode()) % self._parts == self._part

    def unused(self, names: Iterable[str]) -> list[str]:
        """Lines that no test's name begins with."""
        known = list(names)
        lines = self._kept + self._together + self._named
        return [line.text for line in lines if not any(line.names(name) for name in known)]


class _Line:
    """The beginning of tests' names; "*" stands for anything."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._pattern = re.compile(re.escape(text).replace(r"\*", ".*"))

    def names(self, name: str) -> bool:
        return self._pattern.match(name) is not None
