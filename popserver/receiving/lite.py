"""Receives from a topic of lite topics: each client gets those that it subscribes to (docs/design/0021).

First, this module reads the open lite topics of the clients whose receives are served. Then `lite_scan` reads on from
the group's progress, until these clients have as many messages as they want. The receives of all clients of a group
share one search.
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
from popserver.receiving.batch import SHARE_MIN, Candidate, OpenGroup, Receive, ReceiveBatch, half_of, remember_first

EVERY_CLIENT = ""  # instead of a client's id, if the group's clients do not choose lite topics


class LiteFound(NamedTuple):
    """What was found for each client. `capacities`: how many more messages each may get.

    `queues` are the queues that no other server reads. `left_over`: messages may be left.
    """

    queues: Sequence[QueueToScan]
    open_groups: dict[str, list[OpenGroup]]
    again: dict[str, list[RedrivenRow]]
    capacities: dict[str, int]
    left_over: bool


def clients_of(batch: ReceiveBatch, several: Sequence[Receive]) -> dict[str, list[Receive]]:
    """The receives by client id; all under `EVERY_CLIENT` if the group's clients do not choose lite topics."""
    if not batch.group.chooses:
        return {EVERY_CLIENT: list(several)}
    by_client: dict[str, list[Receive]] = {}
    for each in several:
        by_client.setdefault(each.client_id, []).append(each)
    return by_client


def find(tx: Transaction, batch: ReceiveBatch, clients: dict[str, list[Receive]]) -> LiteFound:
    """The messages that the scan has passed and the clients may get, at most as many as each wants."""
    parameters = batch.parameters | {"subscribers": encode_column(sorted(clients))}
    queues = LITE_QUEUES.rows(tx.conn, parameters)
    if not queues:
        return LiteFound([], {}, {}, {}, left_over=_is_locked_elsewhere(tx, parameters))
    remember_first(tx, batch, ReadyFrom, queues[0].ready_since_ms)
    again: dict[str, list[RedrivenRow]] = {}
    if queues[0].ready_since_ms is not None:
        again = _redriven_to(tx, batch, clients, parameters)
    capacities = {each: sum(one.batch_size for one in clients[each]) - len(again.get(each, ())) for each in clients}
    by_queue = {queue.queue_id: _as_scanned(queue) for queue in queues}
    opened: dict[str, list[Opened]] = {}
    left_over = bool(again)
    for client_id, several in clients.items():
        capacity = capacities[client_id]
        overlaps = any(each.overlaps for each in several)
        rows = positions.opened_of_client(tx.conn, parameters, client_id, capacity, shares=overlaps)
        # Another server has locked the other queues.
        opened[client_id] = [row for row in rows if row.queue_id in by_queue]
        left_over = left_over or len(rows) == capacity or len(opened[client_id]) < len(rows)
    open_groups = _read(tx, batch, clients, opened, capacities, by_queue)
    if len(queues) < len(batch.topic.queues):
        left_over = left_over or _is_locked_elsewhere(tx, parameters)
    return LiteFound(queues, open_groups, again, capacities, left_over)


def _as_scanned(queue: QueueToScan) -> QueueToScan:
    """The queue as if the scan had read it to its end.

    So a lite topic loses its row when no message is left up to the scan's position. `message_groups` would keep the row
    for unread messages of the queue, but these are probably of other lite topics.
    """
    return queue._replace(end_offset=queue.next_offset)


def _redriven_to(
    tx: Transaction, batch: ReceiveBatch, clients: dict[str, list[Receive]], parameters: dict[str, Any]
) -> dict[str, list[RedrivenRow]]:
    """Messages that were redriven to the group, by client: for each at most half of the messages that it wants."""
    found: dict[str, list[RedrivenRow]] = {}
    taken: set[int] = set()
    for row in ready.lock_redriven(tx.conn, parameters | {"limit": batch.capacity}, chooses=batch.group.chooses):
        theirs = found.setdefault(row.client_id, [])
        needed = sum(each.batch_size for each in clients[row.client_id])
        if row.message_key not in taken and len(theirs) < half_of(needed, batch.rotation):
            theirs.append(row)
            taken.add(row.message_key)
    return found


