"""What callers can make a server keep of lite topics has limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popserver.lite.flow import LiteAction
from popserver.lite.subscriptions import SILENT_MS
from popserver.messages import lite_topics
from popserver.model.errors import Internal, TooManyRequests
from tests.support.lite_broker import LiteBroker
from tests.support.running_broker import watched


async def test_the_lite_topics_of_all_clients_have_a_budget(lite: LiteBroker) -> None:
    budget = lite.broker.sessions.lite.clients._budget
    budget.limit = 3
    await lite.sync("a", "b", client_id="one")
    assert budget.used == 2
    with pytest.raises(TooManyRequests, match="limit reached for 2 lite topics of client 'two': 2 of 3 lite topics"):
        await lite.sync("a", "b", client_id="two")
    await lite.sync("a", client_id="two")
    await lite.sync("a", "b", client_id="one", action=LiteAction.COMPLETE_ADD)
    assert (budget.used, budget.refused) == (3, 1)
    await lite.sync("a", client_id="one", action=LiteAction.PARTIAL_REMOVE)
    await lite.sync(action=LiteAction.COMPLETE_REMOVE, client_id="two")
    assert budget.used == 1
    await lite.advance(SILENT_MS + 1_000)
    assert (budget.used, len(lite.broker.sessions.lite.clients)) == (0, 0)


def kept(lite: LiteBroker) -> tuple[int, int, int]:
    wakeups = lite.broker.engine.wakeups
    return len(lite.broker.sessions.lite.clients), len(wakeups._wake_numbers), len(wakeups._found_empty)


async def test_nothing_is_kept_of_clients_that_subscribe_to_nothing(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="known")
    before = (
        len(lite.broker.sessions.lite.clients),
        len(lite.broker.engine.wakeups._wake_numbers),
        len(lite.broker.engine.wakeups._found_empty),
    )
    for number in range(5):
        assert await lite.got(f"made-up-{number}") == []
        await lite.sync("a", client_id=f"made-up-{number}", action=LiteAction.PARTIAL_REMOVE)
    assert kept(lite) == before
    await lite.sync(client_id="made-up", action=LiteAction.COMPLETE_ADD)
    stored = [row.client_id for row in await lite.query("SELECT client_id FROM lite_client")]
    assert stored == ["known"]
    await lite.sync("a", client_id="known", action=LiteAction.COMPLETE_REMOVE)
    assert len(lite.broker.sessions.lite.clients) == 0
    assert not any(isinstance(place, tuple) for place in lite.broker.engine.wakeups._wake_numbers)


async def test_a_change_during_a_read_is_not_lost(lite: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await lite.sync("z")
    key = lite.broker.sessions.lite.clients.keys_of("c1")[0]
    clients = lite.broker.sessions.lite.clients
    read, may_end, began = clients._reader.read, asyncio.Event(), asyncio.Event()

    async def slow(query: Any) -> Any:
        found: Any = await read(query)
        began.set()
        await may_end.wait()
        return found

    monkeypatch.setattr(clients._reader, "read", slow)
    reading = asyncio.create_task(clients.read(key))
    await began.wait()
    monkeypatch.undo()
    await lite.sync("a", "b")
    may_end.set()
    assert (await reading).lite_topics == {"a", "b", "z"}


async def test_many_clients_that_are_gone_at_once(lite: LiteBroker) -> None:
    await asyncio.gather(*(lite.sync(f"t{number}", client_id=f"c{number}") for number in range(90)))
    transactions = lite.broker.engine.writer.meters.commits
    before = sum(transactions.counts)
    await lite.advance(SILENT_MS + 1)
    assert await lite.query("SELECT client_id FROM lite_client") == []
    assert sum(transactions.counts) - before < 45


async def test_existing_lite_topics_are_remembered_up_to_a_number(
    lite: LiteBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lite_topics, "_REMEMBERED_MAX", 3)
    looks: list[None] = []

    async def is_looked_for(*names: str) -> bool:
        looks.clear()
        with watched(lite.broker.engine.database, "SELECT given_names.name", lambda: looks.append(None)):
            await lite.send_lite(*names)
        return bool(looks)

    assert await is_looked_for("a", "b", "c")
    assert not await is_looked_for("a", "b", "c")
    assert await is_looked_for("d")
    assert not await is_looked_for("a", "d")
    # One more than may be remembered: all were forgotten when `e` came.
    assert await is_looked_for("e")
    assert not await is_looked_for("e")
    assert await is_looked_for("a")


async def test_what_is_not_committed_is_not_remembered(lite: LiteBroker) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    with watched(lite.broker.engine.database, "INSERT INTO lite_topic", fail), pytest.raises(Internal):
        await lite.send_lite("a")
    sent = await lite.send_lite("a")
    await lite.sync("a")
    assert await lite.take() == sent
