"""A copy that is interrupted: no server uses its target, and the same command completes it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from popserver.database import migrate
from popserver.database.copying import pages
from popserver.database.copying.copy import copy_database
from popserver.database.database import Database
from popserver.model.errors import StoreUnavailable
from tests.database.full_store import NoWatcher, closed, content, fill, opened

ROOT = Path(__file__).parents[2]
UNFINISHED = "holds an unfinished copy of another database.*repeat popmq db copy"


class Interrupted(Exception):
    pass


class Interrupting(NoWatcher):
    """Interrupts a copy at its event of that number: a step that begins, or a page or index that is done."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self, name: str, total: int = 0) -> None:
        self._count()

    def advance(self, count: int, *, before: bool = False) -> None:
        self._count()

    def _count(self) -> None:
        if self.left == 0:
            self.interrupt()
        self.left -= 1

    def interrupt(self) -> None:
        raise Interrupted


class Killing(Interrupting):
    def interrupt(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def source(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store with rows in all tables."""
    monkeypatch.setattr(pages, "PAGE_ROWS", 4)
    migrate.upgrade(database := Database(sqlite_url))
    database.close()
    store = opened(sqlite_url)
    fill(store, monkeypatch)
    closed(store)
    return sqlite_url


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/copy.db"
    url: str = request.getfixturevalue("empty_postgres_url")
    return url


def test_it_continues_wherever_it_was_interrupted(source: str, target: str) -> None:
    """Each part of the copy goes a few pages, or a few indexes, further than the part before it."""
    parts = 0
    while True:
        parts += 1
        try:
            facts = copy_database(source, target, Interrupting(10 + 8 * parts))
            break
        except Interrupted:
            refused(target)
    assert parts > 3
    assert facts["continued"]
    same(source, target)


def refused(target: str) -> None:
    """No server and no other command uses it."""
    database = Database(target)
    for use in (migrate.upgrade, migrate.check):
        with pytest.raises(StoreUnavailable, match=UNFINISHED):
            use(database)
    database.close()


def same(source: str, target: str) -> None:
    first, second = opened(source), opened(target)
    assert content(first) == content(second)
    second.check()
    migrate.check(second.database)
    left = "SELECT COUNT(*) FROM {} WHERE {} LIKE 'unfinished%'"
    table = ("sqlite_master", "name") if target.startswith("sqlite") else ("pg_class", "relname")
    assert second.one_value(left.format(*table)) == 0, "the record of the copy is removed"
    closed(first)
    closed(second)


KILLED = """
import sys
from popserver.database.copying import pages
from popserver.database.copying.copy import copy_database
from tests.database.test_copy_interrupted import Killing
pages.PAGE_ROWS = 4
copy_database(sys.argv[1], sys.argv[2], Killing(int(sys.argv[3])))
"""


@pytest.mark.parametrize("at", [12, 45])
def test_it_continues_after_a_kill(source: str, target: str, at: int) -> None:
    """While rows are copied, and while indexes are created."""
    killed = subprocess.run([sys.executable, "-c", KILLED, source, target, str(at)], cwd=ROOT, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert copy_database(source, target, NoWatcher())["continued"]
    same(source, target)


def interrupted(source: str, target: str, at: int = 20) -> None:
    with pytest.raises(Interrupted):
        copy_database(source, target, Interrupting(at))


def test_a_source_that_has_changed_is_refused(source: str, target: str) -> None:
    interrupted(source, target)
    store = opened(source)
    # A value that changes no count, in a table of which nothing was copied yet.
    store.conn.exec_driver_sql("UPDATE redrive SET dead_reason = 'another' WHERE dead_letter_id = 1")
    closed(store)
    with pytest.raises(
        StoreUnavailable, match=r"unfinished copy of another database, or .* has changed since.*--restart"
    ):
        copy_database(source, target, NoWatcher())
    assert not copy_database(source, target, NoWatcher(), restart=True)["continued"]
    same(source, target)


def test_a_copied_page_that_has_changed_is_noticed_in_a_large_table(
    source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fingerprint has no rows of large tables."""
    monkeypatch.setattr("popserver.database.copying.source._SMALL", 0)
    interrupted(source, target, 30)
    store = opened(source)
    assert store.conn.exec_driver_sql("UPDATE acl_user SET secret = 'another'").rowcount == 1
    closed(store)
    with pytest.raises(StoreUnavailable, match="has changed since"):
        copy_database(source, target, NoWatcher())


class Meddling(NoWatcher):
    """Changes the target before its rows are verified."""

    def __init__(self, target: str, statement: str) -> None:
        self._target, self._statement = target, statement

    def step(self, name: str, total: int = 0) -> None:
        if name == "verify rows":
            meddle = self._in_file if self._target.startswith("sqlite") else self._in_postgres
            meddle()

    def _in_file(self) -> None:
        with closing(sqlite3.connect(self._target.removeprefix("sqlite:///"), isolation_level=None)) as conn:
            conn.execute(self._statement)

    def _in_postgres(self) -> None:
        with psycopg.connect(self._target, autocommit=True) as conn:
            conn.execute(self._statement.encode())


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("UPDATE acl_user SET secret = 'guessed'", "table acl_user .* row access_key='ops' has another secret"),
        ("DELETE FROM topic WHERE topic_id = 2", "table topic .* row topic_id=2 is missing"),
        (
            "INSERT INTO queue_lock VALUES (9, 9, 'c', 1)",
            "table queue_lock .* row group_id=9, queue_id=9 is not in the source",
        ),
    ],
)
def test_a_row_that_differs_is_named(source: str, target: str, statement: str, found: str) -> None:
    with pytest.raises(StoreUnavailable, match=found):
        copy_database(source, target, Meddling(target, statement))
    refused(target)
    copy_database(source, target, NoWatcher(), restart=True)
    same(source, target)
