"""The columns of dead letters and redrives, and how each is made. They have the names of the wire's fields.

A column is made of a whole page, as Arrow arrays: a Python object for each cell would cost more than the query.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from popclient.spark.columns import Column, unchanged
from popclient.spark.dead_letters.decoding import ids, lists, maps


class ViewSource(NamedTuple):
    """A column of the database's view: its name and Arrow type."""

    name: str
    kind: pa.DataType


Page = dict[ViewSource, pa.Array]


# The properties of a message: as a map, or as JSON as in the database.
MAP: Final = "map"
JSON: Final = "json"
PROPERTIES: Final = "properties"


class View(NamedTuple):
    """A view of the database. key: the bigint by which it is read in ranges. unique: is a key in one row only?"""

    name: str
    key: ViewSource
    columns: tuple[Column, ...]
    unique: bool = True

    def sources_of(self, columns: Sequence[Column]) -> list[ViewSource]:
        """The view's columns that these need, each once; first the key, because the next page begins after it."""
        return list(dict.fromkeys([self.key, *(source for column in columns for source in column.sources)]))


def _unpacked_before(bodies: pa.Array, _encodings: pa.Array) -> pa.Array:
    """Bodies are decompressed before, because the size of a batch depends on it."""
    return bodies


def _times(values_ms: pa.Array) -> pa.Array:
    return pc.multiply(values_ms, 1_000).cast(pa.timestamp("us", "UTC"))


def _text(name: str, source: str | None = None) -> Column:
    return Column(name, "string", (ViewSource(source or name, pa.string()),), unchanged)


def _int(name: str) -> Column:
    return Column(name, "int", (ViewSource(name, pa.int64()),), unchanged)


def _bigint(name: str) -> Column:
    return Column(name, "bigint", (ViewSource(name, pa.int64()),), unchanged)


def _time(name: str, source: str) -> Column:
    return Column(name, "timestamp", (ViewSource(source, pa.int64()),), _times)


def _message_id(name: str) -> Column:
    return Column(name, "string", (ViewSource(name, pa.binary()),), ids)


BODY: Final = ViewSource("body", pa.binary())
BODY_ENCODING: Final = ViewSource("body_encoding", pa.string())
DEAD_LETTERS: Final = View(
    "dead_letters",
    ViewSource("id", pa.int64()),
    (
        _message_id("message_id"),
        _text("topic"),
        _text("consumer_group"),
        _text("tag"),
        Column("keys", "array<string>", (ViewSource("keys", pa.string()),), lists),
        Column(PROPERTIES, "map<string,string>", (ViewSource(PROPERTIES, pa.string()),), maps),
        _text("message_group"),
        _text("message_type"),
        _int("queue_id"),
        _bigint("queue_offset"),
        Column("body", "binary", (BODY, BODY_ENCODING), _unpacked_before),
        _time("born_timestamp", "born_at_ms"),
        _time("store_timestamp", "stored_at_ms"),
        _time("dead_timestamp", "dead_at_ms"),
        _int("delivery_attempt"),
        _text("reason"),
        _text("redrive_state"),
        _text("plan_id"),
        _bigint("id"),
        _text("lite_topic"),
    ),
)
LINEAGE: Final = View(
    "lineage",
    ViewSource("dead_letter_id", pa.int64()),
    (
        _text("plan_id"),
        _text("consumer_group"),
        _text("topic"),
        _message_id("message_id"),
        _int("queue_id"),
        _bigint("queue_offset"),
        _bigint("dead_letter_id"),
        _time("dead_timestamp", "dead_at_ms"),
        _int("delivery_attempt"),
        _text("dead_reason"),
        _text("reason"),
        _text("change"),
        _text("target_topic"),
        _text("state"),
        _text("note"),
        _message_id("redriven_message_id"),
        _time("redriven_timestamp", "redriven_at_ms"),
        _text("outcome"),
    ),
    unique=False,  # a dead letter may be in several plans
)
VIEWS: Final = {view.name: view for view in (DEAD_LETTERS, LINEAGE)}


def view_of(name: str, properties_as: str) -> View:
    """The view with its properties as maps, or as JSON: a string, NULL if there are none."""
    view = VIEWS[name]
    if properties_as != JSON:
        return view
    return view._replace(columns=tuple(_text(each.name) if each.name == PROPERTIES else each for each in view.columns))
