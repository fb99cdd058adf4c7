"""The scan of a topic of lite topics: new messages, for the clients that subscribe to their lite topics.

A message is granted at once if a receive of its client is served. Otherwise its lite topic gets a position, which names
the client that may receive it, or no client. `receiving.scan` scans all other topics.
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

# One search reads at most so many new messages: each lite topic of a client without a receive costs a position.
_SCANNED_MAX = 2 * WINDOW_OFFSETS
# A search ends early if it needs at most this part of the messages that the clients want, each client has some, and
# most of the messages that it reads are of other clients.
_REST = 1 / 8
# A read fetches so many messages for each that the clients may get. Some are of others, so another read may follow.
_READ_PER_NEEDED = 1
_READ_MIN = 64


class _NewRow(NamedTuple):
    """A new message, the client that gets its lite topic, if any, and the state of the lite topic (`_FREE` …)."""

    message_key: int
    message_group: str
    client_id: str | None
    is_taken: int


# The scan skips messages of an expired lite topic, so they count as consumed.
_FREE, _HAS_POSITION, _IS_HELD, _HAS_EXPIRED = 0, 1, 2, 3


@dataclass(slots=True)
class _Waiting:
    """Messages of a lite topic that no client gets now: the first one's offset, and the client that may get them.

    `is_held`: other messages of the lite topic are held. `is_single`: no message follows the first one.
    """

    next_offset: int
    client_id: str | None
    is_held: bool
    is_single: bool = True


class Fresh(NamedTuple):
    """New messages for each client, and the lite topics whose new messages must wait.

    `with_position`: lite topics that have a position already, and whose messages the scan has passed. `left_over`:
    messages may be left.
    """

    found: dict[str, list[Candidate]]
    waiting: dict[MessageGroupKey, _Waiting]
    with_position: set[MessageGroupKey]
    left_over: bool


def find(tx: Transaction, batch: ReceiveBatch, several: Sequence[Receive]) -> Found:
    """The messages of each client: redriven ones, those of open lite topics, and new ones."""
    clients = lite.clients_of(batch, several)
    passed = lite.find(tx, batch, clients)
    fresh = _read_on(tx, batch, clients, passed)

    def of(client_id: str) -> list[Candidate]:
        again = load_again(tx, batch, passed.again.get(client_id, ()))
        in_groups = (each for open_group in passed.open_groups.get(client_id, ()) for each in open_group.found)
        return [*again, *in_groups, *fresh.found[client_id]]

    return Found(
        [Portion(client_id, receives, of(client_id)) for client_id, receives in clients.items()],
        [open_group for open_groups in passed.open_groups.values() for open_group in open_groups],
        passed.left_over or fresh.left_over,
        partial(_store_waiting, tx, batch, fresh),
        lambda: False,  # `left_over` includes this
    )


def _read_on(tx: Transaction, batch: ReceiveBatch, clients: dict[str, list[Receive]], passed: LiteFound) -> Fresh:
    """Read on in each queue until the clients have as many messages as they want. The group's progress moves on."""
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
        rows, is_all = _rows(tx, batch, keys, search.needed)
        taken = search.take(queue.queue_id, rows)
        read += taken
        reached = end if is_all and taken == len(rows) else offset_of(rows[taken - 1].message_key) + 1
        moved.append((queue.group_id, queue.queue_id, reached))
        left_over = left_over or reached < queue.end_offset
    if moved:
        progress.grow(tx.conn, moved)
    # A position names one client. Other clients that subscribe to the same lite topic find it with their next receive.
    overlaps = bool(search.waiting) and any(each.overlaps for several in clients.values() for each in several)
    return Fresh(search.candidates(tx), search.waiting, search.with_position, left_over or overlaps)


def _store_waiting(
    tx: Transaction, batch: ReceiveBatch, fresh: Fresh, left: Iterable[tuple[str, Candidate]], grants: Sequence[Grant]
) -> None:
    """Add positions for the lite topics of messages that were found and not granted."""
    locked = {each.found.group_key for each in grants}
    for client_id, each in left:
        assert each.group_key is not None, "only messages of lite topics are left"
        offset = offset_of(each.row.message_key)
        known = fresh.waiting.setdefault(each.group_key, _Waiting(offset, client_id, is_held=False))
        if known.next_offset != offset:
            known.next_offset, known.is_single = min(offset, known.next_offset), False
    group_id = batch.group.group_id
    if fresh.waiting:
        rows = [
            (
                group_id,
                group_key.queue_id,
                group_key.topic_id,
                each.next_offset,
                None if each.is_held or group_key in locked else tx.now_ms,
                int(each.is_single),
                group_key.message_group,
                each.client_id,
            )
            for group_key, each in fresh.waiting.items()
        ]
        moving_positions.add_waiting(tx.conn, rows)
    if fresh.with_position:
        several = [(group_id, each.queue_id, each.message_group) for each in fresh.with_position]
        moving_positions.note_more(tx.conn, several)


