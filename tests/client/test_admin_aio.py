"""The administration in an event loop, against the real server in this process."""

from __future__ import annotations

import asyncio
import time

import pytest

import popserver
from popclient import ClientConfig, NotFound, Unreachable, UnsupportedByServer, aio
from tests.support.scripted_server import ScriptedServer, ServerThread

COUNT = 5


async def test_topics_groups_and_messages(shared: popserver.EmbeddedBroker) -> None:
    async with aio.Admin(shared.endpoint) as admin, aio.Producer(shared.endpoint) as producer:
        topic = await admin.create_topic("seen", queue_count=2, accept_message_types="NORMAL")
        assert (topic.name, topic.queue_count) == ("seen", 2)
        assert (await admin.create_group("readers", max_attempts=3)).max_attempts == 3
        receipt = await producer.send("seen", "hello", tag="a")
        assert (await admin.get_message(receipt.message_id)).message.text == "hello"
        [peeked] = await admin.peek_messages("seen")
        assert peeked.message_id == receipt.message_id
        assert "seen" in {each.name for each in await admin.list_topics()}
        assert (await admin.status()).messages >= 1
        await admin.delete_topic("seen")
        with pytest.raises(NotFound):
            await admin.get_topic("seen")


async def test_scheduled_messages_come_page_by_page(shared: popserver.EmbeddedBroker) -> None:
    async with aio.Admin(shared.endpoint) as admin, aio.Producer(shared.endpoint) as producer:
        sent = {(await producer.send("later", "x", delay=3_600)).message_id for _ in range(COUNT)}
        assert {each.message.message_id async for each in admin.scheduled("later")} == sent
        assert set(await admin.cancel_scheduled("later", sent)) == sent


async def test_dead_letters_go_back_at_a_pace_that_leaves_the_loop_free(shared: popserver.EmbeddedBroker) -> None:
    async with aio.Admin(shared.endpoint) as admin, aio.Producer(shared.endpoint) as producer:
        async with aio.SimpleConsumer(shared.endpoint, "undone", "work") as consumer:
            for _ in range(COUNT):
                await producer.send("work", "x")
                [message] = await consumer.receive(1)
                await consumer.forward_to_dead_letter_queue(message)
        assert len([each async for each in admin.dead_letters("undone")]) == COUNT
        plan = await admin.plan_redrive("undone", reason="test")
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0.01)
                turns += 1

        counting = asyncio.create_task(count_turns())
        steps = [step.redriven async for step in admin.run_redrive(plan.plan_id, rate=10)]
        counting.cancel()
        assert (sum(steps), len(steps) > 1) == (COUNT, True)
        assert turns > 1
        assert [each.state async for each in admin.redrives(plan.plan_id)] == ["REDRIVEN"] * COUNT
        assert (await admin.redrive_plan(plan.plan_id)).state == "DONE"


async def test_a_rocketmq_server_has_no_administration(server: ScriptedServer) -> None:
    async with aio.Admin(server.endpoints) as admin:
        with pytest.raises(UnsupportedByServer, match="only PopMQ offers it"):
            await admin.status()


async def test_a_missing_server_is_noticed_early() -> None:
    with ServerThread() as gone:
        endpoints = gone.endpoints
    began = time.monotonic()
    async with aio.Admin(ClientConfig(endpoints, request_timeout=600), connect_timeout=0.2) as admin:
        with pytest.raises(Unreachable, match=endpoints):
            await admin.status()
    assert time.monotonic() - began < 60
