"""Where a queue begins is decided once: what was decided is stored before the queue is pulled."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from popclient import ConsumeOrderlyStatus, MessageQueue, MessageView, OrderlyListener
from popclient._queue_push.pull_requests import PullRequest
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from tests.queue_client.queue_consumers import DictOffsetStore, Q, QueueConsumers
from tests.support.scripted_server import status, until

LAST, FIRST = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET"


@pytest.mark.row("I1")
@pytest.mark.parametrize("came_before", [0, 3])
async def test_the_end_is_stored_before_the_first_pull(consumers: QueueConsumers, came_before: int) -> None:
    await consumers.server.fill(Q, map(str, range(came_before)))
    await consumers.start(consume_from=LAST)
    await until(lambda: consumers.server.pulls_of(Q))
    assert consumers.server.progress[Q] == came_before
    [commit] = [each for each in consumers.server.requests("CommitOffsets") if each.offsets[0].queue.topic.name == "t"]
    assert [each.offset for each in commit.offsets] == [came_before]


@pytest.mark.row("I1")
async def test_who_is_killed_in_his_first_seconds_leaves_what_he_had_to_the_next(consumers: QueueConsumers) -> None:
    """Killed: nothing of what he had is committed."""
    killed = await consumers.start(consume_from=LAST, group="g")
    await until(lambda: consumers.server.pulls_of(Q))
    progress = dict(consumers.server.progress)
    await consumers.server.fill(Q, "abc")
    await until(lambda: consumers.texts == ["a", "b", "c"])
    await killed.close()
    consumers.server.progress.clear()
    consumers.server.progress.update(progress)
    await consumers.start(consume_from=LAST)
    await until(lambda: consumers.texts[3:] == ["a", "b", "c"])


@pytest.mark.row("I3")
async def test_so_is_the_offset_of_a_time(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "abc")
    await consumers.start(consume_from="CONSUME_FROM_TIMESTAMP", consume_timestamp="20240115120000")
    await until(lambda: consumers.server.pulls_of(Q))
    assert consumers.server.progress[Q] == 0


@pytest.mark.row("I6")
async def test_a_queue_whose_beginning_cannot_be_stored_is_not_taken_up_yet(consumers: QueueConsumers) -> None:
    refused = legacy.CommitOffsetsResponse(status=status(pb.INTERNAL_SERVER_ERROR, "the store is full"))
    consumers.server.answers["CommitOffsets"] = lambda _: refused
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(consume_from=LAST)
    await until(lambda: consumers.server.requests("CommitOffsets"))
    await consumers.advance(3, step=0.5)
    assert (consumers.server.pulls_of(Q), Q in core.parts.table, consumers.offset(core)) == ([], False, None)
    del consumers.server.answers["CommitOffsets"]
    await consumers.comes(lambda: consumers.server.pulls_of(Q) == [2], 2)
    assert consumers.server.progress[Q] == 2


@pytest.mark.row("H1")
async def test_it_is_stored_in_a_store_of_the_users_own_too(consumers: QueueConsumers) -> None:
    stored: dict[MessageQueue, int] = {}
    await consumers.server.fill(Q, "ab")
    await consumers.start(consume_from=LAST, offset_store=DictOffsetStore(stored))
    await until(lambda: consumers.server.pulls_of(Q))
    assert stored[Q] == 2


@pytest.mark.row("I6")
async def test_a_users_own_store_that_cannot_keep_it_is_asked_again(consumers: QueueConsumers) -> None:
    class Full(DictOffsetStore):
        full = True

        async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
            if self.full:
                raise KeyError("no room")
            await super().update_consume_offset_to_broker(mq, offset, is_oneway)

    store = Full({})
    core = await consumers.start(consume_from=LAST, offset_store=store)
    await consumers.advance(3, step=0.5)
    assert Q not in core.parts.table
    store.full = False
    await consumers.comes(lambda: consumers.server.pulls_of(Q), 2)


@pytest.mark.row("F5")
async def test_in_order_the_end_is_not_asked_for_twice(consumers: QueueConsumers) -> None:
    """The look at the last owner's progress fails for a moment; meanwhile messages come."""
    looks = 0

    def fails_once(request: legacy.FetchOffsetsRequest) -> legacy.FetchOffsetsResponse | None:
        nonlocal looks
        looks += request.queues[0].topic.name == "t"
        failing = looks == 3 and request.queues[0].topic.name == "t"  # the first is at the start
        return legacy.FetchOffsetsResponse(status=status(pb.INTERNAL_SERVER_ERROR, "not now")) if failing else None

    consumers.server.answers["FetchOffsets"] = fails_once
    await consumers.start(in_order(consumers), consume_from=LAST)
    await until(lambda: looks == 3)
    await consumers.server.fill(Q, "abc")
    await consumers.comes(lambda: consumers.texts == ["a", "b", "c"], 4)
    assert len([each for each in consumers.server.requests("QueryOffset") if each.message_queue.topic.name == "t"]) == 1


@pytest.mark.row("F5")
async def test_in_order_a_queue_without_stored_progress_goes_on_where_it_is(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(in_order(consumers), consume_from=FIRST)
    await until(lambda: consumers.offset(core) == 2 and consumers.server.pulls_of(Q) == [0, 2])
    assert Q not in consumers.server.progress
    core._pulls.pull(PullRequest("g", Q, core.parts.table[Q], 1))  # as after a lock that was granted anew
    await until(lambda: consumers.server.pulls_of(Q)[2:3] == [1])


def in_order(consumers: QueueConsumers) -> OrderlyListener:
    """Content with everything."""

    async def listener(messages: Sequence[MessageView], _: object) -> ConsumeOrderlyStatus:
        consumers.note(messages)
        return ConsumeOrderlyStatus.SUCCESS

    return OrderlyListener(listener)
