"""Which tests `make test` runs, and which are heavy."""

from __future__ import annotations

import pytest

from tests.support.heavy_tests import LIST, Full

TEXT = """# a remark
tests/heavy/
! tests/heavy/test_a.py::test_one
tests/b.py::test_two[sqlite]
tests/c.py::*postgres
& tests/c.py::*postgres-rust
"""


@pytest.mark.parametrize(
    ("name", "fixtures", "expected"),
    [
        ("tests/heavy/test_a.py::test_two", (), True),
        ("tests/heavy/test_a.py::test_one[sqlite]", (), False),
        ("tests/heavy/test_a.py::test_one[sqlite]", ("spark",), False),
        ("tests/b.py::test_two[sqlite]", (), True),
        ("tests/b.py::test_two[postgres]", (), False),
        ("tests/b.py::test_three", ("spark",), True),
        ("tests/c.py::test_four[postgres-1]", (), True),
        ("tests/c.py::test_four[sqlite-1]", (), False),
    ],
)
def test_the_list_decides(name: str, fixtures: tuple[str, ...], *, expected: bool) -> None:
    assert Full(TEXT).is_full(name, fixtures) is expected


def test_each_heavy_test_is_in_one_part() -> None:
    names = [f"tests/heavy/test_a.py::test_{number}" for number in range(600)]
    parts = [[name for name in names if Full(TEXT, f"{part}/6").is_in_part(name)] for part in range(6)]
    assert sorted(each for part in parts for each in part) == sorted(names)
    assert all(60 < len(part) < 140 for part in parts)
    assert all(Full(TEXT).is_in_part(name) for name in names)


def test_what_shares_a_build_is_in_one_part() -> None:
    names = [f"tests/c.py::test_{number}[postgres-rust]" for number in range(20)]
    parts = [{Full(TEXT, f"{part}/6").is_in_part(name) for name in names} for part in range(6)]
    assert (parts.count({True}), parts.count({False})) == (1, 5)


def test_make_test_runs_a_part_of_each_room() -> None:
    """Of each folder of tests, except those whose tests are all heavy."""
    lines = LIST.with_name("first.txt").read_text().splitlines()
    assert len(lines) == len(set(lines))
    heavy = {each.split("/")[1] for each in LIST.read_text().splitlines() if each.count("/") == 2 and each[-1] == "/"}
    rooms = {each.parent.relative_to(LIST.parent).parts[0] for each in LIST.parent.glob("*/**/test_*.py")}
    named = {each.split("/")[1] for each in lines}
    assert rooms - named - heavy == {"benchmarks", "deploy", "servers"}


def test_each_line_of_make_test_names_a_test_that_is_there() -> None:
    for line in LIST.with_name("first.txt").read_text().splitlines():
        file, _, name = line.partition("::")
        path = LIST.parents[1] / file
        assert path.exists(), f"{line}: there is no such file"
        if name:
            assert f"def {name.partition('[')[0]}(" in path.read_text(), f"{line}: there is no such test"


def test_a_line_that_names_no_test_is_found() -> None:
    names = ["tests/heavy/test_a.py::test_one", "tests/b.py::test_two[postgres]", "tests/c.py::test_four[postgres]"]
    assert Full(TEXT).unused(names) == ["tests/c.py::*postgres-rust", "tests/b.py::test_two[sqlite]"]
