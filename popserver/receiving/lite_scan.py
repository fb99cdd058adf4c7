"""The scan of a topic of lite topics: new messages, for the clients that subscribe to their lite topics.

A message whose client asks now is granted at once. For any other message its lite topic gets a row, which names the
client that may receive it, or no client. The scan of `receiving.scan` is for all other topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, ColumnElement, bindparam, case, literal_column, or_, select

from popserver.catalog import progress
from popserver.catalog.queue_offsets import lite_expired_key
from popserver.database.dialect import Dialect, PerDialect
from popserver.database.rows import RowQuery
from popserver.database.schema import KEY_SHIFT
from popserver.engine.transaction import Transaction
from popserver.fifo import moving_positions
from popserver.fifo.positions import MessageGroupKey, any_position_from
from popserver.fifo.runs import any_of_lite_topic
from popserver.members.lite_subscriptions import first_subscriber
from popserver.messages.by_key import by_keys
from popserver.messages.lite_topics import first_key_of
from popserver.messages.ranges import PASSED, WINDOW_OFFSETS
from popserver.model.topic import message_key, offset_of, queue_of
from popserver.receiving import lite
from popserver.receiving.batch import Candidate, Found, Grant, Portion, Receive, ReceiveBatch, load_again
from popserver.receiving.lite import EVERY_CLIENT, LiteFound

# One search reads at most so many new messages: those of clients that do not ask cost a row each.
_SCANNED_MAX = 2 * WINDOW_OFFSETS
# The rest of what the clients ask for, if each has something and most of the messages that are passed are of others.
_REST = 1 / 8
# A read fetches so many for each one that the clients may get. Some are of others, so there may be another read.
_READ_PER_WANTED = 1
_READ_MIN = 64


class _NewRow(NamedTuple):
    """A new message, the client that gets its lite topic, if any, and the state of the lite topic (`_FREE` …)."""

    message_key: int
    message_group: str
    client_id: str | None
    is_taken: int


# Messages of an expired lite topic are passed over, and so consumed.
_FREE, _HAS_ROW, _IS_HELD, _HAS_EXPIRED = 0, 1, 2, 3


@dataclass(slots=True)
class _Waiting:
    """Messages of a lite topic that no client gets now: the first one, whether there are more, and whose they are."""

    next_offset: int
    client_id: str | None
    is_held: bool
    is_single: bool = True


class Fresh(NamedTuple):
    """New messages for each client, and the lite topics whose new messages have to wait.

    `with_row` are lite topics with a row, of which the scan has passed another message. `left_over`: whether
    messages may be left.
    """

    found: dict[str, list[Candidate]]
    waiting: dict[MessageGroupKey, _Waiting]
    with_row: set[MessageGroupKey]
    left_over: bool


def find(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> Found:
    """The messages of each client: redriven ones, those of open lite topics, and new ones."""
    clients = lite.clients_of(batch, several)
    passed = lite.find(tx, batch, clients)
    fresh = _read_on(tx, batch, clients, passed)

    def of(client_id: str) -> list[Candidate]:
        again = load_again(tx, batch, passed.again.get(client_id, ()))
        in_runs = (each for run in passed.runs.get(client_id, ()) for each in run.found)
        return [*again, *in_runs, *fresh.found.get(client_id, ())]

    return Found(
        [Portion(client_id, receives, of(client_id)) for client_id, receives in clients.items()],
        [run for runs in passed.runs.values() for run in runs],
        passed.left_over or fresh.left_over,
        partial(_store_waiting, tx, batch, fresh),
        lambda: False,  # `left_over` covers it
    )


def _read_on(tx: Transaction, batch: ReceiveBatch, clients: dict[str, list[Receive]], passed: LiteFound) -> Fresh:
    """Read on in each queue until the clients have as many as they ask for. The group's progress moves on."""
    search = _LiteSearch(batch, clients, passed)
    moved: list[tuple[int, int, int]] = []
    read, left_over = 0, False
    start = batch.rotation % len(passed.queues) if passed.queues else 0
    for queue in (*passed.queues[start:], *passed.queues[:start]):
        # On Postgres `end_offset` may be older than the locked progress row: never move back to it.
        if queue.next_offset >= queue.end_offset:
            continue
        if search.is_enough or read >= _SCANNED_MAX:
            left_over = True
            break
        first = max(queue.next_offset, queue.min_offset)
        end = min(queue.end_offset, first + WINDOW_OFFSETS)
        keys = range(message_key(queue.queue_id, first), message_key(queue.queue_id, end))
        rows, is_all = _rows(tx, batch, keys, search.wanted)
        taken = search.take(queue.queue_id, rows)
        read += taken
        reached = end if is_all and taken == len(rows) else offset_of(rows[taken - 1].message_key) + 1
        moved.append((queue.group_id, queue.queue_id, reached))
        left_over = left_over or reached < queue.end_offset
    if moved:
        progress.grow(tx.conn, moved)
    # A client that shares lite topics finds those whose rows name another client when it asks again.
    shares = bool(search.waiting) and any(each.shares for several in clients.values() for each in several)
    return Fresh(search.candidates(tx), search.waiting, search.with_row, left_over or shares)


