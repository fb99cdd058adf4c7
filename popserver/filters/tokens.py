"""Tokens of a SQL filter expression (protocol 7.2).

Keywords in any case; names of ASCII letters, digits, `_` and `$`, case-sensitive; decimal integers and floats; strings
in single quotes, in which a doubled quote is one; `-- …` and `/* … */` are comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

KEYWORDS = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split(),
)


class TokenKind(Enum):
    """A keyword and a symbol are known by their text."""

    KEYWORD = "the keyword"
    NAME = "the name"
    INTEGER = "the integer"
    FLOAT = "the float"
    STRING = "a string"
    SYMBOL = "the symbol"
    END = "the end"


class Token(NamedTuple):
    """`text` as it was written, a keyword in capitals, a string without its quotes; `at` is the offset."""

    kind: TokenKind
    text: str
    at: int


def tokens(expression: str) -> Iterator[Token]:
    """The tokens and the end. Raises `FilterSyntaxError` at a character that begins none."""
    at = 0
    while at < len(expression):
        found = _TOKEN.match(expression, at)
        if found is None:
            raise FilterSyntaxError(at, _stranger(expression, at))
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


def _stranger(expression: str, at: int) -> str:
    for beginning, sentence in _STRANGERS.items():
        if expression.startswith(beginning, at):
            return sentence
    return f"{expression[at]!r} begins nothing that is known here"


# Possessive: what is not closed must not be tried again shorter, nor cost more than one reading.
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
_STRANGERS = {
    "'": "this string is not closed; end it with a single quote, and write '' for a quote inside",
    '"': "a string stands in single quotes, a property's name in none",
    "/*": "this comment is not closed; end it with */",
    "==": "equality is written =",
    "!=": "inequality is written <>",
    ".": "a property's name here has letters, digits, _ and $ only",
    "*": "there is no arithmetic in a filter expression; send the result as a property",
    "/": "there is no arithmetic in a filter expression; send the result as a property",
}


# What is wrong with an expression, and where.

EXCERPT_CHARACTERS = 24  # on either side of the place


class FilterSyntaxError(Exception):
    """Something wrong at an offset of the expression; `sentence` names it and the way out."""

    def __init__(self, at: int, sentence: str) -> None:
        super().__init__(sentence)
        self.at = at
        self.sentence = sentence

    def told(self, expression: str) -> str:
        """The sentence with line and column (from 1) and an excerpt in which ^ stands before the place."""
        line = expression.count("\n", 0, self.at) + 1
        column = self.at - (expression.rfind("\n", 0, self.at) + 1) + 1
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