def _is_locked_elsewhere(tx: Transaction, parameters: dict[str, Any]) -> bool:
    """Whether messages wait in queues that another server has locked."""
    return tx.has_other_writers and tx.conn.execute(IS_MORE_OF_LITE, parameters).first() is not None


def _read(
    tx: Transaction,
    batch: ReceiveBatch,
    clients: dict[str, list[Receive]],
    opened: dict[str, list[Opened]],
    capacities: dict[str, int],
    queues: dict[int, QueueToScan],
) -> dict[str, list[OpenGroup]]:
    """Each client's open lite topics: first those with one message, then several messages of few lite topics, then
    fewer messages of the others.

    Their messages are subtracted from `capacities`.
    """
    of_client = _each_once(opened)
    open_groups: dict[str, list[OpenGroup]] = {each: [] for each in of_client}

    def read(some: Sequence[tuple[str, Opened]], share: int) -> None:
        owner = {(row.queue_id, row.message_group): client_id for client_id, row in some}
        rows = [row for _, row in some]
        limit = share * len(rows)
        for open_group in message_groups.read_opened(tx, batch, rows, queues, share=share, limit=limit):
            client_id = owner[open_group.group_key.queue_id, open_group.group_key.message_group]
            open_groups[client_id].append(open_group)
            capacities[client_id] -= len(open_group.found)

    single = [(each, row) for each, rows in of_client.items() for row in rows if row.is_single and not row.has_run]
    if single:
        for (client_id, _), open_group in zip(
            single, _open_groups_of_one(tx, batch, [row for _, row in single]), strict=True
        ):
            open_groups[client_id].append(open_group)
            capacities[client_id] -= len(open_group.found)
        of_client = {
            each: [row for row in rows if row.has_run or not row.is_single] for each, rows in of_client.items()
        }
    for is_first in (True, False):
        alike: dict[int, list[tuple[str, Opened]]] = {}
        for client_id, rows in of_client.items():
            capacity = max(0, capacities[client_id])
            some = rows[: -(-capacity // SHARE_MIN) if is_first else capacity]
            of_client[client_id] = rows[len(some) :]
            if some:
                share = _share(clients[client_id], capacity, len(some))
                alike.setdefault(share, []).extend((client_id, row) for row in some)
        for share, several in alike.items():
            read(several, share)
    return open_groups


def _open_groups_of_one(tx: Transaction, batch: ReceiveBatch, single: Sequence[Opened]) -> list[OpenGroup]:
    """Lite topics with one message each, or with none if retention has removed it."""
    keys = [message_key(each.queue_id, each.next_offset) for each in single]
    by_key = by_keys(tx.conn, keys, batch.bodies)
    group_keys = [MessageGroupKey(batch.topic.topic_id, each.queue_id, each.message_group) for each in single]
    message_groups.finish(tx, batch, group_keys)
    return [
        OpenGroup(group_key, [Candidate(by_key[key], 1, group_key)] if key in by_key else [], None, stays_open=True)
        for group_key, key in zip(group_keys, keys, strict=True)
    ]


def _each_once(opened: dict[str, list[Opened]]) -> dict[str, list[Opened]]:
    """Each lite topic once: if several clients subscribe to it, the first of them gets it."""
    taken: set[tuple[int, str]] = set()
    of_client: dict[str, list[Opened]] = {}
    for client_id, rows in opened.items():
        of_client[client_id] = [row for row in rows if (row.queue_id, row.message_group) not in taken]
        if len(opened) > 1:
            taken.update((row.queue_id, row.message_group) for row in of_client[client_id])
    return of_client


def _share(several: Sequence[Receive], capacity: int, opened: int) -> int:
    """How many messages to take of each lite topic: a power of two, so that one statement serves many clients."""
    if any(each.heads_only for each in several):
        return 1
    return 1 << max(0, (capacity // opened).bit_length() - 1)
