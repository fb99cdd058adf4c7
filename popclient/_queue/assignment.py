"""The queues that a pull consumer reads at the moment, and where each begins."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from popclient import _convert as convert
from popclient._push.room import Room
from popclient._queue import calls
from popclient._queue.calls import Progress, QueueEnd
from popclient._queue.consume_from import Ask, consume_timestamp_of, start_of
from popclient._queue.fetching import Fetcher
from popclient._queue.message_queue import MessageQueue
from popclient._queue.pull_options import PullOptions
from popclient._session import Session
from popclient.errors import NotFound
from popproto.v2 import definition_pb2 as pb

READABLE = (pb.READ, pb.READ_WRITE)


class Assignment:
    """Belongs to one event loop.

    arrived: called when a queue has something to take.
    """

    def __init__(self, session: Session, options: PullOptions, arrived: Callable[[], None]) -> None:
        self.fetchers: dict[MessageQueue, Fetcher] = {}
        self.room = Room(options.max_cached_messages, options.max_cached_bytes)
        self._session = session
        self._options = options
        self._arrived = arrived

    # ---- What there is ----

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Those that can be read, in order."""
        route = await self._session.route(topic)
        return sorted({MessageQueue(topic, queue.id) for queue in route if queue.permission in READABLE})

    async def existing(self, mq: MessageQueue) -> MessageQueue:
        """Itself; raises NotFound."""
        there = await self.queues(mq.topic)
        if mq not in there:
            raise NotFound(f"topic {mq.topic} has no queue {mq.queue_id}; it has {_spelt(there)}")
        return mq

    # ---- What is assigned ----

    @property
    def assigned(self) -> list[MessageQueue]:
        return sorted(self.fetchers)

    def of(self, mq: MessageQueue) -> Fetcher:
        """Raises ValueError for a queue that is not assigned."""
        fetcher = self.fetchers.get(mq)
        if fetcher is None:
            raise ValueError(f"{mq} is not assigned; assigned are {_spelt(self.assigned)}")
        return fetcher

    def of_each(self, mqs: Iterable[MessageQueue]) -> list[Fetcher]:
        """Of all that are assigned when none is named."""
        named = [self.of(mq) for mq in mqs]
        return named or list(self.fetchers.values())

    # ---- Changing it ----

    def require_room(self, queues: Collection[MessageQueue]) -> None:
        """Raises ValueError for more queues than messages may be fetched ahead."""
        most = self._options.max_cached_messages
        if len(queues) > most:
            raise ValueError(
                f"{len(queues)} queues are assigned and max_cached_messages is {most}; it must be at least 1 for each,"
                " because the pull of each may bring one"
            )

    async def begins(
        self, queues: Collection[MessageQueue], end: QueueEnd | None = None
    ) -> dict[MessageQueue, Progress]:
        """Where those of the queues begin that are new: at the group's progress.

        Without any at that end of the queue; else as consume_from says.
        """
        new = [mq for mq in sorted(queues) if mq not in self.fetchers]
        if not new:
            return {}
        progress = await calls.fetch_offsets(self._session, self._options.group, new)
        return {mq: Progress(await self._begin(mq, at.offset, end), at.resets) for mq, at in progress.items()}

    async def _begin(self, mq: MessageQueue, stored: int, end: QueueEnd | None) -> int:
        if stored < 0 and end is not None:
            return await calls.query_offset(self._session, mq, end)
        begin = start_of(self._options.consume_from, mq.topic, stored)
        if begin is Ask.END:
            return await calls.query_offset(self._session, mq, QueueEnd.END)
        if begin is Ask.TIMESTAMP:
            since = consume_timestamp_of(self._options.consume_timestamp, convert.now())
            return await calls.query_offset(self._session, mq, since)
        assert isinstance(begin, int)
        return begin

    def become(self, queues: Collection[MessageQueue], begins: Mapping[MessageQueue, Progress]) -> None:
        """These and no others; those that stay go on where they are, those that are new where `begins` says."""
        for mq in self.fetchers.keys() - set(queues):
            self.fetchers.pop(mq).stop()
        for mq, begin in begins.items():
            self.fetchers[mq] = Fetcher(
                self._session, self._options, mq, begin, self.room, lambda: len(self.fetchers), self._arrived
            )
        for mq in begins:  # all are counted before the first asks for room
            self.fetchers[mq].go_on()


def _spelt(mqs: Iterable[MessageQueue]) -> str:
    return ", ".join(map(str, mqs)) or "none"
