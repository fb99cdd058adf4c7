"""What an operator does: create, change and delete topics and groups; inspect single messages.

No send, receive or ack uses this code. It creates only topics and groups that the request names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.administration import facts, filter_trial, find, holds, message_facts, why
from popserver.administration.facts import Counts, DeadElsewhere, FoundMessage, Lag
from popserver.administration.filter_trial import SHOWN_DEFAULT, FilterTrial
from popserver.administration.find import FoundMessages, MessageSearch
from popserver.administration.holds import Hold, LockedGroups
from popserver.catalog import facts as catalog_facts
from popserver.catalog import pauses as catalog_pauses
from popserver.catalog.facts import TopicFacts
from popserver.catalog.flow import Catalog
from popserver.catalog.groups import UpdateGroup
from popserver.catalog.paused import PausedGroups
from popserver.catalog.pauses import FirstPauses
from popserver.clients.clients import Client, Clients
from popserver.database.database import Database
from popserver.delivery.history import HistoryStep
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.filters import sql as filters_sql
from popserver.lite.facts import LiteGroupFacts, lite_group_facts
from popserver.maintenance.timekeeper import Timekeeper
from popserver.members.flow import GroupMembers
from popserver.messages import read
from popserver.model.budget import Budget, Budgets
from popserver.model.errors import BadRequest, Forbidden, IllegalMessageId
from popserver.model.group import Group, NewGroup, check_interval, check_intervals, check_max_attempts
from popserver.model.message import StoredMessage
from popserver.model.names import Resource, check_group, check_topic, is_system_derived, owner_of
from popserver.model.times import moment
from popserver.model.topic import OFFSET_BITS, MessageType, NewTopic, check_closed_because, check_queue_count
from popserver.producing import pending_facts
from popserver.producing.checks import Transactions
from popserver.producing.pending_facts import After, ScheduledMessage
from popserver.producing.scheduled import Pending
from popserver.receiving.redeliveries import Redeliveries, Share, hint

PAGE_DEFAULT = 32
PAGE_MAX = 1_000
HINTS_MAX = 10
LISTED_PAUSES_MAX = 10  # of each group in a list of groups
OFFSET_MAX = (1 << OFFSET_BITS) - 1

GroupPage = tuple[list[Group], dict[int, FirstPauses], int]


class GroupFacts(NamedTuple):
    """A group, its lag in every topic, its other dead letters, its consumers on this server, hints for the operator,
    and its pauses."""

    group: Group
    lag: list[Lag]
    dead_elsewhere: list[DeadElsewhere]
    consumers: list[Client]
    redeliveries: Share
    hints: list[str]
    pauses: FirstPauses
    lite: LiteGroupFacts


class Why(NamedTuple):
    """Why a message is in its state: one sentence, the facts for it as (name, value), and the group's history."""

    sentence: str
    facts: list[tuple[str, str]]
    steps: list[HistoryStep]


class Status(NamedTuple):
    """The current status of the server."""

    store: str
    durability: str
    started_at_ms: int
    now_ms: int
    counts: Counts
    parked_polls: int
    connected_clients: int
    discarded_transactions: int
    lag: list[Lag]
    dead_elsewhere: list[DeadElsewhere]
    oldest_overdue_ms: int
    hints: list[str]
    budgets: list[Budget]


