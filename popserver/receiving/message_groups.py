"""Open message groups: which of their messages may be granted now.

A message group opens when its last held message ended, or its first message became READY again. Messages of the message
groups that opened first are granted first. Each gets a share of the capacity, so that none of many waits long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import takewhile
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.catalog.progress import QueueToScan
from popserver.database.rows import encode_rows
from popserver.delivery.advance import by_member, runs_of
from popserver.engine.transaction import Transaction
from popserver.fifo import moving_positions, order, positions
from popserver.fifo.positions import MessageGroupKey, Opened
from popserver.filters import SqlFilter
from popserver.messages.by_key import MessageQuery, MessageRow, by_keys, row_query
from popserver.messages.ranges import FilterQuery, Unjudged, shares
from popserver.model.topic import message_key, offset_of, queue_of
from popserver.receiving.batch import JUDGED_PER_NEEDED, SHARE_MIN, Candidate, OpenGroup, ReceiveBatch


class _ToJudge(NamedTuple):
    """A message before the scan's position that a filter must judge."""

    message_key: int
    message_group: str | None
    tag: str | None


class _Part(NamedTuple):
    """The message keys that are taken from a message group, which continues at `next_offset`."""

    group_key: MessageGroupKey
    keys: list[int]
    next_offset: int | None


