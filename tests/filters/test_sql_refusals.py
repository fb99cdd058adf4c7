"""SQL filter expressions that are refused: where and why, and how long and how deep they may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from popserver.filters.sql import parse
from popserver.filters.tokens import FilterSyntaxError
from popserver.model.errors import IllegalFilterExpression


@pytest.fixture(autouse=True)
def parsed_anew() -> None:
    """Each test parses its expressions, so `make mutations` knows which tests need a line of the parser."""
    parse.results.clear()


def matches(expression: str, tag: str | None = None, /, **properties: str) -> bool:
    return parse(expression).matches(tag, properties)


@pytest.mark.row("M17")
@pytest.mark.parametrize(
    ("expression", "column", "sentence"),
    [
        ("", 1, "no condition in it"),
        (" -- x", 6, "no condition in it"),
        ("a > '100'", 5, "> cannot compare a string"),
        ("'100' <= a", 1, "<= cannot compare a string"),
        ("a < TRUE", 5, "cannot compare TRUE"),
        ("a >= NULL", 6, "cannot compare NULL"),
        ("a > (b = 1)", 6, "cannot compare a condition"),
        ("NOT a > 3", 1, r"write NOT \(a > 3\)"),
        ("a > 1 > 2", 1, "cannot compare a condition"),
        ("(a = 1 OR b = 2) > 3", 2, "cannot compare a condition"),
        ("(a = 1 AND b = 2) > 3", 2, "cannot compare a condition"),
        ("(a <> 1) > 3", 2, "cannot compare a condition"),
        ("a = NULL", 5, "write IS NULL"),
        ("NULL <> a", 1, "write IS NULL"),
        ("TRUE = 'x'", 8, "TRUE is compared with a string"),
        ("FALSE <> -5", 10, "FALSE is compared with the number -5"),
        ("a BETWEEN 10 AND 5", 11, "nothing is between 10 and 5"),
        ("a BETWEEN -5 AND -10", 11, "nothing is between -5 and -10"),
        ("a BETWEEN 2 AND 1.5", 11, "nothing is between 2 and 1.5"),
        ("a BETWEEN NULL AND 5", 11, "cannot compare NULL"),
        ("a NOT BETWEEN 1 AND NULL", 21, "cannot compare NULL"),
        ("a BETWEEN 'a' AND 'b'", 11, "cannot compare a string"),
        ("a IN (1)", 7, "found the integer 1, expected a string"),
        ("a IN (1.5)", 7, "found the float 1.5, expected a string"),
        ("-a IN ('x')", 1, "on its left, not a negative value"),
        ("> 3", 1, "found the symbol >, expected a property"),
        ("a " + "b" * 33, 3, f"found the name {'b' * 32}, expected AND"),
        ("a IN ()", 7, r"found the symbol \), expected a string"),
        ("a IN ('x' 'y')", 11, r"found a string, expected \)"),
        ("'x' IN ('x')", 1, "IN needs a property's name on its left, not a string"),
        ("(a = 1) NOT IN ('x')", 2, "IN needs a property's name on its left, not a condition"),
        ("a CONTAINS b", 12, "found the name b, expected a string"),
        ("a > 0.0", 5, "too small, at least 4.9E-324"),
        ("a > 1E-400", 5, "too small"),
        ("a > 1E309", 5, "too large, at most 1.79"),
        ("a > 9223372036854775808", 5, "too large, at most 9223372036854775807"),
        ("a > " + "1" * 5_000, 5, "too large"),
        ("a = 01", 5, "no leading zero"),
        ("5", 1, "the number 5 is not a condition"),
        ("'x'", 1, "a string is not a condition"),
        ("-a", 1, "is not a condition"),
        ("a AND 'x'", 7, "a string is not a condition"),
        ("NOT 5", 5, "the number 5 is not a condition"),
        ("a LIKE 'x%'", 3, "use CONTAINS"),
        ("a + 1 > 3", 3, "no arithmetic"),
        ("a - 1 > 3", 3, "no arithmetic"),
        ("a * 2 > 3", 3, "no arithmetic"),
        ("a / 2 > 3", 3, "no arithmetic"),
        ("a == 3", 3, "equality is written ="),
        ("a != 3", 3, "inequality is written <>"),
        ('a = "x"', 5, "single quotes"),
        ("a.b = 1", 2, "only letters, digits, _ and"),
        ("a = 'x", 5, "not closed"),
        ("a = 'x''", 5, "not closed"),
        ("/* a", 1, "not closed"),
        ("a = 1 AND", 10, "it ends here, but a property"),
        ("a and between 2 and 10", 7, "found the keyword BETWEEN, expected a property"),
        ("a = 1 b", 7, "found the name b, expected AND, OR or the end"),
        ("a = 1)", 6, r"found the symbol \), expected"),
        ("(a = 1", 7, r"it ends here, but \) is expected"),
        ("in = 3", 1, "found the keyword IN"),
        ("a NOT 3", 3, "after NOT, expected BETWEEN"),
        ("a IS 3", 6, "found the integer 3, expected NULL"),
        ("now() > 3", 4, r"found the symbol \(, expected"),
        ("a = 1;", 6, "';' is not allowed here"),
        ("订单 = 1", 1, "is not allowed here"),
        ("a\u00a0= 1", 2, "is not allowed here"),
        ("a = \x00", 5, r"'\\x00' is not allowed here"),
    ],
)
def test_illegal_expressions(expression: str, column: int, sentence: str) -> None:
    with pytest.raises(IllegalFilterExpression, match=rf"at line 1, column {column}, .*{sentence}"):
        parse(expression)


def test_the_place_of_an_error() -> None:
    with pytest.raises(IllegalFilterExpression, match=r"line 3, column 2, at the \^ in «a > 1\s+AND b >\s+\^'x'»: "):
        parse("a > 1\nAND b >\n 'x'")
    with pytest.raises(IllegalFilterExpression, match=r"line 2, column 5, at the \^ in « a > \^'x' AND b > 1»: "):
        parse("\na > 'x'\nAND b > 1")
    with pytest.raises(IllegalFilterExpression, match=r"column 100, at the \^ in «…R( a=1 OR){3}  \^;( OR a=2){3} O…»"):
        parse("a=1 OR " * 14 + " ; OR " + " OR ".join(["a=2"] * 20))


def test_a_syntax_error_says_its_sentence_also_in_a_traceback() -> None:
    error = FilterSyntaxError(5, "this string is not closed")
    assert (str(error), error.at) == ("this string is not closed", 5)


def test_limits() -> None:
    assert parse("a = '" + "x" * 16_378 + "'").matches(None, {"a": "x" * 16_378})
    with pytest.raises(IllegalFilterExpression, match="16385 characters, at most 16384"):
        parse("a = '" + "x" * 16_379 + "'")
    alternatives = ["a = 1"] * 341  # three each, and the OR
    assert matches(" OR ".join(alternatives), a="1")
    with pytest.raises(IllegalFilterExpression, match="operand or operator 1025, at most 1024"):
        parse(" OR ".join([*alternatives, "a = 1"]))
    assert matches("a IN (" + ",".join(f"'{each}'" for each in range(2_000)) + ")", a="1999")


@pytest.mark.parametrize(
    ("build", "deepest"),
    [
        (lambda depth: "(" * depth + "a = 1" + ")" * depth, 64),
        (lambda depth: "NOT " * depth + "(a = 2)", 62),
        (lambda depth: "+" * depth + "1 = a", 64),
        (lambda depth: "a" + " = 1" * depth, 63),
        (lambda depth: "(b = 2 OR b = 3 AND b = " * depth + "a" + ")" * depth, 21),
        (lambda depth: "a IS NULL" + " IS NULL" * depth, 62),
        (lambda depth: "- " * depth + "a = 1", 62),
        (lambda depth: "- " * depth + "a > 1", 62),
        (lambda depth: "1 > " + "- " * depth + "a", 62),
        (lambda depth: "- " * depth + "a IS NOT NULL", 62),
        (lambda depth: "- " * depth + "a CONTAINS 'x'", 62),
        (lambda depth: "NOT " * depth + "(a IN ('x'))", 62),
        (lambda depth: "NOT " * depth + "(a NOT IN ('x'))", 62),
    ],
)
def test_nesting_ends_before_the_stack_does(build: Callable[[int], str], deepest: int) -> None:
    assert frames_deep(400, lambda: isinstance(matches(build(deepest), a="1"), bool))
    for beyond in (build(deepest + 1), build(300)):
        with pytest.raises(IllegalFilterExpression, match=r"nested \d+ levels deep here, at most 64 are allowed"):
            parse(beyond)


@pytest.mark.parametrize(
    "nested", [lambda depth: "(" * depth + "a = 1" + ")" * depth, lambda depth: "+" * depth + "a = 1"]
)
def test_what_stands_beside_something_is_not_nested_in_it(nested: Callable[[int], str]) -> None:
    def inside(*depths: int) -> str:
        return "(" * 62 + " AND ".join(map(nested, depths)) + ")" * 62

    assert matches(inside(*[2] * 100), a="1")
    with pytest.raises(IllegalFilterExpression, match="nested 65 levels deep here"):
        parse(inside(1, 3))


def frames_deep(count: int, done: Callable[[], bool]) -> bool:
    return done() if count == 0 else frames_deep(count - 1, done)


@pytest.mark.parametrize(
    "expression",
    [
        "a BETWEEN 5 AND -3",
        "TRUE = -3",
        "FALSE <> 3",
        "a = 1 XOR b = 2",
        "a = 0x1F",
        "a = 0X1f",
        "a = 0b1",
        "a = 017",
        "a = -017",
        "a = 5.0f",
        "a = 5.5D",
        "a = 1_000",
    ],
)
def test_what_docs_say_is_refused_is_refused(expression: str) -> None:
    """Differences from RocketMQ that are decided: docs/filters.md has them in a table."""
    with pytest.raises(IllegalFilterExpression, match="line 1, column"):
        parse(expression)
