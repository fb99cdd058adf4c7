"""Tag expressions (protocol 7.1, requirements M1–M5).

`*` or nothing wants everything; otherwise tags separated by `||`, blanks trimmed, empties ignored, compared exactly
and case-sensitively. The 32-bit hash of a tag is stored beside it and compared first: cheap, and wrong only for
colliding tags such as `Aa` and `BB`, which the exact comparison then tells apart.
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
# Measured with tags of one letter, each a text of its own.
_BYTES_OF_ANY = 400
_BYTES_OF_CHARACTER = 64


_HASHES: LruCache[tuple[str, ...], tuple[int, ...]] = LruCache()


class TagFilter(NamedTuple):
    """The tags a group wants; none at all means every message, tagged or not."""

    tags: tuple[str, ...] = ()

    @property
    def wants_all(self) -> bool:
        return not self.tags

    @property
    def memory(self) -> int:
        """How many bytes it takes, about."""
        return _BYTES_OF_ANY + sum(map(sys.getsizeof, self.tags))

    @property
    def hashes(self) -> tuple[int, ...]:
        known = _HASHES.get(self.tags)
        if known is None:
            known = tuple(sorted({tag_hash(tag) for tag in self.tags}))
            _HASHES.put(self.tags, known, _BYTES_OF_ANY + 2 * sum(map(sys.getsizeof, self.tags)))
        return known


def size_of(expression: str) -> int:
    """How many bytes of memory a filter of this text takes, about."""
    return _BYTES_OF_ANY + _BYTES_OF_CHARACTER * len(expression)


@cached(size=size_of)
def parse(expression: str) -> TagFilter:
    """Read a tag expression; raise `IllegalFilterExpression` for one that names no tag, or what can be none.

    At most 16 Ki characters; a control character is in no tag.
    """
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise IllegalFilterExpression(
            f"the tag expression has {len(expression)} characters, at most {EXPRESSION_LENGTH_MAX} are allowed"
        )
    if not expression.strip() or expression.strip() == "*":
        return TagFilter()
    tags = sorted({tag.strip() for tag in expression.split("||")} - {""})
    if not tags:
        raise IllegalFilterExpression(f"the tag expression '{expression}' names no tag; write 'A || B', or '*' for all")
    for tag in tags:
        if CONTROL.search(tag):
            raise IllegalFilterExpression(
                f"tag {tag[:64]!r} of the tag expression holds a control character; no tag may"
            )
    return TagFilter(tuple(tags))


def tag_hash(tag: str | None) -> int:
    """The field's 32-bit string hash over UTF-16 code units, signed; 0 without a tag (requirement M4)."""
    # A filter may name a tag of any length, and what is remembered has no budget of bytes.
    return _hash(tag) if tag is None or len(tag) <= _REMEMBERED_LENGTH_MAX else _hash.__wrapped__(tag)


@lru_cache(maxsize=10_000)
def _hash(tag: str | None) -> int:
    value = 0
    units = (tag or "").encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    return value - (1 << 32) if value >= 1 << 31 else value
