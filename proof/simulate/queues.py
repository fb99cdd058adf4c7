"""A simulated member of a group that reads whole queues."""

from __future__ import annotations

import random

from popserver.filters.tags import parse
from popserver.model.names import Resource
from popserver.model.topic import QueueName
from popserver.pulling.flow import PullRequest
from popserver.pulling.offsets import NamedOffset
from proof.history.events import CommitOffset, Pull, Pulled, ReadOffset
from proof.simulate.clients import TOPIC, Diary
from tests.support.checker import Outcome
from tests.support.workload import digest


class QueueReader:
    """Reads one queue, commits how far it came, and now and then forgets its place, as after a restart."""

    def __init__(self, diary: Diary, group: str, queue: int) -> None:
        self._diary = diary
        self._group = Resource("", group)
        self._queue = queue
        self._offset: int | None = None

    async def act(self, chance: random.Random) -> None:
        what = chance.random()
        if self._offset is None or what < 0.1:
            await self._look()
        elif what < 0.4:
            await self._commit(self._offset)
        else:
            await self._pull(self._offset, chance.choice((1, 8, 32)), chance.choice((0, 0, 2_000)))

    async def receive(self, batch_size: int, _hold_ms: int, poll_ms: int = 0) -> int:
        """The next messages; 0 at the end of the queue."""
        if self._offset is None:
            await self._look()
        return await self._pull(self._offset or 0, batch_size, poll_ms)

    async def ack_all(self) -> None:
        await self._commit(self._offset or 0)

    async def _look(self) -> None:
        diary = self._diary
        invoked, outcome, offset = diary.now(), Outcome.UNKNOWN, -1
        try:
            queue = QueueName(TOPIC, self._queue)
            outcome, found = await diary.outcome(diary.machine.broker.consuming.offsets.fetch(self._group, [queue]))
            if found:
                offset = found[0].offset
        finally:
            diary.history.add(ReadOffset(outcome, invoked, diary.now(), self._group.name, self._queue, offset))
        if outcome is Outcome.OK:
            self._offset = max(offset, 0)

    async def _pull(self, offset: int, batch_size: int, poll_ms: int) -> int:
        diary, group = self._diary, self._group
        invoked, outcome, next_offset = diary.now(), Outcome.UNKNOWN, -1
        got: tuple[Pulled, ...] = ()
        until_ms = diary.deadline_ms(poll_ms)
        request = PullRequest(group, TOPIC, self._queue, offset, batch_size, parse("*"), until_ms)
        try:
            outcome, pulled = await diary.outcome(diary.machine.broker.consuming.pulls.pull(request))
            if pulled is not None:
                next_offset = pulled.next_offset
                got = tuple(
                    Pulled(
                        each.offset, each.message.message_id, digest(each.message.body, dict(each.message.properties))
                    )
                    for each in pulled.messages
                )
        finally:
            diary.history.add(
                Pull(outcome, invoked, diary.now(), group.name, self._queue, offset, next_offset, got)
            )  # fmt: skip
        if outcome is Outcome.OK:
            self._offset = next_offset
        return len(got)

    async def _commit(self, offset: int) -> None:
        diary = self._diary
        invoked, outcome = diary.now(), Outcome.UNKNOWN
        try:
            request = NamedOffset(QueueName(TOPIC, self._queue), offset)
            outcome, done = await diary.outcome(diary.machine.broker.consuming.offsets.commit(self._group, [request]))
            if done and done[0].refusal is not None:
                outcome = Outcome.REFUSED
        finally:
            diary.history.add(CommitOffset(outcome, invoked, diary.now(), self._group.name, self._queue, offset))
