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
from tests.support.door import GROUP, TOPIC, Door, a_message, handle_of, opened

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


async def held(door: Door, count: int = 1, **wish: Any) -> list[str]:
    await door.send(*(a_message(f"m{number}") for number in range(count)))
    return [handle_of(message) for message in await door.receive(**wish)]


async def test_acked_is_acked(door: Door) -> None:
    handles = await held(door, 3)
    answer = await door.call("AckMessage", ack_request(*handles))
    assert (answer.status.code, answer.status.message) == (pb.OK, "OK")
    assert [entry.receipt_handle for entry in answer.entries] == handles
    assert [entry.message_id for entry in answer.entries] == ["m0", "m1", "m2"]
    assert {entry.status.code for entry in answer.entries} == {pb.OK}


async def test_an_ack_may_be_repeated(door: Door) -> None:
    (handle,) = await held(door)
    assert (await door.call("AckMessage", ack_request(handle))).status.code == pb.OK
    before = await door.digest()
    assert (await door.call("AckMessage", ack_request(handle))).status.code == pb.OK
    assert await door.digest() == before


@pytest.mark.parametrize(
    ("count", "words"), [(0, "no entries"), (1_025, "1025 entries, at most 1024")], ids=["none", "too many"]
)
async def test_an_ack_of_illegal_length_is_refused(door: Door, count: int, words: str) -> None:
    (handle,) = await held(door)
    before = await door.digest()
    answer = await door.call("AckMessage", ack_request(*[handle] * count))
    assert answer.status.code == pb.BAD_REQUEST
    assert words in answer.status.message
    assert await door.digest() == before


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
async def test_a_forged_handle_changes_nothing(door: Door, forgery: Any) -> None:
    (handle,) = await held(door)
    forged = forgery(handle)
    before = await door.digest()
    acked = await door.call("AckMessage", ack_request(forged))
    assert acked.status.code == pb.INVALID_RECEIPT_HANDLE
    assert acked.entries[0].receipt_handle == forged
    assert "receipt handle" in acked.status.message
    assert len(acked.status.message) < 400
    # The official clients' own tests look for that word.
    assert acked.status.message.startswith("INVALID_RECEIPT_HANDLE: ")
    assert acked.entries[0].status.message == acked.status.message
    changed = await door.call("ChangeInvisibleDuration", change_request(forged, 30_000))
    assert changed.status.code == pb.INVALID_RECEIPT_HANDLE
    assert changed.receipt_handle == forged
    forwarded = await door.call("ForwardMessageToDeadLetterQueue", forward_request(forged))
    assert forwarded.status.code == pb.INVALID_RECEIPT_HANDLE
    for refused in (changed, forwarded):
        assert refused.status.message.startswith("INVALID_RECEIPT_HANDLE: ")
    assert await door.digest() == before
    assert (await door.call("AckMessage", ack_request(handle))).status.code == pb.OK


async def test_a_handle_is_good_for_its_own_group_and_topic(door: Door) -> None:
    (handle,) = await held(door)
    await door.receive(group=OTHER_GROUP, topic=OTHER_TOPIC)
    await door.receive(group=OTHER_GROUP)
    await door.receive(topic=OTHER_TOPIC)
    before = await door.digest()
    foreign_group = await door.call("AckMessage", ack_request(handle, group=OTHER_GROUP))
    assert foreign_group.status.code == pb.INVALID_RECEIPT_HANDLE
    assert "group 'others'" in foreign_group.status.message
    foreign_topic = await door.call("AckMessage", ack_request(handle, topic=OTHER_TOPIC))
    assert foreign_topic.status.code == pb.INVALID_RECEIPT_HANDLE
    assert "topic 'trains'" in foreign_topic.status.message
    assert await door.digest() == before


async def test_a_bad_entry_fails_alone(door: Door) -> None:
    first, second = await held(door, 2)
    request = ack_request(first, "no handle", second)
    request.entries[2].message_id = "m1"
    answer = await door.call("AckMessage", request)
    assert answer.status.code == pb.MULTIPLE_RESULTS
    assert [entry.status.code for entry in answer.entries] == [pb.OK, pb.INVALID_RECEIPT_HANDLE, pb.OK]


