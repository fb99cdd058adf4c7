"""A backup while a server writes, its file's mode, and its restore; on both databases."""

from __future__ import annotations

import errno
import shutil
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from popserver.database import migrate
from popserver.database.backup import WouldReplace, backup, restore
from popserver.database.database import Database
from popserver.model.errors import StoreUnavailable
from tests.support.open_store import OpenStore


@pytest.fixture
def filled(database_url: str) -> Iterator[OpenStore]:
    """A database that is in use, with a message of each kind of row that matters."""
    if database_url.startswith("postgresql") and shutil.which("pg_dump") is None:
        pytest.skip("pg_dump is not installed")
    database = Database(database_url, durability="relaxed")
    migrate.upgrade(database)
    store = OpenStore(database)
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3, keys=("k",))
    dead, _held, _other = store.receive(group, topic)
    store.forward(group, dead)
    yield store
    if not store.conn.closed:
        store.conn.close()
    database.close()


def stopped(store: OpenStore) -> None:
    store.conn.close()
    store.database.close()


def test_what_is_backed_up_comes_back(filled: OpenStore, database_url: str, tmp_path: Path) -> None:
    before, file = filled.digest(), tmp_path / "copy"
    facts = backup(database_url, file, replace=False)
    assert (facts["backup"], facts["schema"], facts["bytes"]) == (str(file), migrate.HEAD, file.stat().st_size)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "it has the secrets of users"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("copy")] == ["copy"]
    filled.conn.exec_driver_sql("DELETE FROM delivery")
    with pytest.raises(StoreUnavailable, match=r"in use (by another|: popmq has)|is in use: popmq has"):
        restore(database_url, file, replace=True)
    stopped(filled)
    with pytest.raises(WouldReplace, match=r"replaces .* with 1 topic, 3 messages and 1 dead letter; .*--yes"):
        restore(database_url, file, replace=False)
    assert restore(database_url, file, replace=True) == {"restored": str(file), "schema": migrate.HEAD}
    database = Database(database_url)
    restored = OpenStore(database)
    assert restored.digest() == before
    restored.check()
    topic = restored.topic("another")
    restored.send(topic, 1)
    assert restored.one_value("SELECT COUNT(DISTINCT topic_id) FROM topic") == 3, "ids go on where they were"
    if not database.is_sqlite:
        assert restored.one_value("SELECT COUNT(*) FROM pg_proc WHERE proname LIKE 'popmq%'") == 2
    restored.conn.close()
    database.close()


def test_a_connection_that_ends_soon_does_not_refuse_a_restore(postgres_url: str, tmp_path: Path) -> None:
    """A backend of Postgres ends a moment after its server."""
    if shutil.which("pg_dump") is None:
        pytest.skip("pg_dump is not installed")
    database, file = Database(postgres_url), tmp_path / "copy"
    migrate.upgrade(database)
    database.close()
    backup(postgres_url, file, replace=False)
    used = psycopg.connect(postgres_url, application_name="popmq")
    ending = threading.Timer(0.1, used.close)
    ending.start()
    assert restore(postgres_url, file, replace=True) == {"restored": str(file), "schema": migrate.HEAD}
    ending.join()


def test_a_backup_of_a_file_that_is_written_is_one_state(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url, durability="relaxed")
    migrate.upgrade(database)
    store = OpenStore(database)
    topic = store.topic()
    store.send(topic, 100)
    done = threading.Event()

    def write() -> None:
        while not done.is_set():
            store.send(topic, 2)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(5):
            backup(sqlite_url, tmp_path / f"copy{number}.db", replace=False)
    finally:
        done.set()
        writer.join()
    store.conn.close()
    database.close()
    for number in range(5):
        copy = Database(f"sqlite:///{tmp_path}/copy{number}.db")
        with copy.reading.connect() as conn:
            stored = conn.execute(text("SELECT next_offset FROM queue")).scalar_one()
            assert conn.execute(text("SELECT COUNT(*) FROM message")).scalar_one() == stored
        copy.close()


def test_an_existing_file_is_kept(sqlite_url: str, tmp_path: Path) -> None:
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    file = tmp_path / "copy.db"
    file.write_text("other")
    with pytest.raises(WouldReplace, match=r"replaces .*copy\.db of 5 bytes; choose another file"):
        backup(sqlite_url, file, replace=False)
    assert file.read_text() == "other"
    backup(sqlite_url, file, replace=True)
    assert file.stat().st_size > 5


def test_what_cannot_be_restored_changes_nothing(sqlite_url: str, tmp_path: Path) -> None:
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    before = database.file.read_bytes() if database.file else b""
    (tmp_path / "text").write_text("no database")
    with pytest.raises(StoreUnavailable, match=r"cannot be read as a database of PopMQ"):
        restore(sqlite_url, tmp_path / "text", replace=True)
    with pytest.raises(StoreUnavailable, match="is not a file"):
        restore(sqlite_url, tmp_path / "missing", replace=True)
    assert database.file is not None
    assert database.file.read_bytes() == before


