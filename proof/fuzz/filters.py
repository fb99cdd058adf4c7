"""SQL filters: a filter means what its tree means, and any text is read or refused with its place."""

from __future__ import annotations

import json
import random
import re
from typing import Any

from popserver.filters import sql
from popserver.model.errors import IllegalFilterExpression
from proof.fuzz.filter_rules import Tree, matches, written
from proof.fuzz.target import FuzzTarget, a_number, a_text, must

_NAMES = ("a", "b", "$c", "TAGS")
_TEXTS = ("", "1", "5", "-3", "+7", "10.5", "1e2", " 5", "5 ", "1_0", "0x1F", "NaN", "Infinity", "-0.0", "0", "1d",
          "5L", "true", "FALSE", "abc", "ab", "b", "it's", "%", "_", "2147483647", "2147483648", "-2147483648",
          "9223372036854775807", "9223372036854775808", "3000000000", "9" * 400)  # fmt: skip
_FLOATS = (0.5, 5.0, 10.5, 1e300, 1.7976931348623157e308, 5e-324)
_WORDS = ("a b TAGS NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH LIKE XOR 1 5 007 5L 1.5 .5"
          " 1E5 1E999 0x1F 'x' '' ' ( ) ( ) , = <> < <= > >= == != + - * / -- /* */ ; \" é").split(" ")  # fmt: skip
_SENTENCE_MAX = 400
_OPENING = re.compile(r"(?:NOT |- |\()*")  # each of these nests what follows
_OPENERS = re.compile(r"NOT |- |\(")
_DEPTH_MAX = 64  # docs/filters.md


class FiltersTarget(FuzzTarget):
    """Input: JSON of [tree, properties], or the text of a filter."""

    name = "filters"

    def draw(self, dice: random.Random) -> bytes:
        if dice.random() < 0.8:
            return json.dumps([_a_condition(dice, dice.randrange(5)), _a_message(dice)]).encode()
        if dice.random() < 0.1:
            depth = dice.choice((1, 30, 60, 66, 100, 3_000))
            return dice.choice(
                (b"NOT " * depth + b"a", b"(" * depth + b"a = 1" + b")" * depth, b"- " * depth + b"a = 1")
            )
        return dice.choice(("", " ")).join(dice.choice(_WORDS) for _ in range(dice.randrange(30))).encode()

    def judge(self, data: bytes) -> int:
        case = _case_of(data)
        if case is None:
            _judge_text(data.decode(errors="replace"))
            return 0
        tree, properties = case
        text = written(tree)
        wanted = sql.parse(text)
        tag, others = properties.get("TAGS"), {name: each for name, each in properties.items() if name != "TAGS"}
        expected = matches(tree, properties)
        must(wanted.matches(tag, others) is expected, f"{text} is not {expected} for {properties}")
        must((wanted.keys_of([(7, tag, others)]) == [7]) is expected, f"{text}: many messages are judged differently")
        return 1


def _judge_text(text: str) -> None:
    try:
        wanted = sql.parse(text)
    except IllegalFilterExpression as refusal:
        must(len(refusal.sentence) <= _SENTENCE_MAX, f"the refusal has {len(refusal.sentence)} characters")
        return
    nested = len(_OPENERS.findall(_OPENING.match(text)[0]))  # type: ignore[index]
    must(nested <= _DEPTH_MAX, f"{nested} levels of nesting are accepted")
    for properties in ({}, {"a": "1", "b": "x"}, {"a": "9" * 5_000}):
        must(wanted.matches("A", properties) in (True, False), "neither matches nor does not")


