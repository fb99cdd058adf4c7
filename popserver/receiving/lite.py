"""Receives from a topic of lite topics: each client gets those that it subscribes to (docs/design/0021).

First, lite topics with new messages get a row that names a client (`_assign`), and the group's progress moves on. Then
the open lite topics of the clients that ask are read. All receives of a group share this, whichever client they are of.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Select, and_, bindparam, case, func, insert, literal_column, or_, select, update

from popserver.database.rows import RowStatement, encode_rows, rows_parameter
from popserver.database.schema import (
    KEY_SHIFT,
    delivery,
    in_states,
    lite_subscription,
    lite_topic,
    message,
    progress,
    queue,
)
from popserver.database.schema import message_group_progress as behind
from popserver.delivery.message_groups import has_run, subscriber_of
from popserver.engine.transaction import Transaction
from popserver.messages.ranges import WINDOW_OFFSETS
from popserver.model.states import State
from popserver.model.topic import OFFSET_BITS
from popserver.receiving import message_groups
from popserver.receiving.batch import Opened, QueueToScan, ReceiveBatch
from popserver.receiving.grant import Receive
from popserver.receiving.message_groups import SHARE_MIN, GroupRun

EVERY_CLIENT = ""  # in place of a client, for groups whose clients do not choose


class RedrivenRow(NamedTuple):
    """A message that was redriven to the group, and the client that may get it."""

    message_key: int
    attempt: int
    client_id: str


class LiteFound(NamedTuple):
    """What was found for each client. `left_over` says whether messages may be left."""

    runs: dict[str, list[GroupRun]]
    again: dict[str, list[RedrivenRow]]
    left_over: bool


def clients_of(batch: ReceiveBatch, several: Sequence[Receive]) -> dict[str, list[Receive]]:
    """The receives by client; all under one name if the group's clients do not choose."""
    if not batch.group.chooses:
        return {EVERY_CLIENT: list(several)}
    by_client: dict[str, list[Receive]] = {}
    for each in several:
        by_client.setdefault(each.client_id, []).append(each)
    return by_client


def find(tx: Transaction, batch: ReceiveBatch, clients: dict[str, list[Receive]]) -> LiteFound:
    """The messages that the clients may get, at most as many as each asks for."""
    names = _names(batch, clients)
    places = _PLACES.rows(tx.conn, names)
    if not places:
        return LiteFound({}, {}, left_over=_is_hidden(tx, names))
    places, is_cut = _assign(tx, batch, places)
    opened: dict[str, list[Opened]] = {}
    by_queue = {place.queue_id: place for place in places}
    left_over = is_cut
    again: dict[str, list[RedrivenRow]] = {}
    if places[0].ready_since_ms is not None:
        again = _redriven_to(tx, batch, clients, names)
    rooms = {each: sum(one.batch_size for one in clients[each]) - len(again.get(each, ())) for each in clients}
    for client_id, several in clients.items():
        room = rooms[client_id]
        names["subscriber"], names["limit"] = client_id, room
        rows = (_OPENED_OF_ALL if any(each.shares for each in several) else _OPENED).rows(tx.conn, names)
        # Another server reads the other queues now.
        opened[client_id] = [row for row in rows if row.queue_id in by_queue]
        left_over = left_over or len(rows) == room or len(opened[client_id]) < len(rows)
    return LiteFound(_read(tx, batch, clients, opened, rooms, by_queue), again, left_over or bool(again))


