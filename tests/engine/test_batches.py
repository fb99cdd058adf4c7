"""Which requests run in one transaction, when it begins, and what is counted of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest

from popserver.engine import writer as writers
from popserver.engine.batch import BatchDelay
from popserver.engine.transaction import Transaction
from popserver.engine.writer import Writer
from popserver.model.budget import Budget
from popserver.model.errors import Internal, TooManyRequests
from tests.engine.acting_writer import Change, Look, acting_writer
from tests.support.running_broker import until

pytestmark = pytest.mark.timeout(14)  # a writer that is broken answers nobody


@pytest.fixture
async def writer(sqlite_url: str) -> AsyncIterator[Writer]:
    async with acting_writer(sqlite_url) as running:
        yield running


class Batches:
    """Notes which requests run together."""

    def __init__(self) -> None:
        self.names: list[list[str]] = []
        self._newest: Transaction | None = None

    def request(self, name: str) -> Look:
        def note(tx: Transaction) -> str:
            if tx is not self._newest:
                self._newest = tx
                self.names.append([])
            self.names[-1].append(name)
            return name

        return Look(note)


def nothing(_tx: Transaction) -> None:
    """The request changes nothing."""


class Held:
    """A request whose transaction waits until `let_go`."""

    def __init__(self, writer: Writer) -> None:
        self._began, self._end = threading.Event(), threading.Event()
        self.answer = writer.submit(Look(self._hold))

    async def begun(self) -> Held:
        await until(self._began.is_set)
        return self

    def let_go(self) -> None:
        self._end.set()

    def _hold(self, _tx: Transaction) -> str:
        self._began.set()
        assert self._end.wait(10)
        return "held"


class TestTogether:
    async def test_run_those_that_fit_in_their_order(self, writer: Writer) -> None:
        batches = Batches()
        answers = [writer.submit(batches.request(name)) for name in "abc"]
        assert await asyncio.gather(*answers) == ["a", "b", "c"]
        assert batches.names == [["a", "b", "c"]]

    @pytest.mark.parametrize(("requests", "sizes"), [(512, [512]), (513, [512, 1]), (1_030, [512, 512, 6])])
    async def test_run_at_most_so_many(self, writer: Writer, requests: int, sizes: list[int]) -> None:
        batches = Batches()
        names = [str(each) for each in range(requests)]
        await asyncio.gather(*[writer.submit(batches.request(name)) for name in names])
        assert [len(each) for each in batches.names] == sizes
        assert [name for each in batches.names for name in each] == names

    @pytest.mark.parametrize("measure", ["size", "answers"])
    @pytest.mark.parametrize(
        ("amounts", "expected"),
        [
            (lambda most: [most - 1, 1, 0], ["abc"]),
            (lambda most: [most - 1, 2, 0], ["ac", "b"]),
            (lambda most: [most - 1, 2, 1], ["ac", "b"]),
            (lambda most: [most + 1, 0, 1], ["ab", "c"]),
            (lambda most: [0, most + 1, most + 1], ["a", "b", "c"]),
            (lambda most: [most // 2] * 5, ["ab", "cd", "e"]),
        ],
    )
    async def test_run_so_many_bytes_and_answers(
        self, writer: Writer, measure: str, amounts: Callable[[int], list[int]], expected: list[str]
    ) -> None:
        most = {"size": 32 * 1024 * 1024, "answers": 4_096}[measure]
        writer._backlog.limit = 10 * most
        batches = Batches()
        asked = [
            writer.submit(batches.request(name), **{measure: amount})
            for name, amount in zip("abcde", amounts(most), strict=False)
        ]
        await asyncio.gather(*asked)
        assert ["".join(each) for each in batches.names] == expected
        assert writer.waiting == 0

    async def test_leave_the_others_in_their_order(self, writer: Writer) -> None:
        batches = Batches()
        asked = [writer.submit(batches.request("first"), answers=4_096)]
        asked.append(writer.submit(batches.request("does not fit"), answers=1))
        asked += [writer.submit(batches.request("fits")) for _ in range(511)]
        asked += [writer.submit(batches.request(name)) for name in ("too many", "last")]
        await asyncio.gather(*asked)
        assert batches.names == [["first", *["fits"] * 511], ["does not fit", "too many", "last"]]


class TestADelay:
    """A batch that waits for more requests; here for so long that only a full batch begins."""

    @pytest.fixture
    async def slow(self, writer: Writer) -> Writer:
        writer._delay.gathers = True
        writer._delay._starts_at_s = asyncio.get_running_loop().time() + 1_000
        return writer

    async def test_ends_when_there_are_enough(self, slow: Writer) -> None:
        batches = Batches()
        answers = []
        for at in range(47):
            answers.append(slow.submit(batches.request(str(at))))
            await asyncio.sleep(0)
            assert slow.waiting == at + 1
            assert (slow._alarm is not None, slow.batch_began_s) == (True, None)
        answers.append(slow.submit(batches.request("the last")))
        await asyncio.gather(*answers)
        assert [len(each) for each in batches.names] == [48]
        assert slow._alarm is None

    async def test_is_not_waited_for_twice(self, slow: Writer) -> None:
        answer = slow.submit(Look(nothing))
        await asyncio.sleep(0)
        assert slow._alarm is not None
        slow._dispatch()  # as its alarm does
        await answer
        assert slow._alarm is None

    async def test_that_is_over_begins_the_batch(self, slow: Writer) -> None:
        slow._delay._starts_at_s = asyncio.get_running_loop().time() + 0.02
        batches = Batches()
        answers = [slow.submit(batches.request(name)) for name in "ab"]
        await asyncio.sleep(0)
        assert (slow.waiting, slow._alarm is not None) == (2, True)
        await asyncio.gather(*answers)
        assert batches.names == [["a", "b"]]

    async def test_is_reckoned_from_the_batch_before(self, writer: Writer) -> None:
        started: list[tuple[int, int]] = []

        class Noting(BatchDelay):
            def started(self, count: int, now_s: float, *, frames: int = 0) -> None:
                started.append((count, frames))
                super().started(count, now_s, frames=frames)

        writer._delay = Noting()
        await writer.submit(Look(nothing), frames=5)
        assert started == [], "one request alone, after one alone"
        await asyncio.gather(writer.submit(Look(nothing), frames=5), writer.submit(Look(nothing), frames=3))
        assert writer._delay.gathers
        await writer.submit(Look(nothing), frames=7)
        assert not writer._delay.gathers
        await writer.submit(Look(nothing), frames=5)
        assert started == [(2, 8), (1, 7)]


class TestTheBacklog:
    async def test_counts_bytes_until_the_answers(self, writer: Writer) -> None:
        held = await Held(writer).begun()
        answers = [writer.submit(Change(nothing), size=size) for size in (300, 200)]
        assert writer._backlog.used == 500
        held.let_go()
        await asyncio.gather(*answers)
        assert (writer._backlog.used, writer._backlog.refused) == (0, 0)

    async def test_refuses_what_does_not_fit(self, writer: Writer) -> None:
        held = await Held(writer).begun()
        fits = writer.submit(Change(nothing), size=900)
        refused = writer.submit(Change(nothing), size=101)
        exactly = writer.submit(Change(nothing), size=100)
        nothing_to_store = writer.submit(Change(nothing))
        with pytest.raises(TooManyRequests, match="another 101 bytes to store: 900 of 1000 bytes"):
            await refused
        assert writer.waiting == 3
        held.let_go()
        await asyncio.gather(fits, exactly, nothing_to_store)
        assert (writer._backlog.used, writer._backlog.refused) == (0, 1)

    async def test_takes_a_request_that_is_larger_than_itself_alone(self, writer: Writer) -> None:
        held = await Held(writer).begun()
        large = writer.submit(Change(nothing), size=5_000)
        refused = writer.submit(Change(nothing), size=1)
        assert writer._backlog.used == 1_000
        held.let_go()
        with pytest.raises(TooManyRequests):
            await refused
        await large
        assert writer._backlog.used == 0


class TestCounts:
    async def test_the_requests_of_each_transaction(self, writer: Writer) -> None:
        for together in (3, 1, 1):
            await asyncio.gather(*[writer.submit(Look(nothing)) for _ in range(together)])
        requests = writer.meters.requests
        assert (requests.counts[:4], requests.total, requests.count) == ([2, 0, 1, 0], 5, 3)

    async def test_how_long_commits_took(self, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
        moments = count(100)
        monkeypatch.setattr(writers, "now_s", lambda: float(next(moments)))
        for _ in range(2):
            await writer.submit(Look(nothing))
        commits = writer.meters.commits
        assert (commits.total, commits.counts[commits.limits.index(1)], commits.count) == (2.0, 2, 2)

    async def test_how_long_transactions_took(self, writer: Writer) -> None:
        assert writer.batch_began_s is None
        for _ in range(2):
            held = await Held(writer).begun()
            assert writer.batch_began_s is not None
            writer.batch_began_s -= 100
            held.let_go()
            await held.answer
            assert writer.batch_began_s is None
        took = writer.meters.transactions
        assert took.counts == [0] * len(took.limits) + [2]
        assert 200 <= took.total < 300

    async def test_who_waits(self, writer: Writer) -> None:
        held = await Held(writer).begun()
        answers = [writer.submit(Look(nothing)) for _ in range(3)]
        assert writer.waiting == 3
        held.let_go()
        await asyncio.gather(*answers)
        assert writer.waiting == 0


class TestAnotherServersLock:
    @pytest.fixture(autouse=True)
    def _without_pause(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writers, "LOCK_PAUSE_S", 0.0)

    @staticmethod
    def refused(times: int, backlog: Budget, seen: list[int]) -> Callable[[Transaction], Any]:
        def act(_tx: Transaction) -> object:
            seen.append(backlog.used)
            return TooManyRequests("another server has the lock") if len(seen) <= times else "done"

        return act

    async def test_is_tried_again_a_few_times(self, writer: Writer) -> None:
        seen: list[int] = []
        assert await writer.submit_again(Change(self.refused(4, writer._backlog, seen)), size=30) == "done"
        assert seen == [30] * 5

    async def test_that_stays_refuses_the_request(self, writer: Writer) -> None:
        seen: list[int] = []
        with pytest.raises(TooManyRequests, match="another server has the lock"):
            await writer.submit_again(Change(self.refused(5, writer._backlog, seen)))
        assert len(seen) == 5

    async def test_of_a_request_that_stores_nothing_takes_nothing_of_the_backlog(self, writer: Writer) -> None:
        seen: list[int] = []
        assert await writer.submit_again(Change(self.refused(1, writer._backlog, seen))) == "done"
        assert seen == [0, 0]

    async def test_is_the_only_refusal_that_is_tried_again(self, writer: Writer) -> None:
        seen: list[int] = []

        def fail(_tx: Transaction) -> object:
            seen.append(1)
            return Internal("it is broken")

        with pytest.raises(Internal, match="it is broken"):
            await writer.submit_again(Change(fail))
        assert len(seen) == 1


@pytest.mark.parametrize(("answers", "bytes_max"), [(0, 32 * 1024 * 1024), (1, 77)])
async def test_a_transaction_that_answers_messages_reads_what_there_is_memory_for(
    sqlite_url: str, answers: int, bytes_max: int
) -> None:
    async with acting_writer(sqlite_url, capacity=77) as writer:
        assert await writer.submit(Look(lambda tx: tx.answer_bytes), answers=answers) == bytes_max


async def test_the_thread_lives_until_it_is_closed(writer: Writer) -> None:
    assert writer.is_alive
    assert (writer._thread.name, writer._thread.daemon) == ("popmq-writer", True)
    await writer.close()
    assert not writer.is_alive
    with pytest.raises(Internal, match="stopping"):
        await writer.submit(Look(nothing))
    writer.close = _nothing


async def test_it_is_idle_when_no_request_waits_or_runs(writer: Writer) -> None:
    await writer.idle()
    held = await Held(writer).begun()
    later = writer.submit(Look(nothing))
    idle = asyncio.create_task(writer.idle())
    for _ in range(5):
        await asyncio.sleep(0)
    assert not idle.done()
    held.let_go()
    await idle
    assert (held.answer.done(), later.done()) == (True, True)


async def _nothing() -> None:
    return
