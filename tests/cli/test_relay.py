"""`popmq relay`: what it says where there is no outbox; what it moves stands in tests/sql."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, insert

from popclient import sql
from tests.support.shell import Shell

MAKE = "popclient.sql.metadata.create_all(engine)"


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
def test_a_mistyped_path_makes_no_file(shell: Shell, tmp_path: Path, scheme: str) -> None:
    said = shell("relay", "--once", "--database-url", f"{scheme}:///{tmp_path / 'shpo.db'}")
    assert (said.status, said.out) == (1, "")
    assert said.err.startswith(f"popmq: {tmp_path / 'shpo.db'} does not exist; ")
    assert said.err.endswith(f"{MAKE}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_path_is_told_in_full(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = shell("relay", "--once", "--database-url", "sqlite:///shpo.db")
    assert f"{tmp_path / 'shpo.db'} does not exist" in said.err
    assert list(tmp_path.iterdir()) == []


def test_a_database_without_an_outbox(shell: Shell, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as conn:
        conn.execute("CREATE TABLE orders (number INTEGER)")
    for url in (f"sqlite:///{tmp_path / 'shop.db'}", "sqlite://"):
        said = shell("relay", "--once", "--database-url", url)
        assert (said.status, said.out) == (1, "")
        assert said.err == f"popmq: {url} has no table popmq_outbox; create it with: {MAKE}\n"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """An outbox with a message that every broker refuses."""
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    sql.metadata.create_all(engine)
    row = {"topic": "orders", "message_id": "by hand", "written_at_ms": 0, "body": b"x", "tag": "a|b"}
    with engine.begin() as conn:
        conn.execute(insert(sql.outbox), row)
    yield f"sqlite:///{tmp_path / 'shop.db'}"
    engine.dispose()


def test_refused_messages_are_counted_and_found(shell: Shell, url: str) -> None:
    shell("topic", "create", "orders")
    said = shell("relay", "--once", "--database-url", url)
    counts, _, look = said.out.strip().partition(": ")
    assert (said.status, counts) == (0, "moved 0 messages, 0 wait, 1 are refused")
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as conn:
        ((number, refusal),) = conn.execute(look)
    assert number == 1
    assert "ILLEGAL_MESSAGE_TAG" in refusal
    again = shell("--json", "relay", "--once", "--database-url", url)
    assert again.document == {"moved": 0, "waiting": 0, "refused": 1}


def test_the_url_of_an_asyncio_application_will_do(shell: Shell, url: str) -> None:
    said = shell("relay", "--once", "--database-url", url.replace("sqlite:", "sqlite+aiosqlite:"))
    assert (said.status, said.err) == (0, "")
    said = shell("relay", "--once", "--database-url", "postgresql+asyncpg://shop@127.0.0.1:1/shop")
    assert said.err.startswith("popmq: the outbox of postgresql+psycopg://shop@127.0.0.1:1/shop cannot be read: ")
    said = shell("relay", "--once", "--database-url", "oracle+oracledb_async://shop@127.0.0.1/shop")
    assert said.status == 2
    assert "'oracle+oracledb_async' is a driver of asyncio; name another one of oracle" in said.err


def test_a_database_that_does_not_answer(shell: Shell) -> None:
    said = shell("relay", "--once", "--database-url", "postgresql://shop:s3cret@127.0.0.1:1/shop")
    assert said.status == 1
    assert said.err.startswith("popmq: the outbox of postgresql+psycopg://shop:***@127.0.0.1:1/shop cannot be read: ")
    assert "create_all" not in said.err
    assert said.err.count("\n") == 1