def _redriven_to(
    tx: Transaction, batch: ReceiveBatch, clients: dict[str, list[Receive]], names: dict[str, Any]
) -> dict[str, list[RedrivenRow]]:
    """Messages that were redriven to the group, by client: for each at most half of what it asks for."""
    redriven = _REDRIVEN_TO_CLIENTS if batch.group.chooses else _REDRIVEN
    found: dict[str, list[RedrivenRow]] = {}
    taken: set[int] = set()
    for row in redriven.rows(tx.conn, names | {"limit": batch.room}):
        theirs = found.setdefault(row.client_id, [])
        asked = sum(each.batch_size for each in clients[row.client_id])
        # Room for one message cannot be halved: alternate.
        if row.message_key not in taken and len(theirs) < (asked // 2 or batch.rotation % 2):
            theirs.append(row)
            taken.add(row.message_key)
    return found


def _names(batch: ReceiveBatch, clients: Iterable[str]) -> dict[str, Any]:
    return batch.names | {"subscribers": encode_rows([(each,) for each in sorted(clients)])}


def _is_hidden(tx: Transaction, names: dict[str, Any]) -> bool:
    """Whether nothing was found only because another server has locked the queues."""
    return tx.has_other_writers and tx.conn.execute(_IS_MORE, names).first() is not None


def _assign(tx: Transaction, batch: ReceiveBatch, places: Sequence[QueueToScan]) -> tuple[list[QueueToScan], bool]:
    """Give lite topics with new messages a row, and move the group's progress on. Returns the places as they are then,
    and whether a queue was not read to its end."""
    moved: list[QueueToScan] = []
    ranges: list[tuple[int, int, int]] = []
    for place in places:
        start = max(place.next_offset, place.min_offset)
        end = min(place.end_offset, start + WINDOW_OFFSETS)
        # On Postgres `end_offset` may be older than the locked progress row: never move back to it.
        if place.next_offset < place.end_offset:
            queue_key = place.queue_id << OFFSET_BITS
            ranges.append((place.queue_id, queue_key + start, queue_key + end))
            place = place._replace(next_offset=end)
        moved.append(place)
    if ranges:
        names = {**batch.names, "ranges": encode_rows(ranges), "now_ms": tx.now_ms}
        tx.conn.execute(_ASSIGN, names)
        tx.conn.execute(_MOVE_ON, {"for_group": batch.group.group_id, "ranges": names["ranges"]})
    is_cut = any(place.next_offset < place.end_offset for place in moved)
    if is_cut:
        # Some of these clients may have found nothing before, because nobody had read so far.
        tx.ready_topics.add(batch.topic.topic_id)
    return moved, is_cut


def _read(
    tx: Transaction,
    batch: ReceiveBatch,
    clients: dict[str, list[Receive]],
    opened: dict[str, list[Opened]],
    rooms: dict[str, int],
    places: dict[int, QueueToScan],
) -> dict[str, list[GroupRun]]:
    """The runs of each client's lite topics: first several messages of few, then fewer messages of the others."""
    mine = _each_once(opened)
    left = dict(rooms)
    runs: dict[str, list[GroupRun]] = {each: [] for each in mine}
    for is_first in (True, False):
        alike: dict[int, list[tuple[str, Opened]]] = {}
        for client_id, rows in mine.items():
            some = rows[: max(1, left[client_id] // SHARE_MIN) if is_first else left[client_id]]
            mine[client_id] = rows[len(some) :]
            if some:
                share = _share(clients[client_id], left[client_id], len(some))
                alike.setdefault(share, []).extend((client_id, row) for row in some)
        for share, several in alike.items():
            owner = {(row.queue_id, row.message_group): client_id for client_id, row in several}
            rows = [row for _, row in several]
            limit = share * len(rows)
            for run in message_groups.runs_of_opened(tx, batch, rows, places, share=share, limit=limit):
                client_id = owner[run.member.queue_id, run.member.message_group]
                runs[client_id].append(run)
                left[client_id] -= len(run.found)
    return runs


def _each_once(opened: dict[str, list[Opened]]) -> dict[str, list[Opened]]:
    """A lite topic that several clients share goes to the first of them."""
    taken: set[tuple[int, str]] = set()
    mine: dict[str, list[Opened]] = {}
    for client_id, rows in opened.items():
        mine[client_id] = [row for row in rows if (row.queue_id, row.message_group) not in taken]
        if len(opened) > 1:
            taken.update((row.queue_id, row.message_group) for row in mine[client_id])
    return mine


def _share(several: Sequence[Receive], room: int, opened: int) -> int:
    """How many messages of each lite topic: a power of two, so that many clients have the same."""
    if any(each.heads_only for each in several):
        return 1
    return 1 << max(0, (room // opened).bit_length() - 1)


_SUBSCRIBERS = rows_parameter("subscribers", text=("client_id",))
_OF_GROUP = behind.c.group_id == bindparam("group_id"), behind.c.topic_id == bindparam("topic_id")
_IS_OPEN = behind.c.open_since_ms.is_not(None)
_HAS_OPEN = (
    select(behind.c.queue_id)
    .where(*_OF_GROUP, _IS_OPEN, behind.c.subscriber.in_(select(_SUBSCRIBERS.c.client_id)))
    .exists()
)
# A lite topic of several clients may have a row that names another one.
_OPEN_OF_CLIENT = (
    select(behind.c.queue_id)
    .select_from(lite_subscription)
    .join(
        behind,
        and_(
            behind.c.group_id == lite_subscription.c.group_id,
            behind.c.queue_id == lite_subscription.c.queue_id,
            behind.c.message_group == lite_subscription.c.lite_topic,
        ),
    )
    .where(
        lite_subscription.c.group_id == bindparam("group_id"),
        lite_subscription.c.topic_id == bindparam("topic_id"),
        lite_subscription.c.client_id == bindparam("subscriber"),
        _IS_OPEN,
    )
)
_READY_SINCE_MS = (
    select(func.min(delivery.c.visible_at_ms))
    .where(
        delivery.c.group_id == bindparam("group_id"),
        delivery.c.topic_id == bindparam("topic_id"),
        in_states(delivery.c.state, State.READY),
        delivery.c.message_group.is_(None),
    )
    .scalar_subquery()
)
_IS_BEHIND = progress.c.next_offset < queue.c.next_offset


def _places(*columns: Any) -> Select[Any]:
    return (
        select(*columns)
        .select_from(queue)
        .join(progress, progress.c.queue_id == queue.c.queue_id)
        .where(queue.c.topic_id == bindparam("topic_id"), progress.c.group_id == bindparam("group_id"))
        .order_by(queue.c.number)
    )


_PLACES = RowStatement(
    QueueToScan,
    _places(
        progress.c.group_id,
        progress.c.queue_id,
        progress.c.next_offset,
        queue.c.min_offset,
        queue.c.next_offset.label("end_offset"),
        _READY_SINCE_MS.label("ready_since_ms"),
        literal_column("1").label("has_open"),
    ).with_for_update(of=progress, skip_locked=True),
)
_IS_MORE: Select[Any] = select(literal_column("1")).where(
    or_(
        _HAS_OPEN,
        _READY_SINCE_MS.is_not(None),
        _places(progress.c.queue_id).where(_IS_BEHIND).order_by(None).exists(),
    )
)
_COLUMNS = (
    behind.c.queue_id,
    behind.c.message_group,
    behind.c.next_offset,
    has_run(behind).label("has_run"),
)
_OPENED = RowStatement(
    Opened,
    select(*_COLUMNS)
    .where(*_OF_GROUP, behind.c.subscriber == bindparam("subscriber"), _IS_OPEN)
    .order_by(behind.c.open_since_ms)
    .limit(bindparam("limit")),
)
_OPENED_OF_ALL = RowStatement(
    Opened,
    _OPEN_OF_CLIENT.with_only_columns(*_COLUMNS).order_by(behind.c.open_since_ms).limit(bindparam("limit")),
)
_RANGES = rows_parameter("ranges", "queue_id", "from_key", "to_key")
_GROUP_ID, _TOPIC_ID = bindparam("group_id", type_=BigInteger), bindparam("topic_id", type_=BigInteger)
_IS_HELD = (
    select(delivery.c.message_key)
    .where(
        delivery.c.group_id == _GROUP_ID,
        delivery.c.topic_id == _TOPIC_ID,
        delivery.c.message_group == message.c.message_group,
    )
    .exists()
)
_HAS_ROW = (
    select(behind.c.queue_id)
    .where(
        behind.c.group_id == _GROUP_ID,
        behind.c.queue_id == _RANGES.c.queue_id,
        behind.c.message_group == message.c.message_group,
    )
    .exists()
)
# Messages of an expired lite topic are passed over, and so consumed.
_LIVES = (
    select(lite_topic.c.name)
    .where(
        lite_topic.c.topic_id == _TOPIC_ID,
        lite_topic.c.name == message.c.message_group,
        lite_topic.c.first_key <= message.c.message_key,
    )
    .exists()
)
_ASSIGN = insert(behind).from_select(
    ["group_id", "queue_id", "message_group", "topic_id", "next_offset", "subscriber", "open_since_ms"],
    select(
        _GROUP_ID,
        _RANGES.c.queue_id,
        message.c.message_group,
        _TOPIC_ID,
        func.min(message.c.message_key) - _RANGES.c.queue_id.op("<<")(KEY_SHIFT),
        subscriber_of(_GROUP_ID, _TOPIC_ID, message.c.message_group),
        case((_IS_HELD, None), else_=bindparam("now_ms", type_=BigInteger)),
    )
    .select_from(_RANGES)
    .join(message, and_(message.c.message_key >= _RANGES.c.from_key, message.c.message_key < _RANGES.c.to_key))
    .where(message.c.message_group.is_not(None), message.c.copy_of.is_(None), _LIVES, ~_HAS_ROW)
    .group_by(_RANGES.c.queue_id, message.c.message_group),
)
_MOVE_ON = (
    update(progress)
    .where(progress.c.group_id == bindparam("for_group"), progress.c.queue_id == _RANGES.c.queue_id)
    .values(next_offset=_RANGES.c.to_key - _RANGES.c.queue_id.op("<<")(KEY_SHIFT))
)
_redriven = (
    select(delivery.c.message_key, delivery.c.attempt)
    .where(
        delivery.c.group_id == bindparam("group_id"),
        delivery.c.topic_id == bindparam("topic_id"),
        in_states(delivery.c.state, State.READY),
        delivery.c.message_group.is_(None),
    )
    .order_by(delivery.c.visible_at_ms)
    .limit(bindparam("limit"))
    .with_for_update(of=delivery, skip_locked=True)
)
_REDRIVEN = RowStatement(RedrivenRow, _redriven.add_columns(literal_column("''").label("client_id")))
_REDRIVEN_TO_CLIENTS = RowStatement(
    RedrivenRow,
    _redriven.add_columns(lite_subscription.c.client_id)
    .join(message, message.c.message_key == delivery.c.message_key)
    .join(
        lite_subscription,
        and_(
            lite_subscription.c.group_id == delivery.c.group_id,
            lite_subscription.c.topic_id == delivery.c.topic_id,
            lite_subscription.c.lite_topic == message.c.message_group,
        ),
    )
    .where(lite_subscription.c.client_id.in_(select(_SUBSCRIBERS.c.client_id))),
)
