"""The target of a copy: what may be copied into it, its transactions, and the comparison with the source."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import islice

from sqlalchemy import Connection, Table, exists, func, select

from popserver.database import migrate
from popserver.database.check import check_integrity, check_unused
from popserver.database.copying.ends import end_of
from popserver.database.copying.ledger import CopyLedger
from popserver.database.copying.pages import PageReader, Row, digest_of, first_difference
from popserver.database.copying.source import CopySource
from popserver.database.database import Database, plain_errors
from popserver.database.schema import metadata
from popserver.model.errors import StoreUnavailable


class CopyTarget:
    """A database that is empty, or has an unfinished copy; no server uses it."""

    def __init__(self, database: Database, conn: Connection) -> None:
        """`conn`: the only writing connection. Raises `StoreUnavailable` while another program uses the database."""
        self.name = database.name
        self.end = end_of(conn)
        self._database = database
        self._conn = conn
        self.ledger = CopyLedger(conn)
        with plain_errors(self.name):
            check_unused(database, conn)

    def check(self) -> bool:
        """Whether it has an unfinished copy. Raises `StoreUnavailable` if it has rows, or tables of another program."""
        if self.ledger.exists():
            return True
        if migrate.revision(self._database) is None:
            migrate.check_no_strangers(self._conn, self.name)
            return False
        migrate.check(self._database)
        for table in metadata.sorted_tables:
            if self._conn.execute(select(exists(select(1).select_from(table)))).scalar_one():
                raise StoreUnavailable(
                    f"{self.name} is not empty, its table {table.name} has rows; name a new file, or a database of"
                    " Postgres without PopMQ's tables (createdb NAME)"
                )
        return False

    def begin(self, fingerprint: str) -> None:
        """Create the tables and the record of the copy; an unfinished copy and an empty schema are dropped."""
        with migrate.changing_schema(self._database) as conn:
            ledger = CopyLedger(conn)
            if ledger.exists() or migrate.has_schema(conn):
                ledger.remove()
                migrate.drop(conn)
            ledger.begin(fingerprint)

    def prepare(self) -> None:
        with plain_errors(self.name):
            self.end.prepare_load(self._conn)

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction; after an error it has changed nothing."""
        with plain_errors(self.name):
            self._database.begin(self._conn)
            try:
                yield self._conn
                self._database.commit(self._conn)
            except BaseException:
                if not self._conn.invalidated and not self._database.has_rolled_back(self._conn):
                    self._conn.exec_driver_sql("ROLLBACK")
                raise

    def write(self, table: Table, number: int, page: list[Row]) -> None:
        """Store one page, and its record."""
        record = PageReader(table).record(number, page)
        with self.transaction() as conn:
            self.end.write(conn, table, page)
            self.ledger.add(table.name, record)

    def analyze(self) -> None:
        with plain_errors(self.name):
            self.end.analyze(self._conn)

    def verify(self, table: Table, source: CopySource) -> int:
        """Read the table back, and compare it with the source. Returns the number of its rows.

        Raises `StoreUnavailable` with the first row that differs.
        """
        after = None
        with self._database.read() as conn, closing(self.end.rows(conn, table)) as rows:
            for page in self.ledger.pages(table.name):
                if digest_of(islice(rows, page.rows)) != page.digest:
                    break
                after = page.last_key
            else:
                if next(rows, None) is None:
                    return self._counted(table, source)
        with (
            self._database.read() as conn,
            closing(self.end.rows(conn, table, after=after)) as theirs,
            closing(source.rows(table, after)) as ours,
        ):
            found = first_difference(PageReader(table), ours, theirs)
        raise self._differs(table, found or "its pages are not those that were read")

    def check_integrity(self) -> None:
        """Raise `StoreUnavailable` for damage and broken invariants."""
        with self._database.read() as conn:
            check_integrity(conn)

    def finish(self, source: CopySource) -> None:
        """Make it a database that a server uses: views, functions, the last ids, and the number of its schema."""
        self.end.make_durable(self._conn)
        with self.transaction() as conn:
            for table in metadata.sorted_tables:
                if (column := table.autoincrement_column) is not None:
                    highest = conn.execute(select(func.coalesce(func.max(column), 0))).scalar_one()
                    self.end.set_last_id(conn, table, max(source.last_id(table), highest))
            self.ledger.remove()
            migrate.complete(conn)
        with plain_errors(self.name):
            self.end.finish(self._conn)

    def _counted(self, table: Table, source: CopySource) -> int:
        count = sum(page.rows for page in self.ledger.pages(table.name))
        if count != source.counts[table.name]:
            raise self._differs(table, f"it has {count:,} rows instead of {source.counts[table.name]:,}")
        return count

    def _differs(self, table: Table, how: str) -> StoreUnavailable:
        return StoreUnavailable(
            f"table {table.name} of {self.name} differs from the source: {how}; nothing uses this copy yet: see what"
            " else writes there, and repeat with --restart"
        )
