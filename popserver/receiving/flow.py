"""Receives: each searches the database at once. If nothing is found, it waits for a wake-up, and searches again."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from dataclasses import replace

import structlog

from popserver.catalog.flow import Catalog
from popserver.catalog.paused import PausedGroups
from popserver.clients.waits import Waits
from popserver.database.notifications import GROUP, TOPIC
from popserver.engine.background import BackgroundTasks
from popserver.engine.clock import Clock
from popserver.engine.reader import SLOW_QUERY_MS, LogLimit
from popserver.engine.undelivered import Undelivered
from popserver.engine.wakeups import PollKey, Wakeups, Woken
from popserver.engine.writer import Writer
from popserver.filters import Filter, SqlFilter
from popserver.filters.memory import Filters
from popserver.filters.subscription import ClientKind
from popserver.filters.tags import EVERYTHING
from popserver.lite.flow import LiteSubscriptions
from popserver.model.errors import BadRequest, CommitUnknown, Internal, TooManyRequests
from popserver.model.message import ONE_FRAME_BATCH_SIZE_MAX, Delivery
from popserver.model.names import Resource
from popserver.model.retry import PUSH_HOLD_MS_MAX, Holder
from popserver.model.topic import MessageType, Topic
from popserver.receiving.batch import Receive, Received, Rotations
from popserver.receiving.filter_prefetch import FilterPrefetch
from popserver.receiving.redeliveries import Redeliveries
from popserver.settling.hold_release import HoldRelease

# A receive that does not wait repeats its search for at most this time if it finds nothing, but messages may be left:
# the filter refused many messages, or other answers of the same transaction left no bytes for its own.
SEARCH_MS = 250
LOCKED_PAUSE_S = 0.002  # between rounds of searches from each queue on, if other servers have locked all of them

log = structlog.get_logger("popserver.polls")


class _PauseBegan(Exception):
    """The group was paused while the receive waited for memory, or for its filter."""


class Polls:
    """All receives of this server, waiting or not."""

    def __init__(
        self,
        writer: Writer,
        catalog: Catalog,
        clock: Clock,
        wakeups: Wakeups,
        hold_release: HoldRelease,
        redeliveries: Redeliveries,
        filter_prefetch: FilterPrefetch,
        filters: Filters,
        undelivered: Undelivered,
        paused: PausedGroups,
        lite: LiteSubscriptions,
        waits: Waits,
        background: BackgroundTasks,
    ) -> None:
        self._background = background
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._wakeups = wakeups
        self._hold_release = hold_release
        self._redeliveries = redeliveries
        self.open = 0  # receives that are not answered yet
        self._filter_prefetch = filter_prefetch
        self._filters = filters
        self._undelivered = undelivered
        self._paused = paused
        self._lite = lite
        self._waits = waits
        waits.on_end(wakeups.end)
        waits.on_end(lambda key: paused.end(key.group_id))
        self._log_limit = LogLimit()
        self._rotations = Rotations()

    async def receive(
        self,
        group_name: Resource,
        topic_name: Resource,
        *,
        wanted: Filter,
        batch_size: int,
        invisible_ms: int,
        holder: Holder,
        client_id: str,
        poll_until_ms: int,
        attempt_id: str | None = None,
        heads_only: bool = False,
        in_one_frame: bool = False,
        kind: ClientKind | None = None,
    ) -> list[Delivery]:
        """Receive up to `batch_size` (at most 128) messages. Waits until `poll_until_ms` (server time) for the first.

        Returns an empty list if there is none. A push consumer's hold lasts while its client is connected, a simple
        consumer's for `invisible_ms`. A repeated receive with the same `attempt_id` gets the messages it holds. With
        `heads_only` the answer has at most one message of each message group. `in_one_frame`: the answer is one frame,
        not a frame per message. `kind`: the kind of consumer that the client has reported, if any.
        """
        names = (GROUP, group_name), (TOPIC, topic_name)
        while True:
            since = self._waits.changes
            group, topic = await self._catalog.subscription(group_name, topic_name, kind)
            if since == self._waits.changes or not self._waits.has_changed(since, *names):
                break
        if MessageType.LITE in topic.accepts:
            check_lite_filter(topic, wanted)
        request = Receive(
            group=group,
            topic=topic,
            wanted=wanted,
            batch_size=min(batch_size, ONE_FRAME_BATCH_SIZE_MAX),
            invisible_ms=PUSH_HOLD_MS_MAX if holder is Holder.PUSH else invisible_ms,
            holder=holder,
            client_id=client_id,
            rotation=next(self._rotations[group.group_id, topic.topic_id]),
            attempt_id=attempt_id,
            heads_only=heads_only,
            in_one_frame=in_one_frame,
        )
        self.open += 1
        try:
            with nullcontext() if wanted == EVERYTHING else self._filters.held(wanted):
                return await self._poll(request, poll_until_ms, since)
        finally:
            self.open -= 1

    async def _poll(self, request: Receive, poll_until_ms: int, since: int) -> list[Delivery]:
        """The messages granted to the receive. An empty list if there is none until `poll_until_ms` (server time), or
        if its topic or group has changed since the change number `since` (`Waits.changes`)."""
        key, wakeups = PollKey(request.group.group_id, request.topic.topic_id), self._wakeups
        if MessageType.LITE in request.topic.accepts and request.group.chooses:
            key = key._replace(client_id=request.client_id)
            await self._lite.clients.load(key)
        woken = Woken.ENDED
        search_until_ms = max(poll_until_ms, self._clock.deadline_ms(SEARCH_MS))
        # A repeated receive gets the messages it holds, even if its group is paused or the topic is known to be empty.
        may_be_repeated = request.attempt_id is not None
        while True:
            is_paused = bool(self._paused.topics) and self._paused.covers(key.group_id, key.topic_id)
            if is_paused and not may_be_repeated:
                with self._waits.at(key, *_names(request)):
                    is_resumed = await self._paused.wait(request.group, poll_until_ms)
                if not is_resumed:
                    return []
                continue
            wake_number = wakeups.wake_number(key.wake_key)
            if may_be_repeated or not wakeups.is_known_empty(key, request.wanted):
                # Other clients may have subscribed to the same lite topics during the wait.
                overlaps = bool(key.client_id) and self._lite.clients.shares(key)
                current = request
                if is_paused or overlaps:
                    current = replace(request, is_paused=is_paused, overlaps=overlaps)
                try:
                    received = await self._search(current, key, poll_until_ms, woken)
                except _PauseBegan:
                    continue
                if received is not None:
                    if received.more and not received.deliveries and self._clock.now_ms() < search_until_ms:
                        # Begin at another queue: the first one may have many messages that the filter refuses.
                        request = replace(request, searches=request.searches + 1)
                        if received.is_locked and request.searches % len(request.topic.queues) == 0:
                            await asyncio.sleep(LOCKED_PAUSE_S)
                        continue
                    may_be_repeated = False
                    if received.more:
                        wakeups.pass_on(key)
                    if received.more or received.deliveries:
                        return received.deliveries
                    if is_paused:
                        continue
                    wakeups.found_empty(key, request.wanted, wake_number)
            if self._clock.now_ms() >= poll_until_ms:
                return []
            if not wakeups.has_capacity(key):
                raise TooManyRequests(
                    f"{wakeups.parked} polls are waiting, too many for group '{request.group.name}' on topic"
                    f" '{request.topic.name}'; use fewer consumers, or poll again later"
                )
            names = _names(request)
            if self._waits.has_changed(since, *names):
                return []
            with self._waits.at(key, *names):
                woken = await wakeups.park(key, wake_number, poll_until_ms)
            if not woken:
                return []

    async def _search(self, request: Receive, key: PollKey, poll_until_ms: int, woken: Woken) -> Received | None:
        """Search the database once. None if that failed after a wake-up `AHEAD` or on a `BEAT`: the poll waits on."""
        try:
            if not self._undelivered.has_capacity:
                await self._undelivered.wait(poll_until_ms)
            if woken is Woken.BEAT and not self._background.has(reload := ("reload", key)):
                self._background.submit(reload, lambda: self._catalog.check_again(request.group, request.topic))
            is_judged = isinstance(request.wanted, SqlFilter) and not request.is_paused
            return await (self._take_judged(request, key) if is_judged else self._take(request, key))
        except BaseException as error:
            if woken in {Woken.AHEAD, Woken.BEAT} and isinstance(error, Internal):
                return None
            if woken:
                # Another poll must receive the messages of this wake-up; the next one may be long away.
                self._wakeups.pass_on(key, woken)
            raise

    async def _take_judged(self, request: Receive, key: PollKey) -> Received:
        request = await self._filter_prefetch.ask(request)
        granted = 0
        try:
            received = await self._take(request, key)
            granted = len(received.deliveries)
            return received
        finally:
            self._filter_prefetch.answered(request, granted)

    async def _take(self, request: Receive, key: PollKey) -> Received:
        if self._paused.topics and not request.is_paused and self._paused.covers(key.group_id, key.topic_id):
            raise _PauseBegan
        started_ms = self._clock.now_ms()
        frames = 0 if request.in_one_frame else request.batch_size
        answer = self._writer.submit(request, answers=request.batch_size, frames=frames)
        try:
            received = await asyncio.shield(answer)
        except asyncio.CancelledError:
            # The client has disconnected: no consumer gets the messages that this transaction grants.
            answer.add_done_callback(lambda done: self._cancel_grant(key, done))
            raise
        except CommitUnknown as error:
            # If the commit has succeeded after all, no consumer gets these messages.
            self._hold_release.cancel_delivery(error.outcome.deliveries)
            raise
        now_ms = self._clock.now_ms()
        if received.deliveries:
            self._redeliveries.count(request.group.group_id, request.topic.topic_id, received.deliveries, now_ms)
        cost_ms = now_ms - started_ms
        if cost_ms > SLOW_QUERY_MS and (suppressed := self._log_limit.dropped(now_ms)) is not None:
            log.warning("a receive was slow", cost_ms=cost_ms, group=str(request.group.name), suppressed=suppressed)
        return received

    def _cancel_grant(self, key: PollKey, answer: asyncio.Future[Received]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, CommitUnknown):
            self._hold_release.cancel_delivery(error.outcome.deliveries)
        elif error is None:
            self._hold_release.cancel_delivery(answer.result().deliveries)
            if answer.result().more:
                self._wakeups.pass_on(key)


def _names(request: Receive) -> tuple[tuple[str, Resource], tuple[str, Resource]]:
    """The names of the group and the topic: a change of one ends the wait (`Waits`)."""
    return (GROUP, request.group.name), (TOPIC, request.topic.name)


def check_lite_filter(topic: Topic, wanted: Filter) -> None:
    """Raise `BadRequest` for a filter on a topic of lite topics."""
    if wanted != EVERYTHING:
        raise BadRequest(
            f"topic '{topic.name}' has lite topics, and a receive from it takes no filter; subscribe to lite topics by"
            " their names, with the filter '*'"
        )