@pytest.mark.row("K7")
async def test_after_the_window_the_old_handle_is_dead(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as door:
        (old,) = await held(door, invisible_ms=10_000)
        assert await door.receive() == [], "held: nobody else gets it"
        await clock.advance(10_000, door.broker.settle)
        (again,) = await door.receive()
        assert again.system_properties.delivery_attempt == 2
        before = await door.digest()
        answer = await door.call("AckMessage", ack_request(old))
        assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
        assert await door.digest() == before
        assert (await door.call("AckMessage", ack_request(handle_of(again)))).status.code == pb.OK


@pytest.mark.row("L10")
async def test_a_change_gives_a_new_handle_and_kills_the_old(tmp_path: Path) -> None:
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as door:
        (first,) = await held(door, invisible_ms=10_000)
        await clock.advance(9_000, door.broker.settle)
        changed = await door.call("ChangeInvisibleDuration", change_request(first, 60_000))
        assert changed.status.code == pb.OK
        assert changed.receipt_handle not in {"", first}
        await clock.advance(59_000, door.broker.settle)
        assert await door.receive() == []
        assert (await door.call("AckMessage", ack_request(first))).status.code == pb.INVALID_RECEIPT_HANDLE
        assert (await door.call("AckMessage", ack_request(changed.receipt_handle))).status.code == pb.OK


@pytest.mark.parametrize(
    ("duration_ms", "code", "words"),
    [
        (-1_000, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too small: -1000 ms"),
        (43_200_001, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large: 43200001 ms, at most 43200000"),
        (2**60, pb.ILLEGAL_INVISIBLE_TIME, "the invisibleTime is too large"),
    ],
)
async def test_an_illegal_change_echoes_the_handle(door: Door, duration_ms: int, code: int, words: str) -> None:
    (handle,) = await held(door)
    before = await door.digest()
    answer = await door.call("ChangeInvisibleDuration", change_request(handle, duration_ms))
    assert answer.status.code == code
    assert words in answer.status.message
    assert answer.receipt_handle == handle
    assert await door.digest() == before


@pytest.mark.parametrize("client_id", [None, "c" * 256])
async def test_even_a_stranger_gets_the_handle_back(door: Door, client_id: str | None) -> None:
    answer = await door.call("ChangeInvisibleDuration", change_request("h", 0), client_id=client_id)
    assert answer.status.code in {pb.CLIENT_ID_REQUIRED, pb.BAD_REQUEST}
    assert answer.receipt_handle == "h"


@pytest.mark.parametrize("duration_ms", [0, 43_200_000])
async def test_a_change_at_the_limit_is_legal(door: Door, duration_ms: int) -> None:
    (handle,) = await held(door)
    assert (await door.call("ChangeInvisibleDuration", change_request(handle, duration_ms))).status.code == pb.OK


async def test_what_is_given_back_unused_burns_no_attempt(door: Door) -> None:
    (handle,) = await held(door)
    given = await door.call("ChangeInvisibleDuration", change_request(handle, 0, suspend=True))
    assert given.status.code == pb.OK
    (again,) = await door.receive()
    assert again.system_properties.delivery_attempt == 1


async def test_a_message_given_up_is_a_dead_letter(door: Door) -> None:
    (handle,) = await held(door)
    for _ in range(2):
        assert (await door.call("ForwardMessageToDeadLetterQueue", forward_request(handle))).status.code == pb.OK
    (dead,) = await door.receive(group=OTHER_GROUP, topic=pb.Resource(name="%DLQ%counters"))
    origin = dead.system_properties.dead_letter_queue
    assert (origin.topic, origin.message_id) == ("flights", "m0")
    assert dead.system_properties.message_id == "m0"
    assert await door.receive() == []


async def test_a_committed_message_needs_no_giving_up(door: Door) -> None:
    (handle,) = await held(door)
    await door.call("AckMessage", ack_request(handle))
    before = await door.digest()
    assert (await door.call("ForwardMessageToDeadLetterQueue", forward_request(handle))).status.code == pb.OK
    assert await door.digest() == before


async def test_a_message_id_that_is_not_the_handles_commits_nothing(door: Door) -> None:
    """Which of the two is meant cannot be known; a blank id is fine."""
    await door.send(a_message("m0"), a_message("m1"))
    handles = {each.system_properties.message_id: handle_of(each) for each in await door.receive()}
    mixed_up = wire.AckMessageRequest(
        group=GROUP,
        topic=TOPIC,
        entries=[
            wire.AckMessageEntry(message_id="m1", receipt_handle=handles["m0"]),
            wire.AckMessageEntry(message_id="m0", receipt_handle=handles["m1"]),
        ],
    )
    before = await door.digest()
    answer = await door.call("AckMessage", mixed_up)
    assert answer.status.code == pb.INVALID_RECEIPT_HANDLE
    assert "was not given with message 'm1'" in answer.entries[0].status.message
    change, forward = change_request(handles["m0"], 30_000), forward_request(handles["m0"])
    change.message_id = forward.message_id = "m1"
    changed = await door.call("ChangeInvisibleDuration", change)
    assert (changed.status.code, changed.receipt_handle) == (pb.INVALID_RECEIPT_HANDLE, handles["m0"])
    forwarded = await door.call("ForwardMessageToDeadLetterQueue", forward)
    assert forwarded.status.code == pb.INVALID_RECEIPT_HANDLE
    assert await door.digest() == before
    change.message_id = "m0"
    handles["m0"] = (await door.call("ChangeInvisibleDuration", change)).receipt_handle
    mixed_up.entries[0].receipt_handle = handles["m0"]
    answer = await door.call("AckMessage", mixed_up)
    assert answer.entries[0].status.code == pb.INVALID_RECEIPT_HANDLE, "a changed handle knows its message as well"
    mixed_up.entries[0].message_id, mixed_up.entries[1].message_id = "m0", ""
    assert (await door.call("AckMessage", mixed_up)).status.code == pb.OK
