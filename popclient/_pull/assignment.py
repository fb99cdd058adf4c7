"""The queues that a pull consumer reads at the moment, and where each begins."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from datetime import datetime

from popclient._engine.flow import CacheBudget
from popclient._progress.start import Generations, StartQuery, consume_timestamp_of, start_of
from popclient._pull.fetch import Begin, Fetcher
from popclient._pull.options import PullOptions
from popclient._queues import calls
from popclient._queues.calls import QueueEnd, QueueProgress
from popclient._queues.wire import readable
from popclient._session import convert
from popclient._session.session import Session
from popclient.errors import NotFound
from popclient.message import MessageQueue


class AssignedQueues:
    """Belongs to one event loop.

    arrived: called when a queue has messages to take. on_recreated: awaited when the topic of a queue was recreated.
    """

    def __init__(
        self,
        session: Session,
        options: PullOptions,
        arrived: Callable[[], None],
        on_recreated: Callable[[Fetcher], Awaitable[None]],
    ) -> None:
        self.fetchers: dict[MessageQueue, Fetcher] = {}
        self.budget = CacheBudget(options.max_cached_messages, options.max_cached_bytes)
        self._session = session
        self._options = options
        self._arrived = arrived
        self._on_recreated = on_recreated
        self.generations = Generations()

    # ---- What there is ----

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of the topic that can be read, in order."""
        return readable(topic, await self._session.route(topic))

    async def queues_if_exists(self, topic: str) -> list[MessageQueue]:
        """None of a topic that is waited for."""
        try:
            return await self.queues(topic)
        except NotFound as failure:
            if not self._session.routes.awaits(topic, failure):
                raise
            self.generations.missing(topic)
            return []

    async def existing(self, mq: MessageQueue) -> MessageQueue:
        """The queue, if it exists. Raises NotFound."""
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
        """Those of the named queues; of all assigned queues if none is named."""
        named = [self.of(mq) for mq in mqs]
        return named or list(self.fetchers.values())

    # ---- Changing it ----

    def require_room(self, queues: Collection[MessageQueue]) -> None:
        """Raises ValueError if there are more queues than messages that may be fetched ahead."""
        most = self._options.max_cached_messages
        if len(queues) > most:
            raise ValueError(
                f"{len(queues)} queues are assigned and max_cached_messages is {most}; it must be at least 1 for each,"
                " because the pull of each may bring one"
            )

    async def begins(self, queues: Collection[MessageQueue], end: QueueEnd | None = None) -> dict[MessageQueue, Begin]:
        """Where the new ones among the queues begin: at the group's progress.

        Without any at that end of the queue; else as consume_from says.
        """
        new = [mq for mq in sorted(queues) if mq not in self.fetchers]
        if not new:
            return {}
        progress = await calls.fetch_offsets(self._session, self._options.group, new)
        return {mq: await self._begin(mq, stored, end) for mq, stored in progress.items()}

    async def _begin(self, mq: MessageQueue, stored: QueueProgress, end: QueueEnd | None) -> Begin:
        self.generations.met(mq.topic, stored.generation)
        where = self._asks(mq, stored.offset, end)
        if isinstance(where, int):
            return Begin(stored._replace(offset=where))
        return Begin(stored._replace(offset=await calls.query_offset(self._session, mq, where)), asked=True)

    def _asks(self, mq: MessageQueue, stored: int, end: QueueEnd | None) -> int | QueueEnd | datetime:
        """An offset, or what to ask the server for."""
        if stored < 0 and end is not None:
            return end
        begin = start_of(self._options.consume_from, mq.topic, stored)
        if begin is StartQuery.TIMESTAMP:
            return consume_timestamp_of(self._options.consume_timestamp, convert.now())
        assert begin is not None  # an unknown progress was raised before
        if isinstance(begin, int):
            return begin
        return QueueEnd.BEGINNING if self.generations.wants_all(mq.topic) else QueueEnd.END

    async def learn_generation(self, mq: MessageQueue) -> None:
        """Learns the generation of a topic in which this consumer has no queue."""
        if not self.generations.has_topic(mq.topic):
            progress = await calls.fetch_offsets(self._session, self._options.group, [mq])
            self.generations.met(mq.topic, progress[mq].generation)

    async def stored(self, begins: Mapping[MessageQueue, Begin]) -> dict[MessageQueue, Begin]:
        """Stores the positions that were looked up as the group's progress. Raises the refusals."""
        asked = {mq: begin.progress for mq, begin in begins.items() if begin.asked}
        now = dict(begins)
        results = await calls.commit_offsets(self._session, self._options.group, asked) if asked else {}
        for mq, (progress, refusal) in results.items():
            if refusal is not None and progress.resets <= asked[mq].resets:
                raise refusal
            now[mq] = Begin(progress)
        return now

    def set_assigned(self, queues: Collection[MessageQueue], begins: Mapping[MessageQueue, Begin]) -> None:
        """These and no others; those that stay go on where they are, those that are new where `begins` says."""
        for mq in self.fetchers.keys() - set(queues):
            self.fetchers.pop(mq).stop()
        for mq, begin in begins.items():
            self.fetchers[mq] = Fetcher(
                self._session,
                self._options,
                mq,
                begin,
                self.budget,
                lambda: len(self.fetchers),
                self._arrived,
                self._on_recreated,
            )
        for mq in begins:  # all are counted before the first one takes budget
            self.fetchers[mq].start()


def _spelt(mqs: Iterable[MessageQueue]) -> str:
    return ", ".join(map(str, mqs)) or "none"
