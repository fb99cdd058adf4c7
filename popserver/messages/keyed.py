"""The index of messages by their keys: one row for each key of an original, none for a message without keys.

It has a 32-bit checksum of the key, so that a row takes few bytes; the message itself tells whether it has the key.
The rows of a transaction are written at its end, sorted, so that the index is changed in one place after another.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from sqlalchemy import ColumnElement, delete, select, tuple_

from popserver.database.dialect import dialect_of
from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import keyed_message, message
from popserver.engine.transaction import FinishOrder, Transaction


def key_hash(key: str) -> int:
    """The checksum of a key, as a signed number of 32 bits."""
    return zlib.crc32(key.encode()) - (1 << 31)


class KeyedMessages:
    """Finisher: writes the rows of this transaction's new messages."""

    order: ClassVar = FinishOrder.KEYED_MESSAGES

    def __init__(self) -> None:
        self.rows: set[tuple[int, int]] = set()

    def add(self, key: int, keys: Iterable[str]) -> None:
        """The new message at this message key has these keys."""
        self.rows.update((key_hash(each), key) for each in keys)

    def finish(self, tx: Transaction) -> None:
        dialect_of(tx.conn).insert(tx.conn, keyed_message, sorted(self.rows))


def remove(tx: Transaction, *these: ColumnElement[bool], names: dict[str, Any]) -> None:
    """Remove the rows of these messages, which are removed next."""
    found = tx.conn.execute(
        select(message.c.message_key, message.c["keys"]).where(*these, message.c["keys"].is_not(None)), names
    )
    rows: Sequence[tuple[int, int]] = sorted(
        {(key_hash(key), row.message_key) for row in found for key in json.loads(row.keys)}
    )
    if rows:
        tx.conn.execute(_REMOVE, {"rows": encode_rows(rows)})


_ROWS = rows_parameter("rows", "key_hash", "message_key")
_REMOVE = delete(keyed_message).where(
    tuple_(keyed_message.c.key_hash, keyed_message.c.message_key).in_(select(_ROWS.c.key_hash, _ROWS.c.message_key))
)