def _store_waiting(
    tx: Transaction, batch: ReceiveBatch, fresh: Fresh, left: Iterable[tuple[str, Candidate]], grants: Sequence[Grant]
) -> None:
    """Give a row to the lite topics of messages that were found and not granted."""
    locked = {each.found.member for each in grants}
    for client_id, each in left:
        if each.member is None:
            continue  # it was redriven to the group, and has a delivery already
        offset = offset_of(each.row.message_key)
        known = fresh.waiting.setdefault(each.member, _Waiting(offset, client_id, is_held=False))
        if known.next_offset != offset:
            known.next_offset, known.is_single = min(offset, known.next_offset), False
    group_id = batch.group.group_id
    if fresh.waiting:
        rows = [
            (
                group_id,
                member.queue_id,
                member.topic_id,
                each.next_offset,
                None if each.is_held or member in locked else tx.now_ms,
                int(each.is_single),
                member.message_group,
                each.client_id,
            )
            for member, each in fresh.waiting.items()
        ]
        moving_positions.add_waiting(tx.conn, rows)
    if fresh.with_row:
        several = [(group_id, each.queue_id, each.message_group) for each in fresh.with_row]
        moving_positions.note_more(tx.conn, several)


class _LiteSearch:
    """Gives new messages to the clients, in order, as long as they want some."""

    def __init__(self, batch: ReceiveBatch, clients: dict[str, list[Receive]], passed: LiteFound) -> None:
        self._batch = batch
        self._rooms = passed.rooms
        self._heads_only = {each for each, several in clients.items() if any(one.heads_only for one in several)}
        # The client that gets a lite topic in this search.
        self._owners = {
            run.member: client_id
            for client_id, runs in passed.runs.items()
            for run in runs
            if run.found and run.next_offset is None
        }
        self._keys: dict[str, list[tuple[int, MessageGroupKey]]] = {each: [] for each in clients}
        self.wanted = sum(max(0, room) for room in passed.rooms.values())
        self._rest = _REST * sum(each.batch_size for several in clients.values() for each in several)
        self._without = {each for each in clients if not (passed.runs.get(each) or passed.again.get(each))}
        self.waiting: dict[MessageGroupKey, _Waiting] = {}
        self.with_row: set[MessageGroupKey] = set()

    @property
    def is_enough(self) -> bool:
        """Whether reading on is not worth while: for the last few messages, many of other clients would get a row."""
        return self.wanted <= 0 or (self.wanted <= self._rest and len(self.waiting) > self.wanted and not self._without)

    def take(self, queue_id: int, rows: Sequence[_NewRow]) -> int:
        """Give messages of one queue to clients, or let them wait. Returns how many were examined."""
        topic_id = self._batch.topic.topic_id
        for number, row in enumerate(rows, start=1):
            if row.is_taken == _HAS_EXPIRED:
                continue
            member = MessageGroupKey(topic_id, queue_id, row.message_group)
            if row.is_taken == _HAS_ROW:
                self.with_row.add(member)
            elif (known := self.waiting.get(member)) is not None:
                known.is_single = False
            elif row.is_taken == _FREE and self._is_given(member, row):
                if self.is_enough:
                    return number
            else:
                offset = offset_of(row.message_key)
                self.waiting[member] = _Waiting(offset, row.client_id, is_held=row.is_taken == _IS_HELD)
        return len(rows)

    def _is_given(self, member: MessageGroupKey, row: _NewRow) -> bool:
        """Give the message to its client, if that wants one and may have it."""
        owner = self._owners.get(member)
        client_id = row.client_id if owner is None else owner
        if client_id is None or self._rooms.get(client_id, 0) <= 0 or (owner and client_id in self._heads_only):
            return False
        self._owners[member] = client_id
        self._rooms[client_id] -= 1
        self.wanted -= 1
        self._without.discard(client_id)
        self._keys[client_id].append((row.message_key, member))
        return True

    def candidates(self, tx: Transaction) -> dict[str, list[Candidate]]:
        """The messages of each client."""
        keys = [key for several in self._keys.values() for key, _ in several]
        by_key = by_keys(tx.conn, keys, self._batch.bodies)
        return {
            client_id: [Candidate(by_key[key], 1, member) for key, member in several if key in by_key]
            for client_id, several in self._keys.items()
        }


