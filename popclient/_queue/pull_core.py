"""The pull consumer's core, in one event loop; the synchronous and the asyncio PullConsumer are its two faces."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from popclient import _convert as convert
from popclient._push.room import Room
from popclient._queue import calls
from popclient._queue.calls import Progress, QueueEnd
from popclient._queue.committing import Committing
from popclient._queue.consume_from import Ask, consume_timestamp_of, start_of
from popclient._queue.fetching import Fetcher
from popclient._queue.message_queue import MessageQueue
from popclient._queue.pull_options import HOLD, PullOptions
from popclient._queue.wire import open_session
from popclient._session import Session, log
from popclient._tasks import Tasks
from popclient.config import ClientConfig
from popclient.errors import ClientClosed, NotFound, PopError
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb

FOLLOW_INTERVAL: Final = 30.0  # seconds between looks for new queues, as routes are asked for (mission row N2)
RESETS: Final = "popmq.resets"
READABLE: Final = (pb.READ, pb.READ_WRITE)

Assigning = str | MessageQueue


class PullConsumerCore:
    """Reads queues from offsets, for one group.

    Its settings subscribe to nothing, so it is no member of the group: it takes no queue from those that are, and needs
    no lock.
    """

    def __init__(self, config: ClientConfig, options: PullOptions) -> None:
        self.config = config
        self.options = options
        self.session = Session(
            config,
            pb.PULL_CONSUMER,
            options.group,
            lambda: convert.subscription(options.group, {}, config.namespace, HOLD),
        )
        self.session.on_notice = self._heed_notice
        self._room = Room(options.max_cached_messages, options.max_cached_bytes)
        self._fetchers: dict[MessageQueue, Fetcher] = {}
        self._committing = Committing(self.session, options.group, self._fetchers)
        self._followed: set[str] = set()
        self._turn = itertools.count()
        self._arrived = asyncio.Event()
        self._assigning = asyncio.Lock()
        self._tasks = Tasks()
        self._started = False
        self._closing = False

    async def start(self) -> None:
        """Opens the session; raises UnsupportedByServer at once where there is nothing to pull."""
        self._require_open()
        if self._started:
            return
        await open_session(self.session)
        if not self._started:  # by another call meanwhile
            self._started = True
            self._tasks.spawn(self._keep_following())
            if self.options.commit_interval is not None:
                self._tasks.spawn(self._committing.keep_committing(self.options.commit_interval.total_seconds()))

    def _require_open(self) -> None:
        if self._closing:
            raise ClientClosed

    # ---- Assignment ----

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Those that can be read, in order."""
        await self.start()
        route = await self.session.route(topic)
        return sorted({MessageQueue(topic, queue.id) for queue in route if queue.permission in READABLE})

    async def assign(self, wanted: Iterable[Assigning]) -> list[MessageQueue]:
        """These queues and topics instead of those before; what stays goes on where it is."""
        async with self._assigning:
            followed, queues = await self._find(wanted)
            if len(queues) > self.options.max_cached_messages:
                raise ValueError(
                    f"{len(queues)} queues are assigned and max_cached_messages is {self.options.max_cached_messages};"
                    " it must be at least 1 for each, because the pull of each may bring one"
                )
            begins = await self._begins([mq for mq in queues if mq not in self._fetchers], None)
            self._require_open()
            for mq in self._fetchers.keys() - queues:
                self._fetchers.pop(mq).stop()
            self._followed = followed
            self._add(begins)
            return sorted(self._fetchers)

    async def _find(self, wanted: Iterable[Assigning]) -> tuple[set[str], set[MessageQueue]]:
        """The topics that are wanted whole, and all queues."""
        whole: set[str] = set()
        queues: set[MessageQueue] = set()
        for each in wanted:
            if isinstance(each, MessageQueue):
                queues.add(await self._existing(each))
            else:
                whole.add(each)
                queues.update(await self.queues(each))
        return whole, queues

    async def _existing(self, mq: MessageQueue) -> MessageQueue:
        there = await self.queues(mq.topic)
        if mq not in there:
            raise NotFound(f"topic {mq.topic} has no queue {mq.queue_id}; it has {_spelt(there)}")
        return mq

    async def _begins(self, mqs: Sequence[MessageQueue], where: QueueEnd | None) -> dict[MessageQueue, Progress]:
        """Where to begin: at the group's progress; without any at that end of the queue, else as consume_from says."""
        if not mqs:
            return {}
        progress = await calls.fetch_offsets(self.session, self.options.group, mqs)
        return {mq: Progress(await self._begin(mq, at.offset, where), at.resets) for mq, at in progress.items()}

    async def _begin(self, mq: MessageQueue, stored: int, where: QueueEnd | None) -> int:
        if stored < 0 and where is not None:
            return await calls.query_offset(self.session, mq, where)
        begin = start_of(self.options.consume_from, mq.topic, stored)
        if begin is Ask.END:
            return await calls.query_offset(self.session, mq, QueueEnd.END)
        if begin is Ask.TIMESTAMP:
            since = consume_timestamp_of(self.options.consume_timestamp, convert.now())
            return await calls.query_offset(self.session, mq, since)
        assert isinstance(begin, int)
        return begin

    def _add(self, begins: Mapping[MessageQueue, Progress]) -> None:
        for mq, begin in begins.items():
            fetcher = Fetcher(
                self.session, self.options, mq, begin, self._room, lambda: len(self._fetchers), self._arrived.set
            )
            self._fetchers[mq] = fetcher
        for mq in begins:  # all are counted before the first asks for room
            self._fetchers[mq].go_on()

    async def _keep_following(self) -> None:
        while True:
            await asyncio.sleep(FOLLOW_INTERVAL)
            try:
                await self._follow()
            except PopError as failure:
                log.debug("new queues are looked for later: %s", failure)

    async def _follow(self) -> None:
        """Topics that are assigned whole may have grown; of a new queue all is wanted, for all came while we read."""
        async with self._assigning:
            for topic in self._followed:
                new = [mq for mq in await self.queues(topic) if mq not in self._fetchers]
                self._add(await self._begins(new, QueueEnd.BEGINNING))

    @property
    def assignment(self) -> list[MessageQueue]:
        return sorted(self._fetchers)

    def _of(self, mq: MessageQueue) -> Fetcher:
        fetcher = self._fetchers.get(mq)
        if fetcher is None:
            raise ValueError(f"{mq} is not assigned; assigned are {_spelt(self.assignment)}")
        return fetcher

    def _of_each(self, mqs: Iterable[MessageQueue]) -> list[Fetcher]:
        """Of all that are assigned when none is named."""
        self._require_open()
        named = [self._of(mq) for mq in mqs]
        return named or list(self._fetchers.values())

    # ---- Reading ----

    async def poll(self, timeout: float, most: int) -> list[MessageView]:
        """Up to so many messages, as soon as there is one; none when the time is over."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        self._committing.begin_poll()
        while True:
            self._require_open()
            if not self._fetchers:
                raise ValueError("nothing is assigned; call assign(topic), or assign([...]) with queues, before poll")
            self._arrived.clear()
            if taken := self._take(most):
                return taken
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                return []

    def _take(self, most: int) -> list[MessageView]:
        """From all queues, beginning with another one each time; raises a failure only if there is nothing to take."""
        fetchers = [fetcher for fetcher in self._fetchers.values() if not fetcher.paused]
        first = next(self._turn) % max(len(fetchers), 1)
        taken: list[MessageView] = []
        for fetcher in fetchers[first:] + fetchers[:first]:
            taken += fetcher.take(most - len(taken))
        if not taken:
            for fetcher in fetchers:
                fetcher.raise_failure()
        return taken

    def pause(self, mqs: Iterable[MessageQueue]) -> None:
        for fetcher in self._of_each(mqs):
            fetcher.pause()

    def resume(self, mqs: Iterable[MessageQueue]) -> None:
        for fetcher in self._of_each(mqs):
            fetcher.resume()

    # ---- Places ----

    def position(self, mq: MessageQueue) -> int:
        return self._of(mq).position

    def seek(self, mq: MessageQueue, offset: int) -> None:
        for fetcher in self._of_each([mq]):
            fetcher.seek(offset)

    async def seek_to(self, mqs: Iterable[MessageQueue], where: QueueEnd | datetime) -> None:
        """All of them or, when a server fails on the way, none."""
        fetchers = self._of_each(mqs)
        offsets = [await calls.query_offset(self.session, fetcher.mq, where) for fetcher in fetchers]
        for fetcher, offset in zip(fetchers, offsets, strict=True):
            if self._fetchers.get(fetcher.mq) is fetcher:
                fetcher.seek(offset)

    # ---- Progress ----

    async def committed(self, mq: MessageQueue) -> int | None:
        await self.start()
        progress = await calls.fetch_offsets(self.session, self.options.group, [mq])
        return progress[mq].offset if progress[mq].offset >= 0 else None

    async def commit(self, given: Mapping[MessageQueue, int] | None) -> None:
        """Everything that was polled, or up to the given offsets; raises what was refused."""
        self._require_open()
        if given is None:
            await self._committing.commit_polled()
            return
        for mq, offset in given.items():
            if offset > (position := self._of(mq).position):
                raise ValueError(
                    f"offset {offset} of {mq} is beyond what poll has returned; commit at most {position}, the next"
                    " offset, or seek there first"
                )
        await self._committing.commit(given)

    def _heed_notice(self, name: str) -> None:
        if name == RESETS and self._fetchers:
            self._tasks.spawn(self._committing.heed_resets())

    # ---- The end ----

    async def close(self, *, all_done: bool = False) -> None:
        """Ends all pulls and says goodbye, within `close_timeout`.

        all_done: are the messages of the last poll dealt with? Auto-commit commits them then.
        """
        if self._closing:
            return
        self._closing = True
        self._arrived.set()
        clock = asyncio.get_running_loop().time
        deadline = clock() + self.config.close_timeout
        ending = [task for fetcher in self._fetchers.values() if (task := fetcher.stop())]
        self._tasks.cancel()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await asyncio.gather(*ending, return_exceptions=True)
                    await self._tasks.ended()
                    if self.options.commit_interval is not None:
                        await self._committing.commit_at_end(all_done=all_done)
        finally:
            await self.session.close(deadline - clock())


def _spelt(mqs: Sequence[MessageQueue]) -> str:
    return ", ".join(map(str, mqs)) or "none"
