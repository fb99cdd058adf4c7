"""SQL filter expressions that nobody thought of, judged beside a second, plain reading of the rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from popserver.filters.sql import parse
from popserver.filters.tokens import KEYWORDS
from popserver.model.errors import IllegalFilterExpression

# An expression is a tuple: what it is, then its parts. A value is (type, value), a missing one None.
Expression = tuple[Any, ...]
TypedValue = tuple[str, Any] | None

NAMES = ["a", "b", "TAGS"]
TEXTS = ["", "1", "5", "-3", "10.5", "abc", "ab", "true", "FALSE", "3000000000", " 5", "1_0", "+7", "1e2", "it's"]

names = st.tuples(st.just("name"), st.sampled_from(NAMES))
integers = st.tuples(st.just("int"), st.sampled_from([0, 1, 3, 5, 2**31 - 1, 2**31, 3_000_000_000, 2**63 - 1]))
floats = st.tuples(st.just("float"), st.sampled_from([0.5, 5.0, 10.5, 1e300]))
texts = st.tuples(st.just("text"), st.sampled_from(TEXTS))
booleans = st.tuples(st.just("bool"), st.booleans())
nulls = st.just(("null",))
numbers = st.one_of(integers, floats, st.tuples(st.just("minus"), integers | floats))


def comparisons(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """Conditions over `inner`, none of which a static rule refuses."""
    orderable = names | numbers | st.tuples(st.just("minus"), names)
    equatable = names | numbers | texts | inner
    searched = names | texts | inner
    signs = st.sampled_from(["<", "<=", ">", ">="])
    verbs = st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"])
    lists = st.lists(st.sampled_from(TEXTS), min_size=1, max_size=7)
    return st.one_of(
        st.tuples(st.just("order"), signs, orderable, orderable),
        st.tuples(st.just("between"), st.booleans(), orderable, names | numbers, names | numbers).filter(has_room),
        st.tuples(st.just("equal"), st.sampled_from(["=", "<>"]), equatable, equatable | booleans).filter(may_be_equal),
        st.tuples(st.just("is null"), st.booleans(), equatable | nulls | booleans),
        st.tuples(st.just("in"), st.booleans(), names, lists),
        st.tuples(st.just("search"), st.booleans(), verbs, searched, st.sampled_from(TEXTS)),
        st.tuples(st.just("not"), inner | names),
        st.tuples(st.sampled_from(["and", "or"]), inner | names | booleans | nulls, inner | names | booleans),
    )


def has_room(between: Expression) -> bool:
    _, _, _, low, high = between
    return low[0] == "name" or high[0] == "name" or number(low)[1] <= number(high)[1]


def may_be_equal(equation: Expression) -> bool:
    _, _, left, right = equation
    return left[0] != "bool" or right[0] not in ("int", "float", "text", "minus")


conditions = st.recursive(st.one_of(names, booleans, comparisons(names)), comparisons, max_leaves=12)
messages = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS))


@given(conditions, messages)
def test_an_expression_means_what_its_tree_means(tree: Expression, properties: dict[str, str]) -> None:
    tag, others = properties.get("TAGS"), {name: text for name, text in properties.items() if name != "TAGS"}
    assert parse(written(tree)).matches(tag, others) is expected(tree, properties), written(tree)


@given(conditions, messages, st.data())
def test_blanks_comments_and_cases_mean_nothing(
    tree: Expression, properties: dict[str, str], data: st.DataObject
) -> None:
    plain = written(tree)
    blanks = iter(lambda: data.draw(st.sampled_from([" ", "\n\t", "/* ' */ ", " -- '\n", "  "])), None)
    dressed = "".join(
        next(blanks) if part == " " else part.lower() if part in KEYWORDS else part
        for part in re.findall(r"'(?:[^']|'')*'| |\w+|.", plain, re.DOTALL)
    )
    assert parse(dressed).matches(None, properties) is parse(plain).matches(None, properties)


words = st.sampled_from(
    "a TAGS NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH LIKE 1 0 5L 1.5 .5 1E5 1E999 0.0 007 'x' '' ' "
    '( ) ( ) , = <> < <= > >= == != + - * / -- /* */ ; " \\ \n é \x00'.split(" ")
)


@given(st.one_of(st.text(), st.lists(words, max_size=30).map(" ".join), st.lists(words, max_size=30).map("".join)))
@example("'" * 16_384)
@example("(" * 16_384)
@example("-" * 8_001 + " a")
@example("- " * 8_000 + "a")
@example("NOT " * 4_000 + "a")
@example("1" * 16_384)
@example("1." * 8_000)
@example("/*" * 8_000)
@example("a IN (" + "'x'," * 4_000)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        wanted = parse(text)
    except IllegalFilterExpression as refusal:
        assert "illegal at line" in refusal.sentence
        assert len(refusal.sentence) < 400
    else:
        assert wanted.matches("A", {"a": "1"}) in (True, False)


@given(st.text(), st.text(), conditions)
def test_any_message_is_judged(tag: str, value: str, tree: Expression) -> None:
    assert parse(written(tree)).matches(tag, {"a": value, "b": value[:1]}) in (True, False)


# ---- Writing a tree, with no more brackets than it takes ----

OR, AND, EQUALITY, COMPARISON, SIGN, PRIMARY = range(1, 7)


def written(tree: Expression, binding: int = OR) -> str:
    own, text = WRITERS[tree[0]](*tree[1:])
    return text if own >= binding else f"({text})"


def write_literal(value: Any) -> tuple[int, str]:
    return PRIMARY, str(value).upper()


def write_text(value: str) -> tuple[int, str]:
    return PRIMARY, "'" + value.replace("'", "''") + "'"


def write_order(sign: str, left: Expression, right: Expression) -> tuple[int, str]:
    return COMPARISON, f"{written(left, COMPARISON)} {sign} {written(right, SIGN)}"


def write_between(wanted: bool, operand: Expression, low: Expression, high: Expression) -> tuple[int, str]:
    word = "BETWEEN" if wanted else "NOT BETWEEN"
    return COMPARISON, f"{written(operand, COMPARISON)} {word} {written(low, SIGN)} AND {written(high, SIGN)}"


def write_equal(sign: str, left: Expression, right: Expression) -> tuple[int, str]:
    return EQUALITY, f"{written(left, EQUALITY)} {sign} {written(right, COMPARISON)}"


def write_in(wanted: bool, operand: Expression, among: list[str]) -> tuple[int, str]:
    listed = " , ".join(write_text(each)[1] for each in among)
    return COMPARISON, f"{written(operand, COMPARISON)} {'IN' if wanted else 'NOT IN'} ( {listed} )"


def write_search(wanted: bool, verb: str, operand: Expression, text: str) -> tuple[int, str]:
    word = verb if wanted else f"NOT {verb}"
    return COMPARISON, f"{written(operand, COMPARISON)} {word} {write_text(text)[1]}"


WRITERS: Mapping[str, Any] = {
    "name": lambda name: (PRIMARY, name),
    "int": write_literal,
    "float": write_literal,
    "bool": write_literal,
    "null": lambda: (PRIMARY, "NULL"),
    "text": write_text,
    "minus": lambda operand: (SIGN, f"- {written(operand, SIGN)}"),
    "not": lambda operand: (SIGN, f"NOT {written(operand, SIGN)}"),
    "order": write_order,
    "between": write_between,
    "equal": write_equal,
    "is null": lambda wanted, of: (EQUALITY, f"{written(of, EQUALITY)} IS {'' if wanted else 'NOT '}NULL"),
    "in": write_in,
    "search": write_search,
    "and": lambda one, other: (AND, f"{written(one, AND)} AND {written(other, EQUALITY)}"),
    "or": lambda one, other: (OR, f"{written(one, OR)} OR {written(other, AND)}"),
}


# ---- The second reading: every value carries its type, as in the field's own server ----


class Spoilt(Exception):
    """Something cannot be compared."""


def expected(tree: Expression, properties: Mapping[str, str]) -> bool:
    try:
        return truth(tree, properties) is True
    except Spoilt:
        return False


def truth(tree: Expression, properties: Mapping[str, str]) -> bool | None:
    """A condition's verdict; a lone property is false, or unknown when missing."""
    found = value(tree, properties)
    if found is None:
        return None
    return found == ("bool", True)


