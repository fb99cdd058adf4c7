"""The index of messages by their keys: one row for each key of an original, none for a message without keys.

RocketMQ limits the bytes of a message's keys, not their number. Here the first `INDEXED_MAX` of them are in the index.

A row is small: it has a 32-bit checksum of the key, and a search checks the message for the key itself. The index has a
part for each block of 4,096 offsets of a queue, so that new rows of a queue are neighbours: a transaction changes few
pages, however large the index is. A search reads each block of a queue.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import ClassVar, NamedTuple

from sqlalchemy import Connection, Integer, and_, bindparam, delete, select, tuple_

from popserver.catalog.queues import QueueRow, all_queue_rows
from popserver.database.dialect import dialect_of
from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import keyed_message
from popserver.engine.transaction import FinishOrder, Transaction
from popserver.messages import parts
from popserver.model.topic import message_key

SLOT_BITS = 12
SLOTS = 1 << SLOT_BITS
_SLOT_MASK = SLOTS - 1
# A statement reads the rows of a key in at most so many blocks. A search begins with one block, and reads more at once
# while it finds few messages.
BLOCKS_MAX = 128
_GROWTH = 4
# The work of a search in units of about 0.1 µs: to search a block, to read one row of a key, and to return it.
_UNITS_PER_BLOCK = 150
_UNITS_PER_ROW = 3
_UNITS_PER_MATCH = 40
# The index has the first keys of a message, at most so many. The other keys are only in the message.
INDEXED_MAX = 64
# The size of a key in a request: about the bytes of an index row, with its share of pages and of the log.
BYTES_OF_KEY = 128
# One transaction removes at most so many rows, but at least the rows of one message.
REMOVED_MAX = 8_192


def key_hash(key: str) -> int:
    """The checksum of a key, as a signed number of 32 bits."""
    return zlib.crc32(key.encode()) - (1 << 31)


class KeyedMessages:
    """Finisher: writes the rows of this transaction's new messages, sorted."""

    order: ClassVar = FinishOrder.KEYED_MESSAGES

    def __init__(self) -> None:
        self._rows: set[tuple[int, int, int]] = set()

    def add(self, key: int, keys: Sequence[str]) -> None:
        """Note the keys of the new message with this message key."""
        self._rows.update(_rows_of(key, keys[:INDEXED_MAX]))

    def finish(self, tx: Transaction) -> None:
        dialect_of(tx.conn).insert(tx.conn, keyed_message, sorted(self._rows))


def remove(tx: Transaction, first: int, end: int) -> int | None:
    """Remove the rows of messages with first <= key < end; only of the first messages if there are many rows.

    The caller removes these messages next. Returns the key of the first message whose rows stay; None if none stay.
    """
    rows: set[tuple[int, int, int]] = set()
    rest = None
    for key, keys in parts.keys_as_sent(tx.conn, first, end):
        # All keys, because a store of an earlier version may have a row for each.
        of_message = _rows_of(key, json.loads(keys))
        if rows and len(rows) + len(of_message) > REMOVED_MAX:
            rest = key
            break
        rows.update(of_message)
    if rows:
        tx.conn.execute(_REMOVE, {"rows": encode_rows(sorted(rows))})
    return rest


class IndexPosition(NamedTuple):
    """The cursor of a search from the newest blocks of all queues to older ones: it continues before a slot of a block.

    `distance` is the number of newer blocks in the block's queue. It only grows, so a search that continues at a
    position misses no older message.
    """

    distance: int
    block: int
    before_slot: int = SLOTS

    @property
    def message_key(self) -> int:
        """The key of the message at this slot of this block."""
        return self.block << SLOT_BITS | self.before_slot


class Span(NamedTuple):
    """The last block and the first block of a queue that have stored messages."""

    last: int
    first: int


def spans_of(queues: Iterable[QueueRow]) -> list[Span]:
    """The blocks of these queues, without empty queues."""
    return sorted(
        Span(
            message_key(each.queue_id, each.next_offset - 1) >> SLOT_BITS,
            message_key(each.queue_id, each.min_offset) >> SLOT_BITS,
        )
        for each in queues
        if each.min_offset < each.next_offset
    )