class _LiteSearch:
    """Gives new messages to the clients, in order, until they have as many as they want."""

    def __init__(self, batch: ReceiveBatch, clients: dict[str, list[Receive]], passed: LiteFound) -> None:
        self._batch = batch
        self._capacities = passed.capacities
        self._heads_only = {each for each, several in clients.items() if any(one.heads_only for one in several)}
        # The client that gets a lite topic in this search.
        self._owners = {
            open_group.group_key: client_id
            for client_id, open_groups in passed.open_groups.items()
            for open_group in open_groups
            if open_group.found and open_group.next_offset is None
        }
        self._keys: dict[str, list[tuple[int, MessageGroupKey]]] = {each: [] for each in clients}
        self.needed = sum(max(0, capacity) for capacity in passed.capacities.values())
        self._rest = _REST * sum(each.batch_size for several in clients.values() for each in several)
        self._without = {each for each in clients if not (passed.open_groups.get(each) or passed.again.get(each))}
        self.waiting: dict[MessageGroupKey, _Waiting] = {}
        self.with_position: set[MessageGroupKey] = set()

    @property
    def is_enough(self) -> bool:
        """Whether to stop reading: for the last few messages, many lite topics of other clients would get positions."""
        return self.needed <= 0 or (self.needed <= self._rest and len(self.waiting) > self.needed and not self._without)

    def take(self, queue_id: int, rows: Sequence[_NewRow]) -> int:
        """Give messages of one queue to clients, or note that they wait. Returns how many were examined."""
        topic_id = self._batch.topic.topic_id
        for number, row in enumerate(rows, start=1):
            if row.is_taken == _HAS_EXPIRED:
                continue
            group_key = MessageGroupKey(topic_id, queue_id, row.message_group)
            if row.is_taken == _HAS_POSITION:
                self.with_position.add(group_key)
            elif (known := self.waiting.get(group_key)) is not None:
                known.is_single = False
            elif row.is_taken == _FREE and self._give(group_key, row):
                if self.is_enough:
                    return number
            else:
                offset = offset_of(row.message_key)
                self.waiting[group_key] = _Waiting(offset, row.client_id, is_held=row.is_taken == _IS_HELD)
        return len(rows)

    def _give(self, group_key: MessageGroupKey, row: _NewRow) -> bool:
        """Give the message to its client, if the client wants more and may get it. Returns whether it did."""
        owner = self._owners.get(group_key)
        client_id = row.client_id if owner is None else owner
        if client_id is None or self._capacities.get(client_id, 0) <= 0 or (owner and client_id in self._heads_only):
            return False
        self._owners[group_key] = client_id
        self._capacities[client_id] -= 1
        self.needed -= 1
        self._without.discard(client_id)
        self._keys[client_id].append((row.message_key, group_key))
        return True

    def candidates(self, tx: Transaction) -> dict[str, list[Candidate]]:
        """The messages of each client."""
        keys = [key for several in self._keys.values() for key, _ in several]
        by_key = by_keys(tx.conn, keys, self._batch.bodies)
        return {
            client_id: [Candidate(by_key[key], 1, group_key) for key, group_key in several if key in by_key]
            for client_id, several in self._keys.items()
        }


def _rows(tx: Transaction, batch: ReceiveBatch, keys: range, needed: int) -> tuple[list[_NewRow], bool]:
    """New messages with these keys, for a search that needs `needed` messages; and whether these are all."""
    limit = max(_READ_MIN, _READ_PER_NEEDED * needed)
    parameters = batch.parameters | {
        "of_queue": queue_of(keys.start),
        "from_key": keys.start,
        "to_key": keys.stop,
        "limit": limit,
    }
    rows = (_NEW_OF_CLIENTS if batch.group.chooses else _NEW).of(tx.conn).rows(tx.conn, parameters)
    return rows, len(rows) < limit


# Scalar subqueries instead of EXISTS: Postgres would turn EXISTS into a join that reads all deliveries of the group.
_ANY_DELIVERY = any_of_lite_topic(bindparam("group_id"), bindparam("topic_id"), PASSED.c.message_group)
_FIRST_KEY = first_key_of(bindparam("topic_id"), PASSED.c.message_group)
_IS_BEHIND_EXPIRED = PASSED.c.message_key >= lite_expired_key()
_SUBSCRIBER = first_subscriber(bindparam("group_id"), bindparam("topic_id"), PASSED.c.message_group)


def _new(dialect: Dialect, client_id: ColumnElement[Any]) -> RowQuery[_NewRow]:
    queue_id = PASSED.c.message_key.op(">>")(KEY_SHIFT)
    key = bindparam("group_id", type_=BigInteger), queue_id, PASSED.c.message_group
    if_exists = case(
        (any_position_from(dialect, key, literal_column("0")).is_not(None), literal_column(str(_HAS_POSITION))),
        (_ANY_DELIVERY.is_not(None), literal_column(str(_IS_HELD))),
        else_=literal_column(str(_FREE)),
    )
    is_taken = case(
        (or_(_IS_BEHIND_EXPIRED, PASSED.c.message_key >= _FIRST_KEY), if_exists),
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
