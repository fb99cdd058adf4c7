"""Calls that share a request: when it is sent, which calls it holds, and callers that give up."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from popclient import ClientClosed, PopError
from popclient._session.batching import BatchLimits, BatchQueue, Call, CombinedReply, settle

FOUR = BatchLimits(4, 100, 1)


class Road:
    """Records what leaves; lets it arrive when told."""

    def __init__(self, limits: BatchLimits = FOUR) -> None:
        self.left: list[list[Any]] = []
        self.gate = asyncio.Event()
        self.queue: BatchQueue[Any] = BatchQueue(self._carry, lambda: limits)

    async def _carry(self, batch: Sequence[Call[Any]]) -> None:
        self.left.append([call.item for call in batch])
        await self.gate.wait()
        settle(batch, [f"done {call.item}" for call in batch])

    def submit(self, item: Any, size: int = 1) -> asyncio.Future[Any]:
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.queue.submit(Call(item, size, reply))
        return reply


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_an_idle_queue_lets_a_call_go_at_once() -> None:
    road = Road()
    reply = road.submit(1)
    await turns()
    assert road.left == [[1]]
    road.gate.set()
    assert await reply == "done 1"


async def test_what_comes_in_one_turn_travels_together() -> None:
    road = Road()
    replies = [road.submit(item) for item in range(3)]
    road.gate.set()
    assert await asyncio.gather(*replies) == ["done 0", "done 1", "done 2"]
    assert road.left == [[0, 1, 2]]


async def test_while_one_request_is_on_its_way_the_next_one_fills() -> None:
    road = Road()
    replies = [road.submit(0)]
    await turns()
    for item in (1, 2, 3):
        replies.append(road.submit(item))
        await turns()
    assert road.left == [[0]]
    road.gate.set()
    await asyncio.gather(*replies)
    assert road.left == [[0], [1, 2, 3]]


async def test_a_request_takes_no_more_than_its_limit() -> None:
    road = Road()
    replies = [road.submit(item) for item in range(9)]
    road.gate.set()
    await asyncio.gather(*replies)
    assert road.left == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


async def test_a_request_weighs_no_more_than_its_limit_but_one_heavy_call_may_travel_alone() -> None:
    road = Road()
    replies = [road.submit("a", 60), road.submit("b", 60), road.submit("c", 500), road.submit("d", 1)]
    road.gate.set()
    await asyncio.gather(*replies)
    assert road.left == [["a"], ["b"], ["c"], ["d"]]


async def test_a_full_request_need_not_wait_for_the_one_before() -> None:
    road = Road(BatchLimits(2, 100, 2))
    replies = [road.submit(item) for item in range(3)]
    await turns()
    assert road.left == [[0, 1]], "two are on their way, the third is alone and waits"
    replies.append(road.submit(3))
    await turns()
    assert road.left == [[0, 1], [2, 3]]
    replies += [road.submit(item) for item in (4, 5)]
    await turns()
    assert len(road.left) == 2, "no more than two at once"
    road.gate.set()
    await asyncio.gather(*replies)


async def test_a_caller_who_gives_up_before_departure_is_left_out() -> None:
    road = Road()
    first = road.submit(0)
    await turns()
    second, third = road.submit(1), road.submit(2)
    second.cancel()
    road.gate.set()
    assert await asyncio.gather(first, third) == ["done 0", "done 2"]
    assert road.left == [[0], [2]]


async def test_a_caller_who_gives_up_on_the_way_disturbs_nobody() -> None:
    road = Road()
    first, second = road.submit(0), road.submit(1)
    await turns()
    first.cancel()
    road.gate.set()
    assert await second == "done 1"


async def test_abandoning_settles_everyone() -> None:
    road = Road()
    replies = [road.submit(item) for item in range(6)]
    await turns()
    road.queue.abandon()
    outcomes = await asyncio.gather(*replies)
    assert [type(outcome) for outcome in outcomes] == [ClientClosed] * 6
    assert road.queue.idle


async def test_a_defect_leaves_no_caller_waiting() -> None:
    async def broken(_: Sequence[Call[Any]]) -> None:
        raise KeyError("oops")

    queue: BatchQueue[Any] = BatchQueue(broken, lambda: BatchLimits(4, 100, 1))
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    queue.submit(Call(1, 1, reply))
    assert type(await reply) is PopError


async def test_flush_waits_for_all() -> None:
    road = Road()
    replies = [road.submit(item) for item in range(9)]
    flushed = asyncio.ensure_future(road.queue.flush())
    await turns()
    assert not flushed.done()
    road.gate.set()
    await flushed
    assert all(reply.done() for reply in replies)


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_joint_reply_has_all_outcomes_in_order(count: int) -> None:
    reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    combined = CombinedReply(count, reply)
    for index in reversed(range(count)):
        combined.part(index).set_result(index)
    assert await reply == list(range(count))
