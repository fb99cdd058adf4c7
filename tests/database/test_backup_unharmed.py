"""What a backup or a restore leaves if it is killed, fails, or runs twice; who owns its files, who sees passwords."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy.engine import make_url

import popclient.cli
from popserver.database import backup as module
from popserver.database import migrate
from popserver.database.backup import WouldReplace, backup, restore
from popserver.database.database import Database
from popserver.model.errors import StoreUnavailable
from tests.support.open_store import OpenStore
from tests.support.shell import POPMQ
from tests.support.waiting import soon

SERVICE = 65_534  # the user of a service that is not root
PROGRAMS = ("pg_dump", "pg_restore", "psql")


class Kept:
    """A Postgres with messages, its backup, and later messages that the backup does not have."""

    def __init__(self, url: str, file: Path) -> None:
        self.url, self.file = url, file
        store = OpenStore(Database(url, durability="relaxed"))
        topic = store.topic()
        store.send(topic, 50)
        backup(url, file, replace=False)
        store.send(topic, 3)
        self._digest = store.digest()
        store.conn.close()
        store.database.close()

    def check_unchanged(self) -> None:
        """Fail unless the database is what it was, with its functions."""
        soon(lambda: self._query("SELECT count(*) FROM pg_stat_activity WHERE application_name = 'psql'") == 0)
        store = OpenStore(Database(self.url))
        assert store.digest() == self._digest
        assert store.one_value("SELECT COUNT(*) FROM pg_proc WHERE proname LIKE 'popmq%'") == 2
        store.conn.close()
        store.database.close()

    def _query(self, statement: str) -> object:
        with psycopg.connect(self.url.replace("+psycopg", "")) as conn:
            row = conn.execute(statement.encode()).fetchone()
            return row and row[0]


@pytest.fixture
def kept(postgres_url: str, tmp_path: Path) -> Iterator[Kept]:
    if shutil.which("pg_dump") is None:
        pytest.skip("pg_dump is not installed")
    migrate.upgrade(database := Database(postgres_url))
    database.close()
    yield Kept(postgres_url, tmp_path / "copy")


def instead_of(program: str, folder: Path, script: str) -> None:
    """Put a program of this name into the folder; `$REAL` is the real one."""
    folder.mkdir(exist_ok=True)
    file = folder / program
    file.write_text(f"#!/bin/sh\nREAL={shutil.which(program)}\n{script}\n")
    file.chmod(0o755)


@pytest.mark.parametrize("end", ["kill -9 $PPID", "exit 1"], ids=["killed", "failed"])
def test_a_restore_that_ends_in_the_middle_changes_nothing(
    kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    programs = tmp_path / "programs"
    # Reading the file goes well; while it is restored, the end comes after some of its statements.
    instead_of(
        "pg_restore",
        programs,
        'for file; do :; done\ncase "$*" in\n*--data-only*|*/dev/null*) exec $REAL "$@" ;;\nesac\n'
        f"$REAL --no-owner --file=- $file | head -c 30000\n{end}",
    )
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    done = subprocess.run([POPMQ, "restore", str(kept.file), "--force", "--database-url", kept.url], check=False)
    assert done.returncode != 0
    kept.check_unchanged()


def test_a_users_view_on_the_tables_is_not_dropped(kept: Kept) -> None:
    with psycopg.connect(kept.url.replace("+psycopg", "")) as conn:
        conn.execute("CREATE VIEW mine AS SELECT count(*) FROM message")
    with pytest.raises(
        StoreUnavailable, match=r"psql failed for .* depend on them DETAIL: *view mine depends on table message$"
    ):
        restore(kept.url, kept.file, replace=True)
    kept.check_unchanged()


def test_tables_of_another_program_stay_as_they_are(kept: Kept) -> None:
    address = kept.url.replace("+psycopg", "")
    with psycopg.connect(address) as conn:
        conn.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
        conn.execute("CREATE TABLE client AS SELECT 'ours' AS name")
    with pytest.raises(StoreUnavailable, match="client"):
        restore(kept.url, kept.file, replace=True)
    with psycopg.connect(address) as conn:
        assert conn.execute("SELECT name FROM client").fetchall() == [("ours",)]
        tables = conn.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
        assert tables == (1,)


def test_no_password_is_an_argument_of_a_program(kept: Kept, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs, seen = tmp_path / "programs", tmp_path / "seen"
    for program in PROGRAMS:
        instead_of(program, programs, f'echo {program} "$@" PGPASSWORD=$PGPASSWORD >> {seen}\nexec $REAL "$@"')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    url = make_url(kept.url).set(password="in-the-url")
    for number, given in enumerate((url, url.update_query_dict({"password": "in-the-query"}))):
        backup(given.render_as_string(hide_password=False), tmp_path / f"copy{number}", replace=False)
        restore(given.render_as_string(hide_password=False), kept.file, replace=True)
    lines = seen.read_text().splitlines()
    assert {line.split()[0] for line in lines} == set(PROGRAMS)
    for line in lines:
        arguments, _, password = line.partition("PGPASSWORD=")
        assert "in-the-" not in arguments
        assert bool(password) == ("--dbname=" in arguments)
    assert [line.rpartition("=")[2] for line in lines if line.startswith("pg_dump")] == ["in-the-url", "in-the-query"]


def test_the_password_of_a_key_is_refused(postgres_url: str, tmp_path: Path) -> None:
    migrate.upgrade(database := Database(postgres_url))
    database.close()
    url = make_url(postgres_url).update_query_dict({"sslpassword": "of-the-key"})
    with pytest.raises(StoreUnavailable, match=r"has the option sslpassword.*\?service=NAME") as refused:
        backup(url.render_as_string(hide_password=False), tmp_path / "copy", replace=False)
    assert "of-the-key" not in str(refused.value)


@pytest.mark.parametrize("replace", [False, True], ids=["kept", "replaced"])
def test_two_backups_into_one_file_are_each_whole(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replace: bool
) -> None:
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    folder = tmp_path / "backups"
    folder.mkdir()
    file, copy = folder / "copy.db", module._copy_sqlite

    def while_another_one_runs(source: Path, target: Path) -> None:
        monkeypatch.setattr(module, "_copy_sqlite", copy)
        copy(source, target)
        backup(sqlite_url, file, replace=replace)

    monkeypatch.setattr(module, "_copy_sqlite", while_another_one_runs)
    if replace:
        backup(sqlite_url, file, replace=True)
    else:
        with pytest.raises(WouldReplace, match=r"replaces .*copy\.db of"):
            backup(sqlite_url, file, replace=False)
    assert [each.name for each in folder.iterdir()] == ["copy.db"]
    restore(f"sqlite:///{tmp_path}/restored.db", file, replace=False)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_files_that_root_makes_belong_to_the_service(tmp_path: Path) -> None:
    folder = tmp_path / "popmq"
    folder.mkdir()
    os.chown(folder, SERVICE, SERVICE)
    url, copy = f"sqlite:///{folder}/popmq.db", folder / "copy.db"
    for words in (["db", "upgrade"], ["backup", str(copy)], ["restore", str(copy), "--force"], ["db", "check"]):
        assert popclient.cli.main([*words, "--database-url", url]) == 0
        assert {(each.stat().st_uid, each.stat().st_gid) for each in folder.iterdir()} == {(SERVICE, SERVICE)}
    assert {each.name for each in folder.iterdir()} == {"popmq.db", "popmq.db.lock", "copy.db"}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files for others")
def test_a_file_that_root_replaces_keeps_its_owner(tmp_path: Path) -> None:
    url, file, copy = f"sqlite:///{tmp_path}/popmq.db", tmp_path / "popmq.db", tmp_path / "copy.db"
    assert popclient.cli.main(["db", "upgrade", "--database-url", url]) == 0
    copy.touch()
    for each in (file, copy):
        os.chown(each, SERVICE, SERVICE)
    (tmp_path / "popmq.db.lock").unlink()
    for words in (["backup", str(copy), "--force"], ["restore", str(copy), "--force"]):
        assert popclient.cli.main([*words, "--database-url", url]) == 0
    assert [each.stat().st_uid for each in (file, copy, tmp_path / "popmq.db.lock")] == [SERVICE] * 3
