"""PullBulk over the wire: every column as it was sent, every rule of the request, pages and their bounds."""

from __future__ import annotations

import asyncio
import gzip
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest

from popproto.v1 import bulk_pb2
from popproto.v1.bulk_pb2_grpc import BulkStub
from popproto.v2 import definition_pb2 as pb
from popserver.bulk import pages
from popserver.bulk import rules as bulk_rules
from popserver.bulk.arrow import Chunks
from popserver.engine.transaction import Phase, Request, Transaction, carries_out
from popserver.messages import columns
from popserver.model.topic import AUTO_CREATE_ACCEPTS, MessageType, NewTopic
from popserver.transport import convert
from tests.support.running_broker import until
from tests.support.wire_bulk import FAR, pull_bulk
from tests.support.wire_pull import make_topic, pull
from tests.support.wire_server import CLIENT, GROUP, TOPIC, WireServer, a_message, headers

FIELDS = {
    "message_id": pa.string(),
    "topic": pa.string(),
    "tag": pa.string(),
    "keys": pa.list_(pa.string()),
    "message_group": pa.string(),
    "lite_topic": pa.string(),
    "message_type": pa.string(),
    "queue_id": pa.int32(),
    "queue_offset": pa.int64(),
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "born_timestamp": pa.timestamp("us", tz="UTC"),
    "store_timestamp": pa.timestamp("us", tz="UTC"),
    "delivery_timestamp": pa.timestamp("us", tz="UTC"),
    "delivery_attempt": pa.int32(),
}
V1_ID = "01" + "0123456789ABCDEF" * 2


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


@pytest.mark.row("O4")
async def test_every_column_says_what_a_pull_says(either_wire_server: WireServer) -> None:
    wire_server = either_wire_server
    await wire_server.broker.catalog.create_topic(NewTopic(convert.resource(TOPIC, ""), 1, AUTO_CREATE_ACCEPTS))
    properties = {"größe": 'quote " and \\ and , and ] 文', "b": ""}
    await wire_server.send(
        a_message(V1_ID, tag="t", keys=["k 1", 'k"2,'], user_properties=properties, body=b"\x00\xff body"),
        a_message("önly text", body=b"x"),
        a_message("packed", body=gzip.compress(b"packed body"), body_encoding=pb.GZIP),
        a_message("not packed", body=b"is no gzip", body_encoding=pb.GZIP),
    )
    await wire_server.send(a_message("in order", message_group="g, [1]"))
    answer, standard = await pull_bulk(wire_server), await pull(wire_server)
    assert answer.code == pb.OK
    (table,) = answer.tables
    assert {field.name: field.type for field in table.schema} == FIELDS
    table.validate(full=True)
    bodies = [b"\x00\xff body", b"x", b"packed body", b"is no gzip", b"body"]
    for row, message, body in zip(answer.rows, standard.messages, bodies, strict=True):
        system = message.system_properties
        assert row == {
            "message_id": system.message_id,
            "topic": message.topic.name,
            "tag": system.tag if system.HasField("tag") else None,
            "keys": list(system.keys),
            "message_group": system.message_group if system.HasField("message_group") else None,
            "lite_topic": None,
            "message_type": pb.MessageType.Name(system.message_type),
            "queue_id": system.queue_id,
            "queue_offset": system.queue_offset,
            "body": body,
            "properties": ANY,
            "born_timestamp": at(system.born_timestamp.ToMilliseconds()),
            "store_timestamp": at(system.store_timestamp.ToMilliseconds()),
            "delivery_timestamp": None,
            "delivery_attempt": 1,
        }
        assert dict(row["properties"]) == dict(message.user_properties)


