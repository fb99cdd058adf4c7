"""This server's copy of what operators have paused, in memory.

A receive or a pull of a paused group waits until the group is resumed or its time is over. It needs no query for that.
The pause of a message group is not here: the position of the message group is not open while it is paused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from popserver.catalog.pauses import EVERY_TOPIC, paused_topics
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.wakeups import PARKED_PER_TOPIC_AND_GROUP_MAX
from popserver.model.errors import TooManyRequests
from popserver.model.group import Group


class PausedGroups:
    """This server's copy of the pauses, and the calls that wait for the end of one."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self.topics: dict[int, frozenset[int]] = {}  # by group id; nearly always empty
        self._stored: dict[int, frozenset[int]] = {}  # as they were read
        self._beginning: list[tuple[int, frozenset[int]]] = []  # pauses that are being stored
        self._waiting: dict[int, set[asyncio.Future[bool]]] = {}  # by group id
        self._reloading = asyncio.Lock()
        self._closed = False

    @property
    def waiting(self) -> int:
        """Receives and pulls that wait for the end of a pause."""
        return sum(map(len, self._waiting.values()))

    def covers(self, group_id: int, topic_id: int) -> bool:
        """Whether the group gets no messages of this topic now."""
        topics = self.topics.get(group_id)
        return topics is not None and (EVERY_TOPIC in topics or topic_id in topics)

    @contextmanager
    def beginning(self, group_id: int, topic_ids: Collection[int]) -> Iterator[None]:
        """While the block stores the pause, receives of this server wait already. The block must call `reload`."""
        pause = (group_id, frozenset(topic_ids))
        self._beginning.append(pause)
        self._unite()
        try:
            yield
        finally:
            self._beginning.remove(pause)
            self._unite()

    async def reload(self) -> None:
        """Read the pauses, and end the waits of groups that were resumed. Raises `StoreUnavailable`."""
        # One at a time, so that an older read cannot replace a newer one.
        async with self._reloading:
            self._stored = await self._reader.read(paused_topics)
        self._unite()

    def _unite(self) -> None:
        before, self.topics = self.topics, dict(self._stored)
        for group_id, paused in self._beginning:
            self.topics[group_id] = self.topics.get(group_id, frozenset()) | paused
        for group_id, paused in before.items():
            if paused - self.topics.get(group_id, frozenset()):
                _end_waits(self._waiting.get(group_id, ()), resumed=True)

    async def wait(self, group: Group, until_ms: int) -> bool:
        """Wait until a pause of the group ends. False if `until_ms` (server time) came first or the server is closing.

        Raises `TooManyRequests` if too many calls of the group wait.
        """
        if self._closed or self._clock.now_ms() >= until_ms:
            return False
        waiting = self._waiting.setdefault(group.group_id, set())
        if len(waiting) >= PARKED_PER_TOPIC_AND_GROUP_MAX:
            raise TooManyRequests(
                f"consumer group '{group.name}' is paused and {len(waiting)} of its calls wait already; call again"
                " later, or resume it with: popmq group resume"
            )
        end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        waiting.add(end)
        alarm = self._clock.call_at_deadline(until_ms, lambda: _end_waits([end], resumed=False))
        try:
            return await end
        finally:
            alarm.cancel()
            waiting.discard(end)
            if not waiting and self._waiting.get(group.group_id) is waiting:
                del self._waiting[group.group_id]

    def end(self, group_id: int) -> None:
        """End the waits of a group that was changed or deleted."""
        _end_waits(self._waiting.get(group_id, ()), resumed=False)

    def close(self) -> None:
        """End every wait, and let no further call wait."""
        self._closed = True
        for waiting in self._waiting.values():
            _end_waits(waiting, resumed=False)


def _end_waits(waits: Collection[asyncio.Future[bool]], *, resumed: bool) -> None:
    for each in waits:
        if not each.done():
            each.set_result(resumed)