class Administration:
    """What operators ask of a server. Every refusal is a `PopError`."""

    def __init__(
        self,
        database: Database,
        reader: Reader,
        catalog: Catalog,
        clock: Clock,
        clients: Clients,
        group_members: GroupMembers,
        pending: Pending,
        transactions: Transactions,
        redeliveries: Redeliveries,
        paused: PausedGroups,
        timekeeper: Timekeeper,
        budgets: Budgets,
        parked: Callable[[], int],
    ) -> None:
        self._database = database
        self._reader = reader
        self._catalog = catalog
        self._clock = clock
        self._clients = clients
        self._group_members = group_members
        self._pending = pending
        self._transactions = transactions
        self._redeliveries = redeliveries
        self._paused = paused
        self._timekeeper = timekeeper
        self._budgets = budgets
        self._parked = parked
        self._started_at_ms = clock.now_ms()

    async def create_topic(self, new: NewTopic) -> TopicFacts:
        """Create a topic with 1 to 1,024 queues. Raises `AlreadyExists`."""
        check_queue_count(new.queue_count)
        await self._catalog.create_topic(new)
        return await self.topic(new.name)

    async def update_topic(
        self,
        name: Resource,
        queue_count: int | None,
        accepts: tuple[MessageType, ...] | None,
        lite_expires_ms: int | None = None,
        closed_because: str | None = None,
    ) -> TopicFacts:
        """Add queues, change which messages it accepts, how long lite topics live, or why it is closed for producers
        (empty: it is open). None keeps a value."""
        _check_own_topic(name)
        if queue_count is not None:
            check_queue_count(queue_count)
        check_closed_because(name, closed_because or "")
        await self._catalog.update_topic(
            name,
            queue_count=queue_count,
            accepts=accepts,
            lite_expires_ms=lite_expires_ms,
            closed_because=closed_because,
        )
        return await self.topic(name)

    async def delete_topic(self, name: Resource) -> None:
        _check_own_topic(name)
        await self._catalog.delete_topic(name)

    async def topic(self, name: Resource) -> TopicFacts:
        check_topic(name)
        return await self._reader.read(lambda conn: catalog_facts.topic_facts(conn, name))

    async def topics(self, namespace: str | None, after: Resource | None) -> tuple[list[TopicFacts], int]:
        """The next 1,000 topics after this one, by namespace and name, and how many there are in all."""
        return await self._reader.read(lambda conn: catalog_facts.list_topics(conn, namespace, after, PAGE_MAX))

    async def create_group(self, new: NewGroup) -> Group:
        """Create a group: 1 to 1,000 attempts; 1 to 64 intervals of 0 ms to 12 h, or exponential ones; one interval for
        message groups. Raises `AlreadyExists`."""
        check_max_attempts(new.retry.max_attempts)
        check_intervals(new.retry.intervals_ms)
        check_interval(new.retry.fifo_interval_ms)
        return await self._catalog.create_group(new)

    async def update_group(self, change: UpdateGroup) -> Group:
        """Change a group; None keeps a value. The limits are those of `create_group`."""
        check_group(change.name)
        if change.max_attempts is not None:
            check_max_attempts(change.max_attempts)
        if change.intervals_ms is not None:
            check_intervals(change.intervals_ms)
        if change.fifo_interval_ms is not None:
            check_interval(change.fifo_interval_ms)
        return await self._catalog.update_group(change)

    async def delete_group(self, name: Resource) -> None:
        check_group(name)
        await self._catalog.delete_group(name)

    async def group(self, name: Resource) -> GroupFacts:
        check_group(name)
        group, lag, dead, pauses, lite = await self._reader.read(lambda conn: _group_and_lag(conn, name))
        clients = self._clients
        share = self._redeliveries.share(group.group_id, self._clock.now_ms())
        idle = await self._group_members.idle_hint(name)
        hints = [clients.consumers.disagreement(name), hint(group.name, share), idle]
        consumers = clients.consumers_of(name)
        return GroupFacts(group, lag, dead, consumers, share, [hint for hint in hints if hint], pauses, lite)

    async def groups(self, namespace: str | None, after: Resource | None) -> GroupPage:
        """The next 1,000 groups, likewise, the first 10 pauses of each by group id, and how many groups there are."""
        return await self._reader.read(partial(_groups, namespace=namespace, after=after))

    async def peek(
        self, topic: Resource, queue_number: int | None, from_offset: int | None, limit: int
    ) -> list[StoredMessage]:
        """The oldest messages of a topic, or of one queue from an offset on; `limit` is 1 to 1,000, 0 means 32."""
        check_topic(topic)
        page = _page(limit)
        if from_offset is not None and queue_number is None:
            raise BadRequest(f"offset {from_offset} belongs to one queue; name the queue as well")
        if from_offset is not None and not 0 <= from_offset <= OFFSET_MAX:
            raise BadRequest(f"an offset is 0 to {OFFSET_MAX}, not {from_offset}")
        return await self._reader.read(lambda conn: read.peek(conn, topic, queue_number, from_offset, page))

    async def message(self, topic: Resource | None, message_id: str) -> FoundMessage:
        if topic is not None:
            check_topic(topic)
        _check_message_id(message_id)
        return await self._reader.read(lambda conn: facts.find_message(conn, topic, message_id))

    async def why(self, group: Resource, topic: Resource | None, message_id: str) -> Why:
        """Why a message is in its state in the group. Raises `MessageNotFound`."""
        check_group(group)
        if topic is not None:
            check_topic(topic)
        _check_message_id(message_id)
        times = self._clock.times()
        query = partial(
            message_facts.message_facts, group_name=group, topic_name=topic, message_id=message_id, times=times
        )
        found, steps = await self._reader.read(query)
        when = partial(moment, now_ms=times.now_ms)
        return Why(why.sentence(found, when), why.facts(found, when), steps)

    async def holds(self, group: Resource, topic: Resource | None, limit: int) -> list[Hold]:
        """What the group holds and what waits for a retry, the last to end first; `limit` is 1 to 1,000, 0 means 32."""
        check_group(group)
        page = _page(limit)
        return await self._reader.read(lambda conn: holds.holds(conn, group, topic, page))

    async def locked_groups(self, group: Resource, limit: int) -> LockedGroups:
        """The locked message groups, those with the most attempts first; `limit` is 1 to 1,000, 0 means 32."""
        check_group(group)
        page = _page(limit)
        return await self._reader.read(lambda conn: holds.locked_groups(conn, group, page))

    async def try_filter(self, topic: Resource, expression: str, last_ms: int | None, limit: int) -> FilterTrial:
        """Try a SQL filter on messages stored in the last `last_ms`, or (None) on all; see `filter_trial`.

        The answer shows up to `limit` matches, at most 100; 0 means 10.
        """
        check_topic(topic)
        wanted = filters_sql.parse(expression)
        if "KEYS" in wanted.names:
            raise BadRequest(
                "a filter does not see the keys of a message: KEYS is a property that no message has; find messages by"
                " a key with: popmq message find --key"
            )
        if not 0 <= limit <= filter_trial.SHOWN_MAX:
            raise BadRequest(f"one answer shows 1 to {filter_trial.SHOWN_MAX} of the matches, not {limit}")
        if last_ms is not None and last_ms <= 0:
            raise BadRequest(f"the duration to search is {last_ms} ms; give one above 0 ms, or none for all messages")
        since_ms = 0 if last_ms is None else self._clock.now_ms() - last_ms
        facts = await self.topic(topic)
        return await filter_trial.run_trial(self._reader, facts.topic, wanted, since_ms, limit or SHOWN_DEFAULT)

    async def find(self, topic_name: Resource | None, asked: MessageSearch) -> FoundMessages:
        """The newest messages that match; see `find`. `limit` is at most 100; 0 means 10."""
        if not 0 <= asked.limit <= filter_trial.SHOWN_MAX:
            raise BadRequest(f"one answer shows 1 to {filter_trial.SHOWN_MAX} messages, not {asked.limit}")
        topic = None if topic_name is None else (await self.topic(topic_name)).topic
        return await find.find(self._reader, topic, asked._replace(limit=asked.limit or SHOWN_DEFAULT))

    async def scheduled(self, topic: Resource, after_ms: int, after_id: int, limit: int) -> list[ScheduledMessage]:
        """A page of pending messages by due time, after the one with this due time and id."""
        check_topic(topic)
        page = _page(limit)
        return await self._reader.read(
            lambda conn: pending_facts.scheduled(conn, topic, After(after_ms, after_id), page)
        )

    async def cancel(self, topic: Resource, message_ids: Sequence[str], key: str | None) -> list[str]:
        """Remove pending messages by id or by key, at most 1,000. Returns the ids of those that were pending."""
        check_topic(topic)
        if bool(message_ids) == (key is not None):
            raise BadRequest("the request must name either message ids or a key")
        if len(message_ids) > PAGE_MAX:
            raise BadRequest(f"one request cancels at most {PAGE_MAX} messages, not {len(message_ids)}; use several")
        for each in message_ids:
            _check_message_id(each)
        if key is not None:
            message_ids = await self._reader.read(lambda conn: pending_facts.pending_with_key(conn, topic, key))
        return await self._pending.cancel(topic, message_ids) if message_ids else []

    async def confirm_clock(self) -> str:
        """Confirm the system clock: retention uses it again. Returns a sentence about what this changes."""
        return await self._timekeeper.confirm()

    async def status(self) -> Status:
        now_ms = self._clock.now_ms()
        high = self._redeliveries.high(now_ms)
        counts, lag, dead, groups = await self._reader.read(
            lambda conn: (
                facts.counts(conn, now_ms),
                facts.group_lag(conn, None, PAGE_MAX),
                facts.dead_elsewhere(conn, None, PAGE_MAX),
                catalog_facts.groups_by_id(conn, high, HINTS_MAX),
            )
        )
        return Status(
            store=self._database.name,
            durability=self._database.durability,
            started_at_ms=self._started_at_ms,
            now_ms=now_ms,
            counts=counts,
            parked_polls=self._parked(),
            connected_clients=len(self._clients),
            discarded_transactions=self._transactions.discarded,
            lag=lag,
            dead_elsewhere=dead,
            oldest_overdue_ms=0 if counts.next_due_ms is None else max(0, now_ms - counts.next_due_ms),
            hints=[
                *self._timekeeper.hints(),
                *self._clients.consumers.disagreements(HINTS_MAX),
                *self._pauses(lag),
                *(hint(each.name, self._redeliveries.share(each.group_id, now_ms)) for each in groups),
            ],
            budgets=list(self._budgets),
        )

    def _pauses(self, lags: Iterable[Lag]) -> list[str]:
        """Which groups have messages that wait for the end of a pause, those with most first."""
        waiting: Counter[Resource] = Counter()
        for each in lags:
            if self._paused.covers(each.group_id, each.topic_id):
                waiting[each.group] += each.ready
        return [
            f"group '{group}' is paused, and {count:,} message{'s wait' if count > 1 else ' waits'}; resume it with:"
            f" popmq group resume {group.name}"
            for group, count in waiting.most_common(HINTS_MAX)
            if count
        ]


