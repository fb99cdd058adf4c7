"""SQL92 filter expressions (protocol 7.2 and 7.3, requirements M7–M19).

An expression is parsed once, to closures. Its result for a message depends only on the message's tag and properties. No
part of it becomes a database statement.
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

TAG_PROPERTY = "TAGS"

# The cost of evaluating a message, in units of about 0.1 µs: for reading the message, and how many characters of a
# property's value cost one unit.
_COST_OF_FETCHING = 20
_CHARACTERS_PER_UNIT = 16
# Bytes of memory, as measured; most of them are closures.
_BYTES_OF_ANY = 800
_BYTES_OF_CHARACTER = 64


@dataclass(frozen=True, slots=True)
class SqlFilter:
    """A filter with a SQL condition. Filters with the same text are equal.

    `reads` has each property in the condition with the number of its occurrences; TAGS is the message's tag. `size` is
    the number of operands and operators.
    """

    expression: str
    reads: Mapping[str, int] = field(compare=False, repr=False)
    size: int = field(compare=False, repr=False)
    judge: Judge = field(compare=False, repr=False)

    @property
    def names(self) -> Collection[str]:
        """The properties in the condition."""
        return self.reads.keys()

    @property
    def wants_all(self) -> bool:
        return False

    @property
    def memory(self) -> int:
        """About how many bytes of memory it needs."""
        return size_of(self.expression)

    def cost(self, tag: str | None, properties: Mapping[str, str | None]) -> int:
        """The highest cost of evaluating this message, in units of about 0.1 µs. Depends only on the message."""
        seen = {**properties, TAG_PROPERTY: tag}
        characters = sum(times * len(seen.get(name) or "") for name, times in self.reads.items())
        return _COST_OF_FETCHING + self.size + characters // _CHARACTERS_PER_UNIT

    def cost_of_all(self, messages: int, characters: int) -> int:
        """The highest cost of evaluating `messages` messages with `characters` characters in tags and properties."""
        reads_max = max(self.reads.values(), default=0)
        return messages * (_COST_OF_FETCHING + self.size) + reads_max * characters // _CHARACTERS_PER_UNIT

    def matches(self, tag: str | None, properties: Mapping[str, str | None]) -> bool:
        """Whether the condition is true. An unknown result, or values that cannot be compared, do not match.

        None stands for a missing property. Properties that are not in the filter may be left out.
        """
        return bool(self.verdict(tag, properties))

    def keys_of(self, messages: Iterable[tuple[int, str | None, Mapping[str, str | None]]]) -> list[int]:
        """The keys of the messages that match. Each message is given as key, tag and properties."""
        # The same as `verdict`, inlined because it runs for every message.
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
        """The same as `matches`, but None if a property does not have the type that the expression needs."""
        seen = {**properties, TAG_PROPERTY: tag} if TAG_PROPERTY in self.reads else properties
        try:
            return self.judge(seen) is True
        except Incomparable:
            return None


def size_of(expression: str) -> int:
    """About how many bytes of memory a filter with this text needs."""
    return _BYTES_OF_ANY + _BYTES_OF_CHARACTER * len(expression)


@cached(size=size_of)
def parse(expression: str) -> SqlFilter:
    """Parse a SQL expression. Raises `IllegalFilterExpression`, with the position of the error.

    Limits: 16 Ki characters, 1,024 operands and operators, and 64 levels of nesting.
    """
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise IllegalFilterExpression(
            f"the SQL expression has {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} are allowed"
        )
    try:
        grammar = Grammar(expression)
        judge = grammar.condition().evaluate
    except FilterSyntaxError as error:
        raise IllegalFilterExpression(error.located(expression)) from None
    return SqlFilter(expression, grammar.reads, grammar.size, judge)