def _rows(tx: Transaction, batch: ReceiveBatch, keys: range, wanted: int) -> tuple[list[_NewRow], bool]:
    """New messages with these keys, if so many are wanted, and whether these are all."""
    limit = max(_READ_MIN, _READ_PER_WANTED * wanted)
    names = batch.names | {
        "of_queue": queue_of(keys.start),
        "from_key": keys.start,
        "to_key": keys.stop,
        "limit": limit,
    }
    rows = (_NEW_OF_CLIENTS if batch.group.chooses else _NEW).of(tx.conn).rows(tx.conn, names)
    return rows, len(rows) < limit


# Scalar subqueries instead of EXISTS: Postgres would turn EXISTS into a join that reads all deliveries of the group.
_ANY_DELIVERY = any_of_lite_topic(bindparam("group_id"), bindparam("topic_id"), PASSED.c.message_group)
_FIRST_KEY = first_key_of(bindparam("topic_id"), PASSED.c.message_group)
_IS_BEHIND_EXPIRED = PASSED.c.message_key >= lite_expired_key()
_SUBSCRIBER = first_subscriber(bindparam("group_id"), bindparam("topic_id"), PASSED.c.message_group)


def _new(dialect: Dialect, client_id: ColumnElement[Any]) -> RowQuery[_NewRow]:
    queue_id = PASSED.c.message_key.op(">>")(KEY_SHIFT)
    key = bindparam("group_id", type_=BigInteger), queue_id, PASSED.c.message_group
    if_there = case(
        (any_position_from(dialect, key, literal_column("0")).is_not(None), literal_column(str(_HAS_ROW))),
        (_ANY_DELIVERY.is_not(None), literal_column(str(_IS_HELD))),
        else_=literal_column(str(_FREE)),
    )
    is_taken = case(
        (or_(_IS_BEHIND_EXPIRED, PASSED.c.message_key >= _FIRST_KEY), if_there),
        else_=literal_column(str(_HAS_EXPIRED)),
    )
    return RowQuery(
        _NewRow,
        select(PASSED.c.message_key, PASSED.c.message_group, client_id.label("client_id"), is_taken.label("is_taken"))
        .order_by(PASSED.c.message_key)
        .limit(bindparam("limit")),
    )


_NEW = PerDialect(lambda dialect: _new(dialect, literal_column(f"'{EVERY_CLIENT}'")))
_NEW_OF_CLIENTS = PerDialect(lambda dialect: _new(dialect, _SUBSCRIBER))
