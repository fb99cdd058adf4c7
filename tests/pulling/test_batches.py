"""Which pulls are read together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from popserver.filters import Filter, sql, tags
from popserver.model.errors import TopicNotFound
from popserver.pulling.batches import PullBatcher
from popserver.pulling.read import QueueRead
from popserver.pulling.rules import Pulled, PullStatus
from tests.support.running_broker import until

ALL, SQL = tags.parse("*"), sql.parse("a = 1")
TWO_TAGS = tags.parse("A || B")
TOPIC: Any = None

pytestmark = pytest.mark.timeout(14)  # a batcher that is broken answers nobody


def a_read(batch_size: int, wanted: Filter = ALL, offset: int = 0) -> QueueRead:
    return QueueRead(TOPIC, TOPIC, offset, batch_size, wanted)


def found(pull: QueueRead) -> Pulled:
    return Pulled(PullStatus.NO_NEW_MSG, [], pull.offset, 0, 0, 0)


class Reads:
    """Answers reads in the place of a database, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[QueueRead]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.error: BaseException | None = None
        self.refused: dict[int, TopicNotFound] = {}  # by offset

    async def look_up(self, work: Any) -> list[Any]:
        pulls = work.keywords["pulls"]
        if not pulls:
            pytest.fail("it reads for nobody")  # which the batcher does not catch, as it does an exception
        self.batches.append(pulls)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [self.refused.get(each.offset, found(each)) for each in pulls]


@pytest.fixture
async def reads() -> Reads:
    return Reads()


@pytest.fixture
def batcher(reads: Reads) -> PullBatcher:
    return PullBatcher(reads)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pulls", "sizes"),
    [
        ([a_read(160)] * 6, [6]),
        ([a_read(160)] * 7, [6, 1]),
        ([a_read(512), a_read(512)], [2]),
        ([a_read(512), a_read(513)], [1, 1]),
        ([a_read(1), a_read(993)], [1, 1]),
        ([a_read(1), a_read(992)], [2]),
        ([a_read(1)] * 33, [32, 1]),
        ([a_read(32)] * 33, [32, 1]),
        ([a_read(33)] * 32, [31, 1]),
        ([a_read(5_000), a_read(1)], [1, 1]),
        ([a_read(1), a_read(5_000), a_read(1)], [1, 1, 1]),
        ([a_read(32, SQL)] * 8, [6, 2]),
        ([a_read(510, TWO_TAGS)] * 2, [2]),
        ([a_read(511, TWO_TAGS), a_read(510, TWO_TAGS)], [1, 1]),
        ([a_read(512 - 128, SQL), a_read(512)], [2]),
        ([a_read(512 - 127, SQL), a_read(512)], [1, 1]),
    ],
)
async def test_a_batch_asks_for_so_many_messages(
    reads: Reads, batcher: PullBatcher, pulls: list[QueueRead], sizes: list[int]
) -> None:
    await asyncio.gather(*[batcher.read(each) for each in pulls])
    assert [len(each) for each in reads.batches] == sizes
    assert [pull for each in reads.batches for pull in each] == pulls


async def test_while_one_batch_reads_the_next_one_collects(reads: Reads, batcher: PullBatcher) -> None:
    reads.gate.clear()
    first = asyncio.create_task(batcher.read(a_read(1, offset=1)))
    await until(lambda: bool(reads.batches))
    others = [asyncio.create_task(batcher.read(a_read(1, offset=each))) for each in (2, 3)]
    await asyncio.sleep(0)
    assert len(reads.batches) == 1
    reads.gate.set()
    answers = await asyncio.gather(first, *others)
    assert [len(each) for each in reads.batches] == [1, 2]
    assert [each.next_offset for each in answers] == [1, 2, 3]
    assert batcher._work is None
    assert (await batcher.read(a_read(1, offset=4))).next_offset == 4, "after a rest it reads again"


async def test_each_pull_has_an_outcome_of_its_own(reads: Reads, batcher: PullBatcher) -> None:
    reads.refused = {2: TopicNotFound("it is gone")}
    answers = await asyncio.gather(
        *[batcher.read(a_read(1, offset=each)) for each in (1, 2, 3)], return_exceptions=True
    )
    assert [each.next_offset if isinstance(each, Pulled) else str(each) for each in answers] == [1, "it is gone", 3]


async def test_a_read_that_fails_fails_for_all_of_its_batch_alone(reads: Reads, batcher: PullBatcher) -> None:
    reads.error = ZeroDivisionError()
    answers = await asyncio.gather(*[batcher.read(a_read(1)) for _ in range(3)], return_exceptions=True)
    assert [type(each) for each in answers] == [ZeroDivisionError] * 3
    reads.error = None
    assert await batcher.read(a_read(1)) == found(a_read(1))


async def test_a_pull_that_left_hinders_no_other(reads: Reads, batcher: PullBatcher) -> None:
    reads.gate.clear()
    leaves, stays = (asyncio.create_task(batcher.read(a_read(1, offset=each))) for each in (1, 2))
    await until(lambda: bool(reads.batches))
    leaves.cancel()
    await asyncio.sleep(0)
    reads.gate.set()
    assert (await stays).next_offset == 2
