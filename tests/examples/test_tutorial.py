"""The tutorial does what it says, from its first program to its last."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.flights.processes import server
from tests.support.documentation_pages import Reader, blocks, fits, fits_in_any_order

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"


def test_the_tutorial(tmp_path: Path) -> None:
    setup, ready, *steps = blocks(PAGE)
    assert (
        "popmq serve --min-invisible 1s --database-url sqlite:///tutorial.db\n" in setup.text
    )  # as the helper starts it
    with server(tmp_path / "tutorial.db", tmp_path / "server.log") as served:
        assert fits(ready.text.replace("127.0.0.1:8081", served.endpoint), served.ready)
        reader = Reader(tmp_path, served.endpoint)
        reader.follow(steps)
    assert reader.compared == sum(step.language == "text" for step in steps) == 9


@pytest.mark.parametrize(
    ("told", "shown", "fitting"),
    [
        ("a … c", "a b c", True),
        ("a … c", "a b", False),
        ("a\n", "a", True),
        ("…b…", "a\nb\nc", True),
        ("a.", "ab", False),
    ],
)
def test_output_is_compared(told: str, shown: str, fitting: bool) -> None:
    assert fits(told, shown) == fitting


def test_only_the_order_of_whole_lines_is_free() -> None:
    assert fits_in_any_order("a, 1\nb, 1\n", "b, 1\na, 1")
    assert not fits_in_any_order("a, 1\nb, 1\n", "b, 1\nb, 1")
    assert not fits_in_any_order("a, 1\nb, 1\n", "b, 1")