def _group_and_lag(
    conn: Connection, name: Resource
) -> tuple[Group, list[Lag], list[DeadElsewhere], FirstPauses, LiteGroupFacts]:
    found = catalog_facts.group(conn, name)
    lag = facts.group_lag(conn, found.group_id, PAGE_MAX)
    dead = facts.dead_elsewhere(conn, found.group_id, PAGE_MAX)
    pauses = catalog_pauses.pauses_of(conn, [found.group_id], PAGE_MAX)[found.group_id]
    return found, lag, dead, pauses, lite_group_facts(conn, found)


def _groups(conn: Connection, namespace: str | None, after: Resource | None) -> GroupPage:
    groups, count = catalog_facts.list_groups(conn, namespace, after, PAGE_MAX)
    return groups, catalog_pauses.pauses_of(conn, [each.group_id for each in groups], LISTED_PAUSES_MAX), count


def _check_own_topic(name: Resource) -> None:
    """Raise `Forbidden` for a topic of the server: a group's own topics are created and deleted with the group."""
    check_topic(name)
    if is_system_derived(name.name):
        owner = owner_of(name)
        remedy = f"; it is deleted with its group: popmq group delete {owner.name}" if owner else ""
        raise Forbidden(f"topic '{name}' is kept by the server{remedy}")


def _check_message_id(message_id: str) -> None:
    if not message_id.strip():
        raise IllegalMessageId("the message id is blank; give the id that the send or the receive reported")


def _page(limit: int) -> int:
    if not 0 <= limit <= PAGE_MAX:
        raise BadRequest(f"the limit is {limit}; allowed: 1 to {PAGE_MAX} entries in one request")
    return limit or PAGE_DEFAULT
