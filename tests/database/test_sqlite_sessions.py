"""Each connection to SQLite has what PopMQ's SQL relies on, whatever the library, the file and other code have."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sqlalchemy import Engine, event, text

from popserver.database import migrate
from popserver.database.database import Database
from popserver.database.dialect import _ROWS_PER_STATEMENT_MAX, inserted_columns
from popserver.database.schema import metadata
from popserver.model.errors import StoreUnavailable
from popserver.sqlite.library import LIMITS, CompiledLimit, check_library
from popserver.sqlite.sessions import PRAGMAS
from tests.support.builders import messages_of
from tests.support.open_store import OpenStore, ids

HOSTILE: Mapping[str, str] = {
    "busy_timeout": "0",
    "read_uncommitted": "ON",
    "reverse_unordered_selects": "ON",
    "case_sensitive_like": "ON",
    "automatic_index": "OFF",
    "foreign_keys": "ON",
    "recursive_triggers": "ON",
    "ignore_check_constraints": "ON",
    "writable_schema": "ON",
    "legacy_alter_table": "ON",
    "short_column_names": "OFF",
    "full_column_names": "ON",
    "mmap_size": "268435456",
    "temp_store": "FILE",
    "locking_mode": "EXCLUSIVE",  # the last: after a look at the file nothing can set it back
}


def test_each_pragma_has_a_hostile_value() -> None:
    assert HOSTILE.keys() == {each.name for each in PRAGMAS}


@contextmanager
def listening(do: Callable[[Any], object]) -> Iterator[None]:
    """As an application that prepares the connections of all its engines, and so ours too."""

    def listener(dbapi: Any, _record: object) -> None:
        do(dbapi)

    event.listen(Engine, "connect", listener)
    try:
        yield
    finally:
        event.remove(Engine, "connect", listener)


def _spoil(dbapi: Any) -> None:
    for name, value in HOSTILE.items():
        dbapi.execute(f"PRAGMA {name} = {value}")
    dbapi.execute("PRAGMA query_only = ON")
    dbapi.row_factory, dbapi.text_factory, dbapi.isolation_level = None, bytes, "DEFERRED"


@pytest.fixture(params=["file", "own process", "memory"])
def spoiled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    url = "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path / 'popmq.db'}"
    with listening(_spoil), closing(Database(url, own_process=request.param == "own process")) as database:
        migrate.upgrade(database)
        yield database


def test_what_other_code_sets_is_set_back(spoiled: Database) -> None:
    told = {each.name: each.answer for each in PRAGMAS if each.answer is not None}
    if spoiled.is_memory:
        del told["mmap_size"], told["locking_mode"]
    with spoiled.connect_writer() as writer, spoiled.reading.connect() as reader:
        for conn in (writer, reader):
            found = {name: conn.exec_driver_sql(f"PRAGMA {name}").scalar() for name in told}
            assert found == told
            assert conn.exec_driver_sql("SELECT 'a' LIKE 'A', 'text'").one() == (1, "text")


def test_a_load_beside_other_code(spoiled: Database) -> None:
    store = OpenStore(spoiled)
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, messages_of(100, topic.name))
    received = [each for _ in range(10) for each in store.receive(group, topic)]
    assert len({*ids(received)}) == len(received) == 100
    store.ack(group, *received)
    store.check()
    store.conn.close()


def test_adapters_of_other_code_change_no_value(tmp_path: Path) -> None:
    """They are for the whole process."""
    before = dict(sqlite3.adapters)
    try:
        sqlite3.register_adapter(str, lambda given: given.upper())
        sqlite3.register_adapter(bytes, lambda given: given[::-1])
        sqlite3.register_adapter(int, lambda given: given + 1)
        sqlite3.register_adapter(type(None), lambda _: 0)
        with closing(Database(f"sqlite:///{tmp_path / 'popmq.db'}")) as database:
            migrate.upgrade(database)
            store = OpenStore(database)
            topic = store.topic("lower")
            group = store.group(meets=[topic])
            store.send(topic, messages_of(3, topic.name))
            assert store.one_value("SELECT name FROM topic") == "lower"
            assert len(store.receive(group, topic)) == 3
            store.conn.close()
    finally:
        sqlite3.adapters.clear()
        sqlite3.adapters.update(before)


def test_our_adapters_do_not_reach_other_code(sqlite_url: str) -> None:
    before = dict(sqlite3.adapters)
    Database(sqlite_url).close()
    assert sqlite3.adapters == before


def test_a_connect_that_was_replaced_is_not_used(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_connection(*_: object, **__: object) -> None:
        raise AssertionError("the replaced connect was called")

    monkeypatch.setattr(sqlite3, "connect", no_connection)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", no_connection)
    with closing(Database(sqlite_url)) as database:
        migrate.upgrade(database)


@pytest.mark.skipif(not hasattr(sqlite3, "enable_shared_cache"), reason="this Python has no switch for it")
def test_a_shared_cache_is_not_shared_with_us(sqlite_url: str) -> None:
    """In it a reader fails while a transaction writes."""
    switch = cast("Callable[[bool], None]", sqlite3.enable_shared_cache)
    with pytest.warns(DeprecationWarning):
        switch(True)
    try:
        with closing(Database(sqlite_url)) as database:
            migrate.upgrade(database)
            with database.connect_writer() as writer:
                database.begin(writer)
                writer.exec_driver_sql("DELETE FROM topic")
                with database.read() as reader:
                    assert reader.execute(text("SELECT COUNT(*) FROM topic")).scalar() == 0
                writer.exec_driver_sql("ROLLBACK")
    finally:
        with pytest.warns(DeprecationWarning):
            switch(False)


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "popmq.db")) as conn:
        conn.execute("PRAGMA encoding = 'UTF-16le'")
        conn.execute("CREATE TABLE mine (n)")
        conn.commit()
    says = r"has the encoding UTF-16le, not UTF-8.*use another file"
    url = f"sqlite:///{tmp_path / 'popmq.db'}"
    with closing(Database(url)) as database, pytest.raises(StoreUnavailable, match=says):
        migrate.upgrade(database)


@pytest.mark.parametrize(
    "made_with", ["page_size = 512", "page_size = 65536", "auto_vacuum = FULL", "user_version = 77"]
)
def test_a_file_that_was_made_otherwise(tmp_path: Path, made_with: str) -> None:
    file = tmp_path / "popmq.db"
    with closing(sqlite3.connect(file)) as conn:
        conn.execute(f"PRAGMA {made_with}")
        conn.execute("VACUUM")
    with closing(Database(f"sqlite:///{file}")) as database:
        migrate.upgrade(database)
        OpenStore(database).conn.close()
    with closing(sqlite3.connect(file)) as conn:
        assert conn.execute("PRAGMA journal_mode = DELETE").fetchone() == ("delete",)
    with closing(Database(f"sqlite:///{file}")) as database, database.connect_writer() as conn:
        assert conn.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


@pytest.mark.parametrize("limit", LIMITS, ids=[each.category for each in LIMITS])
def test_a_limit_that_is_too_low(sqlite_url: str, limit: CompiledLimit) -> None:
    def lower(dbapi: Any) -> None:
        dbapi.setlimit(getattr(sqlite3, limit.category), max(limit.least // 2, 30))

    says = rf"its {limit.category} is \d+, at least {limit.least} are needed"
    with listening(lower), closing(Database(sqlite_url)) as database, pytest.raises(StoreUnavailable, match=says):
        migrate.upgrade(database)


def test_the_limits_are_enough() -> None:
    columns = max(len(inserted_columns(table)) for table in metadata.tables.values())
    least = {each.category: each.least for each in LIMITS}
    assert columns * _ROWS_PER_STATEMENT_MAX <= least["SQLITE_LIMIT_VARIABLE_NUMBER"]
    assert columns <= least["SQLITE_LIMIT_FUNCTION_ARG"]


def test_a_library_without_json(sqlite_url: str) -> None:
    def without_json(dbapi: Any) -> None:
        denied = lambda action, _, name, *__: (  # noqa: E731
            sqlite3.SQLITE_DENY if (action, name) == (sqlite3.SQLITE_FUNCTION, "json_array") else sqlite3.SQLITE_OK
        )
        dbapi.set_authorizer(denied)

    says = r"was compiled without a part of SQL \(not authorized to use function: json_array\)"
    with (
        listening(without_json),
        closing(Database(sqlite_url)) as database,
        pytest.raises(StoreUnavailable, match=says),
    ):
        migrate.upgrade(database)


@pytest.mark.parametrize(
    ("version", "options", "says"),
    [
        ("3.37.2", [], "SQLite 3.37.2 of this Python .* needs 3.38 or newer"),
        ("3.45.0", [("THREADSAFE=0",)], r"compiled for one thread \(THREADSAFE=0\)"),
    ],
)
def test_a_library_that_cannot_do_it(version: str, options: list[tuple[str]], says: str) -> None:
    library: Any = SimpleNamespace(sqlite_version=version, Error=sqlite3.Error)
    conn = SimpleNamespace(execute=lambda _: options)
    with pytest.raises(StoreUnavailable, match=says):
        check_library(conn, library)
