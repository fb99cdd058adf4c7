"""The grammar of SQL filter expressions (protocol 7.2), from the lowest to the highest precedence.

    OR
    AND
    =  <>  IS [NOT] NULL                                        one after the other, from the left
    <  <=  >  >=  [NOT] BETWEEN … AND …  [NOT] IN (…)  [NOT] CONTAINS|STARTSWITH|ENDSWITH '…'
    NOT  +  -                                                   so `NOT a = 1` is `(NOT a) = 1`
    literals, names of properties, (…)

The depth of nesting is limited, so that neither parsing nor evaluation can exhaust the stack.
"""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

from popserver.filters import conditions
from popserver.filters.conditions import Condition, Constant, Operand, Property
from popserver.filters.tokens import FilterSyntaxError, Token, TokenKind, tokens

DEPTH_MAX = 64
NODES_MAX = 1_024

AnyOperand = TypeVar("AnyOperand", bound=Operand)

_ORDERING = ("<", "<=", ">", ">=")
_SEARCHING = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_CONSTANTS = {"TRUE": True, "FALSE": False, "NULL": None}
_SHOWN = 32  # characters of an unexpected token
_ARITHMETIC = ("+", "-")


class Grammar:
    """Parses one expression; `reads` counts how often it names each property."""

    def __init__(self, expression: str) -> None:
        self._tokens = tokens(expression)
        self._token = next(self._tokens)
        self._open = 0
        self.size = 0  # operands and operators
        self.reads: Counter[str] = Counter()

    def condition(self) -> Condition:
        """The whole expression. Raises `FilterSyntaxError`."""
        if self._has_ended():
            raise FilterSyntaxError(
                self._token.at,
                "there is no condition in it; write one such as a > 3, or use the tag expression * for all",
            )
        whole = conditions.as_condition(self._disjunction())
        if not self._has_ended():
            raise self._unexpected("AND, OR or the end")
        return whole

    def _disjunction(self) -> Operand:
        operands = [self._conjunction()]
        while self._accept("OR"):
            operands.append(self._conjunction())
        return operands[0] if len(operands) == 1 else self._built(conditions.any_of(operands))

    def _conjunction(self) -> Operand:
        operands = [self._equality()]
        while self._accept("AND"):
            operands.append(self._equality())
        return operands[0] if len(operands) == 1 else self._built(conditions.all_of(operands))

    def _equality(self) -> Operand:
        left = self._comparison()
        while True:
            if self._accept("="):
                left = self._built(conditions.equal(left, self._comparison()))
            elif self._accept("<>"):
                left = self._built(conditions.negated(left.at, conditions.equal(left, self._comparison())))
            elif self._accept("IS"):
                wanted = not self._accept("NOT")
                self._expect("NULL")
                left = self._built(conditions.is_null(left, wanted=wanted))
            else:
                return left

    def _comparison(self) -> Operand:
        left = self._sign()
        while True:
            compared = self._compared(left)
            if compared is None:
                return left
            left = self._built(compared)

    def _compared(self, left: Operand) -> Condition | None:
        if self._is(*_ORDERING):
            return conditions.order(left, self._take().text, self._sign())
        not_at = self._token.at
        wanted = not self._accept("NOT")
        if self._accept("BETWEEN"):
            low = self._sign()
            self._expect("AND")
            judged = conditions.between if wanted else conditions.not_between
            return judged(left, low, self._sign())
        if self._accept("IN"):
            return conditions.is_in(left, self._texts(), wanted=wanted)
        if self._is(*_SEARCHING):
            return conditions.has_text(left, self._take().text, self._text(), wanted=wanted)
        if not wanted:
            raise FilterSyntaxError(not_at, f"after NOT, expected BETWEEN, IN, {', '.join(_SEARCHING)}, or an operand")
        return None

    def _sign(self) -> Operand:
        if not self._is("NOT", "+", "-"):
            return self._primary()
        sign = self._take()
        self._enter(sign.at)
        operand = self._sign()
        self._open -= 1
        if sign.text == "+":
            return operand
        if sign.text == "-":
            return self._built(conditions.minus(sign.at, operand))
        return self._built(conditions.negated(sign.at, operand))

    def _primary(self) -> Operand:
        token = self._token
        if token.text == "(" and token.kind is TokenKind.SYMBOL:
            return self._bracketed()
        if token.kind is TokenKind.KEYWORD and token.text in _CONSTANTS:
            found: Operand = Constant(token.at, _CONSTANTS[token.text])
        elif token.kind is TokenKind.NAME:
            self.reads[token.text] += 1
            found = Property(token.at, token.text)
        elif token.kind is TokenKind.STRING:
            found = Constant(token.at, token.text)
        elif token.kind is TokenKind.INTEGER:
            found = conditions.integer_of(token.at, token.text)
        elif token.kind is TokenKind.FLOAT:
            found = conditions.float_of(token.at, token.text)
        else:
            raise self._unexpected("a property, a literal, NOT or (")
        self._take()
        return self._built(found)

    def _bracketed(self) -> Operand:
        self._enter(self._take().at)
        inside = self._disjunction()
        self._expect(")")
        self._open -= 1
        return inside

    def _texts(self) -> list[str]:
        self._expect("(")
        texts = [self._text()]
        while self._accept(","):
            texts.append(self._text())
        self._expect(")")
        return texts

    def _text(self) -> str:
        if self._token.kind is not TokenKind.STRING:
            raise self._unexpected("a string such as 'a'")
        return self._take().text

    def _enter(self, at: int) -> None:
        self._open += 1
        _check_depth(at, self._open)

    def _built(self, operand: AnyOperand) -> AnyOperand:
        self.size += 1
        if self.size > NODES_MAX:
            raise FilterSyntaxError(
                operand.at, f"this is operand or operator {self.size}, at most {NODES_MAX} are allowed"
            )
        _check_depth(operand.at, operand.depth)
        return operand

    def _has_ended(self) -> bool:
        return self._token.kind is TokenKind.END

    def _is(self, *texts: str) -> bool:
        return self._token.kind in (TokenKind.KEYWORD, TokenKind.SYMBOL) and self._token.text in texts

    def _take(self) -> Token:
        token = self._token
        self._token = next(self._tokens)
        return token

    def _accept(self, text: str) -> bool:
        if not self._is(text):
            return False
        self._take()
        return True

    def _expect(self, text: str) -> None:
        if not self._accept(text):
            raise self._unexpected(text)

    def _unexpected(self, expected: str) -> FilterSyntaxError:
        token = self._token
        if self._has_ended():
            return FilterSyntaxError(token.at, f"it ends here, but {expected} is expected")
        if token.kind is TokenKind.NAME and token.text.upper() == "LIKE":
            return FilterSyntaxError(token.at, "there is no LIKE; use CONTAINS, STARTSWITH or ENDSWITH")
        if token.kind is TokenKind.SYMBOL and token.text in _ARITHMETIC:
            return FilterSyntaxError(
                token.at, "there is no arithmetic in a filter expression; send the result as a property"
            )
        found = token.kind.value if token.kind is TokenKind.STRING else f"{token.kind.value} {token.text[:_SHOWN]}"
        return FilterSyntaxError(token.at, f"found {found}, expected {expected}")


def _check_depth(at: int, levels: int) -> None:
    if levels > DEPTH_MAX:
        raise FilterSyntaxError(at, f"it is nested {levels} levels deep here, at most {DEPTH_MAX} are allowed")
