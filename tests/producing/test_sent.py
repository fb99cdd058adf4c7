"""A message as it was sent becomes the server's own: each field, each default, each limit."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.model.errors import BadRequest, MessageCorrupted, MessagePropertiesTooLarge, PopError
from popserver.model.message import BodyEncoding, Message
from popserver.model.names import Resource
from popserver.model.topic import MessageType
from popserver.producing.sent import sent_message

TOPIC = Resource("", "orders")
NOW_MS, CALENDAR_MS = 5_000, 7_000


def sent(body: bytes = b"body", user_properties: dict[str, str] | None = None, **system: Any) -> Message:
    properties = pb.SystemProperties(**{"message_id": "m1", "body_encoding": pb.IDENTITY, **system})
    message = pb.Message(body=body, user_properties=user_properties or {}, system_properties=properties)
    return sent_message(message, TOPIC, NOW_MS, CALENDAR_MS)


BARE = Message(
    TOPIC,
    "m1",
    b"body",
    None,
    (),
    {},
    MessageType.NORMAL,
    None,
    BodyEncoding.IDENTITY,
    NOW_MS,
    "",
    None,
    None,
    None,
    None,
)


def test_a_bare_message_has_defaults() -> None:
    assert sent() == BARE
    assert sent(body_encoding=pb.ENCODING_UNSPECIFIED) == BARE


@pytest.mark.parametrize(
    ("system", "changed"),
    [
        ({"tag": "A"}, {"tag": "A"}),
        ({"tag": ""}, {"tag": ""}),
        ({"keys": ["k", "l"]}, {"keys": ("k", "l")}),
        ({"body_encoding": pb.GZIP}, {"body_encoding": BodyEncoding.GZIP}),
        ({"born_timestamp": {"seconds": 3, "nanos": 4_000_000}}, {"born_at_ms": 3_004}),
        ({"born_timestamp": {"seconds": 0}}, {"born_at_ms": 0}),
        ({"born_timestamp": {"seconds": 253_402_300_799, "nanos": 999_000_000}}, {"born_at_ms": 253_402_300_799_999}),
        ({"born_host": "h" * 255}, {"born_host": "h" * 255}),
        ({"trace_context": "t" * 1_024}, {"trace_context": "t" * 1_024}),
        ({"trace_context": ""}, {"trace_context": ""}),
        ({"message_group": "g"}, {"message_type": MessageType.FIFO, "message_group": "g"}),
        ({"priority": 0}, {"message_type": MessageType.PRIORITY, "priority": 0}),
        ({"priority": 9}, {"message_type": MessageType.PRIORITY, "priority": 9}),
        ({"lite_topic": "l"}, {"message_type": MessageType.LITE, "message_group": "l"}),
        ({"message_type": pb.TRANSACTION}, {"message_type": MessageType.TRANSACTION}),
        ({"message_type": pb.FIFO}, {}),
        (
            {"delivery_timestamp": {"seconds": 9, "nanos": 1_000_001}},
            {"message_type": MessageType.DELAY, "deliver_at_ms": 9_002},
        ),
        (
            {"delivery_timestamp": {"seconds": 9, "nanos": 1_000_000}},
            {"message_type": MessageType.DELAY, "deliver_at_ms": 9_001},
        ),
        (
            {"delivery_timestamp": {"seconds": 9, "nanos": 1}},
            {"message_type": MessageType.DELAY, "deliver_at_ms": 9_001},
        ),
        (
            {"delivery_timestamp": {"seconds": 1}, "delay": {"seconds": 2, "nanos": 1}},
            {"message_type": MessageType.DELAY, "deliver_at_ms": CALENDAR_MS + 2_001},
        ),
        ({"delay": {"seconds": 2}}, {}),
        ({"orphaned_transaction_recovery_duration": {"seconds": 0}}, {"recovery_ms": 0}),
        ({"orphaned_transaction_recovery_duration": {"seconds": 3_600}}, {"recovery_ms": 3_600_000}),
    ],
)
def test_each_field_is_taken_over(system: dict[str, Any], changed: dict[str, Any]) -> None:
    assert sent(**system) == BARE._replace(**changed)


def test_the_body_and_the_properties_are_taken_over() -> None:
    assert sent(b"\x00", {"p": "v", "q": ""}) == BARE._replace(body=b"\x00", properties={"p": "v", "q": ""})


@pytest.mark.parametrize(
    ("system", "refusal", "words"),
    [
        ({"body_encoding": 3}, MessageCorrupted, "body encoding 3 is not known"),
        ({"born_timestamp": {"seconds": -1}}, MessageCorrupted, "born_timestamp is -1000 ms"),
        ({"born_timestamp": {"seconds": 253_402_300_800}}, MessageCorrupted, "born_timestamp is 253402300800000 ms"),
        ({"born_host": "h" * 256}, MessagePropertiesTooLarge, "born_host has 256 characters, at most 255"),
        ({"born_host": "h\x00"}, MessageCorrupted, "born_host has a zero byte"),
        ({"trace_context": "t" * 1_025}, MessagePropertiesTooLarge, "trace_context has 1025 characters, at most 1024"),
        ({"trace_context": "t\x00"}, MessageCorrupted, "trace_context has a zero byte"),
        (
            {"orphaned_transaction_recovery_duration": {"nanos": -1_000_000}},
            BadRequest,
            "is -1 ms, allowed: 0 to 3600000 ms",
        ),
        (
            {"orphaned_transaction_recovery_duration": {"seconds": 3_600, "nanos": 1_000_000}},
            BadRequest,
            "is 3600001 ms, allowed: 0 to 3600000 ms",
        ),
        ({"message_group": " "}, PopError, "blank"),
        ({"lite_topic": " "}, PopError, "lite topic"),
        ({"message_group": "g", "priority": 1}, PopError, "message_group and priority exclude each other"),
        (
            {"delivery_timestamp": {}, "message_group": "g", "priority": 0, "lite_topic": "l"},
            PopError,
            "delivery_timestamp and message_group and priority and lite_topic exclude",
        ),
        (
            {"message_type": pb.TRANSACTION, "delivery_timestamp": {}},
            PopError,
            "delivery_timestamp and message_type TRANSACTION exclude",
        ),
    ],
)
def test_what_breaks_a_limit_is_refused(system: dict[str, Any], refusal: type[PopError], words: str) -> None:
    with pytest.raises(refusal, match=words):
        sent(**system)


@pytest.mark.parametrize(
    ("checksum", "is_right"),
    [
        ("F8DF2AA7", False),
        ("DBA80BB2", True),
        ("dba80bb2", True),
        ("00DBA80BB2", True),
        ("DBA80BB", False),
        ("XDBA80BB2", False),
        ("", True),
    ],
)
def test_a_digest_has_to_fit_the_body(checksum: str, is_right: bool) -> None:
    digest = pb.Digest(type=pb.CRC32, checksum=checksum)
    if is_right:
        assert sent(body_digest=digest) == BARE
    else:
        with pytest.raises(MessageCorrupted, match=f"body_digest is CRC32 {checksum}, but the 4 bytes"):
            sent(body_digest=digest)


def test_leading_zeros_of_a_digest_may_be_left_out() -> None:
    body = next(body for body in (str(number).encode() for number in range(1_000)) if zlib.crc32(body) < 1 << 24)
    checksum = f"{zlib.crc32(body):08X}"
    assert checksum.startswith("0")
    for said in (checksum, checksum.lstrip("0"), "0" + checksum):
        assert sent(body, body_digest=pb.Digest(type=pb.CRC32, checksum=said)).body == body
