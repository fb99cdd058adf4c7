"""What a holder may do: ack, change the invisible duration, give back, give up; and who is no holder."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.engine.clock import ManualClock
from popserver.model.handles import Receipt, decode_receipt, encode_receipt
from popserver.transport import convert
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, handle_of, opened

OTHER_GROUP = pb.Resource(name="others")
OTHER_TOPIC = pb.Resource(name="trains")


def ack_request(*handles: str, group: pb.Resource = GROUP, topic: pb.Resource = TOPIC) -> wire.AckMessageRequest:
    entries = [
        wire.AckMessageEntry(message_id=f"m{number}", receipt_handle=handle) for number, handle in enumerate(handles)
    ]
    return wire.AckMessageRequest(group=group, topic=topic, entries=entries)


def change_request(handle: str, duration_ms: int, **parts: Any) -> wire.ChangeInvisibleDurationRequest:
    request = wire.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle=handle, **parts)
    convert.set_ms(request.invisible_duration, duration_ms)
    return request


def forward_request(handle: str) -> wire.ForwardMessageToDeadLetterQueueRequest:
    return wire.ForwardMessageToDeadLetterQueueRequest(group=GROUP, topic=TOPIC, receipt_handle=handle)


async def held(wire_server: WireServer, count: int = 1, **wish: Any) -> list[str]:
    await wire_server.send(*(a_message(f"m{number}") for number in range(count)))
    return [handle_of(message) for message in await wire_server.receive(**wish)]


async def test_acked_is_acked(wire_server: WireServer) -> None:
    handles = await held(wire_server, 3)
    answer = await wire_server.call("AckMessage", ack_request(*handles))
    assert (answer.status.code, answer.status.message) == (pb.OK, "OK")
    assert [entry.receipt_handle for entry in answer.entries] == handles
    assert [entry.message_id for entry in answer.entries] == ["m0", "m1", "m2"]
    assert {entry.status.code for entry in answer.entries} == {pb.OK}


async def test_each_ack_counts(wire_server: WireServer) -> None:
    handles = await held(wire_server, 3)
    await wire_server.call("AckMessage", ack_request(*handles[:1]))
    entries = [wire.AckMessageEntry(receipt_handle=each) for each in handles[1:]]
    await wire_server.call("AckMessage", wire.AckMessageRequest(group=GROUP, topic=TOPIC, entries=entries))
    assert sum(each.acks for each in wire_server.broker.engine.meters.delivered.values()) == 3


async def test_an_ack_may_be_repeated(wire_server: WireServer) -> None:
    (handle,) = await held(wire_server)
    assert (await wire_server.call("AckMessage", ack_request(handle))).status.code == pb.OK
    before = await wire_server.digest()
    assert (await wire_server.call("AckMessage", ack_request(handle))).status.code == pb.OK
    assert await wire_server.digest() == before


@pytest.mark.parametrize(
    ("count", "words"), [(0, "no entries"), (1_025, "1025 entries, at most 1024")], ids=["none", "too many"]
)
async def test_an_ack_of_illegal_length_is_refused(wire_server: WireServer, count: int, words: str) -> None:
    (handle,) = await held(wire_server)
    before = await wire_server.digest()
    answer = await wire_server.call("AckMessage", ack_request(*[handle] * count))
    assert answer.status.code == pb.BAD_REQUEST
    assert words in answer.status.message
    assert await wire_server.digest() == before


def forge(handle: str, **parts: Any) -> str:
    return encode_receipt(decode_receipt(handle)._replace(**parts))


FORGERIES = [
    pytest.param(lambda _: "", id="empty"),
    pytest.param(lambda _: "no handle", id="words"),
    pytest.param(lambda _: "x" * 100_000, id="endless"),
    pytest.param(lambda _: "\x00" * 40, id="zero bytes"),
    pytest.param(lambda _: "ä" * 40, id="not ASCII"),
    pytest.param(lambda handle: handle[:-1], id="cut"),
    pytest.param(lambda handle: handle + "=", id="longer"),
    pytest.param(lambda handle: base64.urlsafe_b64encode(b"\x02" + bytes(28)).decode(), id="other version"),
    pytest.param(lambda handle: encode_receipt(Receipt(0, 0, 0, 0)), id="zeros"),
    pytest.param(lambda handle: forge(handle, hold_id=decode_receipt(handle).hold_id ^ 1), id="other hold"),
    pytest.param(lambda handle: forge(handle, message_key=decode_receipt(handle).message_key + 1), id="other message"),
    pytest.param(lambda handle: forge(handle, message_key=-1), id="negative message"),
    pytest.param(lambda handle: forge(handle, message_key=2**63 - 1), id="largest message"),
    pytest.param(lambda handle: forge(handle, group_id=2**32 - 1), id="other group"),
]


@pytest.mark.row("K7")
@pytest.mark.parametrize("forgery", FORGERIES)
async def test_a_forged_handle_changes_nothing(wire_server: WireServer, forgery: Any) -> None:
    (handle,) = await held(wire_server)
    forged = forgery(handle)
    before = await wire_server.digest()
    acked = await wire_server.call("AckMessage", ack_request(forged))
    assert acked.status.code == pb.INVALID_RECEIPT_HANDLE
    assert acked.entries[0].receipt_handle == forged
    assert "receipt handle" in acked.status.message
    assert len(acked.status.message) < 400
    # The official clients' own tests look for that word.
    assert acked.status.message.startswith("INVALID_RECEIPT_HANDLE: ")
    assert acked.entries[0].status.message == acked.status.message
    changed = await wire_server.call("ChangeInvisibleDuration", change_request(forged, 30_000))
    assert changed.status.code == pb.INVALID_RECEIPT_HANDLE
    assert changed.receipt_handle == forged
    forwarded = await wire_server.call("ForwardMessageToDeadLetterQueue", forward_request(forged))
    assert forwarded.status.code == pb.INVALID_RECEIPT_HANDLE
    for refused in (changed, forwarded):
        assert refused.status.message.startswith("INVALID_RECEIPT_HANDLE: ")
    assert await wire_server.digest() == before
    assert (await wire_server.call("AckMessage", ack_request(handle))).status.code == pb.OK


async def test_a_handle_is_good_for_its_own_group_and_topic(wire_server: WireServer) -> None:
    (handle,) = await held(wire_server)
    await wire_server.receive(group=OTHER_GROUP, topic=OTHER_TOPIC)
    await wire_server.receive(group=OTHER_GROUP)
    await wire_server.receive(topic=OTHER_TOPIC)
    before = await wire_server.digest()
    foreign_group = await wire_server.call("AckMessage", ack_request(handle, group=OTHER_GROUP))
    assert foreign_group.status.code == pb.INVALID_RECEIPT_HANDLE
    assert "group 'others'" in foreign_group.status.message
    foreign_topic = await wire_server.call("AckMessage", ack_request(handle, topic=OTHER_TOPIC))
    assert foreign_topic.status.code == pb.INVALID_RECEIPT_HANDLE
    assert "another topic than 'trains'" in foreign_topic.status.message
    change, forward = change_request(handle, 30_000), forward_request(handle)
    for method, request in (("ChangeInvisibleDuration", change), ("ForwardMessageToDeadLetterQueue", forward)):
        request.group.CopyFrom(OTHER_GROUP)
        refused = await wire_server.call(method, request)
        assert refused.status.code == pb.INVALID_RECEIPT_HANDLE
        assert f"'{handle}' was not given to group 'others'" in refused.status.message
    assert await wire_server.digest() == before


async def test_a_bad_entry_fails_alone(wire_server: WireServer) -> None:
    first, second = await held(wire_server, 2)
    request = ack_request(first, "no handle", second)
    request.entries[2].message_id = "m1"
    answer = await wire_server.call("AckMessage", request)
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [pb.OK, pb.INVALID_RECEIPT_HANDLE, pb.OK]


@pytest.mark.row("K7")
async def test_after_the_window_the_old_handle_is_dead(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server:
        (old,) = await held(wire_server, invisible_ms=10_000)
        assert await wire_server.receive() == [], "held: nobody else gets it"
        await clock.advance(10_000, wire_server.broker.settle)
        (again,) = await wire_server.receive()
        assert again.system_properties.delivery_attempt == 2
        before = await wire_server.digest()
        answer = await wire_server.call("AckMessage", ack_request(old))
        assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
        assert await wire_server.digest() == before
        assert (await wire_server.call("AckMessage", ack_request(handle_of(again)))).status.code == pb.OK


@pytest.mark.row("L10")
async def test_a_change_gives_a_new_handle_and_kills_the_old(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as wire_server:
        (first,) = await held(wire_server, invisible_ms=10_000)
        await clock.advance(9_000, wire_server.broker.settle)
        changed = await wire_server.call("ChangeInvisibleDuration", change_request(first, 60_000))
        assert changed.status.code == pb.OK
        assert changed.receipt_handle not in {"", first}
        await clock.advance(59_000, wire_server.broker.settle)
        assert await wire_server.receive() == []
        assert (await wire_server.call("AckMessage", ack_request(first))).status.code == pb.INVALID_RECEIPT_HANDLE
        assert (await wire_server.call("AckMessage", ack_request(changed.receipt_handle))).status.code == pb.OK


@pytest.mark.parametrize(
    ("duration_ms", "code", "words"),
    [
        (-1_000, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small: -1000 ms"),
        (43_200_001, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large: 43200001 ms, at most 43200000"),
        (2**60, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large"),
    ],
)
async def test_an_illegal_change_echoes_the_handle(
    wire_server: WireServer, duration_ms: int, code: int, words: str
) -> None:
    (handle,) = await held(wire_server)
    before = await wire_server.digest()
    answer = await wire_server.call("ChangeInvisibleDuration", change_request(handle, duration_ms))
    assert answer.status.code == code
    assert words in answer.status.message
    assert answer.receipt_handle == handle
    assert await wire_server.digest() == before


@pytest.mark.parametrize("client_id", [None, "c" * 256])
async def test_even_a_stranger_gets_the_handle_back(wire_server: WireServer, client_id: str | None) -> None:
    answer = await wire_server.call("ChangeInvisibleDuration", change_request("h", 0), client_id=client_id)
    assert answer.status.code in {pb.CLIENT_ID_REQUIRED, pb.BAD_REQUEST}
    assert answer.receipt_handle == "h"


@pytest.mark.parametrize("duration_ms", [0, 43_200_000])
async def test_a_change_at_the_limit_is_legal(wire_server: WireServer, duration_ms: int) -> None:
    (handle,) = await held(wire_server)
    assert (await wire_server.call("ChangeInvisibleDuration", change_request(handle, duration_ms))).status.code == pb.OK


async def test_what_is_given_back_unused_burns_no_attempt(wire_server: WireServer) -> None:
    (handle,) = await held(wire_server)
    given = await wire_server.call("ChangeInvisibleDuration", change_request(handle, 0, suspend=True))
    assert given.status.code == pb.OK
    (again,) = await wire_server.receive()
    assert again.system_properties.delivery_attempt == 1


async def test_a_message_given_up_is_a_dead_letter(wire_server: WireServer) -> None:
    (handle,) = await held(wire_server)
    for _ in range(2):
        assert (await wire_server.call("ForwardMessageToDeadLetterQueue", forward_request(handle))).status.code == pb.OK
    (dead,) = await wire_server.receive(group=OTHER_GROUP, topic=pb.Resource(name="%DLQ%counters"))
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == ("flights", "m0")
    assert dead.system_properties.message_id == "m0"
    assert await wire_server.receive() == []


async def test_a_committed_message_needs_no_giving_up(wire_server: WireServer) -> None:
    (handle,) = await held(wire_server)
    await wire_server.call("AckMessage", ack_request(handle))
    before = await wire_server.digest()
    assert (await wire_server.call("ForwardMessageToDeadLetterQueue", forward_request(handle))).status.code == pb.OK
    assert await wire_server.digest() == before


async def test_a_message_id_that_is_not_the_handles_commits_nothing(wire_server: WireServer) -> None:
    """Which of the two is meant cannot be known; a blank id is fine."""
    await wire_server.send(a_message("m0"), a_message("m1"))
    handles = {each.system_properties.message_id: handle_of(each) for each in await wire_server.receive()}
    mixed_up = wire.AckMessageRequest(
        group=GROUP,
        topic=TOPIC,
        entries=[
            wire.AckMessageEntry(message_id="m1", receipt_handle=handles["m0"]),
            wire.AckMessageEntry(message_id="m0", receipt_handle=handles["m1"]),
        ],
    )
    before = await wire_server.digest()
    answer = await wire_server.call("AckMessage", mixed_up)
    assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
    assert "was not given with message 'm1'" in answer.entries[0].status.message
    change, forward = change_request(handles["m0"], 30_000), forward_request(handles["m0"])
    change.message_id = forward.message_id = "m1"
    changed = await wire_server.call("ChangeInvisibleDuration", change)
    assert (changed.status.code, changed.receipt_handle) == (pb.INVALID_RECEIPT_HANDLE, handles["m0"])
    forwarded = await wire_server.call("ForwardMessageToDeadLetterQueue", forward)
    assert forwarded.status.code == pb.INVALID_RECEIPT_HANDLE
    assert await wire_server.digest() == before
    change.message_id = "m0"
    handles["m0"] = (await wire_server.call("ChangeInvisibleDuration", change)).receipt_handle
    mixed_up.entries[0].receipt_handle = handles["m0"]
    answer = await wire_server.call("AckMessage", mixed_up)
    assert answer.entries[0].status.code == pb.INVALID_RECEIPT_HANDLE, "a changed handle knows its message as well"
    mixed_up.entries[0].message_id, mixed_up.entries[1].message_id = "m0", ""
    assert (await wire_server.call("AckMessage", mixed_up)).status.code == pb.OK
