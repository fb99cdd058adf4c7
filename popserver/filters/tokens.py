"""Tokens of a SQL filter expression (protocol 7.2).

Keywords may be in upper or lower case. Names have ASCII letters, digits, `_` and `$`, and are case-sensitive. Numbers
are decimal integers and floats. Strings are in single quotes; two single quotes inside stand for one. Comments are
`-- …` and `/* … */`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

KEYWORDS = frozenset("NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split())


class TokenKind(Enum):
    """The kinds of tokens. The values are used in error sentences."""

    KEYWORD = "the keyword"
    NAME = "the name"
    INTEGER = "the integer"
    FLOAT = "the float"
    STRING = "a string"
    SYMBOL = "the symbol"
    END = "the end"


class Token(NamedTuple):
    """A token: its text as written (keywords in capitals, strings without quotes), and its offset `at`."""

    kind: TokenKind
    text: str
    at: int


def tokens(expression: str) -> Iterator[Token]:
    """The tokens of an expression, then END. Raises `FilterSyntaxError` at a character that begins no token."""
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise FilterSyntaxError(at, _unknown_character(expression, at))
        if found.lastgroup != "blank":
            yield _token(found)
        at = found.end()
    yield Token(TokenKind.END, "", at)


def _token(found: re.Match[str]) -> Token:
    text = found[0]
    match found.lastgroup:
        case "word" if text.upper() in KEYWORDS:
            return Token(TokenKind.KEYWORD, text.upper(), found.start())
        case "word":
            return Token(TokenKind.NAME, text, found.start())
        case "string":
            return Token(TokenKind.STRING, text[1:-1].replace("''", "'"), found.start())
        case "float":
            return Token(TokenKind.FLOAT, text, found.start())
        case "integer":
            return Token(TokenKind.INTEGER, text, found.start())
    return Token(TokenKind.SYMBOL, text, found.start())


def _unknown_character(expression: str, at: int) -> str:
    for beginning, sentence in _UNKNOWN_CHARACTERS.items():
        if expression.startswith(beginning, at):
            return sentence
    return f"{expression[at]!r} is not allowed here"


# The quantifiers are possessive, so that an unclosed string or comment costs no backtracking.
_TOKEN = re.compile(
    r"""
      (?P<blank>   [ \t\n\r\f]++ | --[^\n\r]*+ | /\*(?s:.*?)\*/ )
    | (?P<word>    [A-Za-z_$][A-Za-z0-9_$]*+ )
    | (?P<float>   (?: [0-9]++ \. [0-9]*+ | \. [0-9]++ ) (?: [eE] [+-]? [0-9]++ )? | [0-9]++ [eE] [+-]? [0-9]++ )
    | (?P<integer> [0-9]++ [lL]? )
    | (?P<string>  ' (?: [^']++ | '' )*+ ' )
    | (?P<symbol>  <> | <= | >= | = (?!=) | [<>(),+-] )
    """,
    re.VERBOSE,
)
_UNKNOWN_CHARACTERS = {
    "'": "this string is not closed; end it with a single quote, and write '' for a quote inside",
    '"': "write strings in single quotes, and names of properties without quotes",
    "/*": "this comment is not closed; end it with */",
    "==": "equality is written =",
    "!=": "inequality is written <>",
    ".": "a property's name may have only letters, digits, _ and $ here",
    "*": "there is no arithmetic in a filter expression; send the result as a property",
    "/": "there is no arithmetic in a filter expression; send the result as a property",
}


EXCERPT_CHARACTERS = 24  # on each side of the error


class FilterSyntaxError(Exception):
    """An error at an offset of the expression; `sentence` names it and says what to write instead."""

    def __init__(self, at: int, sentence: str) -> None:
        super().__init__(sentence)
        self.at = at
        self.sentence = sentence

    def located(self, expression: str) -> str:
        """The sentence with line and column (from 1), and an excerpt with ^ before the error."""
        before = expression[: self.at]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        return (
            f"the SQL expression is illegal at line {line}, column {column}, at the ^ in"
            f" {_excerpt(expression, self.at)}: {self.sentence}"
        )


def _excerpt(expression: str, at: int) -> str:
    start, end = max(0, at - EXCERPT_CHARACTERS), at + EXCERPT_CHARACTERS
    before, after = _visible(expression[start:at]), _visible(expression[at:end])
    return f"«{'…' if start else ''}{before}^{after}{'…' if end < len(expression) else ''}»"


def _visible(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)
