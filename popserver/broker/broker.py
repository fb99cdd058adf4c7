"""The façade: the verbs of the wire, in the house's own types.

Each verb looks up what the request names, hands the writer one request, and returns what the committed transaction
said. Times are epoch milliseconds, durations milliseconds; every refusal is a `PopError`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest

from popserver.broker.bulk import Bulk
from popserver.broker.catalog import Catalog
from popserver.broker.clients import Clients
from popserver.broker.clock import Clock
from popserver.broker.commands import Commands
from popserver.broker.errands import Errands
from popserver.broker.filters import Filters
from popserver.broker.group_members import GroupMembers
from popserver.broker.group_notices import GroupNotices
from popserver.broker.judging import Judging
from popserver.broker.limits import Limits
from popserver.broker.maintenance import Maintenance
from popserver.broker.members import Events, Members
from popserver.broker.neighbours import Neighbours
from popserver.broker.offsets import Offsets
from popserver.broker.orphans import Orphans
from popserver.broker.pending import Pending
from popserver.broker.polls import Polls
from popserver.broker.pulls import Pulls
from popserver.broker.queue_locks import QueueLocks
from popserver.broker.reader import Reader
from popserver.broker.redeliveries import Redeliveries
from popserver.broker.retries import Retries
from popserver.broker.sending import Sending
from popserver.broker.timekeeper import JUMP_MS_MAX, Timekeeper
from popserver.broker.transactions import Transactions
from popserver.broker.undelivered import Undelivered
from popserver.broker.wakeups import Wakeups
from popserver.broker.writer import Writer
from popserver.domain import receipt
from popserver.domain.budget import Budgets
from popserver.domain.errors import InvalidReceiptHandle, PopError
from popserver.domain.filtering import Filter
from popserver.domain.group import Group
from popserver.domain.idempotency import WINDOW_MS
from popserver.domain.message import Delivery, Message, SendResult
from popserver.domain.names import Resource
from popserver.domain.pending import DELAY_MS_MAX
from popserver.domain.receipt import Receipt
from popserver.domain.retry import HOUR_MS, PUSH_HOLD_MS_MAX, Holder
from popserver.domain.topic import Topic, queue_of
from popserver.domain.transaction import CheckPolicy
from popserver.store import Database, holds, origins, receiving
from popserver.store.notices import DUE, EVERYTHING, NEW_TOPIC, PENDING, USERS, Notice

BATCH_SIZE_MAX = 32
RETENTION_MS = 72 * HOUR_MS
CHECKS = CheckPolicy()
LIMITS = Limits()


class Broker:
    """One running broker over one store."""

    def __init__(
        self,
        database: Database,
        clock: Clock,
        *,
        auto_create: bool,
        retention_ms: int = RETENTION_MS,
        clock_jump_ms_max: int = JUMP_MS_MAX,
        key_window_ms: int = WINDOW_MS,
        delay_ms_max: int = DELAY_MS_MAX,
        checks: CheckPolicy = CHECKS,
        shared: bool = False,
        budgets: Budgets | None = None,
        limits: Limits = LIMITS,
    ) -> None:
        """`shared`: other servers may use the database, which then is a Postgres.

        The broker adds its budgets, with these limits, to `budgets`, which are the server's.
        """
        self.budgets = budgets = Budgets() if budgets is None else budgets
        self.database = database
        self.clock = clock
        self.wakeups = Wakeups(clock)
        backlog = budgets.add("send backlog", limits.send_backlog_bytes, "bytes", "send_backlog")
        undelivered = budgets.add("undelivered", limits.undelivered_bytes, "bytes", "max_undelivered")
        self.undelivered = Undelivered(undelivered, clock)
        self.writer = Writer(database, clock, backlog, self.undelivered.room)
        self.writer.effects.on_ready(self.wakeups.ring)
        self.reader = Reader(database, self.writer)
        self.timekeeper = Timekeeper(
            self.reader,
            self.writer,
            clock,
            self._look_at_time,
            shared=shared,
            jump_ms_max=clock_jump_ms_max,
            retention_ms=retention_ms,
        )
        # A key is kept no longer than its message.
        key_window_ms = min(key_window_ms, retention_ms) if retention_ms else key_window_ms
        self.heeds_keys = key_window_ms > 0
        self.maintenance = Maintenance(
            self.reader, self.writer, clock, retention_ms=retention_ms, key_window_ms=key_window_ms
        )
        self.catalog = Catalog(self.reader, self.writer, self.maintenance.purge, auto_create=auto_create)
        self.pending = Pending(self.reader, self.writer, self.catalog, clock, key_window_ms)
        self.transactions = Transactions(self.reader, self.writer, self.catalog, clock, checks)
        self.errands = Errands(clock)
        self.members = Members(database, self.reader, self.writer, clock, shared=shared)
        self.commands = Commands()
        self.orphans = Orphans(self.writer, clock, self.errands, self.members)
        self.group_members = GroupMembers(
            self.reader,
            self.writer,
            self.catalog,
            self.errands,
            GroupNotices(self.reader, self.errands, clock),
            lambda client_id: self.clients.is_attached(client_id),
        )
        self.clients = Clients(
            clock,
            self.errands,
            self.orphans.orphan_client,
            self.orphans.adopt,
            self.orphans.adopt if shared else None,
            self.group_members,
        )
        self.neighbours = Neighbours(
            self.reader, self.errands, self.maintenance, self.members, self.clients, self.orphans
        )
        self.sending = Sending(
            self.writer, self.catalog, self.transactions, clock, key_window_ms=key_window_ms, delay_ms_max=delay_ms_max
        )
        self.redeliveries = Redeliveries(clock.now_ms())
        judging = Judging(self.reader)
        filters = Filters(budgets.add("filters", limits.filter_bytes, "bytes", "max_filter_memory"))
        self.polls = Polls(
            self.writer, clock, self.wakeups, self.orphans, self.redeliveries, judging, filters, self.undelivered
        )
        self.offsets = Offsets(self.reader, self.writer, self.catalog)
        self.queue_locks = QueueLocks(self.writer, self.catalog)
        self.retries = Retries(self.writer, self.catalog)
        self.bulk = Bulk(self.reader, self.writer, self.catalog, clock, self.redeliveries, judging)
        self.pulls = Pulls(self.reader, self.catalog, self.offsets, clock, self.wakeups, filters, self.undelivered)
        self.writer.effects.on_ready(self.pulls.parked.ring)
        self.writer.effects.on_outdated(NEW_TOPIC, self.pulls.topic_was_made)
        if shared:
            self.writer.announcement = self.members.announcement
        # Told when another server has changed users or policies, or may have.
        self.users_changed: Callable[[], None] = lambda: None
        # Not that of the sends: a client that sends and receives in turn must not see every second queue alone.
        self._rotation = itertools.count()

    def __repr__(self) -> str:
        return f"<Broker parked={self.parked} clients={len(self.clients)} waiting={self.writer.waiting}>"

    @property
    def parked(self) -> int:
        """Receives and pulls that wait for messages."""
        return self.wakeups.parked + self.pulls.parked.count

    @property
    def open_polls(self) -> int:
        """Those, and receives whose first look at the store is not done."""
        return self.polls.open + self.pulls.parked.count

    async def start(self) -> None:
        """Take up what the store holds, once the writer runs: what is due, and whose push holds are open."""
        await self.group_members.start(self.members.server_id, shared=self.members.is_shared)
        await self.members.start(
            Events(
                heard=self._hear,
                missed=self._look_at_everything,
                looks=self._look,
                went=self.neighbours.take_up,
                left_behind=self.neighbours.inherit,
                was_away=self.clients.attend_again,
            )
        )
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
            await self.pulls.parked.idle()
            await self.writer.idle()

    async def drain(self) -> None:
        """Answer waiting polls empty; requests on their way are still done."""
        self.wakeups.close()
        self.pulls.parked.close()
        await asyncio.sleep(0)

    async def stop(self) -> None:
        self.wakeups.close()
        self.pulls.parked.close()
        self.clients.close()
        await self.pulls.parked.idle()
        await self.errands.close()
        await self.maintenance.close()
        await self.pending.close()
        await self.transactions.close()
        await self.members.close()
        await self.timekeeper.close()
        await self.writer.close()
        self.reader.close()

    async def send(self, batch: Sequence[Message], client_id: str = "") -> list[SendResult | PopError]:
        """Store messages of one topic; each has its own outcome, a refused one leaves the others alone.

        An outcome is the message's place, durable when this returns; a repeated message id, or a repeated
        idempotency key, gets the first result. A delayed or a half message is in no queue yet; the producer of a
        half, `client_id`, may be asked about it.
        Raises `TopicNotFound` where the topic may not be created, `MessagePropertyConflictWithType` where
        it does not take such messages.
        """
        return await self.sending.send(batch, client_id)

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
            rotation=next(self._rotation),
            attempt_id=attempt_id,
            heads_only=heads_only,
        )
        return await self.polls.poll(request, poll_until_ms)

    async def ack(
        self, group_name: Resource, topic_name: Resource, handles: Sequence[str], message_ids: Iterable[str] = ()
    ) -> list[PopError | None]:
        """Commit messages by their receipt handles; None where it is done, the refusal where it is not.

        `message_ids`, one for each handle or none at all, must be those that the handles came with, or blank.
        """
        group, topic = await self.catalog.of_a_hold(group_name, topic_name)
        named = zip_longest(handles, message_ids, fillvalue="")
        receipts = [await self._receipt_or_refusal(handle, message_id, group, topic) for handle, message_id in named]
        good = [each for each in receipts if isinstance(each, Receipt)]
        request = holds.Ack(group, good)
        outcomes = iter(await self.writer.submit(request)) if good else iter(())
        return [next(outcomes) if isinstance(each, Receipt) else each for each in receipts]

    async def change_invisible(
        self,
        group_name: Resource,
        topic_name: Resource,
        handle: str,
        duration_ms: int,
        *,
        give_back: bool = False,
        message_id: str = "",
    ) -> str:
        """Restart the hold's time from now; returns the new handle, the old one is dead.

        For a push holder this is a failure: the message waits `duration_ms`, then comes again. With `give_back` it is
        Ready at once and the attempt does not count. Raises `InvalidReceiptHandle`, with nothing changed.
        """
        group, topic = await self.catalog.of_a_hold(group_name, topic_name)
        held = await self._receipt(handle, message_id, group, topic)
        request = holds.ChangeInvisible(group, held, duration_ms, give_back)
        return receipt.encode(await self.writer.submit(request))

    async def forward_to_dead_letter_queue(
        self, group_name: Resource, topic_name: Resource, handle: str, message_id: str = ""
    ) -> None:
        """Give a message up: it becomes a dead letter. Done as well when it already is one, or is committed."""
        group, topic = await self.catalog.of_a_hold(group_name, topic_name)
        request = holds.Forward(group, await self._receipt(handle, message_id, group, topic))
        await self.writer.submit(request)

    async def topics_behind(self, keys: Sequence[int]) -> set[Resource | None]:
        """Where dead letters and retries come from, by their keys; None for what cannot be told any more."""
        return await self.reader.read(lambda conn: origins.topics_behind(conn, keys))

    def withdraw(self, granted: Sequence[Delivery]) -> None:
        """Nothing of these was written to anybody: Ready again at once, and the attempts do not count."""
        self.orphans.withdraw(granted)

    def orphan(self, granted: Sequence[Delivery]) -> None:
        """Their client broke off while these were written to it: Ready again after one second (protocol 1.7)."""
        self.orphans.orphan(granted)

    async def _receipt_or_refusal(self, handle: str, message_id: str, group: Group, topic: Topic) -> Receipt | PopError:
        try:
            return await self._receipt(handle, message_id, group, topic)
        except InvalidReceiptHandle as refusal:
            return refusal

    async def _receipt(self, handle: str, message_id: str, group: Group, topic: Topic) -> Receipt:
        decoded = receipt.decode(handle)
        decoded.check_message(message_id)
        if decoded.group_id != group.group_id:
            raise InvalidReceiptHandle(f"receipt handle '{handle}' was not given to group '{group.name}'")
        queue_id = queue_of(decoded.message_key)
        if any(queue.queue_id == queue_id for queue in topic.queues):
            return decoded
        # What was redriven to the group comes as a message of the topic, and stands in one of the group's own.
        if queue_id not in await self.catalog.own_queues(group):
            raise InvalidReceiptHandle(f"receipt handle '{handle}' is not of a message of topic '{topic.name}'")
        return decoded

    def _hear(self, notice: Notice) -> None:
        """Another server, or somebody's own transaction, has committed something."""
        self.writer.effects.ready(notice.rings)
        for what in notice.outdated:
            self.catalog.outdated(what)
        self.writer.effects.outdated(notice.outdated)
        if EVERYTHING in notice.words:
            self._look_at_everything()
            return
        if notice.words & {DUE, PENDING}:
            self._look()
        if USERS in notice.words:
            self.users_changed()

    def _look_at_everything(self) -> None:
        self.catalog.forget_all()
        self.group_members.notices.all_changed()
        self.wakeups.ring_all()
        self.pulls.parked.ring_all()
        self.users_changed()
        self._look()

    def _look(self) -> None:
        self.maintenance.look()
        self.pending.look()
        self.transactions.look()

    def _look_at_time(self) -> None:
        """The system's clock was set, or a jump of it is believed."""
        self._look()
        self.maintenance.age()
