"""SQL filter expressions: what they say of a message."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from popserver.filters import SqlFilter
from popserver.filters.sql import parse

INT32_EDGE, INT64_EDGE = 2**31, 2**63


@pytest.fixture(autouse=True)
def parsed_anew() -> None:
    """Each test parses its expressions, so `make mutations` knows which tests need a line of the parser."""
    parse.results.clear()


def matches(expression: str, tag: str | None = None, /, **properties: str) -> bool:
    return parse(expression).matches(tag, properties)


@pytest.mark.row("M7")
def test_the_tag_is_the_property_tags() -> None:
    expression = "TAGS IN ('A','B') AND a > 3"
    assert matches(expression, "A", a="4")
    assert not matches(expression, "C", a="4")
    assert not matches(expression, "A", a="3")
    assert not matches(expression, None, a="4")
    assert matches("TAGS IS NULL", None, a="4")
    assert matches("TAGS = '''tag'''", "'tag'")
    assert not matches("tags = 'A'", "A"), "names are case-sensitive"
    assert not parse("TAGS = 'A'").matches(None, {"TAGS": "A"}), "no property stands in for the tag"


@pytest.mark.row("M8")
@pytest.mark.row("M9")
def test_present_or_absent() -> None:
    assert matches("a IS NULL", b="1")
    assert not matches("a IS NULL", a="")
    assert matches("a IS NOT NULL", a="")
    assert not matches("a is not null")
    assert matches("(a = 1) IS NULL")
    assert not matches("(a = 1) IS NULL", a="2")
    assert matches("a = 1 IS NOT NULL", a="2"), "one after the other, from the left"
    assert matches("NULL IS NULL")
    assert not matches("1 IS NULL")


@pytest.mark.row("M10")
@pytest.mark.parametrize(
    ("expression", "below", "at", "above"),
    [
        ("a > 99", False, False, True),
        ("a >= 99", False, True, True),
        ("a < 99", True, False, False),
        ("a <= 99", True, True, False),
        ("99 < a", False, False, True),
        ("99 <= a", False, True, True),
        ("99 > a", True, False, False),
        ("99 >= a", True, True, False),
        ("a > 99.0", False, False, True),
        ("99.0 <= a", False, True, True),
        ("a = 99", False, True, False),
        ("a <> 99", True, False, True),
        ("99 = a", False, True, False),
        ("a > b", False, False, True),
        ("a >= +b", False, True, True),
    ],
)
def test_numbers_in_order(expression: str, below: bool, at: bool, above: bool) -> None:
    assert [matches(expression, a=value, b="99") for value in ("98", "99", "100")] == [below, at, above]
    assert matches(expression, b="99") is False, "a missing one is in no order"


@pytest.mark.row("M11")
@pytest.mark.row("M12")
def test_between() -> None:
    values = ["1", "2", "5", "10", "11"]
    assert [matches("a BETWEEN 2 AND 10", a=value) for value in values] == [False, True, True, True, False]
    assert [matches("a NOT BETWEEN 2 AND 10", a=value) for value in values] == [True, False, False, False, True]
    assert matches("a BETWEEN -5 AND -5.0E-1", a="-5")
    assert not matches("a BETWEEN -5 AND -5.0E-1", a="-1.5"), "beside -5 it is read as an integer"
    assert matches("a BETWEEN -5 AND b", a="-5", b="-4")
    assert matches("5 BETWEEN a AND b", a="5", b="6")
    assert matches("a NOT BETWEEN 10 AND 5", a="7"), "reversed, it says what it says"
    assert not matches("a BETWEEN 2 AND 10")
    assert not matches("a NOT BETWEEN 2 AND 10")


@pytest.mark.row("M13")
def test_in() -> None:
    assert matches("a IN ('x', 'it''s')", a="it's")
    assert not matches("a IN ('x')", a="X")
    assert matches("a NOT IN ('x', 'y')", a="z")
    assert not matches("a NOT IN ('x', 'y')", a="y")
    assert not matches("a IN ('x')")
    assert not matches("a NOT IN ('x')"), "unknown, when missing"
    assert matches("(a NOT IN ('x')) IS NULL")
    assert matches("(a IN ('x')) IS NULL")
    assert matches("a IN ('')", a="")


@pytest.mark.row("M14")
@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a = 'hello'", {"a": "hello"}, True),
        ("a = 'hello'", {"a": "Hello"}, False),
        ("'hello' = a", {"a": "hello"}, True),
        ("a <> 'hello'", {"a": "Hello"}, True),
        ("a = 5", {"a": "5"}, True),
        ("a = 5", {"a": "+05"}, True),
        ("a = -5", {"a": "-5"}, True),
        ("a = - -5", {"a": "5"}, True),
        ("a = +5", {"a": "5"}, True),
        ("a = 5.0", {"a": "5"}, True),
        ("a = 0.5", {"a": " .5 "}, True),
        ("a = 5E1", {"a": "50d"}, True),
        ("a = TRUE", {"a": "tRuE"}, True),
        ("a = TRUE", {"a": "yes"}, False),
        ("a = FALSE", {"a": "yes"}, True),
        ("a = b", {"a": "3.14", "b": "3.14"}, True),
        ("a = b", {"a": "3.14", "b": "3.140"}, False),
        ("a <> b", {"a": "3.14", "b": "3.141"}, True),
        ("a = b", {}, True),
        ("a = b", {"b": "1"}, False),
        ("1 = 1.0", {}, True),
        ("1 = '1'", {}, True),
        ("'true' = TRUE", {}, True),
        ("1 = TRUE", {}, False),
        ("TRUE = TRUE", {}, True),
        ("(a = 1) = (b = 2)", {"a": "1", "b": "2"}, True),
        ("(a = 1) = 5", {"a": "1"}, False),
        ("9007199254740993 = 9007199254740992.0", {}, True),  # as floats
        ("9007199254740993 = 9007199254740992", {}, False),
        ("0 = 1.0", {}, False),
        ("1.0 = 0", {}, False),
        ("1.5 = '1.5'", {}, True),
        ("'1.5' = 1.5", {}, True),
        ("1 <> '3000000000'", {}, False),  # incomparable: the literal has 32 bits
        ("'3000000000' <> 1", {}, False),
        ("(a = 1) <> 'x'", {"a": "1"}, False),  # incomparable too
        ("'(' = a", {"a": "("}, True),
    ],
)
def test_equality(expression: str, properties: dict[str, str], expected: bool) -> None:
    assert matches(expression, **properties) is expected


@pytest.mark.row("M14")
def test_a_missing_left_side_is_unknown_and_a_missing_right_side_is_not_equal() -> None:
    assert not matches("a = 1")
    assert not matches("a <> 1")
    assert matches("(a <> 1) IS NULL")
    assert matches("(a = 'x') IS NULL")
    assert not matches("1 = a")
    assert matches("1 <> a")
    assert matches("'x' <> a")
    assert matches("b <> a", b="x")
    assert matches("TRUE <> a")


@pytest.mark.row("M15")
@pytest.mark.parametrize(
    ("properties", "expected"),
    [
        ({"a": "101"}, True),
        ({"a": "100"}, True),  # b is absent
        ({"a": "100", "b": "x"}, False),
        ({"a": "101", "b": "x"}, True),
        ({"b": "x"}, False),
        ({}, True),
    ],
)
def test_and_binds_tighter_than_or(properties: dict[str, str], expected: bool) -> None:
    assert matches("a IS NOT NULL AND (a > 100) OR (b IS NULL)", **properties) is expected
    assert matches("b IS NULL OR a IS NOT NULL AND a > 100", **properties) is expected


TRUTHS = {"TRUE": True, "FALSE": False, "NULL": None}


def conjunction(one: bool | None, other: bool | None) -> bool | None:
    if one is False or other is False:
        return False
    return None if one is None or other is None else True


def disjunction(one: bool | None, other: bool | None) -> bool | None:
    if one is True or other is True:
        return True
    return None if one is None or other is None else False


@pytest.mark.row("M15")
@pytest.mark.parametrize(("word", "table"), [("AND", conjunction), ("OR", disjunction)])
@pytest.mark.parametrize(("one", "other"), [*itertools.product(TRUTHS, TRUTHS)])
def test_three_values(word: str, table: Callable[..., bool | None], one: str, other: str) -> None:
    expected = table(TRUTHS[one], TRUTHS[other])
    assert verdict(f"{one} {word} {other}") is expected
    for third in TRUTHS:
        assert verdict(f"{one} {word} {other} {word} {third}") is table(expected, TRUTHS[third])


@pytest.mark.row("M15")
def test_not() -> None:
    assert [verdict(f"NOT {word}") for word in TRUTHS] == [False, True, None]
    assert matches("NOT (a = 1)", a="2")
    assert not matches("NOT (a = 1)")
    # The sign of a negation binds more than `=`: this compares a boolean with a number.
    assert not matches("NOT a = 1", a="1")
    assert not matches("NOT a = 1", a="2")
    assert matches("NOT a <> 1", a="1")


def verdict(condition: str) -> bool | None:
    """True, False or None for unknown, by what can be seen from outside."""
    if matches(f"({condition}) IS NULL"):
        return None
    return matches(condition)


@pytest.mark.row("M16")
@pytest.mark.parametrize(
    ("expression", "properties", "expected"),
    [
        ("a CONTAINS 'bc'", {"a": "abcd"}, True),
        ("a CONTAINS 'BC'", {"a": "abcd"}, False),
        ("a NOT CONTAINS 'x'", {"a": "abcd"}, True),
        ("a NOT CONTAINS 'bc'", {"a": "abcd"}, False),
        ("a STARTSWITH 'ab'", {"a": "abcd"}, True),
        ("a NOT STARTSWITH 'ab'", {"a": "abcd"}, False),
        ("a ENDSWITH 'cd'", {"a": "abcd"}, True),
        ("a NOT ENDSWITH 'ab'", {"a": "abcd"}, True),
        ("'abc' CONTAINS 'b'", {}, True),
        ("a CONTAINS ''", {"a": "abcd"}, False),
        ("a NOT CONTAINS ''", {"a": "abcd"}, False),
        ("a CONTAINS 'x'", {}, False),
        ("a NOT CONTAINS 'x'", {}, False),
        ("NOT (a NOT CONTAINS 'x')", {}, True),
        ("(a NOT STARTSWITH 'x') IS NULL", {}, False),
        ("5 CONTAINS '5'", {}, False),
        ("(a = 1) NOT CONTAINS 'x'", {"a": "1"}, False),
        ("a", {"a": "true"}, False),
        ("NOT a", {"a": "true"}, True),
        ("NOT a", {}, False),
        ("a AND b", {"a": "true", "b": "true"}, False),
        ("TRUE", {}, True),
        ("FALSE", {}, False),
        ("NULL", {}, False),
        ("-a IS NULL", {"a": "5"}, True),
        ("a = -b", {"a": "5", "b": "-5"}, False),
        ("a > -'x' IS NULL", {"a": "5"}, True),
        ("TRUE = a", {"a": "true"}, False),
    ],
)
def test_the_rest_of_the_grammar(expression: str, properties: dict[str, str], expected: bool) -> None:
    assert matches(expression, **properties) is expected


@pytest.mark.row("M16")
@pytest.mark.parametrize(
    "expression",
    [
        "a=3",
        "A = 4 or a\t=\n3\r\f",
        "a=3--and the rest of the line AND b",
        "a -- first\n = -- then\r 3",
        "/* one */ a /**/ = /* two\n * lines **/ 3",
        "((a)) = (3)",
        "a = 3L",
        "a = 3l",
        "a = 3.",
        "a = 3.0e0",
        "a = 30E-1",
        "a = .3E+1",
        "a = 0003.0",
        "a In ('3') aNd a BETWEEN 3 And 3",
        "_b IS NULL AND $c IS NULL AND d_$9 IS NULL AND Null IS NULL",
        "isnull IS NULL AND nota IS NULL AND android IS NULL",
    ],
)
def test_spelling(expression: str) -> None:
    assert matches(expression, a="3")


@pytest.mark.row("M16")
@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a=3 and b<>4 And c>5 AND d<=4", True),
        ("a=3  and    b<>4 And c>5 AND d<=4", True),
        ("a=4 or b<>5 Or c>5 OR d<=4", True),
        ("a=4 or b<>5 Or c>6 OR d<=3", False),
        ("a in ('3', '4', '5')", True),
        ("(a not in ('6', '4', '5')) or (b in ('3', '4'))", True),
        ("(a between 2 and 10) AND (b not between 6 and 9)", True),
        ("e between 2 and 10", False),
        ("a <= now", False),  # not a function: a property, and missing
        ("f > 3.1E10", True),
        ("g > 3.14", True),
        ("a between up and low", False),
        ("h between 0 and 100", False),
        ("h is not null and h='hello'", True),
        ("h=TRUE OR b=FALSE", True),
        ("z is null OR z='hello'", True),
    ],
)
def test_cases_that_every_server_of_the_field_decides_alike(expression: str, expected: bool) -> None:
    properties = {"a": "3", "b": "5", "c": "6", "d": "4", "f": "3.1415E10", "g": "3.1415", "h": "hello"}
    assert matches(expression, **properties) is expected


@pytest.mark.parametrize(
    ("value", "beside_32_bits", "beside_64_bits", "beside_a_float"),
    [
        ("7", True, True, True),
        (str(INT32_EDGE - 1), True, True, True),
        (str(INT32_EDGE), False, True, True),
        (str(INT64_EDGE - 1), False, True, True),
        (str(INT64_EDGE), False, False, True),
        ("1" * 5_000, False, False, True),
        ("7.0", False, False, True),
        ("7e0", False, False, True),
        ("Infinity", False, False, True),
        ("NaN", False, False, False),
        ("inf", False, False, False),
        ("1_0", False, False, False),
        (" 7", False, False, True),
        ("0x7", False, False, False),
        ("", False, False, False),
        ("+", False, False, False),
        (".", False, False, False),
        ("seven", False, False, False),
    ],
)
def test_how_a_text_is_read_beside_a_number(
    value: str, beside_32_bits: bool, beside_64_bits: bool, beside_a_float: bool
) -> None:
    assert matches("a > -2147483647", a=value) is beside_32_bits
    assert matches("a > -2147483648", a=value) is beside_64_bits
    assert matches("a > -9223372036854775807", a=value) is beside_64_bits
    assert matches("a > -1.0", a=value) is beside_a_float
    assert matches("a > b", a=value, b="-1") is beside_a_float


@pytest.mark.parametrize(
    ("beside", "edge"), [("0", INT32_EDGE), ("2147483647", INT32_EDGE), ("2147483648", INT64_EDGE)]
)
def test_the_smallest_integer_of_a_size(beside: str, edge: int) -> None:
    assert matches(f"a < {beside}", a=str(-edge))
    assert not matches(f"a < {beside}", a=str(-edge - 1)), "it does not fit"
    assert not matches(f"a <> {beside}", a=str(-edge - 1)), "so it cannot be compared at all"
    assert not matches(f"a <> {beside}", a=str(edge))


def test_what_cannot_be_compared_spoils_the_whole_message() -> None:
    assert not matches("a > 5 OR b = 1", a="x", b="1")
    assert not matches("NOT (a > 5)", a="10.5")
    assert not matches("(a > 5) IS NULL", a="x")
    assert not matches("a <> 5", a="x")
    assert not matches("-(a > 5) = 1 OR b = 1", a="x", b="1")
    # What need not be looked at cannot fail.
    assert matches("b = 1 OR a > 5", a="x", b="1")
    assert not matches("b = 2 AND a > 5", a="x", b="1")


def test_what_docs_say_of_numbers_that_are_none_and_of_zeros() -> None:
    for expression in ("a > 1.5", "a <= 1.5", "NOT (a > 1.5)", "a <> 1.5", "a = b", "a < b", "a >= b"):
        assert not matches(expression, a="NaN", b="1"), expression
    assert matches("a = 'NaN' AND a IS NOT NULL", a="NaN"), "it is a text like others"
    for expression in ("a <= b", "a >= b", "NOT (a < b)", "NOT (a > b)"):
        assert matches(expression, a="0", b="-0.0"), expression
        assert matches(expression, a="-0.0", b="0"), expression
    assert matches("a = 5L", a="5")


def test_filters_of_the_same_text_are_one() -> None:
    parse.results.clear()
    one = parse("a > 3")
    assert parse("a > 3") is one, "read once"
    parse.results.clear()
    again = parse("a > 3")
    assert again is not one
    assert (again, hash(again)) == (one, hash(one))
    assert again != parse("a > 4")
    assert repr(one) == "SqlFilter(expression='a > 3')"
    assert one.names == {"a"}
    assert isinstance(one, SqlFilter)
    assert not one.wants_all
