"""The steps of a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from popserver.database import migrate
from popserver.database.check import check_unused
from popserver.database.copying.ends import end_of
from popserver.database.copying.pages import PageReader
from popserver.database.copying.source import CopySource
from popserver.database.copying.target import CopyTarget
from popserver.database.database import Database, parse_url, plain_errors, sqlite_file
from popserver.database.dialect import dialect_of
from popserver.model.errors import StoreUnavailable
from popserver.postgres.urls import shown


class CopyWatcher(Protocol):
    """Is told how far a copy is."""

    def step(self, name: str, total: int = 0) -> None:
        """A step begins, with so many rows or indexes; 0 if it does not count."""

    def advance(self, count: int, *, before: bool = False) -> None:
        """So many more of the step are done; `before`: by an earlier part of the copy."""


def copy_database(
    source_url: str, target_url: str, watch: CopyWatcher, *, restart: bool = False, dry_run: bool = False
) -> dict[str, Any]:
    """Copy a database into an empty one, or continue a copy that was interrupted. Returns facts about it.

    No server may use either of them; until the end none can use the target. `restart`: begins an unfinished copy anew.
    `dry_run`: only checks. Raises `StoreUnavailable` and `StoreFull`: the source is as it was, and so is the target,
    unless the copy had begun; then the same call continues it.
    """
    file = _check_urls(parse_url(source_url), parse_url(target_url))
    with _source(source_url) as (source, conn):
        facts = {
            "from": source.name,
            "to": shown(parse_url(target_url)),
            "schema": migrate.HEAD,
            "rows": source.total,
            "bytes": dialect_of(conn).size_bytes(conn),
            "tables": {name: count for name, count in source.counts.items() if count},
        }
        # First, because opening a file creates it.
        is_checked = file is not None and not file.exists()
        if is_checked:
            watch.step("check the source")
            source.check()
            if dry_run:
                return facts | {"dry_run": True, "continues": False}
        with _target(target_url, conn) as target:
            continues = target.check() and not restart
            if not is_checked:
                watch.step("check the source")
                _check(source, target, continues=continues)
            if dry_run:
                return facts | {"dry_run": True, "continues": continues}
            if not continues:
                target.begin(source.fingerprint())
            _copy_rows(source, target, watch)
            _complete(source, target, watch)
        return facts | {"continued": continues}


def _check(source: CopySource, target: CopyTarget, *, continues: bool) -> None:
    """Raise `StoreUnavailable` unless the source can be copied, or is the one whose copy the target has a part of."""
    if not continues:
        source.check(for_strict=target.end.is_strict)
        return
    is_same = target.ledger.fingerprint() == source.fingerprint()
    if not is_same or not all(source.begins_with(table, target.ledger.pages(table.name)) for table in source.tables):
        raise StoreUnavailable(
            f"{target.name} has an unfinished copy of another database, or {source.name} has changed since; name the"
            " source of that copy, or begin anew with --restart"
        )


def _copy_rows(source: CopySource, target: CopyTarget, watch: CopyWatcher) -> None:
    """Copy what the target does not have yet."""
    target.prepare()
    watch.step("copy rows", source.total)
    watch.advance(target.ledger.copied(), before=True)
    for table in source.tables:
        number, after = target.ledger.position(table.name)
        with closing(source.rows(table, after)) as rows:
            for page in PageReader(table).pages(rows):
                target.write(table, number, page)
                number += 1
                watch.advance(len(page))


def _complete(source: CopySource, target: CopyTarget, watch: CopyWatcher) -> None:
    """Create the indexes, verify all rows, and let servers use the target."""
    missing = target.ledger.missing_indexes()
    watch.step("create indexes", len(missing))
    for index in missing:
        with target.transaction():
            target.ledger.create_index(index)
        watch.advance(1)
    target.analyze()
    watch.step("verify rows", source.total)
    for table in source.tables:
        watch.advance(target.verify(table, source))
    watch.step("check the copy")
    target.check_integrity()
    target.finish(source)


@contextmanager
def _source(url: str) -> Iterator[tuple[CopySource, Connection]]:
    """The source, and its connection in a transaction that reads."""
    with closing(Database(url, must_exist=True, own_process=True)) as database:
        with plain_errors(database.name), database.writing.connect() as conn:
            check_unused(database, conn)
        migrate.check(database)
        with database.read() as conn:
            yield CopySource(conn, database.name), conn


@contextmanager
def _target(url: str, source_conn: Connection) -> Iterator[CopyTarget]:
    with closing(Database(url, durability="relaxed", own_process=True)) as database, database.connect_writer() as conn:
        if end_of(conn).identity(conn) == end_of(source_conn).identity(source_conn):
            raise _same(database.name)
        yield CopyTarget(database, conn)


def _check_urls(source: URL, target: URL) -> Path | None:
    """The file of the target; None if it is a Postgres. Raises `StoreUnavailable`."""
    files = [sqlite_file(url) for url in (source, target)]
    for url, file in zip((source, target), files, strict=True):
        if file is None and url.get_backend_name() == "sqlite":
            raise StoreUnavailable(f"{shown(url)} is in the memory of one process, and cannot be copied; name a file")
    if files[0] is not None and not files[0].is_file():
        raise StoreUnavailable(f"{files[0]} does not exist; name the file of the database to copy")
    if files[0] is not None and files[0] == files[1]:
        raise _same(shown(target))
    return files[1]


def _same(name: str) -> StoreUnavailable:
    return StoreUnavailable(f"{name} is the source and the target; name another, empty database for the copy")