def number(tree: Expression) -> tuple[str, int | float]:
    if tree[0] == "minus":
        kind, positive = number(tree[1])
        return kind, -positive
    if tree[0] == "float":
        return "double", tree[1]
    return "int" if tree[1] < 2**31 else "long", tree[1]


def value(tree: Expression, properties: Mapping[str, str]) -> TypedValue:
    match tree:
        case ("name", name):
            return ("text", properties[name]) if name in properties else None
        case ("int" | "float", _) | ("minus", ("int" | "float", _)):
            return number(tree)
        case ("text", text):
            return "text", text
        case ("bool", known):
            return "bool", known
        case ("null",) | ("minus", ("name", _)):
            return None
        case ("not", operand):
            verdict = truth(operand, properties)
            return None if verdict is None else ("bool", not verdict)
        case ("and", one, other):
            return both(one, other, properties, decisive=False)
        case ("or", one, other):
            return both(one, other, properties, decisive=True)
        case ("is null", wanted, operand):
            return "bool", (value(operand, properties) is None) is wanted
        case ("in", wanted, operand, among):
            found = value(operand, properties)
            return None if found is None else ("bool", (found[1] in among) is wanted)
        case ("search", wanted, verb, operand, text):
            return "bool", search(value(operand, properties), wanted, verb, text)
        case ("between", True, operand, low, high):
            return both(("order", ">=", operand, low), ("order", "<=", operand, high), properties, decisive=False)
        case ("between", False, operand, low, high):
            return both(("order", "<", operand, low), ("order", ">", operand, high), properties, decisive=True)
        case ("order", sign, left, right):
            return order(sign, value(left, properties), value(right, properties))
        case ("equal", sign, left, right):
            same = equal(value(left, properties), value(right, properties))
            return None if same is None else ("bool", same is (sign == "="))
    raise AssertionError(tree)


