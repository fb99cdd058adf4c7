"""Dead letters in a journal: messages of topics `%DLQ%<group>`, with the columns of a database's dead letters.

Clients read such a topic at PopMQ and at RocketMQ. Both give a copy of the message that the group gave up, with its id,
stored when it died. PopMQ says which topic it came from; RocketMQ 5.5's proxy does not, counts attempts differently for
each way to die, and calls the copy's type DELAY. What neither says is NULL: the place in that topic and the time at
which it was stored there, the attempts, the reason, redrives, and the number of the dead letter.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from popclient._queues.subscription import DEAD_LETTER_PREFIX
from popclient.spark.columns import Column, unchanged

DEAD_LETTERS: Final = "dead_letters"


def _group(topics: pa.Array) -> pa.Array:
    return pc.utf8_slice_codeunits(topics, len(DEAD_LETTER_PREFIX))


def _unknown(array: pa.Array) -> pa.Array:
    return pa.nulls(len(array))


def _as(name: str, kind: str, source: str | None = None) -> Column:
    return Column(name, kind, (source or name,), unchanged)


def _without(name: str, kind: str) -> Column:
    return Column(name, kind, ("queue_id",), _unknown)


# In the order of those of the database (popclient/spark/dead_letters/columns.py).
LETTER_COLUMNS: Final = (
    _as("message_id", "string"),
    _as("topic", "string", "origin_topic"),
    Column("consumer_group", "string", ("topic",), _group),
    _as("tag", "string"),
    _as("keys", "array<string>"),
    _as("properties", "map<string,string>"),
    _as("message_group", "string"),
    _as("message_type", "string"),
    _without("queue_id", "int"),
    _without("queue_offset", "bigint"),
    _as("body", "binary"),
    _as("born_timestamp", "timestamp"),
    _without("store_timestamp", "timestamp"),
    _as("dead_timestamp", "timestamp", "store_timestamp"),
    _without("delivery_attempt", "int"),
    _without("reason", "string"),
    _without("redrive_state", "string"),
    _without("plan_id", "string"),
    _without("id", "bigint"),
    _as("lite_topic", "string"),
)
