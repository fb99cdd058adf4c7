"""What a SQL filter means, written from docs/filters.md alone; and how a tree is written as a filter.

A tree is a list: what it is, then its parts. Nothing here is of the server, so an error of one is not in the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Tree = list[Any]
_INTEGER = re.compile(r"[+-]?\d+")  # as in Java, digits of any script; a float has only those of ASCII
_FLOAT = re.compile(r" *([+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?|[+-]?Infinity)[dDfF]? *", re.ASCII)
_COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
}


class NotPossible(Exception):
    """A comparison is not possible, so the whole message does not match."""


def matches(tree: Tree, properties: Mapping[str, str]) -> bool:
    """Whether a message with these properties (TAGS is its tag) matches."""
    try:
        return truth(tree, properties) is True
    except NotPossible:
        return False


def truth(tree: Tree, properties: Mapping[str, str]) -> bool | None:
    """True, False, or None for unknown. Raises `NotPossible`."""
    match tree:
        case ["not", operand]:
            known = truth(operand, properties)
            return None if known is None else not known
        case ["and" | "or" as word, *operands]:
            return _joined(operands, properties, ends_at=word == "or")
        case ["=", left, right]:
            return _equal(left, right, properties)
        case ["<>", left, right]:
            same = _equal(left, right, properties)
            return None if same is None else not same
        case ["<" | "<=" | ">" | ">=" as sign, left, right]:
            return _ordered(sign, left, right, properties)
        case ["between", name, low, high]:
            return truth(["and", [">=", name, low], ["<=", name, high]], properties)
        case ["not between", name, low, high]:
            return truth(["or", ["<", name, low], [">", name, high]], properties)
        case ["in" | "not in" as word, ["name", name], texts]:
            return None if name not in properties else (properties[name] in texts) is (word == "in")
        case ["search", wanted, verb, ["name", name], text]:
            return name in properties and text != "" and _has(properties[name], verb, text) is wanted
        case ["null", wanted, ["name", name]]:
            return (name not in properties) is wanted
        case ["name", name]:
            return None if name not in properties else False
    raise ValueError(tree)


def _joined(operands: list[Tree], properties: Mapping[str, str], *, ends_at: bool) -> bool | None:
    found: bool | None = not ends_at
    for each in operands:
        known = truth(each, properties)
        if known is ends_at:
            return ends_at
        if known is None:
            found = None
    return found


def _has(whole: str, verb: str, part: str) -> bool:
    at = whole.rfind(part) if verb == "ENDSWITH" else whole.find(part)
    if verb == "CONTAINS":
        return at >= 0
    return at == 0 if verb == "STARTSWITH" else at >= 0 and at + len(part) == len(whole)


def _equal(left: Tree, right: Tree, properties: Mapping[str, str]) -> bool | None:
    one, other = _value(left, properties), _value(right, properties)
    if one is None:
        return True if other is None else None
    if other is None:
        return False
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    if isinstance(one, bool) and isinstance(other, str):
        raise NotPossible
    if isinstance(other, bool):
        return (one.lower() == "true") is other if isinstance(one, str) else one is other
    first, second = _as_numbers(one, other)
    return bool(first == second)


def _ordered(sign: str, left: Tree, right: Tree, properties: Mapping[str, str]) -> bool | None:
    one, other = _value(left, properties), _value(right, properties)
    return None if one is None or other is None else _COMPARED[sign](*_as_numbers(one, other))


def _value(tree: Tree, properties: Mapping[str, str]) -> Any:
    return properties.get(tree[1]) if tree[0] == "name" else tree[1]


def _as_numbers(one: Any, other: Any) -> tuple[Any, Any]:
    if isinstance(one, str) and isinstance(other, str):
        return _float(one), _float(other)
    if isinstance(one, str):
        return _read_like(other, one), other
    if isinstance(other, str):
        return one, _read_like(one, other)
    return (one, other) if type(one) is type(other) else (float(one), float(other))


def _read_like(constant: float, text: str) -> float:
    """The constant decides how a property is read."""
    if isinstance(constant, float):
        return _float(text)
    bits = 31 if abs(constant) < 2**31 else 63
    if not _INTEGER.fullmatch(text) or len(text) > 300 or not -(2**bits) <= int(text) < 2**bits:
        raise NotPossible
    return int(text)


def _float(text: str) -> float:
    found = _FLOAT.fullmatch(text)
    if found is None:
        raise NotPossible
    return float(found[1])


# ---- Writing ----


def written(tree: Tree) -> str:
    """The tree as a filter; each condition inside another one has brackets."""
    match tree:
        case ["not", operand]:
            return f"NOT {_inside(operand)}"
        case ["and" | "or" as word, *operands]:
            return f" {word.upper()} ".join(map(_inside, operands))
        case ["=" | "<>" | "<" | "<=" | ">" | ">=" as sign, left, right]:
            return f"{_operand(left)} {sign} {_operand(right)}"
        case ["between" | "not between" as word, name, low, high]:
            return f"{_operand(name)} {word.upper()} {_operand(low)} AND {_operand(high)}"
        case ["in" | "not in" as word, name, texts]:
            return f"{_operand(name)} {word.upper()} ({', '.join(map(_quoted, texts))})"
        case ["search", wanted, verb, name, text]:
            return f"{_operand(name)} {'' if wanted else 'NOT '}{verb} {_quoted(text)}"
        case ["null", wanted, name]:
            return f"{_operand(name)} IS {'' if wanted else 'NOT '}NULL"
    return _operand(tree)


def _inside(tree: Tree) -> str:
    return _operand(tree) if tree[0] == "name" else f"({written(tree)})"


def _operand(tree: Tree) -> str:
    match tree:
        case ["name", name]:
            return str(name)
        case ["text", text]:
            return _quoted(text)
    return str(tree[1]).upper()


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
