"""When a SQL filter judges ahead of receives, and how much: receives share what it said."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from popserver.filters import sql
from popserver.model.group import Group
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.topic import MessageQueue, MessageType, Topic
from popserver.receiving import filter_prefetch
from popserver.receiving.batch import Judged, KeyRange, Receive
from popserver.receiving.filter_fetch import FilterResults
from popserver.receiving.filter_prefetch import FilterPrefetch

pytestmark = pytest.mark.timeout(20)
NORMAL, PRIORITY = (MessageType.NORMAL,), (MessageType.PRIORITY,)


def a_receive(
    batch_size: int = 10, *, wanted: str = "a = 1", group_id: int = 1, accepts: tuple[MessageType, ...] = NORMAL
) -> Receive:
    group: Any = Group(group_id, *[1] * (len(Group._fields) - 1))  # type: ignore[arg-type]
    topic = Topic(2, Resource("", "orders"), (MessageQueue(5, 0),), accepts, 0)
    return Receive(group, topic, sql.parse(wanted), batch_size, 1, Holder.SIMPLE, "c1", 0)


def results(accepted: int, *, is_all: bool = False, behind: bool = False) -> FilterResults:
    judged = Judged({5: KeyRange(0, 1_000, range(accepted))}, {7: True} if behind else {})
    return FilterResults(judged, is_all)


class Reads:
    """Judges in the place of the database and the filter: `answers` in their order."""

    def __init__(self, *answers: FilterResults | Exception) -> None:
        self.answers = [*answers]
        self.enough: list[int] = []
        self.known: list[Judged] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.may_wait_from = 1  # the number of the first read that waits at the gate

    async def read_then(self, query: Any, _judge: Any) -> FilterResults:
        self.enough.append(query.keywords["enough"])
        self.known.append(query.keywords["known"])
        if len(self.enough) >= self.may_wait_from:
            await self.gate.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def prefetch_of(*answers: FilterResults | Exception) -> tuple[FilterPrefetch, Reads]:
    reads = Reads(*answers)
    return FilterPrefetch(reads), reads  # type: ignore[arg-type]


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_receive_waits_for_a_verdict() -> None:
    prefetch, reads = prefetch_of(results(100))
    request = a_receive()
    reads.gate.clear()
    asking = asyncio.create_task(prefetch.ask(request))
    await turns()
    assert not asking.done()
    reads.gate.set()
    judged = await asking
    assert judged.judged == results(100).judged
    assert judged.batch_size == request.batch_size
    assert reads.enough == [80]


@pytest.mark.parametrize(
    ("accepted", "is_all", "prefetches"), [(50, False, 1), (49, False, 2), (49, True, 1), (10, False, 2), (10, True, 1)]
)
async def test_it_judges_on_before_a_receive_has_to_wait(accepted: int, is_all: bool, prefetches: int) -> None:
    """Less than four receives ahead."""
    prefetch, reads = prefetch_of(results(accepted, is_all=is_all), results(100))
    await prefetch.ask(a_receive())
    await turns()
    assert len(reads.enough) == prefetches
    if prefetches == 2:
        assert (reads.enough, reads.known[1]) == ([80, 90], results(accepted).judged)


async def test_receives_that_wait_together_share_one_verdict() -> None:
    prefetch, reads = prefetch_of(results(200))
    reads.gate.clear()
    asking = [asyncio.create_task(prefetch.ask(a_receive())) for _ in range(3)]
    await turns()
    assert len(reads.enough) == 1
    reads.gate.set()
    assert [each.judged for each in await asyncio.gather(*asking)] == [results(200).judged] * 3
    ahead, users = next(iter(prefetch._in_use.values()))
    assert (ahead.left, ahead.under_way, ahead.taken, users) == (170, 30, 30, 3)


async def test_what_was_taken_while_it_judged_is_not_left() -> None:
    prefetch, reads = prefetch_of(results(45), results(100))
    reads.may_wait_from = 2
    reads.gate.clear()
    for _ in range(4):
        await prefetch.ask(a_receive())
        await turns()
    assert reads.enough == [80, 90], "it judges ahead, and the receives do not wait for it"
    ahead, _ = next(iter(prefetch._in_use.values()))
    assert (ahead.left, ahead.under_way) == (5, 40)
    reads.gate.set()
    await turns()
    assert (ahead.left, ahead.under_way) == (100 - 10 - 30, 40)


async def test_with_an_answer_that_was_full_the_rest_is_left() -> None:
    prefetch, reads = prefetch_of(results(100, is_all=True), results(7, is_all=True))
    request = a_receive()
    await prefetch.ask(request)
    prefetch.answered(request, 10)
    assert prefetch._in_use == {}
    again = a_receive(20)
    assert (await prefetch.ask(again)).judged == results(100).judged
    assert len(reads.enough) == 1
    ahead, _ = next(iter(prefetch._in_use.values()))
    assert (ahead.left, ahead.under_way) == (70, 20)


async def test_after_an_answer_that_was_not_full_it_judges_anew() -> None:
    prefetch, reads = prefetch_of(results(100, is_all=True), results(7, is_all=True))
    request = a_receive()
    await prefetch.ask(request)
    prefetch.answered(request, 9)
    assert (await prefetch.ask(request)).judged == results(7).judged
    assert len(reads.enough) == 2


async def test_after_an_answer_that_was_not_full_no_message_is_left_for_the_smallest_receive() -> None:
    prefetch, _ = prefetch_of(results(100, is_all=True), results(7, is_all=True))
    request = a_receive(1)
    await prefetch.ask(request)
    prefetch.answered(request, 0)
    assert (await prefetch.ask(request)).judged == results(7).judged


async def test_as_many_as_are_left_are_enough() -> None:
    prefetch, reads = prefetch_of(results(20, is_all=True))
    for _ in range(2):
        await prefetch.ask(a_receive())
    assert len(reads.enough) == 1


def cheap(number: int) -> str:
    """The text of a filter that is just cheap; `number` makes it another one."""
    text = f"a = {number}" + " OR a = 1" * 20
    assert sql.parse(text).size == 64
    return text


async def test_one_cheap_filter_and_one_expensive_one_are_asked_at_a_time() -> None:
    prefetch, reads = prefetch_of(*[results(100, is_all=True)] * 4)
    reads.gate.clear()
    several = [cheap(1), cheap(2), f"NOT {cheap(3)}", f"NOT {cheap(4)}"]
    asking = [asyncio.create_task(prefetch.ask(a_receive(wanted=each))) for each in several]
    await turns()
    assert len(reads.enough) == 2
    reads.gate.set()
    await asyncio.gather(*asking)
    assert len(reads.enough) == 4


@pytest.mark.parametrize(("spare", "prefetches"), [(0, 4), (1, 3)])
async def test_results_are_kept_while_they_and_their_filters_fit_into_memory(
    monkeypatch: pytest.MonkeyPatch, spare: int, prefetches: int
) -> None:
    assert 50 < filter_prefetch._CACHE_BYTES // filter_prefetch._BYTES_EACH < 100, "so many filters"
    first, other = a_receive(wanted="a = 1"), a_receive(wanted=cheap(7))
    memory = sum(filter_prefetch._BYTES_EACH + sql.parse(each).memory for each in ("a = 1", cheap(7)))
    monkeypatch.setattr(filter_prefetch, "_CACHE_BYTES", memory - 1 + spare)
    prefetch, reads = prefetch_of(*[results(100, is_all=True)] * 4)
    for request in (first, other, first):
        await prefetch.ask(request)
        prefetch.answered(request, 10)
    assert len(reads.enough) + 1 == prefetches


async def test_a_failure_that_no_receive_waits_for_is_not_told() -> None:
    unheard: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unheard.append(context))
    prefetch, reads = prefetch_of(results(11), ZeroDivisionError(), results(11), results(99))
    for _ in range(2):
        request = a_receive()
        await prefetch.ask(request)
        await turns()
        ahead, _ = prefetch._in_use[filter_prefetch._filter_key(request)]
        if len(reads.enough) == 3:
            reads.gate.clear()
            prefetch._prefetch_task(ahead, request).cancel()
        await turns()
        prefetch.answered(request, 0)
    del ahead, prefetch
    gc.collect()
    await turns()
    assert unheard == []


@pytest.mark.parametrize(
    ("accepts", "behind", "prefetches"), [(NORMAL, False, 1), (NORMAL, True, 2), (PRIORITY, False, 2)]
)
async def test_where_messages_may_come_before_the_others_each_receive_waits(
    accepts: tuple[MessageType, ...], behind: bool, prefetches: int
) -> None:
    prefetch, reads = prefetch_of(*[results(200, is_all=True, behind=behind)] * 2)
    request = a_receive(accepts=accepts)
    for _ in range(2):
        await prefetch.ask(request)
        prefetch.answered(request, 10)
    assert len(reads.enough) == prefetches


async def test_each_group_and_filter_has_verdicts_of_its_own() -> None:
    prefetch, reads = prefetch_of(*[results(100, is_all=True)] * 3)
    for request in (a_receive(), a_receive(group_id=2), a_receive(wanted="a = 2"), a_receive()):
        await prefetch.ask(request)
        prefetch.answered(request, 10)
    assert len(reads.enough) == 3


async def test_a_failure_is_told_and_the_next_receive_tries_again() -> None:
    prefetch, reads = prefetch_of(ZeroDivisionError(), results(100, is_all=True))
    request = a_receive()
    with pytest.raises(ZeroDivisionError):
        await prefetch.ask(request)
    assert prefetch._in_use == {}
    assert (await prefetch.ask(request)).judged == results(100).judged
    assert len(reads.enough) == 2


async def test_a_receive_that_leaves_leaves_the_verdict_to_others() -> None:
    prefetch, reads = prefetch_of(results(100, is_all=True))
    reads.gate.clear()
    leaves, stays = (asyncio.create_task(prefetch.ask(a_receive())) for _ in range(2))
    await turns()
    leaves.cancel()
    await turns()
    reads.gate.set()
    assert (await stays).judged == results(100).judged
    ahead, users = next(iter(prefetch._in_use.values()))
    assert (ahead.left, ahead.under_way, users) == (90, 10, 1)
