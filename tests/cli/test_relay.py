"""`popmq relay`: what it says where there is no outbox; what it moves stands in tests/sql."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

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


def test_a_database_that_does_not_answer(shell: Shell) -> None:
    said = shell("relay", "--once", "--database-url", "postgresql://shop:s3cret@127.0.0.1:1/shop")
    assert said.status == 1
    assert said.err.startswith("popmq: the outbox of postgresql+psycopg://shop:***@127.0.0.1:1/shop cannot be read: ")
    assert "create_all" not in said.err
    assert said.err.count("\n") == 1
