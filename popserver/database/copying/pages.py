"""Pages: what a copy writes in one transaction, and what it compares.

The rows of a table come in the order of its primary key, texts in the order of their bytes, on both databases. A page
is a part of that sequence. Its digest is made of the values as Python has them, so it is the same for both databases.
"""

from __future__ import annotations

import hashlib
import json
import marshal
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, Final, NamedTuple

from sqlalchemy import Table

Row = tuple[Any, ...]
Key = tuple[Any, ...]

PAGE_ROWS: Final = 10_000
PAGE_BYTES: Final = 8 * 1024 * 1024  # of bodies; a page may exceed it by one of them
_MARSHAL: Final = 2  # the newest version whose bytes depend on the values alone


def has_bodies(table: Table) -> bool:
    """Whether rows may be large: a body is the last column of its table. Limits of other values keep pages small."""
    return list(table.columns)[-1].name == "body"


def counts_of(sizes: Sequence[int]) -> Iterator[int]:
    """How many of the next rows to fetch at once, for bodies of these sizes in bytes."""
    count = total = 0
    for size in sizes:
        count, total = count + 1, total + size
        if total > PAGE_BYTES:
            yield count
            count = total = 0
    if count:
        yield count


class PageRecord(NamedTuple):
    """A page that was copied: its number in its table, its rows, their digest, and the key of the last one."""

    number: int
    rows: int
    digest: str
    last_key: Key


class PageReader:
    """Cuts the rows of a table into pages, and finds keys in them."""

    def __init__(self, table: Table) -> None:
        self.columns = [column.name for column in table.columns]
        self.key_names = [column.name for column in table.primary_key]
        self._key = [self.columns.index(name) for name in self.key_names]
        self._has_bodies = has_bodies(table)

    def key_of(self, row: Row) -> Key:
        return tuple([row[index] for index in self._key])

    def pages(self, rows: Iterator[Row]) -> Iterator[list[Row]]:
        """All rows, in pages that are not empty."""
        take = self._sized if self._has_bodies else lambda rest: list(islice(rest, PAGE_ROWS))
        while page := take(rows):
            yield page

    def record(self, number: int, page: Sequence[Row]) -> PageRecord:
        return PageRecord(number, len(page), digest_of(page), self.key_of(page[-1]))

    def described(self, key: Key) -> str:
        """The key in words, such as `message_key=1099511627776`."""
        return ", ".join(f"{name}={value!r}" for name, value in zip(self.key_names, key, strict=True))

    @staticmethod
    def _sized(rows: Iterator[Row]) -> list[Row]:
        page, size = [], 0
        for row in rows:
            page.append(row)
            size += len(row[-1])
            if len(page) == PAGE_ROWS or size > PAGE_BYTES:
                break
        return page


def digest_of(page: Iterable[Row]) -> str:
    """A digest of the rows and their order. A number and a text of its digits differ."""
    return hashlib.blake2b(marshal.dumps(list(page), _MARSHAL), digest_size=16).hexdigest()


def first_difference(reader: PageReader, source: Iterator[Row], target: Iterator[Row]) -> str | None:
    """The first row in which two sequences in the order of the key differ, in words; None without a difference."""
    nothing = iter([None])
    for ours, theirs in zip(chain(source, nothing), chain(target, iter([None])), strict=False):
        if ours == theirs and list(map(type, ours or ())) == list(map(type, theirs or ())):
            continue
        if theirs is None or (ours is not None and reader.key_of(ours) < reader.key_of(theirs)):
            assert ours is not None, "two ends are equal"
            return f"row {reader.described(reader.key_of(ours))} is missing"
        if ours is None or reader.key_of(ours) > reader.key_of(theirs):
            return f"row {reader.described(reader.key_of(theirs))} is not in the source"
        wrong = [name for name, a, b in zip(reader.columns, ours, theirs, strict=True) if (a, type(a)) != (b, type(b))]
        return f"row {reader.described(reader.key_of(ours))} has another {', '.join(wrong)}"
    return None


def key_text(key: Key) -> str:
    """A key as the record of a page stores it."""
    return json.dumps(key)


def key_from_text(written: str) -> Key:
    return tuple(json.loads(written))
