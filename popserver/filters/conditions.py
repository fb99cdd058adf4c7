"""The meaning of SQL filter expressions: each part becomes a closure over a message's properties (protocol 7.3).

Property values are strings, or missing. A condition is True, False, or None for unknown. Values that cannot be compared
raise `Incomparable`, and then the message does not match. AND and OR evaluate their operands from left to right and
stop when the result is known, so the operands after that cannot fail.

Each function here checks what can be checked without a message, and raises `FilterSyntaxError` at a wrong operand.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from popserver.filters.tokens import FilterSyntaxError
from popserver.filters.values import INT64_MAX, Value, are_equal, as_numbers, reader

Properties: TypeAlias = Mapping[str, str | None]
Evaluate: TypeAlias = Callable[[Properties], Value]
Judge: TypeAlias = Callable[[Properties], bool | None]


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. An integer has 32 bits if it and its negative fit, otherwise 64 bits."""

    at: int
    value: Value
    depth: int = 1

    def evaluate(self, _properties: Properties) -> Value:
        return self.value

    @property
    def is_number(self) -> bool:
        return type(self.value) in (int, float)

    @property
    def is_condition(self) -> bool:
        return self.value is None or type(self.value) is bool


@dataclass(frozen=True, slots=True)
class Property:
    """A property of the message."""

    at: int
    name: str
    depth: int = 1

    @property
    def evaluate(self) -> Evaluate:
        name = self.name
        return lambda properties: properties.get(name)


@dataclass(frozen=True, slots=True)
class Negation:
    """Minus before something other than a number literal: unknown, because nothing else is a number."""

    at: int
    of: Evaluate
    depth: int

    def evaluate(self, properties: Properties) -> Value:
        self.of(properties)
        return None


@dataclass(frozen=True, slots=True)
class Condition:
    """A part that is True, False or unknown."""

    at: int
    evaluate: Judge
    depth: int


Operand: TypeAlias = Constant | Property | Negation | Condition


def as_condition(operand: Operand) -> Condition:
    """An operand of AND, OR or NOT, or the whole expression. A property alone is not a boolean, so it is never true."""
    if isinstance(operand, Condition):
        return operand
    if isinstance(operand, Property):
        read = operand.evaluate
        return _condition(operand, lambda properties: None if read(properties) is None else False, operand)
    if isinstance(operand, Constant) and operand.is_condition:
        value = operand.value
        return _condition(operand, lambda _: value, operand)  # type: ignore[arg-type, return-value]
    raise FilterSyntaxError(operand.at, f"{_what(operand)} is not a condition; compare it with something")


def any_of(operands: Sequence[Operand]) -> Condition:
    """OR: true if one operand is true; otherwise unknown if one is unknown."""
    return _decided_by(True, operands)


def all_of(operands: Sequence[Operand]) -> Condition:
    """AND: false if one operand is false; otherwise unknown if one is unknown."""
    return _decided_by(False, operands)


def _decided_by(decisive: bool, operands: Sequence[Operand]) -> Condition:
    judges = [as_condition(each).evaluate for each in operands]

    def judge(properties: Properties) -> bool | None:
        verdict: bool | None = not decisive
        for each in judges:
            result = each(properties)
            if result is decisive:
                return decisive
            if result is None:
                verdict = None
        return verdict

    return _condition(operands[0], judge, *operands)


def negated(at: int, operand: Operand) -> Condition:
    """NOT: unknown stays unknown."""
    positive = as_condition(operand).evaluate

    def judge(properties: Properties) -> bool | None:
        verdict = positive(properties)
        return None if verdict is None else not verdict

    return Condition(at, judge, operand.depth + 1)


def minus(at: int, operand: Operand) -> Constant | Negation:
    if isinstance(operand, Constant) and operand.is_number:
        return Constant(at, -operand.value)  # type: ignore[operator]
    return Negation(at, operand.evaluate, operand.depth + 1)


def equal(left: Operand, right: Operand) -> Condition:
    """`=`: unknown if only the left side is missing, false if only the right side is missing, true if both are."""
    for operand in (left, right):
        if isinstance(operand, Constant) and operand.value is None:
            raise FilterSyntaxError(operand.at, "= cannot compare with NULL; write IS NULL or IS NOT NULL")
    if isinstance(left, Constant) and isinstance(right, Constant) and left.is_condition and not right.is_condition:
        raise FilterSyntaxError(right.at, f"{_what(left)} is compared with {_what(right)}; they are never equal")
    return _condition(left, _equal_to_literal(left, right) or _equal(left, right), left, right)


def order(left: Operand, sign: str, right: Operand) -> Condition:
    """`<` `<=` `>` `>=`: only for numbers, and for properties that contain numbers (requirement M10)."""
    for operand in (left, right):
        if isinstance(operand, Constant) and not operand.is_number:
            raise FilterSyntaxError(operand.at, f"{sign} cannot compare {_what(operand)}; compare with a number")
        if isinstance(operand, Condition):
            raise FilterSyntaxError(
                operand.at, f"{sign} cannot compare a condition; instead of NOT a > 3 write NOT (a > 3)"
            )
    return _condition(left, _order_by_literal(left, sign, right) or _order(left, sign, right), left, right)


def between(operand: Operand, low: Operand, high: Operand) -> Condition:
    """`>= low AND <= high` (requirement M11)."""
    both = order(operand, ">=", low), order(operand, "<=", high)
    if isinstance(low, Constant) and isinstance(high, Constant) and operator.lt(*as_numbers(high.value, low.value)):
        raise FilterSyntaxError(low.at, f"nothing is between {low.value} and {high.value}; give the smaller one first")
    return all_of(both)


