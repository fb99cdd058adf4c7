"""Message ids that follow from what is written, so that a server which drops repeats stores each row once.

    01  | query | batch | digest
    1 B | 3 B   | 4 B   | 9 B      big-endian, the shape of a version 1 id

The digest is of the whole query and batch, the partition, the row's content, and the number of rows like it before it
in the partition. The place of a row in its partition has no part in it: after a shuffle Spark promises no order, and an
id by place would then be another row's, whose message the server would drop. The partition's number has: a repetition
must come in as many partitions, and each row in the same one. The batch leads the digest because an
index takes ids that grow far quicker than random ones.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Final, NamedTuple

_QUERY_BYTES: Final = 3
_BATCH_BYTES: Final = 4
_DIGEST_BYTES: Final = 9


class Part(NamedTuple):
    """One partition of one batch.

    query: the query's id in its checkpoint, or the write's. batch_id: 0 for a write that is no stream's.
    """

    query: str
    batch_id: int
    partition: int


class MessageIds:
    """Draws the ids of a partition's rows; remembers a few dozen bytes per row."""

    def __init__(self, part: Part) -> None:
        query = hashlib.blake2b(part.query.encode(), digest_size=_QUERY_BYTES).hexdigest()
        batch = part.batch_id % (1 << 8 * _BATCH_BYTES)
        self._head = f"01{query}{batch:0{2 * _BATCH_BYTES}x}".upper()
        self._place = hashlib.blake2b(json.dumps(part).encode(), digest_size=_DIGEST_BYTES)
        self._like: Counter[bytes] = Counter()

    def of(self, body: bytes, others: str) -> str:
        """The id of the next row; `others` says what its other columns hold."""
        row = hashlib.blake2b(body, digest_size=16)
        row.update(b"%d " % len(body))
        row.update(others.encode())
        content = row.digest()
        before = self._like[content]
        self._like[content] = before + 1
        digest = self._place.copy()
        digest.update(content)
        digest.update(b"%d" % before)
        return self._head + digest.hexdigest().upper()
