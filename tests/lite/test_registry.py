"""What a server keeps in memory about lite consumers."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from popserver.lite.flow import LiteAction
from popserver.lite.registry import LiteClients
from popserver.model.errors import CommitUnknown
from tests.support.lite_broker import LiteBroker
from tests.support.running_broker import until


async def test_a_poll_that_waits_learns_that_its_lite_topics_are_shared(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="two")
    poll = await lite.poll(client_id="two")
    await lite.sync("a", client_id="one")  # the lite topic's row will name this client, which does not receive
    await lite.broker.settle()
    sent = await lite.send_lite("a")
    assert [each.stored.message.message_id for each in await asyncio.wait_for(poll, 30)] == sent


async def test_two_names_may_have_one_hash(lite: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zlib, "crc32", lambda _: 7)
    await lite.sync("a", "b")
    await lite.sync("a", action=LiteAction.PARTIAL_REMOVE)
    poll = await lite.poll()
    sent = await lite.send_lite("b")
    assert [each.stored.message.message_id for each in await asyncio.wait_for(poll, 30)] == sent


async def test_a_change_during_a_change_of_another_client_is_noticed(lite: LiteBroker) -> None:
    await lite.sync("a", client_id="two")
    await asyncio.gather(lite.sync("a", client_id="one"), lite.sync("b", client_id="two"))
    await lite.broker.settle()
    clients: LiteClients = lite.broker.sessions.lite.clients
    (key,) = clients.keys_of("two")
    await until(lambda: clients.shares(key))


async def test_what_an_unknown_commit_changed_is_read(lite: LiteBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await lite.sync("a")
    writer = lite.broker.engine.writer
    submit = writer.submit

    async def lose(request: Any) -> Any:
        raise CommitUnknown("the answer was lost", await submit(request))

    with monkeypatch.context() as patched:
        patched.setattr(writer, "submit", lose)
        with pytest.raises(CommitUnknown):
            await lite.sync("b")
    await lite.broker.settle()
    poll = await lite.poll()
    sent = await lite.send_lite("b")
    assert [each.stored.message.message_id for each in await asyncio.wait_for(poll, 30)] == sent