async def test_a_lite_topic_is_no_message_group(either_wire_server: WireServer) -> None:
    await either_wire_server.broker.catalog.create_topic(NewTopic(convert.resource(TOPIC, ""), 1, (MessageType.LITE,)))
    await either_wire_server.send(a_message("m0", lite_topic="UA1545"))
    answer = await pull_bulk(either_wire_server, columns=["message_group", "lite_topic"])
    assert answer.rows == [{"message_group": None, "lite_topic": "UA1545"}]


async def test_status_and_ends_come_first_then_chunks(either_wire_server: WireServer) -> None:
    await make_topic(either_wire_server)
    await either_wire_server.send(*(a_message(f"m{number}") for number in range(5)))
    answer = await pull_bulk(either_wire_server, 1, 4)
    first, chunk = answer.frames
    assert (first.status.code, first.min_offset, first.max_offset, first.chunk) == (pb.OK, 0, 5, b"")
    assert not chunk.HasField("status")
    assert (answer.ids, chunk.messages, chunk.next_offset) == (["m1", "m2", "m3"], 3, 4)
    assert (await pull_bulk(either_wire_server, 1)).next_offset == 5, "the queue's end"


async def test_nothing_to_read_is_no_failure(wire_server: WireServer) -> None:
    await make_topic(wire_server)
    answer = await pull_bulk(wire_server)
    assert (answer.code, len(answer.frames), answer.tables) == (pb.OK, 1, [])
    await wire_server.send(a_message("m0"))
    assert (await pull_bulk(wire_server, 1)).tables == []
    assert (await pull_bulk(wire_server, 0, 0)).tables == []


async def test_only_the_named_columns_in_their_order(either_wire_server: WireServer) -> None:
    await make_topic(either_wire_server)
    await either_wire_server.send(a_message("m0"), a_message("m1"))
    answer = await pull_bulk(either_wire_server, columns=["queue_offset", "topic", "queue_offset"])
    assert [table.schema.names for table in answer.tables] == [["queue_offset", "topic"]]
    assert answer.rows == [{"queue_offset": number, "topic": "flights"} for number in range(2)]


@pytest.mark.parametrize("column", list(FIELDS))
async def test_every_column_alone(wire_server: WireServer, column: str) -> None:
    await make_topic(wire_server)
    await wire_server.send(a_message("m0"))
    (table,) = (await pull_bulk(wire_server, columns=[column])).tables
    assert {field.name: field.type for field in table.schema} == {column: FIELDS[column]}


def tags(expression: str) -> pb.FilterExpression:
    return pb.FilterExpression(type=pb.TAG, expression=expression)


def sql(expression: str) -> pb.FilterExpression:
    return pb.FilterExpression(type=pb.SQL, expression=expression)


@pytest.mark.parametrize("wanted", [tags("even"), sql("parity = 'even'"), sql("TAGS = 'even'")])
async def test_a_filter_passes_over_what_it_does_not_want(
    either_wire_server: WireServer, wanted: pb.FilterExpression
) -> None:
    await make_topic(either_wire_server)
    words = ["even", "odd"]
    await either_wire_server.send(
        *(a_message(f"m{n}", tag=words[n % 2], user_properties={"parity": words[n % 2]}) for n in range(7))
    )
    answer = await pull_bulk(either_wire_server, filter_expression=wanted)
    assert (answer.ids, answer.next_offset) == (["m0", "m2", "m4", "m6"], 7)
    answer = await pull_bulk(either_wire_server, 1, 6, filter_expression=wanted, columns=["message_id"])
    assert (answer.ids, answer.next_offset) == (["m2", "m4"], 6)
    answer = await pull_bulk(either_wire_server, 1, 2, filter_expression=wanted)
    assert (answer.ids, answer.next_offset) == ([], 2), "nothing wanted: and that is said"


