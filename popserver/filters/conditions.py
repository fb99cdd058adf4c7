"""What the parts of a SQL filter expression mean: closures over a message's properties (protocol 7.3).

Property values are strings, or missing. A condition is True, False or None, which stands for unknown. Whatever cannot
be compared raises `Incomparable`, and then the message does not match at all. AND and OR look at their operands from
left to right and no further than they must; what they do not look at cannot fail.

Each function here checks what can be known without a message and raises `FilterSyntaxError` at the wrong operand.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from popserver.filters.tokens import FilterSyntaxError
from popserver.filters.values import INT64_MAX, Value, are_equal, as_numbers, reader

Properties = Mapping[str, str | None]
Evaluate = Callable[[Properties], Value]
Judge = Callable[[Properties], bool | None]


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal. Its width is its value's: an integer of 32 bits, if it and its negative fit, or of 64."""

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
    """A property of the message, by its name."""

    at: int
    name: str
    depth: int = 1

    @property
    def evaluate(self) -> Evaluate:
        name = self.name
        return lambda properties: properties.get(name)


@dataclass(frozen=True, slots=True)
class Negation:
    """Minus something that is no literal number: nothing else is a number, so it is unknown."""

    at: int
    of: Evaluate
    depth: int

    def evaluate(self, properties: Properties) -> Value:
        self.of(properties)
        return None


@dataclass(frozen=True, slots=True)
class Condition:
    """Something True, False or unknown."""

    at: int
    evaluate: Judge
    depth: int


Operand = Constant | Property | Negation | Condition


def as_condition(operand: Operand) -> Condition:
    """An operand of AND, OR, NOT, or the whole expression. A lone property is no boolean, so never true."""
    if isinstance(operand, Condition):
        return operand
    if isinstance(operand, Property):
        read = operand.evaluate
        return _condition(operand, lambda properties: None if read(properties) is None else False)
    if isinstance(operand, Constant) and operand.is_condition:
        value = operand.value
        return _condition(operand, lambda _: value)  # type: ignore[arg-type, return-value]
    raise FilterSyntaxError(operand.at, f"{_what(operand)} is no condition; compare it with something")


def any_of(operands: Sequence[Operand]) -> Condition:
    """OR: true if one is true, else unknown if one is unknown."""
    judges = [as_condition(each).evaluate for each in operands]

    def judge(properties: Properties) -> bool | None:
        verdict: bool | None = False
        for each in judges:
            said = each(properties)
            if said:
                return True
            if said is None:
                verdict = None
        return verdict

    return _condition(operands[0], judge, *operands)


def all_of(operands: Sequence[Operand]) -> Condition:
    """AND: false if one is false, else unknown if one is unknown."""
    judges = [as_condition(each).evaluate for each in operands]

    def judge(properties: Properties) -> bool | None:
        verdict: bool | None = True
        for each in judges:
            said = each(properties)
            if said is False:
                return False
            if said is None:
                verdict = None
        return verdict

    return _condition(operands[0], judge, *operands)


def negated(at: int, operand: Operand) -> Condition:
    """NOT: what is unknown stays unknown."""
    said = as_condition(operand).evaluate

    def judge(properties: Properties) -> bool | None:
        verdict = said(properties)
        return None if verdict is None else not verdict

    return Condition(at, judge, operand.depth + 1)


def minus(at: int, operand: Operand) -> Constant | Negation:
    if isinstance(operand, Constant) and operand.is_number:
        return Constant(at, -operand.value)  # type: ignore[operator]
    return Negation(at, operand.evaluate, operand.depth + 1)


def equal(left: Operand, right: Operand) -> Condition:
    """`=`. A missing left side is unknown, a missing right side alone is not equal, two missing ones are."""
    for operand in (left, right):
        if isinstance(operand, Constant) and operand.value is None:
            raise FilterSyntaxError(operand.at, "nothing is compared with NULL; write IS NULL or IS NOT NULL")
    if isinstance(left, Constant) and isinstance(right, Constant) and left.is_condition and not right.is_condition:
        raise FilterSyntaxError(right.at, f"{_what(left)} is compared with {_what(right)}; they are never equal")
    return _condition(left, _equal_to_literal(left, right) or _equal(left, right), left, right)


