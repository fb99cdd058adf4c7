"""What is wrong with an expression, and where."""

from __future__ import annotations

EXCERPT_CHARACTERS = 24  # on either side of the place


class Flaw(Exception):
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
