"""SQL92 filter expressions (contract 7.2 and 7.3, mission rows M7–M19).

An expression is read once, into closures; what it says of a message is decided by the message's tag and properties
alone. No part of it ever becomes a statement of a database.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from popserver.domain.errors import IllegalFilterExpression
from popserver.domain.filtering.sql.conditions import Judge
from popserver.domain.filtering.sql.flaw import Flaw
from popserver.domain.filtering.sql.grammar import Grammar
from popserver.domain.filtering.sql.values import Incomparable
from popserver.domain.filtering.tag import EXPRESSION_LENGTH_MAX

__all__ = ["SqlFilter", "parse"]

TAG_PROPERTY = "TAGS"


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """The messages a group wants, by a condition; equal to any filter of the same text.

    `names` are the properties that the condition looks at; TAGS is the message's tag.
    """

    expression: str
    names: frozenset[str] = field(compare=False, repr=False)
    judge: Judge = field(compare=False, repr=False)

    @property
    def wants_all(self) -> bool:
        return False

    def matches(self, tag: str | None, properties: Mapping[str, str | None]) -> bool:
        """Is the condition true? What is unknown, or compares what cannot be compared, is no match.

        None stands for a property that is missing; those that the filter does not name need not be there.
        """
        # As `verdict`; written out, for it is asked of every message.
        if TAG_PROPERTY in self.names:
            properties = {**properties, TAG_PROPERTY: tag}
        try:
            return self.judge(properties) is True
        except Incomparable:
            return False

    def verdict(self, tag: str | None, properties: Mapping[str, str | None]) -> bool | None:
        """As `matches`, but None where a property is not what the expression takes it for."""
        seen = properties
        if TAG_PROPERTY in self.names:
            seen = {**properties, TAG_PROPERTY: tag}
        try:
            return self.judge(seen) is True
        except Incomparable:
            return None


@lru_cache(maxsize=1_000)
def parse(expression: str) -> SqlFilter:
    """Read a SQL expression; raise `IllegalFilterExpression`, with the place, for one that is wrong.

    At most 16 Ki characters, 1,024 operands and operators, and 64 levels of nesting.
    """
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise IllegalFilterExpression(
            f"the SQL expression has {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} are allowed"
        )
    try:
        grammar = Grammar(expression)
        judge = grammar.condition().evaluate
    except Flaw as flaw:
        raise IllegalFilterExpression(flaw.told(expression)) from None
    return SqlFilter(expression, frozenset(grammar.names), judge)
