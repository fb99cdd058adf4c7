"""Tag expressions and the hash beside every tag."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.filters import TagFilter, tag_hash
from popserver.filters.tags import _HASHES, _hash, parse, size_of
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
        ("\ud83d", 55_357),  # half of it, which Java allows
    ],
)
def test_the_hash_of_a_tag(tag: str | None, expected: int) -> None:
    assert tag_hash(tag) == expected


@given(st.text())
def test_every_hash_fits_32_signed_bits(tag: str) -> None:
    assert -(2**31) <= tag_hash(tag) < 2**31


def test_the_hash_of_a_long_tag_is_not_remembered() -> None:
    _hash.cache_clear()
    for length, remembered in ((128, 1), (129, 1), (127, 2)):
        expected = 65 * sum(31**power for power in range(length)) % 2**32
        assert tag_hash("A" * length) % 2**32 == expected
        assert _hash.cache_info().currsize == remembered


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


@pytest.mark.parametrize("expression", ["a|b", "c || a | b", "a ||| b", "|"])
def test_a_tag_has_no_separator_of_one_character(expression: str) -> None:
    """Such a filter would pass over all messages."""
    with pytest.raises(IllegalFilterExpression, match=r"has a '\|', which no tag has; separate tags by '\|\|'"):
        parse(expression)


@pytest.mark.parametrize("expression", ["UA && DL", "A || B && C"])
def test_no_message_has_two_tags(expression: str) -> None:
    with pytest.raises(IllegalFilterExpression, match="asks for two tags at once, and a message has one"):
        parse(expression)
    assert parse("R&&D || a & b").tags == ("R&&D", "a & b")


def test_the_longest_expression() -> None:
    assert parse("x" * 16_384).tags == ("x" * 16_384,)
    with pytest.raises(IllegalFilterExpression, match="16385 characters, at most 16384"):
        parse("x" * 16_385)


@pytest.mark.row("M5")
def test_tags_that_share_a_hash_are_told_apart() -> None:
    wanted = parse("Aa")
    assert wanted.hashes == (tag_hash("BB"),)
    assert "BB" not in wanted.tags


def test_hashes_are_remembered_and_count_as_much_memory_as_their_tags() -> None:
    _HASHES.clear()
    wanted = TagFilter(("A", "B"))
    known = wanted.hashes
    assert wanted.hashes is known
    assert _HASHES.size == 400 + 2 * (sys.getsizeof("A") + sys.getsizeof("B"))


def test_the_memory_that_a_filter_is_said_to_need() -> None:
    assert TagFilter().memory == size_of("") == 400
    assert TagFilter(("A", "BC")).memory == 400 + sys.getsizeof("A") + sys.getsizeof("BC")
    assert size_of("A || BC") == 400 + 7 * 64