def spans_of_all(conn: Connection) -> list[Span]:
    """The blocks of all queues, also of deleted topics, whose messages a search reports as deleted."""
    return spans_of(all_queue_rows(conn))


def blocks_of(spans: list[Span], start: IndexPosition | None = None) -> Iterator[IndexPosition]:
    """The blocks of these queues, the newest blocks of all queues first; from `start` on."""
    return _walk(spans, start or IndexPosition(0, 0))


def _walk(spans: list[Span], start: IndexPosition) -> Iterator[IndexPosition]:
    for distance in count(start.distance):
        spans = [each for each in spans if each[0] - distance >= each[1]]
        if not spans:
            return
        for last, _ in spans:
            position = IndexPosition(distance, last - distance)
            if position.block == start.block:
                yield position._replace(before_slot=start.before_slot)
            elif position > start:
                yield position


class KeySearch:
    """A search for a key, from the newest messages to older ones, in steps of one statement.

    `position` is where the next step begins; None if there is no more. `units`: the work of all steps.
    """

    def __init__(self, key: str, spans: list[Span], start: IndexPosition | None) -> None:
        self._key = key
        self._blocks = blocks_of(spans, start)
        self._next = list(islice(self._blocks, 1))
        self.units = 0

    @property
    def position(self) -> IndexPosition | None:
        return self._next[0] if self._next else None

    def step(self, conn: Connection, limit: int) -> list[IndexPosition]:
        """The messages with the key in the next blocks, at most `limit`."""
        blocks = self._next
        found = with_key(conn, self._key, blocks, limit)
        # If a statement reaches its limit, count all rows that its blocks may have: it may have read them.
        is_cut = len(found) == limit
        rows = len(blocks) * SLOTS if is_cut else len(found)
        self.units += len(blocks) * _UNITS_PER_BLOCK + rows * _UNITS_PER_ROW + len(found) * _UNITS_PER_MATCH
        if is_cut:
            self._next = [found[-1], *(each for each in blocks if each[:2] > found[-1][:2])]
        elif len(found) < SLOTS // _GROWTH:
            self._next = list(islice(self._blocks, min(BLOCKS_MAX, len(blocks) * _GROWTH)))
        else:
            self._next = list(islice(self._blocks, max(1, len(blocks) // _GROWTH)))
        return found


def with_key(conn: Connection, key: str, blocks: Sequence[IndexPosition], limit: int) -> list[IndexPosition]:
    """The first `limit` messages in these blocks with this key, or with a key of the same checksum. Each result is the
    position at which the search continues after this message."""
    names = {"blocks": encode_rows(blocks), "of_hash": key_hash(key), "limit": limit}
    return [IndexPosition(*row) for row in conn.execute(_WITH_KEY, names)]


def _rows_of(key: int, keys: Iterable[str]) -> list[tuple[int, int, int]]:
    block, slot = key >> SLOT_BITS, key & _SLOT_MASK
    return [(block, key_hash(each), slot) for each in keys]


_ROWS = rows_parameter("rows", "block", "key_hash", "slot")
_REMOVE = delete(keyed_message).where(
    tuple_(keyed_message.c.block, keyed_message.c.key_hash, keyed_message.c.slot).in_(
        select(_ROWS.c.block, _ROWS.c.key_hash, _ROWS.c.slot)
    )
)
_BLOCKS = rows_parameter("blocks", "distance", "block", "before_slot")
_WITH_KEY = (
    select(_BLOCKS.c.distance, keyed_message.c.block, keyed_message.c.slot)
    .select_from(_BLOCKS)
    .join(
        keyed_message,
        and_(
            keyed_message.c.block == _BLOCKS.c.block,
            keyed_message.c.key_hash == bindparam("of_hash", type_=Integer),
            keyed_message.c.slot < _BLOCKS.c.before_slot,
        ),
    )
    .order_by(_BLOCKS.c.distance, keyed_message.c.block, keyed_message.c.slot.desc())
    .limit(bindparam("limit"))
)