def both(one: Expression, other: Expression, properties: Mapping[str, str], *, decisive: bool) -> TypedValue:
    verdicts = []
    for operand in (one, other):
        verdicts.append(truth(operand, properties))
        if verdicts[-1] is decisive:
            return "bool", decisive
    return None if None in verdicts else ("bool", not decisive)


def search(found: TypedValue, wanted: bool, verb: str, text: str) -> bool:
    if found is None or found[0] != "text" or not text:
        return False
    whole = found[1]
    there = {"CONTAINS": text in whole, "STARTSWITH": whole[: len(text)] == text, "ENDSWITH": whole.endswith(text)}
    return there[verb] is wanted


def order(sign: str, left: TypedValue, right: TypedValue) -> TypedValue:
    if left is None or right is None:
        return None
    if left[0] == right[0] == "text":
        one, other = converted(left[1], "double"), converted(right[1], "double")
    else:
        one, other = alike(left, right)
    return "bool", {"<": one < other, "<=": one <= other, ">": one > other, ">=": one >= other}[sign]


def equal(left: TypedValue, right: TypedValue) -> bool | None:
    if left is None:
        return True if right is None else None
    if right is None:
        return False
    if left[0] == right[0]:
        return bool(left[1] == right[1])
    if left[0] == "bool" and right[0] == "text":
        raise Spoilt
    if "bool" in (left[0], right[0]) and left[0] != "text":
        return False
    one, other = alike(left, right)
    return bool(one == other)


def alike(left: tuple[str, Any], right: tuple[str, Any]) -> tuple[Any, Any]:
    if left[0] == "text":
        return converted(left[1], right[0]), right[1]
    if right[0] == "text":
        return left[1], converted(right[1], left[0])
    if "double" in (left[0], right[0]):
        return float(left[1]), float(right[1])
    return left[1], right[1]


def converted(text: str, kind: str) -> Any:
    if kind == "bool":
        return text.upper() == "TRUE"
    if kind == "double":
        if "_" in text:
            raise Spoilt
        try:
            return float(text)
        except ValueError:
            raise Spoilt from None
    if not re.fullmatch("[-+]?[0-9]+", text):
        raise Spoilt
    bits = 31 if kind == "int" else 63
    if not -(2**bits) <= int(text) < 2**bits:
        raise Spoilt
    return int(text)
