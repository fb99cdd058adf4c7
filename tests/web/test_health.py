"""`/livez` and `/readyz`: 200, or 503 with the reasons."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from sqlalchemy import Connection

from popserver.administration import disk, readiness
from popserver.app import App
from popserver.engine.transaction import Read
from popserver.model.errors import StoreUnavailable
from tests.support.failing_database import hanging_database
from tests.support.http_client import HttpAnswer, get
from tests.support.waiting import eventually
from tests.web.conftest import started


async def test_a_server_that_works_is_live_and_ready(database_url: str) -> None:
    async with started(database_url) as app:
        live, ready = await get(app.http_endpoint, "/livez"), await get(app.http_endpoint, "/readyz")
    assert (live.status, live.document["live"]) == (200, True)
    assert (ready.status, ready.document["ready"], ready.document["warnings"]) == (200, True, [])
    assert {each["name"] for each in ready.document["checks"]} == {
        "accepts requests", "writer", "transactions", "database",
    }  # fmt: skip


async def test_a_database_that_does_not_answer_makes_a_server_unready_but_not_dead(
    web: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging_database(monkeypatch):
        for _ in range(3):  # one question is asked, however often a supervisor looks
            assert "has not answered for" in reason(await get(web.http_endpoint, "/readyz"), "database")
        assert (await get(web.http_endpoint, "/livez")).status == 200
    await eventually(lambda: is_ready(web), "ready again", within_s=30)


async def test_a_database_that_refuses_is_told_in_its_own_words(web: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_conn: Connection, _file: Path | None) -> None:
        raise StoreUnavailable("orders-db does not answer (connection refused); check that it runs, and repeat")

    monkeypatch.setattr(disk, "check", refuse)
    assert "connection refused" in reason(await get(web.http_endpoint, "/readyz"), "database")


async def test_a_transaction_without_end_makes_a_server_unready(web: App, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, let_go = threading.Event(), threading.Event()

    def hang(_conn: Connection) -> bool:
        runs.set()
        return let_go.wait(30)

    stuck = web.broker.engine.writer.submit(Read(hang))
    assert await asyncio.to_thread(runs.wait, 30)
    monkeypatch.setattr(readiness, "TRANSACTION_MS", 0)
    monkeypatch.setattr(readiness, "REMEMBERED_MS", 0)
    await eventually(lambda: is_unready(web), "unready", within_s=30)
    assert "a slow disk, a lock" in reason(await get(web.http_endpoint, "/readyz"), "transactions")
    let_go.set()
    await stuck
    await eventually(lambda: is_ready(web), "ready again", within_s=30)


async def test_a_dead_writer_is_a_dead_server(web: App) -> None:
    writer = web.broker.engine.writer
    await writer.close()
    assert "restart the server" in reason(await get(web.http_endpoint, "/livez"), "writer")
    assert "restart the server" in reason(await get(web.http_endpoint, "/readyz"), "writer")


async def test_a_server_that_stops_is_live_but_not_ready(web: App, monkeypatch: pytest.MonkeyPatch) -> None:
    drained = asyncio.Event()

    async def drain(_timeout_s: float) -> None:
        await drained.wait()

    really = web.server.drain
    monkeypatch.setattr(web.server, "drain", drain)
    stopping = asyncio.create_task(web.server.drain(0))
    web.readiness.leave()
    assert "the server is stopping" in reason(await get(web.http_endpoint, "/readyz"), "accepts requests")
    assert (await get(web.http_endpoint, "/livez")).status == 200
    drained.set()
    await stopping
    monkeypatch.setattr(web.server, "drain", really)


@pytest.mark.parametrize(
    ("limit", "value", "said"),
    [("FREE_BYTES_MIN", 1 << 62, "are free on the disk of"), ("WAL_BYTES_MAX", -1, "end programs that read")],
)
async def test_a_disk_that_fills_is_a_warning(
    web: App, monkeypatch: pytest.MonkeyPatch, limit: str, value: int, said: str
) -> None:
    monkeypatch.setattr(disk, limit, value)
    answer = await get(web.http_endpoint, "/readyz")
    assert answer.status == 200
    (warning,) = answer.document["warnings"]
    assert said in warning


def test_a_file_without_a_wal_has_no_warning(tmp_path: Path) -> None:
    (tmp_path / "popmq.db").touch()
    space = disk.space_of(tmp_path / "popmq.db")
    assert (space.file, space.wal) == (0, 0)
    assert disk.disk_warnings(tmp_path / "popmq.db", space) == []


def test_space_that_the_system_does_not_tell_is_unknown(tmp_path: Path) -> None:
    missing = tmp_path / "gone" / "popmq.db"
    space = disk.space_of(missing)
    assert tuple(space) == (None, None, None, None)
    assert disk.disk_warnings(missing, space) == []


async def is_ready(app: App) -> bool:
    return (await get(app.http_endpoint, "/readyz")).status == 200


async def is_unready(app: App) -> bool:
    return not await is_ready(app)


def reason(answer: HttpAnswer, check: str) -> str:
    """Why the check of this name fails; fails if the answer says that it does not."""
    assert answer.status == 503
    (found,) = [each for each in answer.document["checks"] if each["name"] == check]
    assert not found["ok"]
    return str(found["reason"])
