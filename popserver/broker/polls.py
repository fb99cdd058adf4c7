"""Receives: asked of the store at once; where there is nothing they park, and ask again when the topic is rung."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

import structlog

from popserver.broker.catalog import Catalog
from popserver.broker.clock import Clock
from popserver.broker.filters import Filters
from popserver.broker.judging import Judging
from popserver.broker.orphans import Orphans
from popserver.broker.redeliveries import Redeliveries
from popserver.broker.undelivered import Undelivered
from popserver.broker.wakeups import Seat, Wakeups
from popserver.broker.writer import Writer
from popserver.domain.brake import Brake
from popserver.domain.errors import CommitUnknown, TooManyRequests
from popserver.domain.filtering import Filter, SqlFilter
from popserver.domain.message import Delivery
from popserver.domain.names import Resource
from popserver.domain.retry import PUSH_HOLD_MS_MAX, SECOND_MS, Holder
from popserver.store import receiving
from popserver.store.receiving import Received

BATCH_SIZE_MAX = 32
SLOW_LOOK_MS = 5 * SECOND_MS  # requirement A8

log = structlog.get_logger("popserver.polls")


class Polls:
    """Every receive of this server, parked or not."""

    def __init__(
        self,
        writer: Writer,
        catalog: Catalog,
        clock: Clock,
        wakeups: Wakeups,
        orphans: Orphans,
        redeliveries: Redeliveries,
        judging: Judging,
        filters: Filters,
        undelivered: Undelivered,
    ) -> None:
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._wakeups = wakeups
        self._orphans = orphans
        self._redeliveries = redeliveries
        self.open = 0  # receives that are not answered yet
        self._judging = judging
        self._filters = filters
        self._undelivered = undelivered
        self._brake = Brake()
        # Not that of the sends: a client that sends and receives in turn must not see every second queue alone.
        self._rotation = itertools.count()

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
    ) -> list[Delivery]:
        """Take up to `batch_size` (at most 32) messages; waits until `poll_until_ms` for the first, then returns none.

        A push holder's hold lives as long as its client, a simple one's `invisible_ms`. A receive that is repeated
        with its `attempt_id` gets what it holds already; with `heads_only` no two messages of one message group.
        """
        group, topic = await self._catalog.subscription(group_name, topic_name)
        request = receiving.Receive(
            group=group,
            topic=topic,
            wanted=wanted,
            batch_size=min(batch_size, BATCH_SIZE_MAX),
            invisible_ms=PUSH_HOLD_MS_MAX if holder is Holder.PUSH else invisible_ms,
            holder=holder,
            client_id=client_id,
            rotation=next(self._rotation),
            attempt_id=attempt_id,
            heads_only=heads_only,
        )
        return await self.poll(request, poll_until_ms)

    async def poll(self, request: receiving.Receive, poll_until_ms: int) -> list[Delivery]:
        """What the receive is granted; waits until `poll_until_ms` for the first message, then returns none."""
        self.open += 1
        try:
            with self._filters.held(request.wanted):
                return await self._poll(request, poll_until_ms)
        finally:
            self.open -= 1

    async def _poll(self, request: receiving.Receive, poll_until_ms: int) -> list[Delivery]:
        seat, wakeups = _seat(request), self._wakeups
        was_woken = False
        # A repeated receive gets what it holds, though nothing else is left.
        may_be_repeated = request.attempt_id is not None
        while True:
            ring_number = wakeups.ring_number(seat.topic_id)
            if may_be_repeated or not wakeups.is_known_empty(seat, request.wanted):
                try:
                    await self._undelivered.wait(poll_until_ms)
                    received = await self._receive(request)
                except BaseException:
                    if was_woken:
                        # What this poll was woken for must not wait for the next ring.
                        wakeups.pass_on(seat)
                    raise
                if received.more and not received.deliveries and self._clock.now_ms() < poll_until_ms:
                    # It goes on elsewhere: where it was may be much to look at that it does not want.
                    request = replace(request, rotation=request.rotation + 1)
                    continue
                may_be_repeated = False
                if received.more:
                    wakeups.pass_on(seat)
                if received.more or received.deliveries:
                    return received.deliveries
                wakeups.found_empty(seat, request.wanted, ring_number)
            if self._clock.now_ms() >= poll_until_ms:
                return []
            if not wakeups.has_room(seat):
                raise TooManyRequests(
                    f"{wakeups.parked} polls are waiting, too many for group '{request.group.name}' on topic"
                    f" '{request.topic.name}'; use fewer consumers, or poll again later"
                )
            if not await wakeups.park(seat, ring_number, poll_until_ms):
                return []
            was_woken = True

    async def _receive(self, request: receiving.Receive) -> Received:
        if not isinstance(request.wanted, SqlFilter):
            return await self._take(request)
        request = await self._judging.ask(request)
        granted = 0
        try:
            received = await self._take(request)
            granted = len(received.deliveries)
            return received
        finally:
            self._judging.answered(request, granted)

    async def _take(self, request: receiving.Receive) -> Received:
        started_ms = self._clock.now_ms()
        answer = self._writer.enqueue(request, answers=request.batch_size)
        try:
            received = await asyncio.shield(answer)
        except asyncio.CancelledError:
            # Its client left while the grant was being committed: nobody will ever hold these.
            answer.add_done_callback(lambda done: self._withdraw_grant(_seat(request), done))
            raise
        except CommitUnknown as error:
            # If they were granted all the same, nobody knows of it.
            self._orphans.withdraw(error.outcome.deliveries)
            raise
        now_ms = self._clock.now_ms()
        self._redeliveries.count(request.group.group_id, received.deliveries, now_ms)
        cost_ms = now_ms - started_ms
        if cost_ms > SLOW_LOOK_MS and (untold := self._brake.untold(now_ms)) is not None:
            log.warning("a poll's look took long", cost_ms=cost_ms, group=str(request.group.name), untold=untold)
        return received

    def _withdraw_grant(self, seat: Seat, answer: asyncio.Future[Received]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, CommitUnknown):
            self._orphans.withdraw(error.outcome.deliveries)
        elif error is None:
            self._orphans.withdraw(answer.result().deliveries)
            if answer.result().more:
                self._wakeups.pass_on(seat)


def _seat(request: receiving.Receive) -> Seat:
    return Seat(request.group.group_id, request.topic.topic_id)