def find(
    tx: Transaction,
    batch: ReceiveBatch,
    queues: Sequence[QueueToScan],
    *,
    repeats_max: int,
    limit: int,
    heads_only: bool,
) -> tuple[list[OpenGroup], bool]:
    """The message groups that opened first, with at most `limit` messages; with `heads_only` one of each message group.

    At most `repeats_max` of the messages were granted before. Returns also whether no other message group is open.
    """
    with_open = {queue.queue_id: queue for queue in queues if queue.open_since_ms is not None}
    if not with_open or limit <= 0:
        return [], not with_open
    opened = positions.opened(tx.conn, batch.parameters, sorted(with_open), limit)
    share = 1 if heads_only else max(SHARE_MIN, limit // max(1, len(opened)))
    open_groups = read_opened(tx, batch, opened, with_open, share=share, limit=limit, repeats_max=repeats_max)
    return open_groups, len(open_groups) == len(opened) < limit


def read_opened(
    tx: Transaction,
    batch: ReceiveBatch,
    opened: Sequence[Opened],
    queues: dict[int, QueueToScan],
    *,
    share: int,
    limit: int,
    repeats_max: int | None = None,
) -> list[OpenGroup]:
    """These message groups, with at most `share` messages of each and `limit` together. The rest is left out.

    At most `repeats_max` of the messages were granted before; None: any number.
    """
    granted_before = [each for each in opened if each.has_run]
    most = limit if repeats_max is None else min(repeats_max, limit)
    open_groups = _with_deliveries(tx, batch, granted_before, share, most)
    not_granted = [each for each in opened if not each.has_run]
    capacity = limit - sum(len(each.found) for each in open_groups)
    open_groups += _without_deliveries(tx, batch, not_granted, queues, share, capacity)
    # Before the scan moves on: it skips messages of a message group that has a position. If the position were removed
    # later, no search would find these messages.
    finish(tx, batch, (each.group_key for each in open_groups if each.next_offset is None))
    return open_groups


def to_judge(
    conn: Connection, batch: ReceiveBatch, queues: Sequence[QueueToScan], wanted: SqlFilter, limit: int
) -> Unjudged:
    """What the filter must judge before a search (`find`): up to `limit` messages of the message groups that opened
    first.

    Messages that were granted before are left out: the filter accepted them then.
    """
    with_open = {queue.queue_id: queue for queue in queues if queue.open_since_ms is not None}
    opened = positions.opened(conn, batch.parameters, sorted(with_open), batch.capacity) if with_open else []
    bounds = [_bounds(number, each, with_open[each.queue_id]) for number, each in enumerate(opened) if not each.has_run]
    if not bounds:
        return Unjudged([], 0)
    share = max(SHARE_MIN, batch.capacity // len(opened))
    parameters = {"bounds": encode_rows(bounds), "share": JUDGED_PER_NEEDED * share, "limit": limit}
    return _TO_JUDGE.rows(conn, wanted, parameters)


def rest_of(tx: Transaction, batch: ReceiveBatch, open_groups: Iterable[OpenGroup], limit: int) -> list[Candidate]:
    """Further messages of these message groups that were granted before, in order; at most `limit` messages."""
    rest = {
        key: (attempt, open_group.group_key)
        for open_group in open_groups
        if open_group.found
        for key, attempt in open_group.rest[:limit]
    }
    rows = by_keys(tx.conn, rest, batch.bodies)
    found = [Candidate(rows[key], attempt, group_key, has_delivery=True) for key, (attempt, group_key) in rest.items()]
    return found[:limit]


def advance(tx: Transaction, open_groups: Sequence[OpenGroup], group_id: int, granted: Collection[int]) -> bool:
    """Write the positions of the message groups after the messages `granted` (keys) were granted.

    Returns whether a message group is still open.
    """
    moved: list[tuple[int | str, ...]] = []
    still_open = False
    for open_group in open_groups:
        if open_group.next_offset is None:
            continue
        is_taken = any(each.row.message_key in granted for each in open_group.found)
        is_open = not is_taken and (open_group.stays_open or bool(open_group.found))
        still_open = still_open or is_open
        next_offset = _next_offset(open_group, open_group.next_offset, granted)
        moved.append(
            (group_id, open_group.group_key.queue_id, next_offset, int(is_open), open_group.group_key.message_group)
        )
    if moved:
        moving_positions.move(tx.conn, moved)
    return still_open


def finish(tx: Transaction, batch: ReceiveBatch, group_keys: Iterable[MessageGroupKey]) -> None:
    """Remove the positions of these message groups."""
    moving_positions.end(tx.conn, [(batch.group.group_id, each.queue_id, each.message_group) for each in group_keys])


def _next_offset(open_group: OpenGroup, beyond: int, granted: Collection[int]) -> int:
    """Where the message group continues: at its first message that was found and not granted, or at `beyond`."""
    left = (each for each in open_group.found if each.row.message_key not in granted and not each.has_delivery)
    first = next(left, None)
    return beyond if first is None else offset_of(first.row.message_key)


def _with_deliveries(
    tx: Transaction, batch: ReceiveBatch, opened: Sequence[Opened], share: int, limit: int
) -> list[OpenGroup]:
    """Message groups whose first messages have deliveries, each up to its first message that is still held."""
    if not opened:
        return []
    next_offsets = {_group_key(batch, each): each.next_offset for each in opened}
    held = by_member(runs_of(tx.conn, batch.group.group_id, next_offsets))
    capacity = iter(range(limit))  # one step per message, of all message groups together
    open_groups: list[OpenGroup] = []
    keys: dict[MessageGroupKey, dict[int, int]] = {}
    rests: dict[MessageGroupKey, list[tuple[int, int]]] = {}
    for group_key in next_offsets:
        ready = order.redeliverable(held[group_key], batch.group.retry.max_attempts)
        attempts = {row.message_key: row.attempt + 1 for row, _ in zip(ready[:share], capacity, strict=False)}
        rests[group_key] = [(row.message_key, row.attempt + 1) for row in ready[len(attempts) :]]
        if attempts or not ready:
            keys[group_key] = attempts
    by_key = by_keys(tx.conn, [key for attempts in keys.values() for key in attempts], batch.bodies)
    for group_key, attempts in keys.items():
        found = [Candidate(by_key[key], attempt, group_key, has_delivery=True) for key, attempt in attempts.items()]
        next_offset, rest = next_offsets[group_key], rests[group_key]
        open_groups.append(OpenGroup(group_key, found, next_offset, stays_open=False, rest=rest))
    return open_groups


def _without_deliveries(
    tx: Transaction,
    batch: ReceiveBatch,
    opened: Sequence[Opened],
    queues: dict[int, QueueToScan],
    share: int,
    limit: int,
) -> list[OpenGroup]:
    """Message groups without deliveries: their messages from their position to the scan's. When `limit` messages are
    found, the rest is left out."""
    open_groups: list[OpenGroup] = []
    # So many message groups are enough if each has `share` messages. If they have fewer, the others are read too.
    count = -(-limit // share)
    for several in (opened[:count], opened[count:]):
        if several and limit > 0:
            parts, rows = _parts(tx, batch, several, queues, share, limit)
            for part in parts:
                found = [Candidate(rows[key], 1, part.group_key) for key in part.keys]
                open_groups.append(OpenGroup(part.group_key, found, part.next_offset, stays_open=True))
            limit -= sum(len(part.keys) for part in parts)
    return open_groups


def _parts(
    tx: Transaction,
    batch: ReceiveBatch,
    opened: Sequence[Opened],
    queues: dict[int, QueueToScan],
    share: int,
    limit: int,
) -> tuple[list[_Part], dict[int, MessageRow]]:
    """The messages taken from each message group, and their rows by message key."""
    read_per_needed = 1 if batch.wanted.wants_all else JUDGED_PER_NEEDED
    bounds = encode_rows([_bounds(number, each, queues[each.queue_id]) for number, each in enumerate(opened)])
    parameters = {"bounds": bounds, "share": read_per_needed * share, "limit": read_per_needed * limit}
    if batch.wanted.wants_all:
        messages = _BEHIND.rows(tx.conn, parameters, bodies=batch.bodies)
        return _shares_of(batch, opened, queues, messages, share, limit), {row.message_key: row for row in messages}
    scanned = _BEHIND_KEYS.rows(tx.conn, parameters)
    parts = _shares_of(batch, opened, queues, scanned, share, limit)
    return parts, by_keys(tx.conn, [key for part in parts for key in part.keys], batch.bodies)


def _shares_of(
    batch: ReceiveBatch,
    opened: Sequence[Opened],
    queues: dict[int, QueueToScan],
    rows: Sequence[MessageRow | _ToJudge],
    share: int,
    limit: int,
) -> list[_Part]:
    """Each message group's share of the rows. The rows are in the order of the message groups, and may end before the
    last one."""
    read_per_needed = 1 if batch.wanted.wants_all else JUDGED_PER_NEEDED
    several: dict[tuple[int, str | None], list[MessageRow | _ToJudge]] = defaultdict(list)
    for row in rows:
        several[queue_of(row.message_key), row.message_group].append(row)
    last = (queue_of(rows[-1].message_key), rows[-1].message_group) if len(rows) == read_per_needed * limit else None
    parts: list[_Part] = []
    for each in opened:
        scanned = several.get((each.queue_id, each.message_group), [])
        # Messages that the filter has not judged are left for the next search.
        judged = list(takewhile(lambda verdict: verdict is not None, (_is_accepted(batch, row) for row in scanned)))
        accepted = [row.message_key for row, is_accepted in zip(scanned, judged, strict=False) if is_accepted]
        taken = accepted[: min(share, limit)]
        limit -= len(taken)
        is_last = (each.queue_id, each.message_group) == last
        if len(taken) < len(accepted):
            next_offset: int | None = offset_of(accepted[len(taken)])
        elif len(judged) < len(scanned):
            next_offset = offset_of(scanned[len(judged)].message_key)
        elif len(scanned) == read_per_needed * share or is_last:
            next_offset = offset_of(scanned[-1].message_key) + 1
        else:
            next_offset = _at_the_scan(queues[each.queue_id], each, is_taken=bool(taken))
        parts.append(_Part(_group_key(batch, each), taken, next_offset))
        if is_last or limit <= 0:
            break
    return parts


def _at_the_scan(queue: QueueToScan, each: Opened, *, is_taken: bool) -> int | None:
    """Where a message group continues that has no message left up to the scan's position; None: its row is deleted.

    If the queue has unread messages, the scan will probably find more of the message group, so the row stays. It stays
    too if a client has moved a lite topic to an offset that the scan has not reached.
    """
    if each.next_offset > queue.next_offset:
        return each.next_offset
    return queue.next_offset if is_taken and queue.next_offset < queue.end_offset else None


def _group_key(batch: ReceiveBatch, each: Opened) -> MessageGroupKey:
    return MessageGroupKey(batch.topic.topic_id, each.queue_id, each.message_group)


def _bounds(number: int, each: Opened, queue: QueueToScan) -> tuple[int | str, ...]:
    start = max(each.next_offset, queue.min_offset)
    first, end = message_key(each.queue_id, start), message_key(each.queue_id, queue.next_offset)
    return number, first, end, each.message_group


def _is_accepted(batch: ReceiveBatch, row: MessageRow | _ToJudge) -> bool | None:
    """Whether the filter accepts the message; None if a SQL filter has not judged it."""
    if isinstance(batch.wanted, SqlFilter):
        return batch.judged.behind.get(row.message_key)
    return batch.wanted.wants_all or row.tag in batch.wanted.tags


_BEHIND = MessageQuery(shares)
_BEHIND_KEYS = row_query(_ToJudge, shares)
_TO_JUDGE = FilterQuery(shares)
