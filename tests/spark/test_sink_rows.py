"""What rows become before they are sent: messages, ids, requests; and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark", reason="spark: pip install 'popmq[spark]'")

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
)

from popclient._producer.core import BODIES_PER_REQUEST, MESSAGES_PER_REQUEST
from popclient.admin import Admin
from popclient.message import Message
from popclient.spark.sink.rows import MessageIds, Part, Row, Rows
from popclient.spark.sink.writer import BYTES_AT_ONCE, ROWS_AT_ONCE, Stored, _pieces, stream_writer, writer
from popserver import EmbeddedBroker

PART = Part("a7d2", 3, 1)
OPTIONS = {"endpoints": "here:8081", "topic": "t"}
TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30)


def ids(part: Part, texts: list[str]) -> list[str]:
    drawn = MessageIds(part)
    return [drawn.of(text.encode(), "") for text in texts]


@given(TEXTS, st.randoms())
def test_ids_do_not_depend_on_the_order(texts: list[str], random: Any) -> None:
    """No two rows have one id, and in another order there are the same ids."""
    shuffled = random.sample(texts, len(texts))
    assert len(set(ids(PART, texts))) == len(texts)
    assert sorted(ids(PART, texts)) == sorted(ids(PART, shuffled))


def test_ids_have_the_shape_of_version_1_and_grow_from_batch_to_batch() -> None:
    first, second, later = (ids(PART._replace(batch_id=batch), ["a"])[0] for batch in (3, 4, 70_000))
    assert first < second < later
    assert len(first) == 34
    assert first.startswith("01")
    assert first == first.upper()
    assert int(first, 16)
    assert first[:8] == second[:8]


def test_ids_are_the_partitions_own() -> None:
    """Another query, batch, partition, body or column gives another id; a border between body and columns is one."""
    others = [PART._replace(query="b"), PART._replace(batch_id=2), PART._replace(partition=2), PART]
    drawn = [ids(part, ["a"])[0] for part in others]
    drawn += [MessageIds(PART).of(b"a", "x"), MessageIds(PART).of(b"ax", ""), MessageIds(PART).of(b"", "ax")]
    assert len(set(drawn)) == len(drawn)


def test_an_id_that_was_given_once_is_given_again() -> None:
    """Queries that stand in a checkpoint today must draw the same ids from the next version."""
    assert ids(PART, ["a", "a"]) == ["01992A5B000000033094C9D9E53310AA68", "01992A5B00000003878DC3D6AAD7C7118F"]


def messages(columns: dict[str, Any], topic: str | None = "t") -> list[Message]:
    return [row.message for row in Rows(topic, PART).of(pa.RecordBatch.from_pydict(columns))]


def test_a_row_becomes_a_message() -> None:
    at = pa.array([1_360_281_600_250_000], pa.timestamp("us", tz="America/New_York"))
    properties = pa.array([[("b", "2"), ("a", "1")]], pa.map_(pa.string(), pa.string()))
    columns = {"BODY": ["é"], "keys": [["k"]], "properties": properties, "delivery_timestamp": at, "topic": ["u"]}
    (made,) = messages({**columns, "tag": ["x"]})
    assert (made.topic, made.body, made.tag, made.keys) == ("u", "é".encode(), "x", ("k",))
    assert made.properties == {"a": "1", "b": "2"}
    assert made.delivery_timestamp == datetime(2013, 2, 8, 0, 0, 0, 250_000, UTC)
    (bare,) = messages({"body": [b"b"], "message_id": ["mine"], "tag": [None], "keys": [None], "topic": [None]})
    assert bare == Message("t", b"b", message_id="mine")


def test_rows_of_lite_topics() -> None:
    lite, plain = messages({"body": ["a", "b"], "lite_topic": ["user-42", None]})
    assert (lite.lite_topic, plain.lite_topic) == ("user-42", None)
    with pytest.raises(ValueError, match="message_group and lite_topic exclude each other"):
        messages({"body": ["a"], "lite_topic": ["user-42"], "message_group": ["g"]})


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"body": ["a", None]}, "row 1 of partition 1 is no message: its body is NULL"),
        ({"body": ["a"], "keys": [["k", None]]}, "row 0 of partition 1 is no message: one of its keys is NULL"),
        ({"body": ["a"], "message_group": ["g"], "priority": [1]}, "message_group and priority exclude each other"),
        ({"body": ["a"], "priority": [-1]}, "priority -1 is not within 0 and 32767"),
        (
            {"body": ["a"], "properties": pa.array([[("at", "1"), ("by", None)]], pa.map_(pa.string(), pa.string()))},
            r"property 'by' is NULL; take it out with map_filter\(properties, \(k, v\) -> v IS NOT NULL\)",
        ),
    ],
)
def test_a_row_that_is_no_message_is_named(columns: dict[str, list[Any]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        messages(columns)


@pytest.mark.parametrize("micros", [253_402_300_800_000_000, -62_135_596_800_000_001, 2**63 - 1])
def test_a_time_that_python_has_not_is_named(micros: int) -> None:
    times = pa.array([None, micros], pa.timestamp("us", tz="UTC"))
    words = (
        f"row 1 of partition 1 is no message: its delivery_timestamp, {micros} microseconds from 1970, is not within"
    )
    with pytest.raises(ValueError, match=words):
        messages({"body": ["a", "b"], "delivery_timestamp": times})


def test_a_row_without_a_topic_is_named() -> None:
    with pytest.raises(ValueError, match="its topic is NULL; fill the column, or give the option topic"):
        messages({"body": ["a"], "topic": [None]}, None)


def row(number: int, size: int = 1, message_group: str | None = None) -> Row:
    return Row(number, Message("t", b"x" * size, message_group=message_group))


def test_pieces_are_bounded_in_rows_and_bytes() -> None:
    assert [len(piece) for piece in _pieces(map(row, range(ROWS_AT_ONCE + 1)))] == [ROWS_AT_ONCE, 1]
    large = BYTES_AT_ONCE // 2
    assert [len(piece) for piece in _pieces(row(i, large) for i in range(3))] == [2, 1]
    assert [len(piece) for piece in _pieces(row(i, 2 * BYTES_AT_ONCE) for i in range(2))] == [1, 1]


def test_rows_of_message_groups_go_a_request_at_a_time() -> None:
    in_order = (row(i, message_group="g") for i in range(MESSAGES_PER_REQUEST + 1))
    assert [len(piece) for piece in _pieces(in_order)] == [MESSAGES_PER_REQUEST, 1]
    large = (row(i, BODIES_PER_REQUEST // 2, "g") for i in range(3))
    assert [len(piece) for piece in _pieces(large)] == [2, 1]
    mixed = [row(i) for i in range(500)] + [row(500, message_group="g")]
    assert [len(piece) for piece in _pieces(mixed)] == [500, 1]


# ---- Options and columns ----

TEXT = StringType()


def columns(*named: tuple[str, DataType]) -> StructType:
    made = StructType()
    for name, kind in named:
        made.add(name, kind)
    return made


BODY = columns(("body", TEXT))


@pytest.mark.parametrize(
    ("schema", "options", "words"),
    [
        (
            columns(("body", TEXT), ("colour", TEXT)),
            {},
            "column 'colour' is unknown; a row that is sent has body, topic",
        ),
        (columns(("body", TEXT), ("BODY", TEXT)), {}, "column 'BODY' is there twice"),
        (columns(("value", TEXT)), {}, "column 'value' is unknown; did you mean body? a row that is sent has body"),
        (columns(("body", IntegerType())), {}, "column 'body' is int, allowed: binary or string; write string(body)"),
        (columns(("body", BODY)), {}, "allowed: binary or string; write to_json(body) AS body"),
        (columns(("body", NullType())), {}, "is void, allowed: binary or string; it is always NULL: drop it"),
        (columns(("body", TEXT), ("keys", TEXT)), {}, "allowed: array<string>; write array(string(keys)) AS keys"),
        (
            columns(("body", TEXT), ("keys", ArrayType(IntegerType()))),
            {},
            "allowed: array<string>; write CAST(keys AS array<string>) AS keys",
        ),
        (
            columns(("body", TEXT), ("delivery_timestamp", TEXT)),
            {},
            "allowed: timestamp; write to_timestamp(delivery_timestamp) AS delivery_timestamp",
        ),
        (
            columns(("body", TEXT), ("delivery_timestamp", LongType())),
            {},
            "write timestamp_millis(delivery_timestamp) AS delivery_timestamp",
        ),
        (
            columns(("body", TEXT), ("priority", DecimalType(3, 0))),
            {},
            "is decimal(3,0), allowed: int or smallint or tinyint; write CAST(priority AS int) AS priority",
        ),
        (
            columns(("body", TEXT), ("properties", TEXT)),
            {},
            "write from_json(properties, 'map<string,string>') AS properties",
        ),
        (
            columns(("body", TEXT), ("properties", MapType(TEXT, IntegerType()))),
            {},
            "is map<string,int>, allowed: map<string,string>; write CAST(properties AS map<string,string>)",
        ),
        (columns(("tag", TEXT)), {}, "column 'body' is missing"),
        (BODY, {"topic": None}, "give the option topic, or a column 'topic'"),
        (BODY, {"topic": " "}, "option topic=' ' is not allowed"),
        (BODY, {"colour": "red"}, "option colour='red' is unknown; allowed are endpoints"),
        (BODY, {"endpoints": None}, "option endpoints is missing"),
        (BODY, {"endpoints": "here:x"}, "'here:x'"),
        (BODY, {"url": "sqlite:///popmq.db"}, "a database can only be read; give endpoints"),
    ],
)
def test_a_wrong_option_or_column_is_named(schema: StructType, options: dict[str, str | None], words: str) -> None:
    given = {name: value for name, value in {**OPTIONS, **options}.items() if value is not None}
    for make in (writer, stream_writer):
        with pytest.raises(ValueError) as refused:
            make(given, schema, overwrite=False)
        assert words in str(refused.value)


def test_what_spark_hands_over_with_a_query_is_no_option_of_ours() -> None:
    schema = columns(("body", TEXT), ("topic", TEXT), ("keys", ArrayType(TEXT)))
    stream_writer({"endpoints": "here", "checkpointlocation": "/c", "queryname": "q"}, schema, overwrite=False)


@pytest.mark.parametrize("make", [writer, stream_writer])
def test_a_database_is_refused_without_its_password(make: Any) -> None:
    with pytest.raises(ValueError, match=r"option url='postgresql://\*\*\*@h/db' is not allowed"):
        make({**OPTIONS, "url": "postgresql://u:hunter2@h/db"}, BODY, overwrite=False)


@pytest.mark.parametrize("make", [writer, stream_writer])
def test_nothing_is_overwritten(make: Any) -> None:
    with pytest.raises(ValueError, match="a topic can only be appended to"):
        make(OPTIONS, BODY, overwrite=True)


def test_a_write_of_no_rows_makes_the_topic(pop_server: EmbeddedBroker) -> None:
    options = {"endpoints": pop_server.endpoint, "topic": "quiet"}
    writer(options, BODY, overwrite=False).commit([Stored(0, 0), None])
    with Admin(pop_server.endpoint) as admin:
        assert sum(queue.max_offset for queue in admin.get_topic("quiet").queues) == 0