def test_a_backup_of_the_other_kind_is_refused(filled: OpenStore, database_url: str, tmp_path: Path) -> None:
    file, other = tmp_path / "copy", "postgresql://nobody@127.0.0.1:1/none"
    backup(database_url, file, replace=False)
    is_dump = database_url.startswith("postgresql")
    if is_dump:
        other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(StoreUnavailable) as refused:
        restore(other, file, replace=True)
    kind = "a dump of Postgres, and the database to restore is SQLite"
    if not is_dump:
        kind = "a backup of SQLite, and the database to restore is Postgres"
    assert str(refused.value).startswith(f"{file} is {kind}; ")
    assert "popmq db copy --from " in str(refused.value)
    assert not (tmp_path / "other.db").exists()


def test_a_backup_that_breaks_off_replaces_nothing(filled: OpenStore, database_url: str, tmp_path: Path) -> None:
    before, file = filled.digest(), tmp_path / "copy"
    backup(database_url, file, replace=False)
    stopped(filled)
    for kept in (99.99, 99.9, 90, 50):
        broken = tmp_path / "broken"
        broken.write_bytes(file.read_bytes()[: int(file.stat().st_size * kept / 100)])
        with pytest.raises(StoreUnavailable):
            restore(database_url, broken, replace=True)
    database = Database(database_url)
    still_there = OpenStore(database)
    assert still_there.digest() == before
    stopped(still_there)


def test_a_restore_that_fails_keeps_what_a_killed_server_left(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last commits are in the WAL."""
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    assert database.file is not None
    backup(sqlite_url, tmp_path / "copy", replace=False)
    with closing(sqlite3.connect(database.file)) as conn:
        conn.executescript(
            "PRAGMA wal_autocheckpoint = 0; CREATE TABLE last (word TEXT); INSERT INTO last VALUES ('x')"
        )
        wal = database.file.with_name(database.file.name + "-wal")
        left = {each: each.read_bytes() for each in (database.file, wal)}
    for each, content in left.items():
        each.write_bytes(content)

    def full(_: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("popserver.database.backup._flush", full)
        with pytest.raises(StoreUnavailable, match="nothing is changed"):
            restore(sqlite_url, tmp_path / "copy", replace=True)
    with closing(sqlite3.connect(database.file)) as conn:
        assert conn.execute("SELECT word FROM last").fetchall() == [("x",)]


def test_a_missing_database_and_a_missing_folder_are_named(sqlite_url: str, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match=r"none\.db does not exist; name the database with --database-url"):
        backup(f"sqlite:///{tmp_path}/none.db", tmp_path / "copy", replace=False)
    assert not (tmp_path / "copy").exists()
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    with pytest.raises(StoreUnavailable, match="cannot be written"):
        backup(sqlite_url, tmp_path / "no" / "copy", replace=False)


def test_without_the_clients_of_postgres_it_says_so(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrate.upgrade(database := Database(postgres_url))
    database.close()
    monkeypatch.setattr("popserver.database.backup.shutil.which", lambda _: None)
    with pytest.raises(StoreUnavailable, match="pg_dump is not installed; install the client programs of Postgres"):
        backup(postgres_url, tmp_path / "copy", replace=False)
    assert list(tmp_path.glob("copy*")) == []


def test_a_backup_does_not_replace_a_database(sqlite_url: str, tmp_path: Path) -> None:
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    assert database.file is not None
    link = tmp_path / "link.db"
    link.symlink_to(database.file)
    for file in (database.file, link):
        with pytest.raises(StoreUnavailable, match="is the database itself; choose another file for its backup"):
            backup(sqlite_url, file, replace=True)
    other = tmp_path / "other.db"
    other.touch()
    (tmp_path / "other.db-wal").touch()
    with pytest.raises(StoreUnavailable, match=r"other\.db is a database in use, because it has a file other\.db-wal"):
        backup(sqlite_url, other, replace=True)


def test_a_newer_schema_is_refused_before_anything_changes(
    filled: OpenStore, database_url: str, tmp_path: Path
) -> None:
    before, file = filled.digest(), tmp_path / "newer"
    filled.conn.exec_driver_sql("UPDATE alembic_version SET version_num = '9999'")
    if filled.database.is_sqlite:
        filled.conn.exec_driver_sql("VACUUM INTO ?", (str(file),))
    else:
        dump = ["pg_dump", f"--dbname={database_url.replace('+psycopg', '')}", "--format=custom", f"--file={file}"]
        subprocess.run(dump, check=True)
    filled.conn.exec_driver_sql(f"UPDATE alembic_version SET version_num = '{migrate.HEAD}'")
    stopped(filled)
    with pytest.raises(StoreUnavailable, match=rf"schema '9999', this popmq uses .* to {migrate.HEAD}; use the popmq"):
        restore(database_url, file, replace=True)
    database = Database(database_url)
    kept = OpenStore(database)
    assert kept.digest() == before
    kept.conn.close()
    database.close()
