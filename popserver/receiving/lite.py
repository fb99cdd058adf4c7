"""Receives from a topic of lite topics: each client gets those that it subscribes to (docs/design/0021).

First the open lite topics of the clients that ask are read, here. Then the group's progress moves on, in `lite_scan`,
until these clients have as many messages as they ask for. All receives of a group share this, whichever client they are
of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from popserver.catalog.progress import QueueToScan
from popserver.database.rows import encode_column
from popserver.delivery import ready
from popserver.delivery.queues_to_read import IS_MORE_OF_LITE, LITE_QUEUES, ReadyFrom
from popserver.delivery.ready import RedrivenRow
from popserver.engine.transaction import Transaction
from popserver.fifo import positions
from popserver.fifo.positions import MessageGroupKey, Opened
from popserver.messages.by_key import by_keys
from popserver.model.topic import message_key
from popserver.receiving import message_groups
from popserver.receiving.batch import SHARE_MIN, Candidate, GroupRun, Receive, ReceiveBatch, half_of, saw

EVERY_CLIENT = ""  # instead of a client, for groups whose clients do not choose


class LiteFound(NamedTuple):
    """What was found for each client. `rooms`: how many more it may get; `left_over`: whether some are left.

    `queues` are the queues that no other server reads.
    """

    queues: Sequence[QueueToScan]
    runs: dict[str, list[GroupRun]]
    again: dict[str, list[RedrivenRow]]
    rooms: dict[str, int]
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
    """The messages that the scan has passed and the clients may get, at most as many as each asks for."""
    names = batch.names | {"subscribers": encode_column(sorted(clients))}
    queues = LITE_QUEUES.rows(tx.conn, names)
    if not queues:
        return LiteFound([], {}, {}, {}, left_over=_is_hidden(tx, names))
    saw(tx, batch, ReadyFrom, queues[0].ready_since_ms)
    again: dict[str, list[RedrivenRow]] = {}
    if queues[0].ready_since_ms is not None:
        again = _redriven_to(tx, batch, clients, names)
    rooms = {each: sum(one.batch_size for one in clients[each]) - len(again.get(each, ())) for each in clients}
    by_queue = {queue.queue_id: _as_read(queue) for queue in queues}
    opened: dict[str, list[Opened]] = {}
    left_over = bool(again)
    for client_id, several in clients.items():
        room = rooms[client_id]
        shares = any(each.shares for each in several)
        rows = positions.opened_of_client(tx.conn, names, client_id, room, shares=shares)
        # Another server reads the other queues now.
        opened[client_id] = [row for row in rows if row.queue_id in by_queue]
        left_over = left_over or len(rows) == room or len(opened[client_id]) < len(rows)
    runs = _read(tx, batch, clients, opened, rooms, by_queue)
    if len(queues) < len(batch.topic.queues):
        left_over = left_over or _is_hidden(tx, names)
    return LiteFound(queues, runs, again, rooms, left_over)


def _as_read(queue: QueueToScan) -> QueueToScan:
    """The queue as if the scan had read all: a lite topic with nothing left up to there needs no row, however much
    the scan has to read. The next message is probably of another one."""
    return queue._replace(end_offset=queue.next_offset)


def _redriven_to(
    tx: Transaction, batch: ReceiveBatch, clients: dict[str, list[Receive]], names: dict[str, Any]
) -> dict[str, list[RedrivenRow]]:
    """Messages that were redriven to the group, by client: for each at most half of what it asks for."""
    found: dict[str, list[RedrivenRow]] = {}
    taken: set[int] = set()
    for row in ready.lock_redriven(tx.conn, names | {"limit": batch.room}, chooses=batch.group.chooses):
        theirs = found.setdefault(row.client_id, [])
        asked = sum(each.batch_size for each in clients[row.client_id])
        if row.message_key not in taken and len(theirs) < half_of(asked, batch.rotation):
            theirs.append(row)
            taken.add(row.message_key)
    return found


def _is_hidden(tx: Transaction, names: dict[str, Any]) -> bool:
    """Whether nothing was found only because another server has locked the queues."""
    return tx.has_other_writers and tx.conn.execute(IS_MORE_OF_LITE, names).first() is not None


def _read(
    tx: Transaction,
    batch: ReceiveBatch,
    clients: dict[str, list[Receive]],
    opened: dict[str, list[Opened]],
    rooms: dict[str, int],
    queues: dict[int, QueueToScan],
) -> dict[str, list[GroupRun]]:
    """The runs of each client's lite topics: those with one message, then several messages of few, then fewer messages
    of the others.

    Their messages are subtracted from `rooms`.
    """
    mine = _each_once(opened)
    runs: dict[str, list[GroupRun]] = {each: [] for each in mine}

    def read(some: Sequence[tuple[str, Opened]], share: int) -> None:
        owner = {(row.queue_id, row.message_group): client_id for client_id, row in some}
        rows = [row for _, row in some]
        limit = share * len(rows)
        for run in message_groups.runs_of_opened(tx, batch, rows, queues, share=share, limit=limit):
            client_id = owner[run.member.queue_id, run.member.message_group]
            runs[client_id].append(run)
            rooms[client_id] -= len(run.found)

    single = [(each, row) for each, rows in mine.items() for row in rows if row.is_single and not row.has_run]
    if single:
        for (client_id, _), run in zip(single, _runs_of_one(tx, batch, [row for _, row in single]), strict=True):
            runs[client_id].append(run)
            rooms[client_id] -= len(run.found)
        mine = {each: [row for row in rows if row.has_run or not row.is_single] for each, rows in mine.items()}
    for is_first in (True, False):
        alike: dict[int, list[tuple[str, Opened]]] = {}
        for client_id, rows in mine.items():
            room = max(0, rooms[client_id])
            some = rows[: -(-room // SHARE_MIN) if is_first else room]
            mine[client_id] = rows[len(some) :]
            if some:
                share = _share(clients[client_id], room, len(some))
                alike.setdefault(share, []).extend((client_id, row) for row in some)
        for share, several in alike.items():
            read(several, share)
    return runs


def _runs_of_one(tx: Transaction, batch: ReceiveBatch, single: Sequence[Opened]) -> list[GroupRun]:
    """The run of each lite topic with one message; it is empty if retention has removed the message."""
    keys = [message_key(each.queue_id, each.next_offset) for each in single]
    by_key = by_keys(tx.conn, keys, batch.bodies)
    members = [MessageGroupKey(batch.topic.topic_id, each.queue_id, each.message_group) for each in single]
    message_groups.finish(tx, batch, members)
    return [
        GroupRun(member, [Candidate(by_key[key], 1, member)] if key in by_key else [], None, stays_open=True)
        for member, key in zip(members, keys, strict=True)
    ]


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
