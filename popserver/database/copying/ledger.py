"""The record of a copy, in the target itself: it is written with the rows, and removed when the copy is complete.

While it is there, the database has no number of its schema, so no server and no other command uses it
(`database.migrate`).
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import BigInteger, Column, Connection, MetaData, Table, Text, delete, func, insert, inspect, select

from popserver.database import migrate
from popserver.database.copying.ends import IndexText, end_of
from popserver.database.copying.pages import Key, PageRecord, key_from_text, key_text
from popserver.database.schema import metadata

_METADATA = MetaData()
_COPY = Table(migrate.UNFINISHED_COPY, _METADATA, Column("fingerprint", Text, nullable=False))
_PAGE = Table(
    f"{migrate.UNFINISHED_COPY}_page",
    _METADATA,
    Column("table_name", Text, primary_key=True),
    Column("page_number", BigInteger, primary_key=True, autoincrement=False),
    Column("row_count", BigInteger, nullable=False),
    Column("digest", Text, nullable=False),
    Column("last_key", Text, nullable=False),
)
_INDEX = Table(
    f"{migrate.UNFINISHED_COPY}_index",
    _METADATA,
    Column("name", Text, primary_key=True),
    Column("statement", Text, nullable=False),
)


class CopyLedger:
    """The record in one target."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn

    def exists(self) -> bool:
        return inspect(self._conn).has_table(migrate.UNFINISHED_COPY)

    def begin(self, fingerprint: str) -> None:
        """Create the tables without their indexes, and the record. `fingerprint` identifies the content of the source.

        The indexes come after the rows: to sort all rows once is faster than to insert each.
        """
        metadata.create_all(self._conn)
        _METADATA.create_all(self._conn)
        self._conn.execute(insert(_COPY), {"fingerprint": fingerprint})
        for index in end_of(self._conn).indexes(self._conn):
            self._conn.exec_driver_sql(index.drop)
            self._conn.execute(insert(_INDEX), {"name": index.name, "statement": index.create})

    def remove(self) -> None:
        _METADATA.drop_all(self._conn)

    def fingerprint(self) -> str:
        """That of the source whose copy this is."""
        return str(self._conn.execute(select(_COPY.c.fingerprint)).scalar_one())

    def add(self, table: str, page: PageRecord) -> None:
        self._conn.execute(
            insert(_PAGE),
            {
                "table_name": table,
                "page_number": page.number,
                "row_count": page.rows,
                "digest": page.digest,
                "last_key": key_text(page.last_key),
            },
        )

    def pages(self, table: str) -> list[PageRecord]:
        """The pages of a table that were copied, in their order."""
        columns = (_PAGE.c.page_number, _PAGE.c.row_count, _PAGE.c.digest, _PAGE.c.last_key)
        query = select(*columns).where(_PAGE.c.table_name == table).order_by(_PAGE.c.page_number)
        return [
            PageRecord(number, count, digest, key_from_text(last))
            for number, count, digest, last in self._conn.execute(query)
        ]

    def position(self, table: str) -> tuple[int, Key | None]:
        """How many pages of a table were copied, and the key of their last row."""
        query = (
            select(_PAGE.c.last_key).where(_PAGE.c.table_name == table).order_by(_PAGE.c.page_number.desc()).limit(1)
        )
        last = self._conn.execute(query).scalar()
        count = select(func.count()).where(_PAGE.c.table_name == table)
        return self._conn.execute(count).scalar_one(), None if last is None else key_from_text(last)

    def copied(self) -> int:
        """The rows of all tables that were copied."""
        return int(self._conn.execute(select(func.coalesce(func.sum(_PAGE.c.row_count), 0))).scalar_one())

    def missing_indexes(self) -> Sequence[IndexText]:
        """The indexes that are still to be created."""
        found = self._conn.execute(select(_INDEX.c.name, _INDEX.c.statement).order_by(_INDEX.c.name)).all()
        return [IndexText(name, "", statement) for name, statement in found]

    def create_index(self, index: IndexText) -> None:
        """Create it, and remove it from the record."""
        self._conn.exec_driver_sql(index.create, execution_options={"no_parameters": True})
        self._conn.execute(delete(_INDEX).where(_INDEX.c.name == index.name))