@pytest.mark.parametrize("wanted", [tags("*"), tags("t"), sql("TAGS = 't'")])
async def test_pages_are_bounded(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch, wanted: pb.FilterExpression
) -> None:
    monkeypatch.setattr("popserver.bulk.pages.CHUNK_MESSAGES_MAX", 3)
    monkeypatch.setattr("popserver.bulk.pages.CHUNK_BYTES_MAX", 100)
    await make_topic(wire_server)
    sizes = [10, 10, 10, 10, 60, 60, 300, 40, 40, 40]
    await wire_server.send(*(a_message(f"m{n}", tag="t", body=b"x" * size) for n, size in enumerate(sizes)))
    answer = await pull_bulk(wire_server, filter_expression=wanted)
    assert answer.ids == [f"m{number}" for number in range(10)]
    chunks = [[len(row["body"]) for row in table.to_pylist()] for table in answer.tables]
    assert all(len(each) <= 3 and (sum(each) <= 100 or len(each) == 1) for each in chunks), chunks
    assert [frame.next_offset for frame in answer.frames[1:]] == [
        table["queue_offset"][-1].as_py() + 1 for table in answer.tables
    ]


@pytest.mark.parametrize("wanted", [tags("*"), tags("t"), sql("TAGS = 't'")])
async def test_properties_take_room_as_bodies_do(
    either_wire_server: WireServer, monkeypatch: pytest.MonkeyPatch, wanted: pb.FilterExpression
) -> None:
    """Many of them are dear to encode, however small the bodies are."""
    monkeypatch.setattr("popserver.bulk.pages.CHUNK_BYTES_MAX", 100)
    await make_topic(either_wire_server)
    sizes = [10, 10, 60, 60, 300, 10, 10]
    await either_wire_server.send(
        *(a_message(f"m{n}", tag="t", body=b"x", user_properties={"p": "v" * size}) for n, size in enumerate(sizes))
    )
    answer = await pull_bulk(either_wire_server, filter_expression=wanted)
    assert answer.ids == [f"m{number}" for number in range(7)]
    assert [frame.messages for frame in answer.frames[1:]] == [2, 1, 1, 1, 2]


async def test_a_long_queue_in_pages(either_wire_server: WireServer) -> None:
    wire_server, count = either_wire_server, bulk_rules.CHUNK_MESSAGES_MAX * 2 + 100
    await make_topic(wire_server)
    for start in range(0, count, 100):
        await wire_server.send(*(a_message(f"m{number}") for number in range(start, min(count, start + 100))))
    answer = await pull_bulk(wire_server)
    assert answer.ids == [f"m{number}" for number in range(count)]
    assert len(answer.tables) == 3


async def test_bodies_that_unpack_to_much_come_in_several_chunks(wire_server: WireServer) -> None:
    await make_topic(wire_server)
    size = bulk_rules.CHUNK_BYTES_MAX * 3 // 4
    packed = [gzip.compress(bytes([number]) * size) for number in range(4)]
    await wire_server.send(*(a_message(f"m{n}", body=body, body_encoding=pb.GZIP) for n, body in enumerate(packed)))
    answer = await pull_bulk(wire_server, columns=["body"])
    assert [row["body"] for row in answer.rows] == [bytes([number]) * size for number in range(4)]
    assert [(frame.messages, frame.next_offset) for frame in answer.frames[1:]] == [
        (1, number) for number in (1, 2, 3, 4)
    ]


@pytest.mark.row("B14")
@pytest.mark.parametrize("offset", [-1, 4, FAR])
async def test_an_offset_outside_of_the_queue_is_told_its_ends(wire_server: WireServer, offset: int) -> None:
    await make_topic(wire_server)
    await wire_server.send(*(a_message(f"m{number}") for number in range(3)))
    (frame,) = (await pull_bulk(wire_server, offset)).frames
    assert (frame.status.code, frame.min_offset, frame.max_offset) == (pb.ILLEGAL_OFFSET, 0, 3)
    named = f"offset {offset} is not in queue 0 of topic 'flights', which begins at 0 and ends at 3"
    assert frame.status.message == named


