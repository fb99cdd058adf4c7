"""Tag expressions (protocol 7.1, requirements M1–M5).

`*` or an empty expression selects everything. Otherwise it is a list of tags separated by `||`; blanks around tags and
empty tags are ignored. Tags are compared exactly, with case. The store compares a 32-bit hash of the tag first, which
is cheap. Some tags have the same hash, such as `Aa` and `BB`, so an exact comparison follows.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import NamedTuple

from popserver.model.cache import LruCache, cached
from popserver.model.errors import IllegalFilterExpression
from popserver.model.names import CONTROL

EXPRESSION_LENGTH_MAX = 16 * 1024
_REMEMBERED_LENGTH_MAX = 128
# Bytes of memory, as measured with many tags of one letter.
_BYTES_OF_ANY = 400
_BYTES_OF_CHARACTER = 64


_HASHES: LruCache[tuple[str, ...], tuple[int, ...]] = LruCache()


class TagFilter(NamedTuple):
    """The tags that a group selects. Without tags it selects every message, with or without a tag."""

    tags: tuple[str, ...] = ()

    @property
    def wants_all(self) -> bool:
        return not self.tags

    @property
    def memory(self) -> int:
        """About how many bytes of memory it needs."""
        return _BYTES_OF_ANY + sum(map(sys.getsizeof, self.tags))

    @property
    def hashes(self) -> tuple[int, ...]:
        known = _HASHES.get(self.tags)
        if known is None:
            known = tuple(sorted({tag_hash(tag) for tag in self.tags}))
            _HASHES.put(self.tags, known, _BYTES_OF_ANY + 2 * sum(map(sys.getsizeof, self.tags)))
        return known


def size_of(expression: str) -> int:
    """About how many bytes of memory a filter with this text needs."""
    return _BYTES_OF_ANY + _BYTES_OF_CHARACTER * len(expression)


EVERYTHING = TagFilter()


@cached(size=size_of)
def parse(expression: str) -> TagFilter:
    """Parse a tag expression. Raises `IllegalFilterExpression` if it has no tag or an illegal one.

    Limits: 16 Ki characters, no control characters, and no single `|`, which no message's tag has.
    """
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise IllegalFilterExpression(
            f"the tag expression has {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} are allowed"
        )
    if not expression.strip() or expression.strip() == "*":
        return EVERYTHING
    tags = sorted({tag.strip() for tag in expression.split("||")} - {""})
    if not tags:
        raise IllegalFilterExpression(f"the tag expression '{expression}' names no tag; write 'A || B', or '*' for all")
    for tag in tags:
        if CONTROL.search(tag):
            raise IllegalFilterExpression(
                f"tag {tag[:64]!r} of the tag expression has a control character; write it without"
            )
        if "|" in tag:
            raise IllegalFilterExpression(
                f"tag '{tag[:64]}' of the tag expression has a '|', which no tag has; separate tags by '||'"
            )
        if " && " in tag:
            raise IllegalFilterExpression(
                f"'{tag[:64]}' of the tag expression asks for two tags at once, and a message has one; separate tags by"
                " '||', or write a SQL filter"
            )
    return TagFilter(tuple(tags))


def tag_hash(tag: str | None) -> int:
    """Java's String.hashCode, which RocketMQ uses: 32 bits, signed, over UTF-16; 0 without a tag (requirement M4)."""
    # The hashes of long tags are not cached, because the cache has no limit in bytes.
    return _hash(tag) if tag is None or len(tag) <= _REMEMBERED_LENGTH_MAX else _hash.__wrapped__(tag)


@lru_cache(maxsize=10_000)
def _hash(tag: str | None) -> int:
    value = 0
    units = (tag or "").encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value