def order(left: Operand, sign: str, right: Operand) -> Condition:
    """`<` `<=` `>` `>=`: of numbers alone, and of properties that hold some (requirement M10)."""
    for operand in (left, right):
        if isinstance(operand, Constant) and not operand.is_number:
            raise FilterSyntaxError(operand.at, f"{_what(operand)} is not ordered by {sign}; compare with a number")
        if isinstance(operand, Condition):
            raise FilterSyntaxError(
                operand.at, f"a condition is not ordered by {sign}; for NOT a > 3 write NOT (a > 3)"
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


def is_null(operand: Operand) -> Condition:
    read = operand.evaluate
    return _condition(operand, lambda properties: read(properties) is None, operand)


def is_not_null(operand: Operand) -> Condition:
    read = operand.evaluate
    return _condition(operand, lambda properties: read(properties) is not None, operand)


def is_in(operand: Operand, texts: Sequence[str]) -> Condition:
    read, among = _property_for_in(operand), frozenset(texts)

    def judge(properties: Properties) -> bool | None:
        value = read(properties)
        return None if value is None else value in among

    return _condition(operand, judge, operand)


def is_not_in(operand: Operand, texts: Sequence[str]) -> Condition:
    read, among = _property_for_in(operand), frozenset(texts)

    def judge(properties: Properties) -> bool | None:
        value = read(properties)
        return None if value is None else value not in among

    return _condition(operand, judge, operand)


def has_text(operand: Operand, verb: str, text: str, *, wanted: bool) -> Condition:
    """CONTAINS, STARTSWITH, ENDSWITH, and with `wanted` False their NOT forms.

    False, not unknown, for either form where the operand is missing or no text, or the text looked for is empty.
    """
    read, has = operand.evaluate, _TEXT_TESTS[verb]

    def judge(properties: Properties) -> bool:
        value = read(properties)
        return isinstance(value, str) and has(value, text) is wanted

    return _condition(operand, judge if text else lambda _: False, operand)


def integer_of(at: int, text: str) -> Constant:
    """An integer literal; at most 64 bits."""
    digits = text.rstrip("lL")
    if digits != "0" and digits[0] == "0":
        raise FilterSyntaxError(at, "an integer has no leading zero")
    # Long before there are too many digits to be read at all.
    if len(digits) > len(str(INT64_MAX)) or int(digits) > INT64_MAX:
        raise FilterSyntaxError(
            at, f"this integer is too large, at most {INT64_MAX} is allowed; a float such as 1E30 may be larger"
        )
    return Constant(at, int(digits))


def float_of(at: int, text: str) -> Constant:
    """A float literal; neither zero nor infinite, as in the field's own grammar."""
    value = float(text)
    if math.isinf(value):
        raise FilterSyntaxError(at, "this float is too large, at most 1.7976931348623157E308 is allowed")
    if value == 0:
        raise FilterSyntaxError(at, "this float is too small, at least 4.9E-324 is allowed; zero is the integer 0")
    return Constant(at, value)


def _condition(first: Operand, judge: Judge, *parts: Operand) -> Condition:
    return Condition(first.at, judge, 1 + max((each.depth for each in parts), default=0))


def _property_for_in(operand: Operand) -> Evaluate:
    if not isinstance(operand, Property):
        raise FilterSyntaxError(operand.at, f"IN takes a property's name on its left, not {_what(operand)}")
    return operand.evaluate


def _what(operand: Operand) -> str:
    if isinstance(operand, Condition):
        return "a condition"
    if not isinstance(operand, Constant):
        return "the value of a property" if isinstance(operand, Property) else "a negative value"
    if operand.value is None:
        return "NULL"
    if type(operand.value) is bool:
        return "TRUE" if operand.value else "FALSE"
    return "a string" if isinstance(operand.value, str) else f"the number {operand.value}"


def _equal_to_literal(left: Operand, right: Operand) -> Judge | None:
    """The common case, a property and a literal, in as few steps as there can be; None for any other."""
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
    """As for equality. A property on the right is one on the left of the mirrored sign."""
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
