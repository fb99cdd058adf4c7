"""A simulated reader of whole ranges, as Spark is one: it plans a batch, reads it, writes it to its sink, commits."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import NamedTuple

from popserver.bulk.rules import QueuePage
from popserver.filters.tags import parse
from popserver.model.names import Resource
from popserver.model.topic import QueueName, offset_of
from popserver.pulling.offsets import NamedOffset
from proof.history.events import CommitOffset, Pull, Pulled, Sunk
from proof.simulate.clients import TOPIC, Diary
from tests.support.checker import Outcome
from tests.support.workload import digest

_SOURCES = ("message_id", "body", "properties")
PAGE_MAX = 16  # offsets that are read at once


class Range(NamedTuple):
    """The offsets of a queue from `start` up to before `end`."""

    start: int
    end: int


class RangeReader:
    """Its plan and its sink outlive it. What it has read does not: if it is killed, it reads the same ranges again."""

    def __init__(self, diary: Diary, group: str, queues: int) -> None:
        self._diary = diary
        self._group = Resource("", group)
        self._reached = dict.fromkeys(range(queues), 0)  # what the sink has, by queue
        self._plan: dict[int, Range] = {}
        self._read: dict[int, list[Pulled]] = {}
        self._places: dict[int, int] = {}  # how far the plan is read
        self._uncommitted: dict[int, int] = {}

    async def act(self, chance: random.Random) -> None:
        if self._plan and chance.random() < 0.15:
            self._begin_again()
        elif self._uncommitted and chance.random() < 0.5:
            await self._commit()
        elif not self._plan:
            await self._make_plan(chance.choice((1, 8, 64)))
        elif not await self._read_on(chance.choice((1, 4, PAGE_MAX))):
            self._write()

    async def receive(self, _batch_size: int, _hold_ms: int, _poll_ms: int = 0) -> int:
        """A whole batch; 0 at the ends of the queues."""
        if not self._plan:
            await self._make_plan(64)
        planned = sum(each.end - each.start for each in self._plan.values())
        while await self._read_on(PAGE_MAX):
            pass
        self._write()
        return planned

    async def ack_all(self) -> None:
        await self._commit()

    async def _make_plan(self, most: int) -> None:
        """The next ranges of all queues, each of at most so many offsets."""
        plan = {}
        for queue, start in self._reached.items():
            _, ends = await self._diary.outcome(
                self._diary.machine.broker.consuming.offsets.ends(QueueName(TOPIC, queue))
            )
            if ends is None:
                return
            if ends.end_offset > start:
                plan[queue] = Range(start, min(ends.end_offset, start + most))
        self._plan = plan
        self._begin_again()

    def _begin_again(self) -> None:
        self._read = {queue: [] for queue in self._plan}
        self._places = {queue: each.start for queue, each in self._plan.items()}

    async def _read_on(self, most: int) -> bool:
        """Read a page of the plan. False if all of it is read, or the server did not answer."""
        for queue, place in self._places.items():
            end = self._plan[queue].end
            if place < end:
                return await self._read_page(queue, place, min(end, place + most))
        return False

    async def _read_page(self, queue: int, offset: int, end: int) -> bool:
        diary, bulk, read = self._diary, self._diary.machine.broker.consuming.bulk, self._read
        invoked, outcome, next_offset = diary.now(), Outcome.UNKNOWN, -1
        got: tuple[Pulled, ...] = ()

        async def page() -> QueuePage:
            return await bulk.page(await bulk.slice_of(TOPIC, queue, offset, end, parse("*"), _SOURCES))

        try:
            outcome, found = await diary.outcome(page())
            if found is not None:
                next_offset, got = found.next_offset, _messages(found)
        finally:
            diary.history.add(Pull(outcome, invoked, diary.now(), self._group.name, queue, offset, next_offset, got))
        if outcome is Outcome.OK and self._read is read and self._places.get(queue) == offset:
            read[queue] += got
            self._places[queue] = next_offset
        return outcome is Outcome.OK

    def _write(self) -> None:
        """The sink takes a batch as a whole or not at all."""
        if not all(self._places[queue] >= each.end for queue, each in self._plan.items()):
            return
        diary, group = self._diary, self._group.name
        for queue, each in self._plan.items():
            now = diary.now()
            diary.history.add(Sunk(Outcome.OK, now, diary.now(), group, queue, *each, tuple(self._read[queue])))
            self._reached[queue] = self._uncommitted[queue] = each.end
        self._plan = {}

    async def _commit(self) -> None:
        for queue, offset in list(self._uncommitted.items()):
            diary = self._diary
            invoked, outcome = diary.now(), Outcome.UNKNOWN
            try:
                request = NamedOffset(QueueName(TOPIC, queue), offset)
                outcome, done = await diary.outcome(
                    diary.machine.broker.consuming.offsets.commit(self._group, [request])
                )
                if done and done[0].refusal is not None:
                    outcome = Outcome.REFUSED
            finally:
                diary.history.add(CommitOffset(outcome, invoked, diary.now(), self._group.name, queue, offset))
            if outcome is Outcome.OK and self._uncommitted.get(queue) == offset:
                del self._uncommitted[queue]


def _messages(page: QueuePage) -> tuple[Pulled, ...]:
    if page.columns is None:
        return ()
    found, at, bodies = page.columns, 0, list[bytes]()
    for size in found.body_sizes:
        bodies.append(found.bodies[at : at + size])
        at += size
    values: Mapping[str, list[object]] = {name: list(each) for name, each in found.values.items()}
    return tuple(
        Pulled(offset_of(key), str(message_id), digest(body, dict(properties)))  # type: ignore[call-overload]
        for key, message_id, body, properties in zip(
            found.keys, values["message_id"], bodies, values["properties"], strict=True
        )
    )
