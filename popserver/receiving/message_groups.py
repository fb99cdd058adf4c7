"""Open message groups: which of their messages may be granted now.

A message group opens when its last held message ended, or its first message became READY again. The groups that opened
first are served first. Each gets a share of the room, so that many groups of one queue are served in turn.
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
from popserver.receiving.batch import JUDGED_PER_WANTED, SHARE_MIN, Candidate, GroupRun, ReceiveBatch


class _GroupBehindScan(NamedTuple):
    """A message before the scan's position that a filter has to judge."""

    message_key: int
    message_group: str | None
    tag: str | None


class _Part(NamedTuple):
    """The message keys taken from a group, which continues at `next_offset`."""

    member: MessageGroupKey
    keys: list[int]
    next_offset: int | None


def open_groups(
    tx: Transaction, batch: ReceiveBatch, queues: Sequence[QueueToScan], *, for_again: int, limit: int, heads_only: bool
) -> tuple[list[GroupRun], bool]:
    """The runs of the groups that opened first: at most `limit` messages; with `heads_only` one of each group.

    At most `for_again` of the messages were granted before. Returns also whether no other group is open.
    """
    with_open = {queue.queue_id: queue for queue in queues if queue.open_since_ms is not None}
    if not with_open or limit <= 0:
        return [], not with_open
    opened = positions.opened(tx.conn, batch.names, sorted(with_open), limit)
    share = 1 if heads_only else max(SHARE_MIN, limit // max(1, len(opened)))
    runs = runs_of_opened(tx, batch, opened, with_open, share=share, limit=limit, for_again=for_again)
    return runs, len(runs) == len(opened) < limit


def runs_of_opened(
    tx: Transaction,
    batch: ReceiveBatch,
    opened: Sequence[Opened],
    queues: dict[int, QueueToScan],
    *,
    share: int,
    limit: int,
    for_again: int | None = None,
) -> list[GroupRun]:
    """The runs of these groups, at most `share` messages of each and `limit` together; the others are left out.

    At most `for_again` of the messages were granted before; None: any number.
    """
    most = limit if for_again is None else min(for_again, limit)
    runs = _again(tx, batch, [each for each in opened if each.has_run], share, most)
    room = limit - sum(len(run.found) for run in runs)
    runs += _untouched(tx, batch, [each for each in opened if not each.has_run], queues, share, room)
    # Before the scan moves on: it skips messages of groups with a row, and would lose them when the row goes.
    finish(tx, batch, (run.member for run in runs if run.next_offset is None))
    return runs


def to_judge(
    conn: Connection, batch: ReceiveBatch, queues: Sequence[QueueToScan], wanted: SqlFilter, limit: int
) -> Unjudged:
    """What the filter must judge before such a search: up to `limit` messages of the groups that opened first.

    Messages that were granted before are left out: the filter accepted them.
    """
    with_open = {queue.queue_id: queue for queue in queues if queue.open_since_ms is not None}
    opened = positions.opened(conn, batch.names, sorted(with_open), batch.room) if with_open else []
    bounds = [_bounds(number, each, with_open[each.queue_id]) for number, each in enumerate(opened) if not each.has_run]
    if not bounds:
        return Unjudged([], 0)
    share = max(SHARE_MIN, batch.room // len(opened))
    asked = {"bounds": encode_rows(bounds), "share": JUDGED_PER_WANTED * share, "limit": limit}
    return _TO_JUDGE.rows(conn, wanted, asked)


def rest_of(tx: Transaction, batch: ReceiveBatch, runs: Iterable[GroupRun], limit: int) -> list[Candidate]:
    """Further messages of the runs that are READY again, in order; at most `limit` messages."""
    rest = {key: (attempt, run.member) for run in runs if run.found for key, attempt in run.rest[: max(0, limit)]}
    rows = by_keys(tx.conn, rest, batch.bodies)
    found = [Candidate(rows[key], attempt, member, has_delivery=True) for key, (attempt, member) in rest.items()]
    return found[:limit]


def advance(tx: Transaction, runs: Sequence[GroupRun], group_id: int, granted: Collection[int]) -> bool:
    """Write each group's position after the grants of the keys `granted`. Returns whether a group is still open."""
    moved: list[tuple[int | str, ...]] = []
    still_open = False
    for run in runs:
        if run.next_offset is None:
            continue
        is_taken = any(each.row.message_key in granted for each in run.found)
        is_open = not is_taken and (run.stays_open or bool(run.found))
        still_open = still_open or is_open
        next_offset = _next_offset(run, run.next_offset, granted)
        moved.append((group_id, run.member.queue_id, next_offset, int(is_open), run.member.message_group))
    if moved:
        moving_positions.move(tx.conn, moved)
    return still_open


def finish(tx: Transaction, batch: ReceiveBatch, members: Iterable[MessageGroupKey]) -> None:
    """Remove the positions of these message groups."""
    moving_positions.end(tx.conn, [(batch.group.group_id, each.queue_id, each.message_group) for each in members])


def _next_offset(run: GroupRun, beyond: int, granted: Collection[int]) -> int:
    """Where the group continues: at its first message that was found and not granted, or at `beyond`."""
    left = (each for each in run.found if each.row.message_key not in granted and not each.has_delivery)
    first = next(left, None)
    return beyond if first is None else offset_of(first.row.message_key)


def _again(tx: Transaction, batch: ReceiveBatch, opened: Sequence[Opened], share: int, limit: int) -> list[GroupRun]:
    """Runs whose messages were granted before, each up to the first message that is still held."""
    if not opened:
        return []
    next_offsets = {_member(batch, each): each.next_offset for each in opened}
    held = by_member(runs_of(tx.conn, batch.group.group_id, next_offsets))
    room = iter(range(limit))
    runs: list[GroupRun] = []
    keys: dict[MessageGroupKey, dict[int, int]] = {}
    rests: dict[MessageGroupKey, list[tuple[int, int]]] = {}
    for member in next_offsets:
        ready = order.redeliverable(held[member], batch.group.retry.max_attempts)
        attempts = {row.message_key: row.attempt + 1 for row, _ in zip(ready[:share], room, strict=False)}
        rests[member] = [(row.message_key, row.attempt + 1) for row in ready[len(attempts) :]]
        if attempts or not ready:
            keys[member] = attempts
    by_key = by_keys(tx.conn, [key for attempts in keys.values() for key in attempts], batch.bodies)
    for member, attempts in keys.items():
        found = [Candidate(by_key[key], attempt, member, has_delivery=True) for key, attempt in attempts.items()]
        runs.append(GroupRun(member, found, next_offsets[member], stays_open=False, rest=rests[member]))
    return runs


def _untouched(
    tx: Transaction,
    batch: ReceiveBatch,
    opened: Sequence[Opened],
    queues: dict[int, QueueToScan],
    share: int,
    limit: int,
) -> list[GroupRun]:
    """Runs of new messages between each group's position and the scan's. Groups without room are left out."""
    runs: list[GroupRun] = []
    count = -(-limit // share)  # usually enough; if they have fewer messages than their share, the others are read too
    for several in (opened[:count], opened[count:]):
        if several and limit > 0:
            parts, rows = _parts(tx, batch, several, queues, share, limit)
            for part in parts:
                found = [Candidate(rows[key], 1, part.member) for key in part.keys]
                runs.append(GroupRun(part.member, found, part.next_offset, stays_open=True))
            limit = limit - sum(len(part.keys) for part in parts) if len(parts) == len(several) else 0
    return runs


def _parts(
    tx: Transaction,
    batch: ReceiveBatch,
    opened: Sequence[Opened],
    queues: dict[int, QueueToScan],
    share: int,
    limit: int,
) -> tuple[list[_Part], dict[int, MessageRow]]:
    """The messages taken from each group, and their rows by message key."""
    asked = 1 if batch.wanted.wants_all else JUDGED_PER_WANTED
    bounds = encode_rows([_bounds(number, each, queues[each.queue_id]) for number, each in enumerate(opened)])
    names = {"bounds": bounds, "share": asked * share, "limit": asked * limit}
    if batch.wanted.wants_all:
        messages = _BEHIND.rows(tx.conn, names, bodies=batch.bodies)
        return _shared_out(batch, opened, queues, messages, share, limit), {row.message_key: row for row in messages}
    scanned = _BEHIND_KEYS.rows(tx.conn, names)
    parts = _shared_out(batch, opened, queues, scanned, share, limit)
    return parts, by_keys(tx.conn, [key for part in parts for key in part.keys], batch.bodies)


def _shared_out(
    batch: ReceiveBatch,
    opened: Sequence[Opened],
    queues: dict[int, QueueToScan],
    rows: Sequence[MessageRow | _GroupBehindScan],
    share: int,
    limit: int,
) -> list[_Part]:
    """Each group's part of the rows. The rows are in the groups' order and may end before the last group."""
    asked = 1 if batch.wanted.wants_all else JUDGED_PER_WANTED
    several: dict[tuple[int, str | None], list[MessageRow | _GroupBehindScan]] = defaultdict(list)
    for row in rows:
        several[queue_of(row.message_key), row.message_group].append(row)
    last = (queue_of(rows[-1].message_key), rows[-1].message_group) if len(rows) == asked * limit else None
    parts: list[_Part] = []
    for each in opened:
        scanned = several.get((each.queue_id, each.message_group), [])
        # Messages that the filter has not judged are left for the next search.
        judged = list(takewhile(lambda verdict: verdict is not None, (_is_wanted(batch, row) for row in scanned)))
        wanted = [row.message_key for row, is_wanted in zip(scanned, judged, strict=False) if is_wanted]
        taken = wanted[: min(share, limit)]
        limit -= len(taken)
        is_last = (each.queue_id, each.message_group) == last
        if len(taken) < len(wanted):
            next_offset: int | None = offset_of(wanted[len(taken)])
        elif len(judged) < len(scanned):
            next_offset = offset_of(scanned[len(judged)].message_key)
        elif len(scanned) == asked * share or is_last:
            next_offset = offset_of(scanned[-1].message_key) + 1
        else:
            next_offset = _at_the_scan(queues[each.queue_id], each, is_taken=bool(taken))
        parts.append(_Part(_member(batch, each), taken, next_offset))
        if is_last or limit <= 0:
            break
    return parts


def _at_the_scan(queue: QueueToScan, each: Opened, *, is_taken: bool) -> int | None:
    """Where a group continues that has no message left up to the scan's position.

    If the queue has unread messages, the scan will probably find more of the group: the row stays for them. So it does
    if a client has moved a lite topic beyond the scan.
    """
    if each.next_offset > queue.next_offset:
        return each.next_offset
    return queue.next_offset if is_taken and queue.next_offset < queue.end_offset else None


def _member(batch: ReceiveBatch, each: Opened) -> MessageGroupKey:
    return MessageGroupKey(batch.topic.topic_id, each.queue_id, each.message_group)


def _bounds(number: int, each: Opened, queue: QueueToScan) -> tuple[int | str, ...]:
    start = max(each.next_offset, queue.min_offset)
    first, end = message_key(each.queue_id, start), message_key(each.queue_id, queue.next_offset)
    return number, first, end, each.message_group


def _is_wanted(batch: ReceiveBatch, row: MessageRow | _GroupBehindScan) -> bool | None:
    """Whether the filter accepts the message; None if a SQL filter has not judged it."""
    if isinstance(batch.wanted, SqlFilter):
        return batch.judged.behind.get(row.message_key)
    return batch.wanted.wants_all or row.tag in batch.wanted.tags


_BEHIND = MessageQuery(shares)
_BEHIND_KEYS = row_query(_GroupBehindScan, shares)
_TO_JUDGE = FilterQuery(shares)
