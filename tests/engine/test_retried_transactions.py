"""A transaction that Postgres ends for the sake of another is run again; nobody hears of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from popserver.database.database import Database
from popserver.model.errors import Internal
from tests.support.running_broker import ids
from tests.support.several_brokers import SeveralBrokers

pytestmark = pytest.mark.timeout(14)  # a writer that is broken answers nobody


@contextmanager
def taking_back(database: Database, times: int, sqlstate: str = "40P01") -> Iterator[list[str]]:
    """The next transactions that store a message are ended so often; the list says what was asked for."""
    taken: list[str] = []

    def before(conn: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("UPDATE queue") and len(taken) < times:
            taken.append(statement)
            conn.exec_driver_sql(f"DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '{sqlstate}'; END $$")

    event.listen(database.writing, "before_cursor_execute", before)
    try:
        yield taken
    finally:
        event.remove(database.writing, "before_cursor_execute", before)


@pytest.mark.parametrize("sqlstate", ["40P01", "40001"])
async def test_it_is_run_again(lone_server: SeveralBrokers, sqlstate: str) -> None:
    await lone_server.a.topic()
    with taking_back(lone_server.a.broker.engine.database, 2, sqlstate) as taken:
        (sent,) = await lone_server.a.send()
    assert len(taken) == 2
    assert ids(await lone_server.a.receive()) == [sent.message_id]


async def test_but_not_for_ever(lone_server: SeveralBrokers) -> None:
    await lone_server.a.topic()
    with (
        taking_back(lone_server.a.broker.engine.database, 100) as taken,
        pytest.raises(Internal, match="refused a statement"),
    ):
        await lone_server.a.send()
    assert len(taken) == 3
    assert await lone_server.a.receive() == []
    assert len(await lone_server.a.send()) == 1
