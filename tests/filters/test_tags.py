"""Tag expressions and the hash beside every tag."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.filters import TagFilter, tag_hash
from popserver.filters.tags import parse
from popserver.model.errors import IllegalFilterExpression


@pytest.mark.row("M4")
@pytest.mark.parametrize(
    ("tag", "expected"),
    [
        ("TagA", 2_598_919),
        ("TagB", 2_598_920),
        ("Aa", 2_112),
        ("BB", 2_112),
        ("AaAa", 2_031_744),
        ("BBBB", 2_031_744),
        ("订单", 1_129_459),
        ("", 0),
        (None, 0),
        ("polygenelubricants", -(2**31)),
        ("😀", 55_357 * 31 + 56_832),  # two UTF-16 units
    ],
)
def test_the_hash_of_a_tag(tag: str | None, expected: int) -> None:
    assert tag_hash(tag) == expected


@given(st.text())
def test_every_hash_fits_32_signed_bits(tag: str) -> None:
    assert -(2**31) <= tag_hash(tag) < 2**31


@pytest.mark.row("M2")
@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        ("", ()),
        ("*", ()),
        ("   ", ()),
        (" * ", ()),
        ("A", ("A",)),
        ("A||B||C", ("A", "B", "C")),
        ("  A ||  B|| C ", ("A", "B", "C")),
        ("A||||B||", ("A", "B")),
        ("B||A||B", ("A", "B")),
        ("*||A", ("*", "A")),
        ("A B", ("A B",)),
        ("A|B", ("A|B",)),
        ("A ||\n\tB", ("A", "B")),
    ],
)
def test_reading_an_expression(expression: str, tags: tuple[str, ...]) -> None:
    wanted = parse(expression)
    assert wanted == TagFilter(tags)
    assert wanted.wants_all is (not tags)


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_separators_alone_are_no_expression(expression: str) -> None:
    with pytest.raises(IllegalFilterExpression, match="names no tag"):
        parse(expression)


@pytest.mark.parametrize("expression", ["A\x00", "\x00", "A || B\x07", "A\x85B"])
def test_no_tag_holds_a_control_character(expression: str) -> None:
    with pytest.raises(IllegalFilterExpression, match="control character"):
        parse(expression)


def test_the_longest_expression() -> None:
    assert parse("x" * 16_384).tags == ("x" * 16_384,)
    with pytest.raises(IllegalFilterExpression, match="16385 characters, at most 16384"):
        parse("x" * 16_385)


@pytest.mark.row("M5")
def test_tags_that_share_a_hash_are_told_apart() -> None:
    wanted = parse("Aa")
    assert wanted.hashes == (tag_hash("BB"),)
    assert "BB" not in wanted.tags
