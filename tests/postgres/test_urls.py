"""URLs of a Postgres with several hosts: what users write, what the server reads and shows, and what is refused."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from popserver.database import migrate
from popserver.database.backup import backup, restore
from popserver.database.database import Database
from popserver.model.errors import StoreUnavailable
from tests.support.postgres import PostgresServer

LIBPQ = "postgresql://u@h1:5001,h2:5002/db?target_session_attrs=read-write"


@pytest.mark.parametrize(
    ("written", "shown", "hosts"),
    [
        (LIBPQ, LIBPQ, ["h1:5001", "h2:5002"]),
        ("postgresql://u:s3cret@/db?host=h1:5001&host=h2:5002", "postgresql://u:***@h1:5001,h2:5002/db", None),
        ("postgresql://u@/db?host=h1,h2&port=1,2", "postgresql://u@h1:1,h2:2/db", ["h1:1", "h2:2"]),
        ("postgresql://u@h1,h2:7/db", "postgresql://u@h1,h2:7/db", ["h1", "h2:7"]),
        ("postgresql://u@[::1]:1,[::2]:2/db", "postgresql://u@[::1]:1,[::2]:2/db", ["[::1]:1", "[::2]:2"]),
        ("postgresql://u:a,b%40@h1:1,h2:2/db", "postgresql://u:***@h1:1,h2:2/db", ["h1:1", "h2:2"]),
        ("postgresql+psycopg://u@h1:1,h2:2/db", "postgresql+psycopg://u@h1:1,h2:2/db", ["h1:1", "h2:2"]),
        ("postgresql://u@h1:70/db", "postgresql://u@h1:70/db", ["h1:70"]),
    ],
)
def test_hosts(written: str, shown: str, hosts: list[str] | None) -> None:
    database = Database(written)
    assert database.name == shown
    if hosts is not None:
        assert [str(each) for each in database.connections.hosts] == hosts


def test_connections_of_a_server_ask_for_a_host_that_accepts_writes() -> None:
    assert Database("postgresql://u@h1/db").connections.arguments["target_session_attrs"] == "read-write"


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("postgresql://u@h1:1,h2:x/db", ("'x'", "a port is a number")),
        ("postgresql://u@h1:1,h2:70000/db", ("'70000'",)),
        ("postgresql://u@/db?host=h1,h2,h3&port=1,2", ("3 hosts", "2 values of 'port'")),
        (
            "postgresql://u@h1,h2/db?target_session_attrs=standby",
            ("=standby", "h1,h2", "target_session_attrs=read-write"),
        ),
        ("postgresql://u@h1:1/db?target_session_attrs=any", ("=any", "PopMQ writes")),
    ],
)
def test_refused(written: str, words: tuple[str, ...]) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        Database(written)
    assert all(word in refused.value.sentence for word in words), refused.value.sentence


def test_a_backup_finds_the_host_that_answers(closed_port: int, own_postgres: PostgresServer, tmp_path: Path) -> None:
    url = f"postgresql://postgres@127.0.0.1:{closed_port},127.0.0.1:{own_postgres._port}/postgres"
    with closing(Database(url)) as database:
        migrate.upgrade(database)
    facts = backup(url, tmp_path / "copy", replace=False)
    assert facts["schema"] == migrate.HEAD
    assert restore(url, tmp_path / "copy", replace=True)["schema"] == migrate.HEAD


def test_an_error_names_all_hosts(closed_port: int, other_closed_port: int) -> None:
    database = Database(f"postgresql://u@127.0.0.1:{closed_port},127.0.0.1:{other_closed_port}/db")
    with pytest.raises(StoreUnavailable) as refused, database.read():
        pass
    said = refused.value.sentence
    assert f"127.0.0.1:{closed_port}: Connection refused" in said
    assert f"127.0.0.1:{other_closed_port}: Connection refused" in said
