"""SQL92 filter expressions (protocol 7.2 and 7.3, requirements M7–M19).

An expression is read once, into closures; what it says of a message is decided by the message's tag and properties
alone. No part of it ever becomes a statement of a database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from popserver.filters.conditions import Judge
from popserver.filters.grammar import Grammar
from popserver.filters.tags import EXPRESSION_LENGTH_MAX
from popserver.filters.tokens import FilterSyntaxError
from popserver.filters.values import Incomparable
from popserver.model.cache import cached
from popserver.model.errors import IllegalFilterExpression

__all__ = ["SqlFilter", "parse"]

TAG_PROPERTY = "TAGS"

# The cost of judging a message is counted in units of about 0.1 µs: so many to fetch it, and one for so many characters
# of a value that a condition reads.
_COST_OF_FETCHING = 20
_CHARACTERS_PER_UNIT = 16
# Measured; most of it is closures.
_BYTES_OF_ANY = 800
_BYTES_OF_CHARACTER = 64


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """The messages a group wants, by a condition; equal to any filter of the same text.

    `reads` says of each property that the condition looks at how often it does so; TAGS is the message's tag. `size`
    is the number of operands and operators.
    """

    expression: str
    reads: Mapping[str, int] = field(compare=False, repr=False)
    size: int = field(compare=False, repr=False)
    judge: Judge = field(compare=False, repr=False)

    @property
    def names(self) -> Collection[str]:
        """The properties that the condition looks at."""
        return self.reads.keys()

    @property
    def wants_all(self) -> bool:
        return False

    @property
    def memory(self) -> int:
        """How many bytes it takes, about."""
        return size_of(self.expression)

    def cost(self, tag: str | None, properties: Mapping[str, str | None]) -> int:
        """At most what it costs to judge a message, in units of about 0.1 µs: it depends on nothing but the message."""
        seen = {**properties, TAG_PROPERTY: tag}
        characters = sum(times * len(seen.get(name) or "") for name, times in self.reads.items())
        return _COST_OF_FETCHING + self.size + characters // _CHARACTERS_PER_UNIT

    def cost_of_all(self, messages: int, characters: int) -> int:
        """At most what it costs to judge so many messages, whose tags and properties have so many characters."""
        reads_max = max(self.reads.values(), default=0)
        return messages * (_COST_OF_FETCHING + self.size) + reads_max * characters // _CHARACTERS_PER_UNIT

    def matches(self, tag: str | None, properties: Mapping[str, str | None]) -> bool:
        """Is the condition true? What is unknown, or compares what cannot be compared, is no match.

        None stands for a property that is missing; those that the filter does not name need not be there.
        """
        return bool(self.verdict(tag, properties))

    def keys_of(self, messages: Iterable[tuple[int, str | None, Mapping[str, str | None]]]) -> list[int]:
        """The keys of those messages that match, each given as key, tag and properties."""
        # As `verdict`; written out, for it is asked of every message.
        judge, with_tag = self.judge, TAG_PROPERTY in self.reads
        keys: list[int] = []
        for key, tag, properties in messages:
            try:
                if judge({**properties, TAG_PROPERTY: tag} if with_tag else properties) is True:
                    keys.append(key)
            except Incomparable:
                pass
        return keys

    def verdict(self, tag: str | None, properties: Mapping[str, str | None]) -> bool | None:
        """As `matches`, but None where a property is not what the expression takes it for."""
        seen = properties
        if TAG_PROPERTY in self.reads:
            seen = {**properties, TAG_PROPERTY: tag}
        try:
            return self.judge(seen) is True
        except Incomparable:
            return None


def size_of(expression: str) -> int:
    """How many bytes of memory a filter of this text takes, about."""
    return _BYTES_OF_ANY + _BYTES_OF_CHARACTER * len(expression)


@cached(size=size_of)
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
    except FilterSyntaxError as flaw:
        raise IllegalFilterExpression(flaw.told(expression)) from None
    return SqlFilter(expression, grammar.reads, grammar.size, judge)
