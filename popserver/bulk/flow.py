"""Bulk: read queues page by page, and receive many messages at once, by attempt id.

Pages are short reads outside the writer. Only grants, renewals and acks use the writer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from popserver.bulk import attempts
from popserver.bulk import pages as bulk_pages
from popserver.bulk.attempts import Attempt
from popserver.bulk.rules import HeldPage, QueuePage, QueueSlice, check_slice
from popserver.catalog.flow import Catalog
from popserver.catalog.paused import PausedGroups
from popserver.database.database import READERS_MAX
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.filters import Filter, SqlFilter
from popserver.filters.subscription import ClientKind
from popserver.messages.columns import Columns
from popserver.model.errors import TooManyRequests
from popserver.model.handles import attempt_as_sent
from popserver.model.message import HeldMessage
from popserver.model.names import Resource
from popserver.model.retry import SECOND_MS, Holder
from popserver.model.topic import queue_numbered
from popserver.receiving.batch import Receive, Rotations
from popserver.receiving.filter_prefetch import FilterPrefetch
from popserver.receiving.redeliveries import Redeliveries
from popserver.settling import release

PAGES_MAX = READERS_MAX - 1  # at a time, so that one reader stays free for small reads
PATIENCE_MS = 5 * SECOND_MS  # for repeating a step that another server's lock or a filter's limit stopped
_PAUSE_S = 0.005


class BulkReceive(NamedTuple):
    """A receive of many messages at once; with `max_messages` 0 only of messages that its attempt holds already."""

    group: Resource
    topic: Resource
    attempt_id: str
    max_messages: int
    invisible_ms: int
    wanted: Filter
    client_id: str


class Bulk:
    """Reads and receives of many messages."""

    def __init__(
        self,
        reader: Reader,
        writer: Writer,
        catalog: Catalog,
        clock: Clock,
        redeliveries: Redeliveries,
        filter_prefetch: FilterPrefetch,
        paused: PausedGroups,
    ) -> None:
        self._paused = paused
        self._filter_prefetch = filter_prefetch
        self._redeliveries = redeliveries
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._rotations = Rotations()
        self._turns = asyncio.Semaphore(PAGES_MAX)

    async def slice_of(
        self,
        topic_name: Resource,
        queue_number: int,
        offset: int,
        end_offset: int,
        wanted: Filter,
        sources: Sequence[str],
    ) -> QueueSlice:
        """A range of a queue, to be read page by page.

        Raises `TopicNotFound`, and `BadRequest` for a queue that the topic does not have or an end before the offset.
        """
        check_slice(offset, end_offset)
        topic = await self._catalog.topic(topic_name)
        queue = queue_numbered(topic, queue_number)
        return QueueSlice(topic, queue, offset, end_offset, wanted, tuple(sources))

    async def reading_group(self, name: Resource) -> int:
        """The id of a group that reads a slice; 0 if it does not exist, because reading needs no group."""
        group = await self._catalog.known_group(name) if name.name else None
        return 0 if group is None else group.group_id

    def count_pulled(self, group_id: int, queue_slice: QueueSlice, sent: Columns) -> None:
        """Count messages of a slice that were sent; also the bytes of their bodies, if these are among the columns."""
        self._redeliveries.count_pulled(group_id, queue_slice.topic.topic_id, len(sent.keys), sum(sent.body_sizes))

    async def count_bytes(self, bulk_receive: BulkReceive, attempts: Mapping[int, int], sent: Columns) -> None:
        """Count the bytes of bodies of held messages that were sent; `attempts`: their attempts, by key."""
        if sent.body_sizes:
            group, topic = await self._catalog.for_receipt(bulk_receive.group, bulk_receive.topic)
            of_sent = [attempts[key] for key in sent.keys]
            self._redeliveries.count_bytes(group.group_id, topic.topic_id, of_sent, sent.body_sizes)

    async def page(self, queue_slice: QueueSlice) -> QueuePage:
        """The first page of the range; continue at its `next_offset`. Raises `TopicNotFound`."""
        async with self._turns:
            return await self._reader.read(lambda conn: bulk_pages.page(conn, queue_slice))

    async def receive(self, bulk_receive: BulkReceive) -> list[HeldMessage]:
        """The messages that the attempt holds, by key. If it holds none, up to `max_messages` are granted to it.

        If the call breaks off, they stay held, and a repeated call gets them. Raises the errors of a receive.
        """
        if not bulk_receive.max_messages:
            attempt = await self._attempt(bulk_receive.group, bulk_receive.topic, bulk_receive.attempt_id)
            now_ms = self._clock.now_ms()
            return await self._reader.read(lambda conn: attempts.held_by(conn, attempt, now_ms))
        # As a simple consumer: it names no lite topics, so it must not wait for messages that its group never gives it.
        group, topic = await self._catalog.subscription(bulk_receive.group, bulk_receive.topic, ClientKind.SIMPLE)
        until_ms = self._clock.now_ms() + PATIENCE_MS
        while True:
            request = Receive(
                group=group,
                topic=topic,
                wanted=bulk_receive.wanted,
                batch_size=bulk_receive.max_messages,
                invisible_ms=bulk_receive.invisible_ms,
                holder=Holder.SIMPLE,
                client_id=bulk_receive.client_id,
                rotation=next(self._rotations[group.group_id, topic.topic_id]),
                attempt_id=bulk_receive.attempt_id,
                is_paused=self._paused.covers(group.group_id, topic.topic_id),
            )
            answer = await self._take(request)
            now_ms = self._clock.now_ms()
            if answer.is_final or now_ms >= until_ms:
                self._redeliveries.count_held(group.group_id, topic.topic_id, answer.held, now_ms)
                return answer.held
            await asyncio.sleep(_PAUSE_S)

    async def _take(self, request: Receive) -> attempts.Answer:
        if request.is_paused or not isinstance(request.wanted, SqlFilter):
            return await self._writer.submit(attempts.ReceiveAttempt(request), answers=request.batch_size)
        request = await self._filter_prefetch.ask(request)
        is_paused = self._paused.covers(request.group.group_id, request.topic.topic_id)  # it may have begun meanwhile
        request = replace(request, is_paused=is_paused)
        granted = 0
        try:
            answer = await self._writer.submit(attempts.ReceiveAttempt(request), answers=request.batch_size)
            granted = len(answer.held)
            return answer
        finally:
            self._filter_prefetch.answered(request, granted)

    async def pages(
        self, topic_name: Resource, held: Sequence[HeldMessage], sources: Sequence[str]
    ) -> AsyncIterator[HeldPage]:
        """The held messages, page by page; each page is read when the caller asks for it."""
        topic = await self._catalog.topic(topic_name)
        keys: Sequence[int] = [each.message_key for each in held]
        while keys:
            async with self._turns:
                page, keys = await self._reader.read(
                    partial(bulk_pages.first_of, topic=topic, keys=keys, sources=sources)
                )
            yield page

    async def cancel(self, group: Resource, topic: Resource, attempt_id: str) -> None:
        """Give back messages that were not sent: they are READY at once, and the attempts do not count."""
        attempt, now_ms = await self._attempt(group, topic, attempt_id), self._clock.now_ms()
        receipts = await self._reader.read(lambda conn: attempts.receipts_of(conn, attempt, now_ms))
        if receipts:
            await self._writer.submit(release.CancelDelivery(receipts))

    async def renew(self, group: Resource, topic: Resource, attempt_id: str, invisible_ms: int) -> int:
        """Restart the time of the attempt's holds. Returns how many there are."""
        attempt = await self._attempt(group, topic, attempt_id)
        return await self._writer.submit(attempts.Renew(attempt, invisible_ms))

    async def ack(self, group: Resource, topic: Resource, attempt_id: str) -> int:
        """Ack all messages of the attempt. Returns how many there were.

        Raises `TooManyRequests` if another transaction has locked some of them; the caller repeats it.
        """
        attempt = await self._attempt(group, topic, attempt_id)
        until_ms = self._clock.now_ms() + PATIENCE_MS
        messages = 0
        while True:
            ended = await self._writer.submit(attempts.AckAttempt(attempt))
            messages += ended.messages
            self._writer.meters.delivered[attempt.group.group_id, attempt.topic.topic_id].acks += ended.messages
            if ended.is_all:
                return messages
            if self._clock.now_ms() >= until_ms:
                raise TooManyRequests(
                    f"some of what attempt '{attempt_as_sent(attempt_id)}' holds is locked by another transaction;"
                    f" {messages} messages are acked, repeat the request for the others"
                )
            await asyncio.sleep(_PAUSE_S)

    async def _attempt(self, group_name: Resource, topic_name: Resource, attempt_id: str) -> Attempt:
        group, topic = await self._catalog.for_receipt(group_name, topic_name)
        return Attempt(group, topic, attempt_id)
