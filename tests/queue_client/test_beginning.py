"""Where a queue begins is decided once: what was decided is stored before the queue is pulled."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from popclient import ConsumeOrderlyStatus, MessageQueue, MessageView, OrderlyListener
from popclient._queue_push.pull_requests import PullRequest
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from tests.support.queue_consumers import Desk, Notebook, Q
from tests.support.scripted_server import status, until

LAST, FIRST = "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_FIRST_OFFSET"


@pytest.mark.row("I1")
@pytest.mark.parametrize("came_before", [0, 3])
async def test_the_end_is_stored_before_the_first_pull(desk: Desk, came_before: int) -> None:
    await desk.server.fill(Q, map(str, range(came_before)))
    await desk.start(consume_from=LAST)
    await until(lambda: desk.server.pulls_of(Q))
    assert desk.server.progress[Q] == came_before
    [commit] = [each for each in desk.server.requests("CommitOffsets") if each.offsets[0].queue.topic.name == "t"]
    assert [each.offset for each in commit.offsets] == [came_before]


@pytest.mark.row("I1")
async def test_who_is_killed_in_his_first_seconds_leaves_what_he_had_to_the_next(desk: Desk) -> None:
    """Killed: nothing of what he had is committed."""
    killed = await desk.start(consume_from=LAST, group="g")
    await until(lambda: desk.server.pulls_of(Q))
    progress = dict(desk.server.progress)
    await desk.server.fill(Q, "abc")
    await until(lambda: desk.texts == ["a", "b", "c"])
    await killed.close()
    desk.server.progress.clear()
    desk.server.progress.update(progress)
    await desk.start(consume_from=LAST)
    await until(lambda: desk.texts[3:] == ["a", "b", "c"])


@pytest.mark.row("I3")
async def test_so_is_the_offset_of_a_time(desk: Desk) -> None:
    await desk.server.fill(Q, "abc")
    await desk.start(consume_from="CONSUME_FROM_TIMESTAMP", consume_timestamp="20240115120000")
    await until(lambda: desk.server.pulls_of(Q))
    assert desk.server.progress[Q] == 0


@pytest.mark.row("I6")
async def test_a_queue_whose_beginning_cannot_be_stored_is_not_taken_up_yet(desk: Desk) -> None:
    refused = legacy.CommitOffsetsResponse(status=status(pb.INTERNAL_SERVER_ERROR, "the store is full"))
    desk.server.answers["CommitOffsets"] = lambda _: refused
    await desk.server.fill(Q, "ab")
    core = await desk.start(consume_from=LAST)
    await until(lambda: desk.server.requests("CommitOffsets"))
    await desk.advance(3, step=0.5)
    assert (desk.server.pulls_of(Q), Q in core.parts.table, desk.offset(core)) == ([], False, None)
    del desk.server.answers["CommitOffsets"]
    await desk.comes(lambda: desk.server.pulls_of(Q) == [2], 2)
    assert desk.server.progress[Q] == 2


@pytest.mark.row("H1")
async def test_it_is_stored_in_a_store_of_the_users_own_too(desk: Desk) -> None:
    stored: dict[MessageQueue, int] = {}
    await desk.server.fill(Q, "ab")
    await desk.start(consume_from=LAST, offset_store=Notebook(stored))
    await until(lambda: desk.server.pulls_of(Q))
    assert stored[Q] == 2


@pytest.mark.row("I6")
async def test_a_users_own_store_that_cannot_keep_it_is_asked_again(desk: Desk) -> None:
    class Full(Notebook):
        full = True

        async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
            if self.full:
                raise KeyError("no room")
            await super().update_consume_offset_to_broker(mq, offset, is_oneway)

    store = Full({})
    core = await desk.start(consume_from=LAST, offset_store=store)
    await desk.advance(3, step=0.5)
    assert Q not in core.parts.table
    store.full = False
    await desk.comes(lambda: desk.server.pulls_of(Q), 2)


@pytest.mark.row("F5")
async def test_in_order_the_end_is_not_asked_for_twice(desk: Desk) -> None:
    """The look at the last owner's progress fails for a moment; meanwhile messages come."""
    looks = 0

    def fails_once(request: legacy.FetchOffsetsRequest) -> legacy.FetchOffsetsResponse | None:
        nonlocal looks
        looks += request.queues[0].topic.name == "t"
        failing = looks == 3 and request.queues[0].topic.name == "t"  # the first is at the start
        return legacy.FetchOffsetsResponse(status=status(pb.INTERNAL_SERVER_ERROR, "not now")) if failing else None

    desk.server.answers["FetchOffsets"] = fails_once
    await desk.start(in_order(desk), consume_from=LAST)
    await until(lambda: looks == 3)
    await desk.server.fill(Q, "abc")
    await desk.comes(lambda: desk.texts == ["a", "b", "c"], 4)
    assert len([each for each in desk.server.requests("QueryOffset") if each.message_queue.topic.name == "t"]) == 1


@pytest.mark.row("F5")
async def test_in_order_a_queue_without_stored_progress_goes_on_where_it_is(desk: Desk) -> None:
    await desk.server.fill(Q, "ab")
    core = await desk.start(in_order(desk), consume_from=FIRST)
    await until(lambda: desk.offset(core) == 2 and desk.server.pulls_of(Q) == [0, 2])
    assert Q not in desk.server.progress
    core._pulls.pull(PullRequest("g", Q, core.parts.table[Q], 1))  # as after a lock that was granted anew
    await until(lambda: desk.server.pulls_of(Q)[2:3] == [1])


def in_order(desk: Desk) -> OrderlyListener:
    """Content with everything."""

    async def listener(messages: Sequence[MessageView], _: object) -> ConsumeOrderlyStatus:
        desk.note(messages)
        return ConsumeOrderlyStatus.SUCCESS

    return OrderlyListener(listener)
