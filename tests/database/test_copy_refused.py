"""What a copy refuses: each refusal says what to do, and changes neither database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from popserver.database import migrate
from popserver.database.copying.copy import copy_database
from popserver.database.database import Database
from popserver.model.errors import StoreFull, StoreUnavailable
from tests.database.full_store import NoWatcher, closed, content, opened
from tests.support.open_store import OpenStore
from tests.support.postgres import PostgresServer, fresh_database


@pytest.fixture
def source(database_url: str) -> str:
    """A store with a message, a hold and a key."""
    migrate.upgrade(database := Database(database_url))
    database.close()
    with a_store(database_url) as store:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 3, keys=("k",))
        store.receive(group, topic, 1)
    return database_url


@contextmanager
def a_store(url: str) -> Iterator[OpenStore]:
    store = opened(url)
    yield store
    closed(store)


@pytest.fixture
def new_file(tmp_path: Path) -> Path:
    return tmp_path / "new.db"


def refused(source: str, target: str, sentence: str, **how: Any) -> None:
    for dry_run in (True, False):
        with pytest.raises(StoreUnavailable, match=sentence):
            copy_database(source, target, NoWatcher(), dry_run=dry_run, **how)


def test_a_source_that_a_server_uses(source: str, new_file: Path) -> None:
    with a_store(source):
        refused(source, f"sqlite:///{new_file}", "in use (by another|: popmq has)|is in use: popmq has")
    assert not new_file.exists()


def test_a_target_that_a_server_uses(source: str, new_file: Path, empty_postgres_url: str) -> None:
    for target in (f"sqlite:///{new_file}", empty_postgres_url):
        with Database(target).connect_writer() as conn:
            refused(source, target, "in use (by another|: popmq has)|is in use: popmq has")
            assert not conn.closed


def test_a_target_that_is_not_empty(source: str, new_file: Path, empty_postgres_url: str) -> None:
    for target in (f"sqlite:///{new_file}", empty_postgres_url):
        migrate.upgrade(database := Database(target))
        database.close()
        with a_store(target) as store:
            store.topic("mine")
            before = content(store)
        refused(source, target, r"is not empty, its table \w+ has rows; name a new file, or a database")
        refused(source, target, "is not empty", restart=True)
        with a_store(target) as store:
            assert content(store) == before


def test_a_target_with_an_empty_schema_is_taken(source: str, new_file: Path, empty_postgres_url: str) -> None:
    with a_store(source) as store:
        before = content(store)
    for target in (f"sqlite:///{new_file}", empty_postgres_url):
        migrate.upgrade(database := Database(target))
        database.close()
        copy_database(source, target, NoWatcher())
        with a_store(target) as store:
            assert content(store) == before


def test_a_target_with_tables_of_another_program(source: str, new_file: Path, empty_postgres_url: str) -> None:
    with sqlite3.connect(new_file) as file:
        file.execute("CREATE TABLE message (text)")
    file.close()
    with psycopg.connect(empty_postgres_url) as conn:
        conn.execute("CREATE TABLE message (text text)")
    for target in (f"sqlite:///{new_file}", empty_postgres_url):
        refused(source, target, r"has tables of another program \(message\); choose an empty database")


def test_the_same_database_on_both_sides(source: str, tmp_path: Path) -> None:
    again = source.replace("127.0.0.1", "localhost")
    if source.startswith("sqlite"):
        (tmp_path / "link.db").symlink_to(source.removeprefix("sqlite:///"))
        again = f"sqlite:///{tmp_path}/link.db"
    for target in (source, again):
        refused(source, target, "is the source and the target; name another, empty database")


def test_a_source_of_another_schema(source: str, new_file: Path) -> None:
    for version, sentence in (("9999", "newer than this popmq's"), ("0001", "of a development version")):
        with a_store(source) as store:
            store.conn.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{version}'")
        refused(source, f"sqlite:///{new_file}", sentence)
    assert not new_file.exists()


def test_a_source_without_a_schema(database_url: str, empty_postgres_url: str, new_file: Path) -> None:
    refused(empty_postgres_url, f"sqlite:///{new_file}", "has no schema yet")
    missing = f"sqlite:///{new_file}x"
    refused(missing, f"sqlite:///{new_file}", "does not exist; name the file of the database to copy")
    assert not new_file.with_name("new.dbx").exists()
    refused("sqlite://", database_url, "is in the memory of one process")
    refused(f"mysql://h/{new_file.name}", database_url, "PopMQ supports sqlite and postgresql")


def test_a_source_with_broken_invariants(source: str, new_file: Path) -> None:
    with a_store(source) as store:
        store.conn.exec_driver_sql("DELETE FROM message")
    refused(source, f"sqlite:///{new_file}", r"an entry of the index of keys without its message \(3\)")
    assert not new_file.exists()


def test_a_damaged_source(sqlite_url: str, empty_postgres_url: str) -> None:
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    with a_store(sqlite_url) as store:
        store.send(store.topic(), 200, body=b"x" * 2_000)
    file = Path(sqlite_url.removeprefix("sqlite:///"))
    damaged = bytearray(file.read_bytes())
    middle = len(damaged) // 2
    damaged[middle : middle + 8_192] = b"\xff" * 8_192
    file.write_bytes(damaged)
    refused(sqlite_url, empty_postgres_url, "is damaged")
    with psycopg.connect(empty_postgres_url) as conn:
        assert conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("UPDATE message SET tag = 'a' || char(0) WHERE message_key & 1 = 1", "message.tag in the row message_key="),
        ("UPDATE delivery SET attempt = 3000000000", "delivery.attempt in the row group_id=1, message_key="),
        ("UPDATE topic SET fifo_queues = 'one'", "topic.fifo_queues in the row topic_id=1"),
        ("UPDATE consumer_group SET mode = x'00'", "consumer_group.mode in the row group_id=1"),
    ],
)
def test_a_value_that_postgres_cannot_hold(sqlite_url: str, postgres: PostgresServer, change: str, found: str) -> None:
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    with a_store(sqlite_url) as store:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 2)
        store.receive(group, topic, 1)
        store.conn.exec_driver_sql(change)
    with fresh_database(postgres) as target:
        refused(sqlite_url, target, f"a value that Postgres cannot hold: {found}.*correct it, and repeat")


def test_a_dry_run_changes_nothing(source: str, new_file: Path, empty_postgres_url: str) -> None:
    facts = copy_database(source, f"sqlite:///{new_file}", NoWatcher(), dry_run=True)
    assert (facts["tables"]["message"], facts["continues"]) == (3, False)
    assert facts["bytes"] > 0
    assert not new_file.exists()
    copy_database(source, empty_postgres_url, NoWatcher(), dry_run=True)
    with psycopg.connect(empty_postgres_url) as conn:
        assert conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_a_writer_beside_the_copy_waits(postgres_url: str, new_file: Path) -> None:
    """Of Postgres: a user's own transaction cannot change the source meanwhile."""
    migrate.upgrade(database := Database(postgres_url))
    database.close()

    class Writing(NoWatcher):
        def step(self, name: str, total: int = 0) -> None:
            with psycopg.connect(postgres_url) as conn, pytest.raises(psycopg.errors.LockNotAvailable):
                conn.execute("SET lock_timeout = '10ms'")
                conn.execute("DELETE FROM topic")

    copy_database(postgres_url, f"sqlite:///{new_file}", Writing())


def test_a_full_disk_can_be_freed(source: str, new_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = iter(["200", "1000000"])

    def limited(_end: object, conn: Any) -> None:
        conn.exec_driver_sql(f"PRAGMA max_page_count = {next(limits)}")

    monkeypatch.setattr("popserver.database.copying.ends.SqliteEnd.prepare_load", limited)
    with a_store(source) as store:
        store.send(store.topic("large"), 100, body=b"x" * 10_000)
        before = content(store)
    target = f"sqlite:///{new_file}"
    with pytest.raises(StoreFull, match=r"the disk of .* is full .* free some space and repeat"):
        copy_database(source, target, NoWatcher())
    assert copy_database(source, target, NoWatcher())["continued"]
    with a_store(target) as store:
        assert content(store) == before
