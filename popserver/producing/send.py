"""SendMessage: a message goes into its queue at once; a delayed or a half message is stored as pending."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Iterable, Sequence

from popserver.catalog.flow import Catalog
from popserver.engine.clock import Clock
from popserver.engine.writer import Writer
from popserver.messages.keyed import BYTES_OF_KEY
from popserver.messages.stored import Append
from popserver.model.errors import MessagePropertyConflictWithType, PopError, TopicClosed, TopicNotFound
from popserver.model.message import Message, SendResult, check
from popserver.model.names import Resource
from popserver.model.topic import AUTO_CREATE_ACCEPTS, MessageType, Topic
from popserver.producing.checks import Transactions
from popserver.producing.pending import StorePending
from popserver.producing.rules import check_delivery_time
from popserver.producing.scheduled import Pending, is_pending

# Types of messages that may become pending.
_MAY_WAIT = (MessageType.DELAY, MessageType.TRANSACTION)


class Sending:
    """Checks messages and stores those that pass."""

    def __init__(
        self,
        writer: Writer,
        catalog: Catalog,
        transactions: Transactions,
        pending: Pending,
        clock: Clock,
        *,
        key_window_ms: int,
        delay_ms_max: int,
    ) -> None:
        self._writer = writer
        self._catalog = catalog
        self._transactions = transactions
        self._pending = pending
        self._clock = clock
        self._key_window_ms = key_window_ms
        self._delay_ms_max = delay_ms_max

    async def send(self, batch: Sequence[Message], client_id: str = "") -> list[SendResult | PopError]:
        """Store messages of one topic. Each has its own outcome: a refusal does not affect the other messages.

        An outcome is the message's queue and offset; the message is durable when this returns. A repeated message id or
        idempotency key gets the result of the first message. A delayed or a half message is in no queue yet.
        `client_id` is the producer that checks of half messages ask first.
        Raises `TopicNotFound` if the topic may not be created, `TopicClosed` if it takes no messages of producers but
        repeated ones, and `MessagePropertyConflictWithType` if it does not take messages of this type.
        """
        good: list[Message] = []
        outcomes: list[SendResult | PopError | None] = []  # None: stored, below
        for message in batch:
            try:
                check(message)
                if message.deliver_at_ms is not None:
                    check_delivery_time(message.deliver_at_ms, self._clock.calendar_ms(), self._delay_ms_max)
                good.append(message)
                outcomes.append(None)
            except PopError as refusal:
                outcomes.append(refusal)
        # The topic is looked up after the checks: a refused message must not create it.
        stored: Iterable[SendResult] = ()
        if good:
            types = {message.message_type for message in good}
            topic = await self._topic_for(good[0].topic, types)
            try:
                if types.isdisjoint(_MAY_WAIT):
                    stored = await self._append(topic, good)
                else:
                    stored = await self._append_or_pend(topic, good, client_id)
            except (TopicClosed, TopicNotFound):
                if topic.closed_because is None:
                    self._catalog.forget_topic(topic.name)
                raise
        results = iter(stored)
        return [next(results) if outcome is None else outcome for outcome in outcomes]

    async def _topic_for(self, name: Resource, types: set[MessageType]) -> Topic:
        if special := types - set(AUTO_CREATE_ACCEPTS):
            await self._check_made(name, special)
        topic = await self._catalog.topic_to_send(name)
        for message_type in types:
            if message_type not in topic.accepts:
                raise MessagePropertyConflictWithType(
                    f"topic '{topic.name}' takes {' and '.join(topic.accepts)} messages, not {message_type} ones;"
                    f" {_way_out(topic, message_type)}"
                )
        return topic

    async def _check_made(self, name: Resource, types: set[MessageType]) -> None:
        """Raise `TopicNotFound` instead of creating a topic that would not take messages of these types."""
        if await self._catalog.known_topic(name) is None:
            raise TopicNotFound(
                f"topic '{name}' does not exist, and one created on first use takes no {' or '.join(types)} messages;"
                f" create it with: popmq topic create {name.name} --type {' --type '.join(types)}"
            )

    async def _append_or_pend(self, topic: Topic, batch: list[Message], client_id: str) -> list[SendResult]:
        """Append the messages to their queues, or store them as pending."""
        calendar_ms = self._clock.calendar_ms()
        waits = [is_pending(message, calendar_ms) for message in batch]
        at_once = [message for message, is_waiting in zip(batch, waits, strict=True) if not is_waiting]
        later = [message for message, is_waiting in zip(batch, waits, strict=True) if is_waiting]
        appended, pended = await asyncio.gather(
            self._append(topic, at_once) if at_once else _none(),
            self._pend(topic, later, client_id) if later else _none(),
        )
        results = {True: iter(pended), False: iter(appended)}
        return [next(results[is_waiting]) for is_waiting in waits]

    async def _pend(self, topic: Topic, batch: list[Message], client_id: str) -> list[SendResult]:
        if any(message.message_type is MessageType.TRANSACTION for message in batch):
            self._transactions.producers.sends(client_id, topic.name)
        size = sum([len(message.body) + BYTES_OF_KEY * len(message.keys) for message in batch])
        request = StorePending(topic, batch, client_id, self._transactions.policy, self._key_window_ms)
        stored = await self._writer.submit(request, size=size)
        self._count_pended(topic, batch)
        due_ms = [each.deliver_at_ms for each in batch if each.deliver_at_ms is not None]
        if due_ms:
            self._pending.expect(topic.topic_id, min(due_ms))
        return stored

    async def _append(self, topic: Topic, batch: list[Message]) -> list[SendResult]:
        sizes = [len(message.body) for message in batch]
        of_keys = BYTES_OF_KEY * sum([len(message.keys) for message in batch])
        request = Append(topic, batch, self._key_window_ms)
        stored = await self._writer.submit(request, size=sum(sizes) + of_keys)
        sent = self._writer.meters.sent
        for message, size in zip(batch, sizes, strict=True):
            counted = sent[topic.topic_id, message.message_type].sizes
            counted.counts[bisect_left(counted.limits, size)] += 1
            counted.total += size
        return stored

    def _count_pended(self, topic: Topic, batch: Sequence[Message]) -> None:
        meters, calendar_ms = self._writer.meters, self._clock.calendar_ms()
        for message in batch:
            meters.sent[topic.topic_id, message.message_type].sizes.add(len(message.body))
            if message.deliver_at_ms is not None:
                delay_ms = max(0, message.deliver_at_ms - calendar_ms)
                meters.timed[topic.topic_id].delays.add(delay_ms / 1_000)


def _way_out(topic: Topic, message_type: MessageType) -> str:
    """What to do with a message of a type that the topic does not take."""
    if topic.is_lite and message_type is MessageType.NORMAL:
        return "give the message a lite topic (lite_topic, in popmq message send --lite-topic NAME)"
    if topic.is_lite or message_type is MessageType.LITE:
        return "send to a topic that does"  # a topic neither becomes nor ceases to be one of lite topics
    types = " --type ".join([*topic.accepts, message_type])
    return f"send to a topic that does, or change this one: popmq topic update {topic.name.name} --type {types}"


async def _none() -> list[SendResult]:
    return []
