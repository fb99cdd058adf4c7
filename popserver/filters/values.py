"""How values are compared (protocol 7.3).

A property's value is text. In a comparison with a number or a boolean it is converted to that type; text that cannot be
converted raises `Incomparable`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeAlias

Value: TypeAlias = str | int | float | bool | None

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Incomparable(Exception):
    """A message's property does not have the type that the expression needs."""


def are_equal(one: Value, other: Value) -> bool:
    if type(one) is bool and isinstance(other, str):
        raise Incomparable
    if isinstance(one, str) and type(other) is bool:
        return _boolean(one) is other
    if type(one) is bool or type(other) is bool:
        return one is other
    if isinstance(one, str) and isinstance(other, str):
        return one == other
    one, other = as_numbers(one, other)
    return one == other


def as_numbers(one: Value, other: Value) -> tuple[Any, Any]:
    """Both values as numbers of one type.

    Text is converted to the type of the other value. Two texts, and an integer with a float, are converted to floats.
    """
    if isinstance(one, str) and isinstance(other, str):
        return _float(one), _float(other)
    if isinstance(one, str):
        return reader(other)(one), other
    if isinstance(other, str):
        return one, reader(one)(other)
    return (one, other) if type(one) is type(other) else (float(one or 0), float(other or 0))


def reader(beside: Value) -> Callable[[str], Any]:
    """The function that converts text in a comparison with this number or boolean."""
    if type(beside) is bool:
        return _boolean
    if isinstance(beside, float):
        return _float
    largest = INT32_MAX if isinstance(beside, int) and abs(beside) <= INT32_MAX else INT64_MAX
    return lambda text: _integer(text, largest)


def _boolean(text: str) -> bool:
    return text.lower() == "true"


def _integer(text: str, largest: int) -> int:
    # Checked first, because `int` also accepts blanks and underscores.
    if not text.isdecimal() and not _INTEGER.fullmatch(text):
        raise Incomparable
    try:
        value = int(text)
    except ValueError:  # Python refuses thousands of digits
        raise Incomparable from None
    if not -largest - 1 <= value <= largest:
        raise Incomparable
    return value


def _float(text: str) -> float:
    found = _FLOAT.fullmatch(text)
    if found is None:
        raise Incomparable
    return float(found[1])


_INTEGER = re.compile(r"[+-]?\d+")
# Text that Java parses as a double, except NaN, which is not a number here.
_FLOAT = re.compile(
    r"\ *([+-]?(?:[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?|\.[0-9]++(?:[eE][+-]?[0-9]++)?|Infinity))[dDfF]?\ *"
)
