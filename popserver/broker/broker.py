"""The façade: the verbs of the wire, in the house's own types.

Each verb looks up what the request names, hands the writer one request, and returns what the committed transaction
said. Times are epoch milliseconds, durations milliseconds; every refusal is a `PopError`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

import structlog

from popserver.broker.catalog import Catalog
from popserver.broker.clients import Clients
from popserver.broker.clock import Clock
from popserver.broker.errands import Errands
from popserver.broker.maintenance import Maintenance
from popserver.broker.members import Events, Members
from popserver.broker.pending import Pending, is_pending
from popserver.broker.reader import Reader
from popserver.broker.redeliveries import Redeliveries
from popserver.broker.transactions import Transactions
from popserver.broker.wakeups import Seat, Wakeups
from popserver.broker.writer import Committed, Writer
from popserver.domain import receipt
from popserver.domain.errors import (
    CommitUnknown,
    InvalidReceiptHandle,
    MessagePropertyConflictWithType,
    PopError,
    TooManyRequests,
    TopicNotFound,
)
from popserver.domain.filtering import Filter
from popserver.domain.group import Group
from popserver.domain.idempotency import WINDOW_MS
from popserver.domain.message import Delivery, Message, MessageType, SendResult, check
from popserver.domain.names import Resource
from popserver.domain.pending import DELAY_MS_MAX, check_delivery_time
from popserver.domain.receipt import Receipt
from popserver.domain.retry import HOUR_MS, PUSH_HOLD_MS_MAX, SECOND_MS, Holder
from popserver.domain.topic import ACCEPTS_ON_THE_WAY, Topic, queue_of
from popserver.domain.transaction import CheckPolicy
from popserver.store import Database, holds, messages, pending, receiving
from popserver.store.members import unattended_push_clients
from popserver.store.notices import DUE, EVERYTHING, PENDING, USERS, Notice
from popserver.store.receiving import Received

BATCH_SIZE_MAX = 32
RETENTION_MS = 72 * HOUR_MS
CHECKS = CheckPolicy()
SLOW_LOOK_MS = 5 * SECOND_MS  # mission row A8

_TAKE_UP = object()  # an errand's name that is no client's

log = structlog.get_logger("popserver.broker")


class Broker:
    """One running broker over one store."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        auto_create: bool,
        retention_ms: int = RETENTION_MS,
        key_window_ms: int = WINDOW_MS,
        delay_ms_max: int = DELAY_MS_MAX,
        checks: CheckPolicy = CHECKS,
        shared: bool = False,
    ) -> None:
        """`shared`: other servers may use the database, which then is a Postgres."""
        self.database = database
        self.clock = clock
        self.wakeups = Wakeups(clock)
        self.writer = Writer(database, clock, self._after_commit, lambda tx: self.members.announcement(tx))
        self.reader = Reader(database, self.writer)
        events = Events(
            heard=self._hear,
            missed=self._look_at_everything,
            looks=self._look,
            went=self._take_up,
            left_behind=self._inherit,
            was_away=lambda: self.clients.attend_again(),
        )
        self.members = Members(database, self.reader, self.writer, clock, events, shared=shared)
        # A key is kept no longer than its message.
        self._key_window_ms = min(key_window_ms, retention_ms) if retention_ms else key_window_ms
        self.maintenance = Maintenance(
            self.reader, self.writer, clock, retention_ms=retention_ms, key_window_ms=self._key_window_ms
        )
        self.catalog = Catalog(self.reader, self.writer, self.maintenance.purge, auto_create=auto_create)
        self.pending = Pending(self.reader, self.writer, self.catalog, clock, self._key_window_ms)
        self.transactions = Transactions(self.reader, self.writer, self.catalog, clock, checks)
        self.errands = Errands(clock)
        self.clients = Clients(clock, self.errands, self._orphan, self._adopt, self._adopt if shared else None)
        self.redeliveries = Redeliveries(clock.now_ms())
        self._delay_ms_max = delay_ms_max
        # Told when another server has changed users or policies, or may have.
        self.users_changed: Callable[[], None] = lambda: None
        # Two: a client that sends and receives in turn must not see every second queue alone.
        self._send_rotation, self._receive_rotation = itertools.count(), itertools.count()

    def __repr__(self) -> str:
        return f"<Broker parked={self.wakeups.parked} clients={len(self.clients)} waiting={self.writer.waiting}>"

    async def start(self) -> None:
        """Take up what the store holds, once the writer runs: what is due, and whose push holds are open."""
        await self.members.start()
        for client_id in await self.maintenance.start():
            self.clients.expect(client_id)
        await self.pending.start()

    async def settle(self) -> None:
        """Return when everything that is due now has been done: with a manual clock, a state that stands still."""
        for _ in range(2):
            await self.members.idle()
            await self.errands.idle()
            await self.maintenance.idle()
            await self.pending.idle()
            await self.transactions.idle()
            await self.writer.idle()

    async def drain(self) -> None:
        """Answer waiting polls empty; requests on their way are still done."""
        self.wakeups.close()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self.wakeups.close()
        self.clients.close()
        await self.errands.close()
        await self.maintenance.close()
        await self.pending.close()
        await self.transactions.close()
        await self.members.close()
        await self.writer.close()
        self.reader.close()

    async def send(self, batch: Sequence[Message], client_id: str = "") -> list[SendResult | PopError]:
        """Store messages of one topic; each has its own outcome, a refused one leaves the others alone.

        An outcome is the message's place, durable when this returns; a repeated message id, or a repeated
        idempotency key, gets the first result. A delayed or a half message is in no queue yet; the producer of a
        half, `client_id`, may be asked about it.
        Raises `TopicNotFound` where the topic may not be created on the way, `MessagePropertyConflictWithType` where
        it does not take such messages.
        """
        refusals = [self._refusal(message) for message in batch]
        good = [message for message, refusal in zip(batch, refusals, strict=True) if refusal is None]
        # Not before: a message that is refused makes no topic.
        stored = iter(await self._store(await self._topic_for(good), good, client_id) if good else ())
        return [next(stored) if refusal is None else refusal for refusal in refusals]

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
        group, topic = await self.catalog.subscription(group_name, topic_name)
        request = receiving.Receive(
            group=group,
            topic=topic,
            wanted=wanted,
            batch_size=min(batch_size, BATCH_SIZE_MAX),
            invisible_ms=PUSH_HOLD_MS_MAX if holder is Holder.PUSH else invisible_ms,
            holder=holder,
            client_id=client_id,
            rotation=next(self._receive_rotation),
            attempt_id=attempt_id,
            heads_only=heads_only,
        )
        return await self._receive_or_park(request, poll_until_ms)

    async def ack(self, group_name: Resource, topic_name: Resource, handles: Sequence[str]) -> list[PopError | None]:
        """Commit messages by their receipt handles; None where it is done, the refusal where it is not."""
        group, topic = await self.catalog.of_a_hold(group_name, topic_name)
        receipts = [_receipt_or_refusal(handle, group, topic) for handle in handles]
        good = [each for each in receipts if isinstance(each, Receipt)]
        request = holds.Ack(group, good)
        outcomes = iter(await self.writer.submit(holds.ack, request) if good else ())
        return [next(outcomes) if isinstance(each, Receipt) else each for each in receipts]

    async def change_invisible(
        self, group_name: Resource, topic_name: Resource, handle: str, duration_ms: int, *, give_back: bool = False
    ) -> str:
        """Restart the hold's time from now; returns the new handle, the old one is dead.

        For a push holder this is a failure: the message waits `duration_ms`, then comes again. With `give_back` it is
        Ready at once and the attempt does not count. Raises `InvalidReceiptHandle`, with nothing changed.
        """
        group, topic = await self.catalog.of_a_hold(group_name, topic_name)
        request = holds.ChangeInvisible(group, _receipt(handle, group, topic), duration_ms, give_back)
        return receipt.encode(await self.writer.submit(holds.change_invisible, request))

    async def forward_to_dead_letter_queue(self, group_name: Resource, topic_name: Resource, handle: str) -> None:
        """Give a message up: it becomes a dead letter. Done as well when it already is one, or is committed."""
        group, topic = await self.catalog.of_a_hold(group_name, topic_name)
        request = holds.Forward(group, _receipt(handle, group, topic))
        await self.writer.submit(holds.forward, request)

    async def _topic_for(self, batch: Sequence[Message]) -> Topic:
        types = {message.message_type for message in batch}
        if special := types - set(ACCEPTS_ON_THE_WAY):
            await self._check_made(batch[0].topic, special)
        topic = await self.catalog.topic_to_send(batch[0].topic)
        for message_type in types:
            if message_type not in topic.accepts:
                raise MessagePropertyConflictWithType(
                    f"topic '{topic.name}' takes {' and '.join(topic.accepts)} messages, not {message_type} ones;"
                    " send to a topic that does"
                )
        return topic

    async def _check_made(self, name: Resource, types: set[MessageType]) -> None:
        """No topic is made on the way for messages that it would not take."""
        if await self.catalog.known_topic(name) is None:
            raise TopicNotFound(
                f"topic '{name}' does not exist, and one made on the way takes no {' or '.join(types)} messages;"
                f" create it with: popmq topic create {name.name} --type {' --type '.join(types)}"
            )

    def _refusal(self, message: Message) -> PopError | None:
        try:
            check(message)
            if message.deliver_at_ms is not None:
                check_delivery_time(message.deliver_at_ms, self.clock.now_ms(), self._delay_ms_max)
        except PopError as refusal:
            return refusal
        return None

    async def _store(self, topic: Topic, batch: list[Message], client_id: str) -> list[SendResult]:
        """Each where it belongs: in its queue, or pending."""
        now_ms = self.clock.now_ms()
        waits = [is_pending(message, now_ms) for message in batch]
        if not any(waits):
            return await self._append(topic, batch)
        at_once = [message for message, is_waiting in zip(batch, waits, strict=True) if not is_waiting]
        later = [message for message, is_waiting in zip(batch, waits, strict=True) if is_waiting]
        appended, pended = await asyncio.gather(
            self._append(topic, at_once) if at_once else _none(), self._pend(topic, later, client_id)
        )
        results = {True: iter(pended), False: iter(appended)}
        return [next(results[is_waiting]) for is_waiting in waits]

    async def _pend(self, topic: Topic, batch: list[Message], client_id: str) -> list[SendResult]:
        if any(message.message_type is MessageType.TRANSACTION for message in batch):
            self.transactions.producers.sends(client_id, topic.name)
        size = sum(len(message.body) for message in batch)
        request = pending.Pend(topic, batch, client_id, self.transactions.policy, self._key_window_ms)
        try:
            return await self.writer.submit(pending.pend, request, size=size)
        except TopicNotFound:
            self.catalog.forget_topic(topic.name)
            raise

    async def _append(self, topic: Topic, batch: list[Message]) -> list[SendResult]:
        size = sum(len(message.body) for message in batch)
        request = messages.Append(topic, batch, next(self._send_rotation), self._key_window_ms)
        try:
            return await self.writer.submit(messages.append, request, size=size)
        except TopicNotFound:
            self.catalog.forget_topic(topic.name)
            raise

    async def _receive_or_park(self, request: receiving.Receive, poll_until_ms: int) -> list[Delivery]:
        seat, wakeups = _seat(request), self.wakeups
        was_woken = False
        # A repeated receive gets what it holds, though nothing else is left.
        may_be_repeated = request.attempt_id is not None
        while True:
            ring_number = wakeups.ring_number(seat.topic_id)
            if may_be_repeated or not wakeups.is_known_empty(seat, request.wanted):
                may_be_repeated = False
                try:
                    received = await self._receive(request)
                except BaseException:
                    if was_woken:
                        # What this poll was woken for must not wait for the next ring.
                        wakeups.pass_on(seat)
                    raise
                if received.more and not received.deliveries and self.clock.now_ms() < poll_until_ms:
                    continue
                if received.more:
                    wakeups.pass_on(seat)
                if received.more or received.deliveries:
                    return received.deliveries
                wakeups.found_empty(seat, request.wanted, ring_number)
            if self.clock.now_ms() >= poll_until_ms:
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
        started_ms = self.clock.now_ms()
        answer = self.writer.enqueue(receiving.receive, request, answers=request.batch_size)
        try:
            received = await asyncio.shield(answer)
        except asyncio.CancelledError:
            # Its client left while the grant was being committed: nobody will ever hold these.
            answer.add_done_callback(lambda done: self._withdraw_grant(_seat(request), done))
            raise
        except CommitUnknown as error:
            # If they were granted all the same, nobody knows of it.
            self.withdraw(error.outcome.deliveries)
            raise
        now_ms = self.clock.now_ms()
        self.redeliveries.count(request.group.group_id, received.deliveries, now_ms)
        cost_ms = now_ms - started_ms
        if cost_ms > SLOW_LOOK_MS:
            log.warning("a poll's look took long", cost_ms=cost_ms, group=str(request.group.name))
        return received

    def _withdraw_grant(self, seat: Seat, answer: asyncio.Future[Received]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()
        if isinstance(error, CommitUnknown):
            self.withdraw(error.outcome.deliveries)
        elif error is None:
            self.withdraw(answer.result().deliveries)
            if answer.result().more:
                self.wakeups.pass_on(seat)

    def withdraw(self, granted: Sequence[Delivery]) -> None:
        """Nothing of these was written to anybody: Ready again at once, and the attempts do not count."""
        receipts = [receipt.decode(delivery.receipt_handle) for delivery in granted]
        if receipts:
            withdraw = holds.Withdraw(receipts)
            self.errands.do(receipts[0], lambda: self.writer.submit(holds.withdraw, withdraw))

    def orphan(self, granted: Sequence[Delivery]) -> None:
        """Their client broke off while these were written to it: Ready again after one second (contract 1.7)."""
        receipts = [receipt.decode(delivery.receipt_handle) for delivery in granted]
        if receipts:
            orphan = holds.Orphan(receipts=receipts)
            self.errands.do(receipts[0], lambda: self.writer.submit(holds.orphan, orphan))

    async def _orphan(self, client_id: str, said_goodbye: bool, *, inherits: bool = False) -> None:
        if await self.members.go(client_id, inherits=inherits, everywhere=said_goodbye):
            await self.writer.submit(holds.orphan, holds.Orphan(client_id=client_id))

    async def _adopt(self, client_id: str) -> None:
        await self.members.come(client_id)
        until_ms = self.clock.now_ms() + PUSH_HOLD_MS_MAX
        await self.writer.submit(holds.adopt, holds.Adopt(client_id, until_ms))

    def _hear(self, notice: Notice) -> None:
        """Another server, or somebody's own transaction, has committed something."""
        for topic_id in notice.rings:
            self.wakeups.ring(topic_id)
        for what in notice.outdated:
            self.catalog.outdated(what)
        if EVERYTHING in notice.words:
            self._look_at_everything()
            return
        if notice.words & {DUE, PENDING}:
            self._look()
        if USERS in notice.words:
            self.users_changed()

    def _look_at_everything(self) -> None:
        self.catalog.forget_all()
        self.wakeups.ring_all()
        self.users_changed()
        self._look()

    def _look(self) -> None:
        self.maintenance.look()
        self.pending.look()
        self.transactions.look()

    def _take_up(self) -> None:
        """A server is gone: what it was at, and the holds of whom it alone has heard of, are anybody's now."""
        self.maintenance.purge()
        self.errands.do(_TAKE_UP, self._expect_the_unattended)

    async def _expect_the_unattended(self) -> None:
        for client_id in await self.reader.read(unattended_push_clients):
            self.clients.expect(client_id)

    def _inherit(self, client_id: str) -> None:
        """The client's server was killed: it is here by now, or gone."""
        if self.clients.has(client_id):
            # Though it may have done nothing here yet, this server answers for its holds from now on.
            self.clients.expect(client_id)
            self.errands.do(client_id, lambda: self.members.come(client_id, inherits=True))
        else:
            self.errands.do(client_id, lambda: self._orphan(client_id, False, inherits=True))

    def _after_commit(self, committed: Committed) -> None:
        for topic_id in committed.rings:
            self.wakeups.ring(topic_id)
        self.maintenance.tell(committed.due_ms)
        self.pending.tell(committed.enters_ms)
        self.transactions.tell(committed.check_ms)


def _seat(request: receiving.Receive) -> Seat:
    return Seat(request.group.group_id, request.topic.topic_id)


async def _none() -> list[SendResult]:
    return []


def _receipt_or_refusal(handle: str, group: Group, topic: Topic) -> Receipt | PopError:
    try:
        return _receipt(handle, group, topic)
    except InvalidReceiptHandle as refusal:
        return refusal


def _receipt(handle: str, group: Group, topic: Topic) -> Receipt:
    decoded = receipt.decode(handle)
    if decoded.group_id != group.group_id:
        raise InvalidReceiptHandle(f"receipt handle '{handle}' was not given to group '{group.name}'")
    if not any(queue.queue_id == queue_of(decoded.message_key) for queue in topic.queues):
        raise InvalidReceiptHandle(f"receipt handle '{handle}' is not of a message of topic '{topic.name}'")
    return decoded
