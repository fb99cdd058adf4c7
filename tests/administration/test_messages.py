"""Looking at messages, their states, their history, and dead letters."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popserver.messages import read
from tests.support.desk import Desk, named


def ids(messages: list[pb.Message]) -> list[str]:
    return [each.system_properties.message_id for each in messages]


def test_a_peek_shows_the_oldest_and_holds_nothing(stored_desk: Desk) -> None:
    desk = stored_desk
    desk.call("CreateTopic", topic=named("flights"), queue_count=2)
    for number in range(6):
        desk.send("flights", f"m{number}", tag="UA", keys=["k1", "k2"])
        desk.server.clock.advance(1)
    before = desk.digest()
    everything = desk.call("PeekMessages", topic=named("flights")).messages
    assert ids(everything) == [f"m{number}" for number in range(6)]
    assert ids(desk.call("PeekMessages", topic=named("flights"), max=2).messages) == ["m0", "m1"]
    system = everything[0].system_properties
    assert everything[0].topic.name == "flights"
    assert everything[0].body == b"body"
    assert dict(everything[0].user_properties) == {"colour": "red"}
    assert (system.tag, list(system.keys)) == ("UA", ["k1", "k2"])
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert not system.HasField("receipt_handle")
    assert not system.HasField("delivery_attempt")
    assert desk.digest() == before
    assert len(desk.receive("counters", "flights")) == 6


def test_a_peek_starts_at_an_offset_of_one_queue(desk: Desk) -> None:
    desk.call("CreateTopic", topic=named("flights"), queue_count=2)
    desk.send("flights", "a0", "a1", "a2")
    desk.send("flights", "b0")
    (queue_id,) = {
        each.system_properties.queue_id for each in desk.call("PeekMessages", topic=named("flights"), max=1).messages
    }
    peek: dict[str, Any] = {"topic": named("flights"), "queue_id": queue_id}
    assert ids(desk.call("PeekMessages", **peek).messages) == ["a0", "a1", "a2"]
    assert ids(desk.call("PeekMessages", **peek, from_offset=1, max=1).messages) == ["a1"]
    assert ids(desk.call("PeekMessages", **peek, from_offset=99).messages) == []


def test_an_answer_carries_a_bounded_number_of_bytes(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PAGE_BYTES_MAX", 2_500)
    desk.call("CreateTopic", topic=named("flights"), queue_count=1)
    desk.send("flights", "m0", "m1", "m2", body=b"x" * 1_000)
    desk.send("flights", "m3", body=b"x" * 5_000)
    peek: dict[str, Any] = {"topic": named("flights"), "queue_id": 0}
    assert ids(desk.call("PeekMessages", **peek).messages) == ["m0", "m1"]
    assert ids(desk.call("PeekMessages", **peek, from_offset=3).messages) == ["m3"]


def test_a_page_of_dead_letters_is_bounded_in_bytes_and_leads_on(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PAGE_BYTES_MAX", 2_500)
    desk.call("CreateTopic", topic=named("flights"), queue_count=1)
    desk.send("flights", "m0", "m1", "m2", body=b"x" * 1_000)
    for message in desk.receive("counters", "flights"):
        desk.give_up("counters", "flights", message)
    listing: dict[str, Any] = {"selection": admin.DeadLetterSelection(group=named("counters"))}
    first = desk.call("ListDeadLetters", **listing).dead_letters
    assert [each.origin_message_id for each in first] == ["m0", "m1"]
    rest = desk.call("ListDeadLetters", **listing, after_id=first[-1].id).dead_letters
    assert [each.origin_message_id for each in rest] == ["m2"]


@pytest.mark.row("L2")
@pytest.mark.row("G3")
def test_a_message_is_found_with_its_state_in_every_group(stored_desk: Desk) -> None:
    desk = stored_desk
    desk.call("CreateTopic", topic=named("flights"), queue_count=1)
    desk.call("CreateTopic", topic=named("airports"))
    for group in ("committed", "held", "given-up", "failed"):
        desk.make_group(group, history="all")
    desk.send("flights", "m1", "m2")
    for group in ("committed", "held", "given-up", "failed"):
        first, *_ = desk.receive(group, "flights", batch_size=1)
        if group == "committed":
            desk.ack(group, "flights", first)
        if group == "given-up":
            desk.give_up(group, "flights", first)
    found = desk.call("GetMessage", message_id="m1")
    states = {each.group.name: each for each in found.states}
    assert {name: each.state for name, each in states.items()} == {
        "committed": "COMMIT",
        "held": "INFLIGHT",
        "given-up": "DLQ",
        "failed": "INFLIGHT",
    }
    assert states["held"].client_id == "worker-1"
    assert states["held"].delivery_attempt == 1
    assert states["held"].visible_at.ToMilliseconds() == desk.server.clock.now_ms() + 10_000
    assert not states["committed"].HasField("visible_at")
    assert states["committed"].client_id == ""
    history = [(each.group.name, each.event) for each in found.history]
    assert ("committed", "ACK") in history
    assert ("given-up", "FORWARD_TO_DLQ") in history
    assert found.message.topic.name == "flights"
    # The hold ends: Ready again, held by nobody.
    desk.server.clock.advance("10s")
    again = {each.group.name: each for each in desk.call("GetMessage", message_id="m1").states}["held"]
    assert (again.state, again.client_id, again.HasField("visible_at")) == ("READY", "", False)


def test_an_id_in_two_topics_asks_for_one(desk: Desk) -> None:
    desk.send("flights", "m1")
    desk.send("airports", "m1")
    status = desk.call("GetMessage", message_id="m1").status
    assert status.code == pb.BAD_REQUEST
    assert "'flights'" in status.message
    assert "'airports'" in status.message
    assert desk.call("GetMessage", message_id="m1", topic=named("airports")).message.topic.name == "airports"


def test_dead_letters_are_listed_page_by_page(stored_desk: Desk) -> None:
    desk = stored_desk
    desk.call("CreateTopic", topic=named("flights"), queue_count=1)
    desk.call("CreateTopic", topic=named("airports"), queue_count=1)
    desk.send("flights", "m1", "m2", "m3", tag="UA")
    desk.send("airports", "a1")
    for topic in ("flights", "airports"):
        for message in desk.receive("counters", topic):
            desk.give_up("counters", topic, message)
    listing: dict[str, Any] = {"selection": admin.DeadLetterSelection(group=named("counters"))}
    everything = desk.call("ListDeadLetters", **listing).dead_letters
    assert [each.origin_message_id for each in everything] == ["m1", "m2", "m3", "a1"]
    first = desk.call("ListDeadLetters", **listing, max=2).dead_letters
    rest = desk.call("ListDeadLetters", **listing, after_id=first[-1].id).dead_letters
    assert [*first, *rest] == list(everything)
    of_topic = desk.call(
        "ListDeadLetters", selection=admin.DeadLetterSelection(group=named("counters"), topic=named("airports"))
    ).dead_letters
    assert [each.origin_message_id for each in of_topic] == ["a1"]
    letter = desk.call("GetDeadLetter", group=named("counters"), message_id="m2").dead_letter
    assert letter == everything[1]
    assert (letter.topic.name, letter.message.topic.name) == ("flights", "%DLQ%counters")
    assert letter.message.system_properties.dead_letter_queue.topic == "flights"
    assert letter.message.system_properties.dead_letter_queue.message_id == "m2"
    assert letter.message.system_properties.tag == "UA"
    assert (letter.delivery_attempt, letter.redrive_state) == (1, "")
    assert letter.reason
    assert letter.dead_at.ToMilliseconds() == desk.server.clock.now_ms()


def test_dead_letters_outlive_their_topic(stored_desk: Desk) -> None:
    desk = stored_desk
    desk.send("flights", "m1")
    (message,) = desk.receive("counters", "flights")
    desk.give_up("counters", "flights", message)
    desk.call("DeleteTopic", topic=named("flights"))
    desk.server.settle()
    (letter,) = desk.call("ListDeadLetters", selection=admin.DeadLetterSelection(group=named("counters"))).dead_letters
    assert letter.message.body == b"body"
    assert letter.topic.name == ""
    assert desk.call("GetMessage", message_id="m1").message.topic.name == "%DLQ%counters"


def test_a_group_without_dead_letters_has_an_empty_list(desk: Desk) -> None:
    desk.make_group("counters")
    answer = desk.call("ListDeadLetters", selection=admin.DeadLetterSelection(group=named("counters")))
    assert (answer.status.code, len(answer.dead_letters)) == (pb.OK, 0)


@pytest.mark.row("O1")
def test_the_status_counts_without_counting(stored_desk: Desk) -> None:
    desk = stored_desk
    empty = desk.call("GetStatus")
    assert (empty.topics, empty.groups, empty.messages, empty.dead_letters, len(empty.lag)) == (0, 0, 0, 0, 0)
    desk.call("CreateTopic", topic=named("flights"), queue_count=1)
    desk.send("flights", "m1", "m2", "m3", "m4")
    stored_at = desk.server.clock.now_ms()
    desk.server.clock.advance("1m")
    first, second = desk.receive("counters", "flights", batch_size=2)
    desk.ack("counters", "flights", first)
    desk.give_up("counters", "flights", second)
    status = desk.call("GetStatus")
    # The dead copy is a message of %DLQ%counters, which is no topic of users.
    assert (status.topics, status.groups, status.messages, status.dead_letters) == (1, 1, 4, 1)
    assert status.appended == 4
    (lag,) = status.lag
    assert (lag.group.name, lag.topic.name) == ("counters", "flights")
    assert (lag.ready, lag.inflight, lag.waiting_retry, lag.dead_letters) == (2, 0, 0, 1)
    assert lag.oldest_ready.ToMilliseconds() == stored_at
    assert (status.now.ToMilliseconds() - status.started_at.ToMilliseconds()) == 60_000
    assert status.version
    assert status.durability == "full"
    assert status.schema_revision
    assert status.connected_clients == 1  # the worker; an operator is none
