"""SendMessage: every rule of a legal message, many per request, and each message's own outcome."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any, NamedTuple

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.model.message import RESERVED_PROPERTIES
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.support.wire_server import TOPIC, WireServer, a_message


class Bad(NamedTuple):
    """A message that breaks one rule, the code it gets, and words the sentence must hold."""

    rule: str
    message: pb.Message
    code: pb.Code.ValueType
    words: tuple[str, ...]


def bad(rule: str, code: pb.Code.ValueType, *words: str, **parts: Any) -> Any:
    return pytest.param(Bad(rule, a_message(**parts), code, words), id=rule)


def seconds(field: str, value: int) -> pb.Message:
    message = a_message()
    getattr(message.system_properties, field).seconds = value
    return message


def topic(name: str) -> pb.Resource:
    return pb.Resource(name=name)


MANY = {f"k{number}": "v" for number in range(129)}

BAD_MESSAGES = [
    bad("topic blank", pb.ILLEGAL_TOPIC, "blank", "1 to 127", topic=topic(" ")),
    bad("topic missing", pb.ILLEGAL_TOPIC, "blank", topic=pb.Resource()),
    bad("topic of 128", pb.ILLEGAL_TOPIC, "128 characters", "at most 127", topic=topic("t" * 128)),
    bad("topic with a dot", pb.ILLEGAL_TOPIC, "'a.b'", topic=topic("a.b")),
    bad("topic not ASCII", pb.ILLEGAL_TOPIC, "'ü'", topic=topic("ü")),
    bad("system topic", pb.ILLEGAL_TOPIC, "'TBW102'", "reserved", topic=topic("TBW102")),
    bad("system prefix", pb.ILLEGAL_TOPIC, "reserved", topic=topic("rmq_sys_x")),
    bad("dead-letter topic", pb.ILLEGAL_TOPIC, "'%DLQ%g'", "only the server sends", topic=topic("%DLQ%g")),
    bad("retry topic", pb.ILLEGAL_TOPIC, "'%RETRY%g'", "only the server sends", topic=topic("%RETRY%g")),
    bad("namespace with zero byte", pb.ILLEGAL_TOPIC, "'flights'", "'a\\x00'", "at most 127",
        topic=pb.Resource(resource_namespace="a\x00", name="flights")),
    bad("namespace of 128", pb.ILLEGAL_TOPIC, "at most 127", topic=pb.Resource(resource_namespace="n" * 128, name="t")),
    bad("tag blank", pb.ILLEGAL_MESSAGE_TAG, "blank", tag=" "),
    bad("tag empty", pb.ILLEGAL_MESSAGE_TAG, "blank", tag=""),
    bad("tag with |", pb.ILLEGAL_MESSAGE_TAG, "'a|b'", tag="a|b"),
    bad("tag with control character", pb.ILLEGAL_MESSAGE_TAG, "'a\\nb'", "control", tag="a\nb"),
    bad("key blank", pb.ILLEGAL_MESSAGE_KEY, "blank", keys=["ok", " "]),
    bad("key with control character", pb.ILLEGAL_MESSAGE_KEY, "'\\x7f'", "control", keys=["\x7f"]),
    bad("message group blank", pb.ILLEGAL_MESSAGE_GROUP, "blank", message_group=" "),
    bad("message group of 64", pb.ILLEGAL_MESSAGE_GROUP, "64 bytes", "at most 63", message_group="ü" * 32),
    bad("message group with control character", pb.ILLEGAL_MESSAGE_GROUP, "control", message_group="a\x00"),
    bad("129 properties", pb.MESSAGE_PROPERTIES_TOO_LARGE, "129 properties", "at most 128", user_properties=MANY),
    bad("property name blank", pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "blank", user_properties={"": "v"}),
    bad("property name control", pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "'a\\x00'", user_properties={"a\x00": "v"}),
    bad("property value control", pb.ILLEGAL_MESSAGE_PROPERTY_KEY, "'a'", "control", user_properties={"a": "\x00"}),
    bad("16385 bytes of properties", pb.MESSAGE_PROPERTIES_TOO_LARGE, "16385 bytes", "at most 16384",
        user_properties={"k": "v" * 16_384}),
    bad("16385 bytes with tag and keys", pb.MESSAGE_PROPERTIES_TOO_LARGE, "16385 bytes",
        user_properties={"k": "v" * 16_000}, tag="t" * 200, keys=["ü" * 92]),
    bad("body empty", pb.MESSAGE_BODY_EMPTY, "empty", body=b""),
    bad("body too large", pb.MESSAGE_BODY_TOO_LARGE, "4194305 bytes", "at most 4194304", body=bytes(4_194_305)),
    bad("message id blank", pb.ILLEGAL_MESSAGE_ID, "blank", message_id=" "),
    bad("message id missing", pb.ILLEGAL_MESSAGE_ID, "blank", message_id=""),
    bad("message id of 256", pb.ILLEGAL_MESSAGE_ID, "256 characters", "at most 255", message_id="m" * 256),
    bad("message id with zero byte", pb.ILLEGAL_MESSAGE_ID, "'m\\x00'", message_id="m\x00"),
    bad("born host too long", pb.MESSAGE_PROPERTIES_TOO_LARGE, "256 characters", born_host="h" * 256),
    bad("born host with zero byte", pb.MESSAGE_CORRUPTED, "born_host", born_host="\x00"),
    bad("trace context too long", pb.MESSAGE_PROPERTIES_TOO_LARGE, "1025 characters", trace_context="t" * 1_025),
    bad("trace context with zero byte", pb.MESSAGE_CORRUPTED, "trace_context", trace_context="\x00"),
    bad("priority", pb.BAD_REQUEST, "the priority is -1, allowed: 0 to 32767", priority=-1),
    bad("a priority on the way", pb.TOPIC_NOT_FOUND, "takes no PRIORITY messages; create it with: popmq topic create",
        priority=1),
    bad("lite topic on the way", pb.TOPIC_NOT_FOUND, "takes no LITE messages", lite_topic="l"),
    bad("group and priority", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message_group and priority",
        message_group="g", priority=1),
    bad("group and lite topic", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "lite_topic",
        message_group="g", lite_topic="l"),
    bad("transaction with group", pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "message_group and message_type TRANSACTION",
        message_group="g", message_type=pb.TRANSACTION),
]  # fmt: skip


@pytest.mark.row("M1")
@pytest.mark.parametrize("case", BAD_MESSAGES)
async def test_a_bad_message_is_refused_and_leaves_no_trace(wire_server: WireServer, case: Bad) -> None:
    before = await wire_server.digest()
    answer = await wire_server.send(case.message)
    assert (pb.Code.Name(answer.status.code), answer.status.code) == (pb.Code.Name(case.code), case.code)
    for word in case.words:
        assert word in answer.status.message
    (entry,) = answer.entries
    assert entry.status == answer.status
    assert entry.message_id == case.message.system_properties.message_id
    assert await wire_server.digest() == before


async def test_every_reserved_property_name_is_refused(wire_server: WireServer) -> None:
    before = await wire_server.digest()
    assert len(RESERVED_PROPERTIES) == 51
    for name in sorted(RESERVED_PROPERTIES):
        status = (await wire_server.send(a_message(user_properties={name: "v"}))).status
        assert status.code == pb.ILLEGAL_MESSAGE_PROPERTY_KEY
        assert f"'{name}' is reserved" in status.message
    assert await wire_server.digest() == before


BAD_TIMES = [
    ("delivery_timestamp", 4_000_000_000, pb.ILLEGAL_DELIVERY_TIME, "; allowed: 40 days; "),
    ("delivery_timestamp", -1, pb.ILLEGAL_DELIVERY_TIME, "-1000 ms is not between"),
    ("delivery_timestamp", 2**62, pb.ILLEGAL_DELIVERY_TIME, "1970 and 9999"),
    ("born_timestamp", -1, pb.MESSAGE_CORRUPTED, "-1000 ms"),
    ("born_timestamp", 2**62, pb.MESSAGE_CORRUPTED, "1970 to 9999"),
    ("orphaned_transaction_recovery_duration", 3_601, pb.BAD_REQUEST, "3601000 ms, allowed: 0 to 3600000"),
]


@pytest.mark.parametrize(("field", "value", "code", "words"), BAD_TIMES)
async def test_a_bad_time_is_refused(
    wire_server: WireServer, field: str, value: int, code: pb.Code.ValueType, words: str
) -> None:
    before = await wire_server.digest()
    answer = await wire_server.send(seconds(field, value))
    assert answer.status.code == code
    assert words in answer.status.message
    assert await wire_server.digest() == before


async def test_a_group_and_a_time_exclude_each_other(wire_server: WireServer) -> None:
    message = seconds("delivery_timestamp", 4_000_000_000)
    message.system_properties.message_group = "g"
    answer = await wire_server.send(message)
    assert answer.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "delivery_timestamp and message_group exclude each other" in answer.status.message


async def test_an_unknown_encoding_is_refused(wire_server: WireServer) -> None:
    message = a_message()
    message.system_properties.body_encoding = 9  # type: ignore[assignment]
    answer = await wire_server.send(message)
    assert answer.status.code == pb.MESSAGE_CORRUPTED
    assert "body encoding 9" in answer.status.message


@pytest.mark.parametrize(
    "parts",
    [
        {"topic": topic("t" * 127)},
        {"topic": topic("%a|B_9-")},
        {"user_properties": {f"k{number}": "v" for number in range(128)}},
        {"user_properties": {"k": "v" * 16_383}},
        {"message_id": "m" * 255},
        {"message_type": pb.FIFO},  # the properties decide the type, not the sender's word
        {"message_type": pb.DELAY},
    ],
    ids=str,
)
async def test_at_the_limit_is_legal(wire_server: WireServer, parts: dict[str, Any]) -> None:
    answer = await wire_server.send(a_message(**parts))
    assert answer.status.code == pb.OK, answer.status.message


BODY = b"\x00 a body \xff"
DIGESTS = {
    pb.CRC32: f"{zlib.crc32(BODY):08X}",
    pb.MD5: hashlib.md5(BODY).hexdigest(),
    pb.SHA1: hashlib.sha1(BODY).hexdigest(),
}


@pytest.mark.parametrize("kind", DIGESTS)
async def test_a_body_that_is_not_its_digests_is_refused(
    wire_server: WireServer, kind: pb.DigestType.ValueType
) -> None:
    right = DIGESTS[kind]
    for number, checksum in enumerate((right.upper(), right.lower(), right.lstrip("0"), "")):
        message = a_message(f"right{number}", body=BODY, body_digest=pb.Digest(type=kind, checksum=checksum))
        assert (await wire_server.send(message)).status.code == pb.OK
    before = await wire_server.digest()
    for checksum in (right[::-1], right[:-1], "x", "0" * len(right), "\x00"):
        message = a_message("wrong", body=BODY, body_digest=pb.Digest(type=kind, checksum=checksum))
        status = (await wire_server.send(message)).status
        assert status.code == pb.MESSAGE_CORRUPTED
        assert right.upper() in status.message
    assert await wire_server.digest() == before


async def test_a_digest_of_an_unknown_kind_is_refused(wire_server: WireServer) -> None:
    for kind in (pb.DIGEST_TYPE_UNSPECIFIED, 9):
        digest = pb.Digest(checksum="00")
        digest.type = kind  # type: ignore[assignment]
        status = (await wire_server.send(a_message(body_digest=digest))).status
        assert status.code == pb.MESSAGE_CORRUPTED
        assert f"type {kind}" in status.message
    assert (await wire_server.send(a_message(body_digest=pb.Digest()))).status.code == pb.OK, (
        "an empty one says nothing"
    )


async def test_no_encoding_is_identity(wire_server: WireServer) -> None:
    message = a_message()
    message.system_properties.ClearField("body_encoding")
    await wire_server.send(message)
    (received,) = await wire_server.receive()
    assert received.system_properties.body_encoding == pb.IDENTITY


@pytest.mark.row("H12")
async def test_a_result_has_the_queue_and_the_offset(wire_server: WireServer) -> None:
    answers = [await wire_server.send(a_message(f"m{number}")) for number in range(16)]
    assert {answer.entries[0].message_id for answer in answers} == {f"m{number}" for number in range(16)}
    assert all(answer.entries[0].HasField("queue_id") for answer in answers)
    stored = {
        answer.entries[0].message_id: (answer.entries[0].queue_id, answer.entries[0].offset) for answer in answers
    }
    received = {each.system_properties.message_id: each.system_properties for each in await wire_server.receive()}
    assert {name: (system.queue_id, system.queue_offset) for name, system in received.items()} == stored
    assert len(set(stored.values())) == 16


async def test_a_bad_message_fails_alone(wire_server: WireServer) -> None:
    answer = await wire_server.send(
        a_message("m1"), a_message("m2", body=b""), a_message("m3"), a_message("m4", tag="|")
    )
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert answer.status.message.startswith("2 of 4")
    assert [(entry.message_id, entry.status.code) for entry in answer.entries] == [
        ("m1", pb.OK),
        ("m2", pb.MESSAGE_BODY_EMPTY),
        ("m3", pb.OK),
        ("m4", pb.ILLEGAL_MESSAGE_TAG),
    ]
    assert {each.system_properties.message_id for each in await wire_server.receive()} == {"m1", "m3"}


async def test_all_bad_alike_is_that_code(wire_server: WireServer) -> None:
    answer = await wire_server.send(a_message("m1", body=b""), a_message("m2", body=b""))
    assert answer.status.code == pb.MESSAGE_BODY_EMPTY
    assert len(answer.entries) == 2


async def test_one_request_carries_128_messages(wire_server: WireServer) -> None:
    answer = await wire_server.send(*(a_message(f"m{number}") for number in range(128)))
    assert answer.status.code == pb.OK
    assert [entry.message_id for entry in answer.entries] == [f"m{number}" for number in range(128)]


@pytest.mark.parametrize(
    ("messages", "code", "words"),
    [
        ([], pb.MESSAGE_CORRUPTED, "no message"),
        ([a_message(f"m{number}") for number in range(129)], pb.BAD_REQUEST, "129 messages, at most 128"),
        ([a_message("m1"), a_message("m2", topic=topic("other"))], pb.MESSAGE_CORRUPTED, "'flights' and 'other'"),
        (
            [a_message("m1"), a_message("m2", topic=pb.Resource(resource_namespace="n", name=TOPIC.name))],
            pb.MESSAGE_CORRUPTED,
            "one request per topic",
        ),
    ],
    ids=["none", "129", "two topics", "two namespaces"],
)
async def test_a_bad_list_is_refused_whole(
    wire_server: WireServer, messages: list[pb.Message], code: pb.Code.ValueType, words: str
) -> None:
    before = await wire_server.digest()
    answer = await wire_server.call("SendMessage", wire.SendMessageRequest(messages=messages))
    assert answer.status.code == code
    assert words in answer.status.message
    assert await wire_server.digest() == before


async def test_a_repeated_id_gets_the_first_result(wire_server: WireServer) -> None:
    first, second = await wire_server.send(a_message()), await wire_server.send(a_message())
    assert first == second
    assert len(await wire_server.receive()) == 1


async def test_a_topic_takes_only_its_types(wire_server: WireServer) -> None:
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", "ordered"), 1, (MessageType.FIFO,)))
    before = await wire_server.digest()
    answer = await wire_server.send(a_message("m1", topic=topic("ordered")), a_message("m2", topic=topic("ordered")))
    assert answer.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE
    assert "topic 'ordered' takes FIFO messages, not NORMAL ones" in answer.status.message
    assert [entry.status.code for entry in answer.entries] == [answer.status.code] * 2
    assert await wire_server.digest() == before


@pytest.mark.parametrize("system", [{}, {"message_type": pb.TRANSACTION}], ids=["sent", "half"])
async def test_a_key_counts_in_what_waits_to_be_stored(wire_server: WireServer, system: dict[str, Any]) -> None:
    taken = (MessageType.NORMAL, MessageType.TRANSACTION)
    await wire_server.broker.catalog.create_topic(NewTopic(Resource("", "bills"), 1, taken))
    backlog = wire_server.broker.engine.budgets["send backlog"]
    sent = await wire_server.send(a_message(topic=topic("bills"), body=b"x", keys=["k"] * 50, **system))
    assert sent.status.code == pb.OK
    assert backlog.peak == 1 + 50 * 128, "a key of one byte has a row of the index"
