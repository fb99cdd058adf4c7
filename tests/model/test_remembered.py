"""What is remembered stays within its bytes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest

from popserver.filters import sql as filters_sql
from popserver.filters import tags
from popserver.model.cache import BYTES_MAX, LruCache, cached


def test_the_least_recently_used_goes_first() -> None:
    kept: LruCache[str, int] = LruCache(30)
    for number, name in enumerate("abc"):
        kept.put(name, number, 10)
    assert kept.get("a") == 0
    kept.put("d", 3, 10)
    assert [kept.get(name) for name in "abcd"] == [0, None, 2, 3]
    kept.put("e", 4, 20)
    assert (len(kept), kept.size) == (2, 30)


def test_what_is_larger_than_all_room_is_not_remembered() -> None:
    kept: LruCache[str, int] = LruCache(30)
    kept.put("a", 1, 10)
    kept.put("b", 2, 31)
    assert (kept.get("a"), kept.get("b")) == (1, None)


def test_what_is_put_again_counts_once() -> None:
    kept: LruCache[str, int] = LruCache(30)
    for size in (10, 20, 5):
        kept.put("a", size, size)
    assert (kept.get("a"), len(kept), kept.size) == (5, 1, 5)


def test_a_function_is_asked_again_for_what_it_forgot() -> None:
    asked: list[str] = []

    @cached(size=lambda text: BYTES_MAX // 2 if len(text) > 1 else 10)
    def length(text: str) -> int:
        asked.append(text)
        return len(text)

    for text in ("a", "a", "bb", "a", "cc", "dd", "a", "bb"):
        assert length(text) == len(text)
    assert asked == ["a", "bb", "cc", "dd", "a", "bb"]


def _sql(number: int) -> str:
    return " OR ".join(f"a CONTAINS 'x{number}y{each}'" for each in range(500))


def _tags(number: int) -> str:
    return "||".join(f"{number}x{each}" for each in range(1_500))


def _one_tag(number: int) -> str:
    return f"{number}".rjust(16_000, "x")


@pytest.mark.parametrize(
    ("parse", "expression", "count"),
    [(filters_sql.parse, _sql, 20), (tags.parse, _tags, 40), (tags.parse, _one_tag, 250)],
    ids=["SQL", "tags", "tag"],
)
def test_any_number_of_large_filters_takes_a_few_mib(
    parse: Callable[[str], object], expression: Callable[[int], str], count: int
) -> None:
    parse(expression(0))
    tracemalloc.start()
    try:
        for number in range(count):
            found = parse(expression(number))
            if isinstance(found, tags.TagFilter) and number < 3:
                assert len(found.hashes) == len(found.tags)
        found = None
        grown = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert grown < 4 * 1024 * 1024
