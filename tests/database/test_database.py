"""Opening a database: what is promised of it, and plain words where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from popserver.database import database as database_module
from popserver.database import migrate
from popserver.database.check import compact
from popserver.database.database import Database, plain_errors
from popserver.database.rows import encode_rows, rows_parameter
from popserver.model.errors import PopError, StoreUnavailable
from tests.support.open_store import OpenStore


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("popmq.db", "database URL 'popmq.db' is malformed; write sqlite:///popmq.db or postgresql://"),
        ("mysql://h/d", "is for 'mysql'; PopMQ supports sqlite and postgresql"),
        ("sqlite:////no/such/folder/popmq.db", "cannot be opened .*; choose a writable folder"),
    ],
)
def test_a_url_that_names_no_store(url: str, says: str) -> None:
    with pytest.raises(StoreUnavailable, match=says):
        Database(url)


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("relaxed", 1)])
def test_sqlite_writes_ahead_and_flushes(sqlite_url: str, durability: str, synchronous: int) -> None:
    database = Database(sqlite_url, durability=durability)
    with database.connect_writer() as conn:
        assert conn.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert conn.exec_driver_sql("PRAGMA synchronous").scalar() == synchronous
    database.close()


def test_a_second_server_on_one_file_is_refused(sqlite_url: str) -> None:
    first = Database(sqlite_url)
    with pytest.raises(StoreUnavailable, match="is in use by another popmq server"):
        Database(sqlite_url)
    first.close()
    Database(sqlite_url).close()


def test_one_file_is_one_file_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "other.db").symlink_to(tmp_path / "popmq.db")
    first = Database(f"sqlite:///{tmp_path / 'popmq.db'}")
    with pytest.raises(StoreUnavailable, match="is in use by another popmq server"):
        Database(f"sqlite:///{tmp_path / 'other.db'}")
    first.close()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077], ids=oct)
def test_a_file_it_makes_is_for_this_user_alone(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        database = Database(f"sqlite:///{tmp_path / 'popmq.db'}")
        migrate.upgrade(database)
        with database.connect_writer(), database.read():
            modes = {each.name: each.stat().st_mode & 0o777 for each in tmp_path.iterdir()}
        database.close()
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("popmq.db", "popmq.db-wal", "popmq.db-shm", "popmq.db.lock"), 0o600)


def test_a_file_that_is_there_stays_as_open_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "popmq.db"
    file.touch()
    file.chmod(0o640)
    database = Database(f"sqlite:///{file}")
    migrate.upgrade(database)
    database.close()
    assert file.stat().st_mode & 0o777 == 0o640


def test_a_read_whose_connection_breaks_says_so(postgres_url: str) -> None:
    database = Database(postgres_url)
    with pytest.raises(StoreUnavailable, match="does not answer"), database.read() as conn:
        conn.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
    database.close()


def test_any_number_of_servers_write_one_postgres(postgres_url: str) -> None:
    first, second = Database(postgres_url), Database(postgres_url)
    with first.connect_writer() as one, second.connect_writer() as other:
        one.exec_driver_sql("CREATE TABLE mine (n integer)")
        other.exec_driver_sql("CREATE TABLE yours (n integer)")
    first.close()
    second.close()


def test_a_connection_that_breaks_at_once_says_so(postgres_url: str) -> None:
    database = Database(postgres_url)
    with (
        database.connect_writer() as conn,
        pytest.raises(StoreUnavailable, match="does not answer"),
        plain_errors(database.name),
    ):
        conn.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")
    database.close()


def test_readers_see_one_moment_and_write_nothing(database_url: str) -> None:
    database = Database(database_url)
    migrate.upgrade(database)
    store = OpenStore(database)
    count = text("SELECT COUNT(*) FROM topic")
    with database.read() as conn:
        assert conn.execute(count).scalar() == 0
        store.topic()
        assert conn.execute(count).scalar() == 0, "still the same moment"
    with database.read() as conn:
        assert conn.execute(count).scalar() == 1
    with pytest.raises((PopError, DBAPIError)), database.read() as conn:
        conn.execute(text("DELETE FROM topic"))
    assert store.one_value("SELECT COUNT(*) FROM topic") == 1
    store.conn.close()
    database.close()


def test_a_password_is_never_shown() -> None:
    assert "secret" not in Database("postgresql://me:secret@localhost/popmq").name


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "popmq.db").write_bytes(b"not a database at all" * 100)
    database = Database(f"sqlite:///{tmp_path / 'popmq.db'}")
    with pytest.raises(StoreUnavailable, match=r"is damaged .*; restore it from a backup"):
        migrate.upgrade(database)
    database.close()


def test_rows_handed_over_arrive_as_they_are(store: OpenStore) -> None:
    rows = [(0, -1, "x"), (2**63 - 1, -(2**63), "é\N{SNOWMAN}'\"\\"), (7, 8, "")]
    handed = rows_parameter("rows", "one", "other", text=("words",))
    query = handed.select()
    assert [tuple(row) for row in store.conn.execute(query, {"rows": encode_rows(rows)})] == rows
    assert list(store.conn.execute(query, {"rows": encode_rows([])})) == []


def test_a_file_with_two_names_is_refused_by_both(tmp_path: Path) -> None:
    """The lock stands beside each name, in perhaps another folder: it would let a second server in."""
    file, link = tmp_path / "popmq.db", tmp_path / "elsewhere" / "other.db"
    first = Database(f"sqlite:///{file}")
    migrate.upgrade(first)
    link.parent.mkdir()
    os.link(file, link)
    with pytest.raises(StoreUnavailable, match=r"other\.db has 2 names \(hard links\)"):
        Database(f"sqlite:///{link}")
    first.close()
    with pytest.raises(StoreUnavailable, match=r"popmq\.db has 2 names"):
        Database(f"sqlite:///{file}")
    link.unlink()
    Database(f"sqlite:///{file}").close()


def test_compacting_gives_the_space_of_removed_messages_back(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'popmq.db'}")
    migrate.upgrade(database)
    store = OpenStore(database)
    topic = store.topic()
    store.send(topic, 500, body=b"x" * 4_000)
    store.conn.exec_driver_sql("DELETE FROM message WHERE message_key % 10 <> 0")
    store.conn.close()
    before, after = compact(database)
    assert before > 2_000_000
    assert after < before / 4
    again = OpenStore(database)
    assert again.one_value("SELECT COUNT(*) FROM message") == 50
    again.conn.close()
    database.close()


def test_a_postgres_needs_no_compacting(postgres_url: str) -> None:
    with pytest.raises(StoreUnavailable, match="is not a SQLite file; Postgres reuses free space itself"):
        compact(Database(postgres_url))


@pytest.mark.parametrize(("after_s", "connections"), [(3_600, 1), (0, 2)])
def test_readers_plan_anew_in_new_connections(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, after_s: int, connections: int
) -> None:
    monkeypatch.setattr(database_module, "PLANNED_ANEW_S", after_s)
    database, backends = Database(postgres_url), set()
    for _ in range(2):
        with database.read() as conn:
            backends.add(conn.exec_driver_sql("SELECT pg_backend_pid()").scalar())
    database.close()
    assert len(backends) == connections