async def test_what_is_removed_while_it_is_read_is_no_silent_loss(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.bulk.pages.CHUNK_MESSAGES_MAX", 2)
    await make_topic(wire_server)
    await wire_server.send(*(a_message(f"m{number}") for number in range(6)))
    page = wire_server.broker.consuming.bulk.page

    async def trimmed_meanwhile(stretch: Any) -> Any:
        if stretch.offset == 2:
            trim = "UPDATE queue SET min_offset = 4"
            await wire_server.broker.engine.writer.submit(_Execute(trim))
        return await page(stretch)

    monkeypatch.setattr(wire_server.broker.consuming.bulk, "page", trimmed_meanwhile)
    answer = await pull_bulk(wire_server)
    assert (answer.ids, answer.code) == (["m0", "m1"], pb.ILLEGAL_OFFSET)
    assert (answer.frames[-1].min_offset, answer.frames[-1].max_offset) == (4, 6)
    assert answer.status.message.startswith("offset 2 is not in queue 0")


@dataclass(frozen=True)
class _Execute(Request[None]):
    phase = Phase.READ
    statement: str


@carries_out(_Execute)
def _execute(tx: Transaction, requests: Sequence[_Execute]) -> list[None]:
    for request in requests:
        tx.conn.exec_driver_sql(request.statement)
    return [None] * len(requests)


@pytest.mark.parametrize(
    ("more", "code", "sentence"),
    [
        (
            {"columns": ["body", "colour"]},
            pb.BAD_REQUEST,
            "column 'colour' is not known; a message has message_id, topic,",
        ),
        ({"offset": 2, "end_offset": 1}, pb.BAD_REQUEST, "end_offset 1 is before offset 2; it must be at or after it"),
        ({"queue_id": 7}, pb.BAD_REQUEST, "topic 'flights' has no queue 7; it has 1, numbered 0 to 0"),
        ({"filter_expression": sql("a >")}, pb.ILLEGAL_FILTER_EXPRESSION, ""),
        ({"filter_expression": pb.FilterExpression(type=9)}, pb.UNSUPPORTED, "filter type 9"),  # type: ignore[arg-type]
        ({"client_id": None}, pb.CLIENT_ID_REQUIRED, ""),
    ],
)
async def test_what_is_refused(wire_server: WireServer, more: dict[str, Any], code: int, sentence: str) -> None:
    await make_topic(wire_server)
    (frame,) = (await pull_bulk(wire_server, **more)).frames
    assert frame.status.code == code
    assert frame.status.message.startswith(sentence)


async def test_a_topic_that_is_not_there(strict_wire_server: WireServer) -> None:
    (frame,) = (await pull_bulk(strict_wire_server)).frames
    assert frame.status.code == pb.TOPIC_NOT_FOUND


async def test_no_group_is_made_and_no_progress_moved(wire_server: WireServer) -> None:
    await make_topic(wire_server)
    await wire_server.send(a_message("m0"))
    before = await wire_server.digest()
    assert (await pull_bulk(wire_server)).ids == ["m0"]
    assert await wire_server.digest() == before


async def test_a_client_is_there_while_it_reads(wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_topic(wire_server)
    await wire_server.send(a_message("m0"))
    page, seen = wire_server.broker.consuming.bulk.page, []

    async def look(stretch: Any) -> Any:
        seen.append(wire_server.broker.sessions.clients._by_id[CLIENT].open_calls)
        return await page(stretch)

    monkeypatch.setattr(wire_server.broker.consuming.bulk, "page", look)
    await pull_bulk(wire_server)
    assert seen == [1]
    assert wire_server.broker.sessions.clients._by_id[CLIENT].open_calls == 0


async def test_whoever_breaks_off_is_served_no_further(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.bulk.pages.CHUNK_MESSAGES_MAX", 1)
    await make_topic(wire_server)
    # More than the transport takes in ahead of its reader.
    await wire_server.send(*(a_message(f"m{number}", body=bytes(1024 * 1024)) for number in range(24)))
    page, pages = wire_server.broker.consuming.bulk.page, []

    async def look(stretch: Any) -> Any:
        pages.append(stretch.offset)
        return await page(stretch)

    monkeypatch.setattr(wire_server.broker.consuming.bulk, "page", look)
    request = bulk_pb2.PullBulkRequest(group=GROUP, topic=TOPIC, end_offset=FAR)
    call = BulkStub(wire_server.channel).PullBulk(request, metadata=headers(CLIENT, {}))
    await call.read()
    await call.read()
    call.cancel()
    await until(lambda: wire_server.broker.sessions.clients._by_id[CLIENT].open_calls == 0)
    assert len(pages) < 24


async def test_readers_of_everything_do_not_stand_before_others(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_topic(wire_server)
    await wire_server.send(a_message("m0"))
    go_on, page = threading.Event(), pages.page

    def slow(*arguments: Any) -> bulk_rules.QueuePage:
        assert go_on.wait(60)
        return page(*arguments)

    monkeypatch.setattr(pages, "page", slow)
    reading = [asyncio.create_task(pull_bulk(wire_server)) for _ in range(8)]
    await until(lambda: wire_server.broker.consuming.bulk._turns.locked())
    assert (await pull(wire_server)).ids == ["m0"]
    go_on.set()
    assert [(await each).ids for each in reading] == [["m0"]] * 8


async def test_without_arrow_it_is_not_offered(wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_topic(wire_server)
    monkeypatch.delitem(sys.modules, "popserver.bulk.arrow", raising=False)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (frame,) = (await pull_bulk(wire_server)).frames
    assert frame.status.code == pb.UNSUPPORTED
    assert frame.status.message.startswith("bulk transfer needs Arrow")
    assert "pip install 'popmq[fast]'" in frame.status.message


async def test_the_first_calls_come_together(wire_server: WireServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them makes do with a module that is only half loaded."""
    await make_topic(wire_server)
    await wire_server.send(a_message("m0"))
    name = "popserver.bulk.arrow"
    whole, is_begun, go_on = import_module(name), threading.Event(), threading.Event()

    def slowly(wanted: str) -> ModuleType:
        monkeypatch.setitem(sys.modules, wanted, ModuleType(wanted))
        is_begun.set()
        assert go_on.wait(60)
        monkeypatch.setitem(sys.modules, wanted, whole)
        return whole

    monkeypatch.setattr("popserver.bulk.rpc.import_module", slowly)
    monkeypatch.delitem(sys.modules, name)
    calls = [asyncio.create_task(pull_bulk(wire_server))]
    await until(is_begun.is_set)
    calls += [asyncio.create_task(pull_bulk(wire_server)) for _ in range(3)]
    await asyncio.wait(calls, timeout=0.1)
    go_on.set()
    assert [(await each).ids for each in calls] == [["m0"]] * 4


async def test_a_retry_copy_knows_which_attempt_it_is(wire_server: WireServer) -> None:
    assert bulk_rules.sources_of(["delivery_attempt"], "%RETRY%counters") == ("properties",)
    assert bulk_rules.sources_of(["delivery_attempt"], "flights") == ()
    found = columns.Columns([0, 1], {"properties": [{"RECONSUME_TIME": "3"}, {}]})
    assert rows_of(found, "delivery_attempt", "%RETRY%counters") == [4, 1]


async def test_a_delayed_message_says_when_it_was_due() -> None:
    found = columns.Columns([0, 1], {"deliver_at_ms": [None, 1_500]})
    assert rows_of(found, "delivery_timestamp") == [None, at(1_500)]


def rows_of(found: columns.Columns, column: str, topic: str = "flights") -> list[Any]:
    (chunk,) = Chunks([column], topic).of(found, {})
    rows: list[Any] = pa.ipc.open_stream(b"".join(chunk.parts)).read_all()[column].to_pylist()
    return rows