def not_between(operand: Operand, low: Operand, high: Operand) -> Condition:
    """`< low OR > high` (requirement M12)."""
    return any_of([order(operand, "<", low), order(operand, ">", high)])


def is_null(operand: Operand, *, wanted: bool) -> Condition:
    """IS NULL, and with `wanted` False IS NOT NULL."""
    read = operand.evaluate
    return _condition(operand, lambda properties: (read(properties) is None) is wanted, operand)


def is_in(operand: Operand, texts: Sequence[str], *, wanted: bool) -> Condition:
    """IN, and with `wanted` False NOT IN."""
    if not isinstance(operand, Property):
        raise FilterSyntaxError(operand.at, f"IN needs a property's name on its left, not {_what(operand)}")
    read, among = operand.evaluate, frozenset(texts)

    def judge(properties: Properties) -> bool | None:
        value = read(properties)
        return None if value is None else (value in among) is wanted

    return _condition(operand, judge, operand)


def has_text(operand: Operand, verb: str, text: str, *, wanted: bool) -> Condition:
    """CONTAINS, STARTSWITH, ENDSWITH, and with `wanted` False their NOT forms.

    Both forms are False, not unknown, if the operand is missing or not text, or if `text` is empty.
    """
    read, has = operand.evaluate, _TEXT_TESTS[verb]

    def judge(properties: Properties) -> bool:
        value = read(properties)
        return isinstance(value, str) and has(value, text) is wanted

    return _condition(operand, judge if text else lambda _: False, operand)


def integer_of(at: int, text: str) -> Constant:
    """An integer literal, of at most 64 bits. Raises `FilterSyntaxError`."""
    digits = text.rstrip("lL")
    if digits != "0" and digits[0] == "0":
        raise FilterSyntaxError(at, "an integer has no leading zero")
    # The length is checked first, because Python refuses to parse very long integers.
    if len(digits) > len(str(INT64_MAX)) or int(digits) > INT64_MAX:
        raise FilterSyntaxError(
            at, f"this integer is too large, at most {INT64_MAX} is allowed; a float such as 1E30 may be larger"
        )
    return Constant(at, int(digits))


def float_of(at: int, text: str) -> Constant:
    """A float literal, neither zero nor infinite, as in RocketMQ's grammar. Raises `FilterSyntaxError`."""
    value = float(text)
    if math.isinf(value):
        raise FilterSyntaxError(at, "this float is too large, at most 1.7976931348623157E308 is allowed")
    if value == 0:
        raise FilterSyntaxError(at, "this float is too small, at least 4.9E-324 is allowed; for zero write 0")
    return Constant(at, value)


def _condition(first: Operand, judge: Judge, *parts: Operand) -> Condition:
    return Condition(first.at, judge, 1 + max(each.depth for each in parts))


def _what(operand: Constant | Negation | Condition) -> str:
    if isinstance(operand, Condition):
        return "a condition"
    if not isinstance(operand, Constant):
        return "a negative value"
    if operand.value is None:
        return "NULL"
    if type(operand.value) is bool:
        return "TRUE" if operand.value else "FALSE"
    return "a string" if isinstance(operand.value, str) else f"the number {operand.value}"


def _equal_to_literal(left: Operand, right: Operand) -> Judge | None:
    """A fast path for the common case, a property and a literal; None for other operands."""
    missing: bool | None
    if isinstance(left, Property) and isinstance(right, Constant):
        name, literal, missing = left.name, right.value, None
    elif isinstance(left, Constant) and isinstance(right, Property) and type(left.value) is not bool:
        name, literal, missing = right.name, left.value, False
    else:
        return None

    def judge_text(properties: Properties) -> bool | None:
        text = properties.get(name)
        return missing if text is None else text == literal

    if isinstance(literal, str):
        return judge_text
    read = reader(literal)

    def judge(properties: Properties) -> bool | None:
        text = properties.get(name)
        return missing if text is None else bool(read(text) == literal)

    return judge


def _equal(left: Operand, right: Operand) -> Judge:
    of_left, of_right = left.evaluate, right.evaluate

    def judge(properties: Properties) -> bool | None:
        one, other = of_left(properties), of_right(properties)
        if one is None:
            return True if other is None else None
        return False if other is None else are_equal(one, other)

    return judge


def _order_by_literal(left: Operand, sign: str, right: Operand) -> Judge | None:
    """The same fast path. A property on the right is treated as one on the left, with the mirrored sign."""
    if isinstance(left, Property) and isinstance(right, Constant):
        name, literal, holds = left.name, right.value, _ORDERS[sign]
    elif isinstance(left, Constant) and isinstance(right, Property):
        name, literal, holds = right.name, left.value, _ORDERS[_MIRRORED[sign]]
    else:
        return None
    read = reader(literal)

    def judge(properties: Properties) -> bool | None:
        text = properties.get(name)
        return None if text is None else holds(read(text), literal)

    return judge


def _order(left: Operand, sign: str, right: Operand) -> Judge:
    of_left, of_right, holds = left.evaluate, right.evaluate, _ORDERS[sign]

    def judge(properties: Properties) -> bool | None:
        one = of_left(properties)
        if one is None:
            return None
        other = of_right(properties)
        return None if other is None else holds(*as_numbers(one, other))

    return judge


_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_TEXT_TESTS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
