"""The source of a copy: its checks, and what identifies its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextlib import closing
from itertools import islice

from sqlalchemy import Connection, Table, func, select

from popserver.database.check import check_integrity
from popserver.database.copying.ends import end_of
from popserver.database.copying.pages import Key, PageReader, PageRecord, Row, digest_of
from popserver.database.schema import metadata
from popserver.model.errors import StoreUnavailable

_SMALL = 100_000  # rows of a table that the fingerprint contains whole


class CopySource:
    """A database whose rows nobody changes, read by one connection in one transaction.

    `counts`: the rows of each table.
    """

    def __init__(self, conn: Connection, name: str) -> None:
        self.name = name
        self._conn = conn
        self._end = end_of(conn)
        self._end.keep_unchanged(conn)
        self.tables = metadata.sorted_tables
        self.counts = {table.name: self._count(table) for table in self.tables}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def check(self, *, for_strict: bool = False) -> None:
        """Raise `StoreUnavailable` for damage, broken invariants, and values that a strict target cannot hold."""
        check_integrity(self._conn)
        for table in self.tables if for_strict else ():
            if (found := self._end.misfit(self._conn, table)) is not None:
                raise StoreUnavailable(
                    f"{self.name} has a value that Postgres cannot hold: {found}; PopMQ never writes such a value:"
                    " correct it, and repeat"
                )

    def rows(self, table: Table, after: Key | None = None) -> Generator[Row, None, None]:
        """The rows behind the key, or all of them, in the order of the key."""
        return self._end.rows(self._conn, table, after=after)

    def last_id(self, table: Table) -> int:
        return self._end.last_id(self._conn, table)

    def fingerprint(self) -> str:
        """A digest of the counts, the last ids and all tables that are not large.

        A server that runs changes some of these, so an interrupted copy notices it.
        """
        found = {}
        for table in self.tables:
            last_id = self.last_id(table) if table.autoincrement_column is not None else 0
            count = self.counts[table.name]
            pages = PageReader(table).pages(self.rows(table)) if count <= _SMALL else ()
            found[table.name] = (count, last_id, [digest_of(page) for page in pages])
        return hashlib.blake2b(json.dumps(found).encode(), digest_size=16).hexdigest()

    def begins_with(self, table: Table, pages: list[PageRecord]) -> bool:
        """Whether the table begins with these pages."""
        if not pages:
            return True
        with closing(self._end.rows(self._conn, table, until=pages[-1].last_key)) as rows:
            is_same = all(digest_of(islice(rows, page.rows)) == page.digest for page in pages)
            return is_same and next(rows, None) is None

    def _count(self, table: Table) -> int:
        return int(self._conn.execute(select(func.count()).select_from(table)).scalar_one())
