"""Transactions: decisions of producers about their half messages, and checks of undecided ones.

A server checks an undecided half message if a producer of its topic has a stream to this server. Each check asks one
producer, and the next check another one. Without a producer there is no check, and the server counts none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

import structlog

from popserver.catalog import lookup
from popserver.catalog.flow import Catalog
from popserver.catalog.topics import topics_by_id
from popserver.database.notifications import CHECKS
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.timers import DueTimer
from popserver.engine.writer import Writer
from popserver.messages.pending_messages import topics_of_sender
from popserver.model.errors import InvalidTransactionId, PopError
from popserver.model.names import Resource
from popserver.model.retry import SECOND_MS
from popserver.model.topic import Topic
from popserver.producing import half_messages
from popserver.producing.half_messages import Check
from popserver.producing.rules import CheckPolicy, Resolution, check_transaction_id, producers_to_ask

RETRY_MS = 1 * SECOND_MS  # after a failure of the database
LOCKED_PAUSE_S = 0.005  # before the next try, if another server has locked the queue
ASK_TIMEOUT_S = 5.0  # a stream that accepts no data for this long counts as broken

log = structlog.get_logger("popserver.transactions")


class Transactions:
    """Decisions and checks. `discarded` counts half messages that stayed undecided after the last check."""

    def __init__(self, reader: Reader, writer: Writer, catalog: Catalog, clock: Clock, policy: CheckPolicy) -> None:
        self.policy = policy
        self.producers = Producers()
        self.discarded = 0
        self._reader = reader
        self._writer = writer
        self._catalog = catalog
        self._clock = clock
        self._sleeper = DueTimer(clock, self._check)
        writer.effects.on_due(CHECKS, self._sleeper)

    async def end(
        self, topic_name: Resource, message_id: str, transaction_id: str, resolution: Resolution | None
    ) -> None:
        """Commit or roll back a half message; None decides nothing. The first decision counts.

        Raises `InvalidTransactionId` for a blank id and for a transaction that cannot be committed any more.
        """
        check_transaction_id(transaction_id, message_id)
        topic = await self._catalog.known_topic(topic_name)
        if topic is None:
            raise lookup.topic_not_found(topic_name)
        if resolution is None:
            return
        if not message_id.strip():
            raise InvalidTransactionId(f"transaction '{transaction_id[:64]}' names no message; send its message id")
        while True:
            request = half_messages.EndTransaction(topic, message_id, transaction_id, resolution)
            decision = await self._writer.submit(request)
            if decision.age_ms is not None:
                ended = self._writer.meters.ended[topic.topic_id]
                if resolution is Resolution.COMMIT:
                    ended.ages.add(decision.age_ms / 1_000)
                else:
                    ended.rollbacks += 1
            if decision.is_made:
                return
            await asyncio.sleep(LOCKED_PAUSE_S)

    async def joined(self, client_id: str, stream: object, topics: Iterable[Resource], ask: Ask) -> None:
        """Add a producer that named its topics on its stream. Checks can ask it now, also about older half messages."""
        self.producers.joined(client_id, stream, topics, ask)
        try:
            left = await self._reader.read(lambda conn: topics_by_id(conn, topics_of_sender(conn, client_id)))
        except PopError as error:
            log.warning("cannot read a producer's undecided half messages", reason=error.sentence)
        else:
            for each in left.values():
                self.producers.sends(client_id, each.name)
        self.check_due()

    def check_due(self) -> None:
        """Search for due checks: a producer connected, or another server may have stored a half message."""
        if len(self.producers):
            self._sleeper.check_due()

    async def idle(self) -> None:
        await self._sleeper.idle()

    async def close(self) -> None:
        await self._sleeper.close()

    async def _check(self) -> int | None:
        """One step: claim due checks and ask producers. Returns when the next check is due."""
        try:
            topics = await self._topics()
            if not topics:
                return None
            request = half_messages.ClaimChecks(frozenset(each.topic_id for each in topics), self.policy)
            taken = await self._writer.submit(request)
            for each in taken.discarded:
                self.discarded += 1
                log.warning(
                    "a half message was discarded",
                    topic=str(each.topic),
                    message_id=each.message_id,
                    checks=each.checks,
                )
            reached = await asyncio.gather(*(self._ask(each) for each in taken.checks))
            missed = [each.pending_id for each, ok in zip(taken.checks, reached, strict=True) if not ok]
            if missed:
                await self._writer.submit(half_messages.ReturnChecks(missed))
        except PopError as error:
            log.warning("transaction checks are delayed", reason=error.sentence)
            return self._clock.now_ms() + RETRY_MS
        return taken.next_check_ms

    async def _topics(self) -> list[Topic]:
        """The existing topics that have a producer connected to this server."""
        found = [await self._catalog.known_topic(name) for name in sorted(self.producers.topics)]
        return [each for each in found if each is not None]

    async def _ask(self, check: Check) -> bool:
        """Ask the first producer whose stream works. Returns False if there is none."""
        candidates = self.producers.of_topic(check.stored.message.topic)
        for client_id in producers_to_ask(candidates, check.client_id, check.checks_before):
            found = self.producers.stream_of(client_id)
            if found is None:
                continue
            stream, ask = found
            try:
                await asyncio.wait_for(ask(check), ASK_TIMEOUT_S)
            except PopError as error:
                # The stream works. The server may ask this producer about other topics, and about this topic after the
                # producer names it again.
                log.debug("a producer was skipped", client_id=client_id, reason=error.sentence)
                self.producers.may_not(client_id, stream, check.stored.message.topic)
            except Exception as error:  # noqa: BLE001 - however a stream breaks, another producer can be asked
                log.debug("a producer could not be asked", client_id=client_id, reason=repr(error))
                self.producers.left(client_id, stream)
            else:
                return True
        return False


# Which producers of a topic have a stream to this server and can be asked about a half message (protocol 8.1).

# Sends one check to a producer. Raises `PopError` if the producer may not be asked; any other exception means that its
# stream is broken.
Ask = Callable[[Check], Awaitable[None]]


class _Producer(NamedTuple):
    stream: object
    ask: Ask
    topics: set[Resource]


class Producers:
    """All producers that have sent their settings on a stream of this server."""

    def __init__(self) -> None:
        self._known: dict[str, _Producer] = {}

    def __len__(self) -> int:
        return len(self._known)

    def joined(self, client_id: str, stream: object, topics: Iterable[Resource], ask: Ask) -> None:
        """Add the topics that a producer named. Its newest stream counts; earlier topics of the producer stay."""
        before = self._known.get(client_id)
        named = set(topics) | (before.topics if before is not None else set())
        self._known[client_id] = _Producer(stream, ask, named)

    def sends(self, client_id: str, topic: Resource) -> None:
        """Add a topic to which the producer sent a half message; its settings may not name it (protocol 8.1)."""
        known = self._known.get(client_id)
        if known is not None:
            known.topics.add(topic)

    def may_not(self, client_id: str, stream: object, topic: Resource) -> None:
        """Stop asking the producer on this stream about the topic, until it names it or sends to it again."""
        known = self._known.get(client_id)
        if known is not None and known.stream is stream:
            known.topics.discard(topic)

    def left(self, client_id: str, stream: object | None = None) -> None:
        """Remove a producer whose stream ended (None: any stream of the client)."""
        known = self._known.get(client_id)
        if known is not None and stream in (None, known.stream):
            del self._known[client_id]

    @property
    def topics(self) -> set[Resource]:
        """The topics with a producer on this server."""
        return set[Resource]().union(*(each.topics for each in self._known.values()))

    def of_topic(self, topic: Resource) -> list[str]:
        """The client ids of the topic's producers, sorted, so that checks go through them in turn."""
        return sorted(client_id for client_id, each in self._known.items() if topic in each.topics)

    def stream_of(self, client_id: str) -> tuple[object, Ask] | None:
        """The producer's stream, and how to ask it; None if it has left."""
        known = self._known.get(client_id)
        return None if known is None else (known.stream, known.ask)