def _case_of(data: bytes) -> tuple[Tree, dict[str, str]] | None:
    """The tree and the message; None for other bytes, and for damaged trees."""
    try:
        tree, properties = json.loads(data)
        if not all(type(each) is str for pair in properties.items() for each in pair) or not _is_condition(tree):
            return None
        written(tree).encode()
        return tree, properties
    except (ValueError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def _is_condition(tree: Any, depth: int = 0) -> bool:
    """Whether the grammar below can have drawn it; what a damage has made of it is not compared."""
    match tree:
        case ["not", operand]:
            return depth < 8 and _is_condition(operand, depth + 1)
        case ["and" | "or", one, *others]:
            return bool(others) and depth < 8 and all(_is_condition(each, depth + 1) for each in (one, *others))
        case ["=" | "<>", left, right]:
            if _is_name(left):
                return _is_operand(right) or _is_name(right)
            return _is_operand(left, only_numbers=True) and _is_name(right)
        case ["<" | "<=" | ">" | ">=", left, right]:
            return all(_is_name(each) or _is_operand(each, only_numbers=True) for each in (left, right))
        case ["between" | "not between", name, low, high]:
            limits = _is_operand(low, only_numbers=True) and _is_operand(high, only_numbers=True)
            return _is_name(name) and limits and bool(float(low[1]) <= float(high[1])) and low[1] <= high[1]
        case ["in" | "not in", name, [*texts]]:
            return _is_name(name) and bool(texts) and all(_is_plain(each) for each in texts)
        case ["search", bool(), "CONTAINS" | "STARTSWITH" | "ENDSWITH", name, text]:
            return _is_name(name) and _is_plain(text)
        case ["null", bool(), name]:
            return _is_name(name)
    return _is_name(tree)


def _is_name(tree: Any) -> bool:
    return isinstance(tree, list) and len(tree) == 2 and tree[0] == "name" and tree[1] in _NAMES


def _is_plain(text: Any) -> bool:
    return isinstance(text, str) and len(text) <= 500


def _is_operand(tree: Any, *, only_numbers: bool = False) -> bool:
    match tree:
        case ["int", int() as number]:
            return type(number) is int and abs(number) < 2**63
        case ["float", float() as number]:
            return abs(number) in _FLOATS
        case ["text", text]:
            return not only_numbers and _is_plain(text)
        case ["bool", bool()]:
            return not only_numbers
    return False


def _a_message(dice: random.Random) -> dict[str, str]:
    return {name: _a_value(dice) for name in _NAMES if dice.random() < 0.6}


def _a_value(dice: random.Random) -> str:
    match dice.randrange(10):
        case 0:
            return a_text(dice)
        case 1:
            return str(a_number(dice))
        case 2 | 3:
            return _a_part(dice)
    return dice.choice(_TEXTS)


def _a_part(dice: random.Random) -> str:
    """A text of few characters, so that one is often part of another one."""
    return "".join(dice.choice("ab'") for _ in range(dice.randrange(4)))


def _a_condition(dice: random.Random, depth: int) -> Tree:
    if depth and dice.random() < 0.7:
        word = dice.choice(("not", "and", "or"))
        return [word, *(_a_condition(dice, depth - 1) for _ in range(1 if word == "not" else dice.randrange(2, 4)))]
    name = ["name", dice.choice(_NAMES)]
    match dice.randrange(8):
        case 0 | 1:
            pair = [
                name,
                dice.choice(([*_a_number(dice)], ["text", _a_value(dice)], ["bool", dice.random() < 0.5], name)),
            ]
            return [dice.choice(("=", "<>")), *pair]
        case 2:
            return [dice.choice(("=", "<>", "<", "<=", ">", ">=")), _a_number(dice), name]
        case 3:
            other = dice.choice((_a_number(dice), ["name", dice.choice(_NAMES)]))
            return [dice.choice(("<", "<=", ">", ">=")), name, other]
        case 4:
            low, high = sorted((_a_number(dice), _a_number(dice)), key=lambda each: (float(each[1]), each[1]))
            return [dice.choice(("between", "not between")), name, low, high] if low[1] <= high[1] else name
        case 5:
            return [dice.choice(("in", "not in")), name, [_a_value(dice) for _ in range(dice.randrange(1, 5))]]
        case 6:
            verb = dice.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
            return [
                "search",
                dice.random() < 0.5,
                verb,
                name,
                dice.choice(("", "a", "b", "ab", "'", "%", _a_value(dice))),
            ]
    return ["null", dice.random() < 0.5, name] if dice.random() < 0.8 else name


def _a_number(dice: random.Random) -> Tree:
    if dice.random() < 0.3:
        return ["float", dice.choice(_FLOATS) * dice.choice((1, -1))]
    number = dice.choice((0, 1, 5, -3, 7, 10, a_number(dice)))
    return ["int", max(-(2**63) + 1, min(2**63 - 1, number))]
