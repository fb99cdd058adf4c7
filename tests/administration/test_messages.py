"""Looking at messages, their states, their history, and dead letters."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popserver.messages import read
from tests.support.admin_server import AdminServer, named


def ids(messages: list[pb.Message]) -> list[str]:
    return [each.system_properties.message_id for each in messages]


def test_a_peek_shows_the_oldest_and_holds_nothing(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=2)
    for number in range(6):
        admin_server.send("flights", f"m{number}", tag="UA", keys=["k1", "k2"])
        admin_server.server.clock.advance(1)
    before = admin_server.digest()
    everything = admin_server.call("PeekMessages", topic=named("flights")).messages
    assert ids(everything) == [f"m{number}" for number in range(6)]
    assert ids(admin_server.call("PeekMessages", topic=named("flights"), max=2).messages) == ["m0", "m1"]
    system = everything[0].system_properties
    assert everything[0].topic.name == "flights"
    assert everything[0].body == b"body"
    assert dict(everything[0].user_properties) == {"colour": "red"}
    assert (system.tag, list(system.keys)) == ("UA", ["k1", "k2"])
    assert system.body_digest.checksum == hashlib.md5(b"body").hexdigest().upper()
    assert not system.HasField("receipt_handle")
    assert not system.HasField("delivery_attempt")
    assert admin_server.digest() == before
    assert len(admin_server.receive("counters", "flights")) == 6


def test_a_peek_starts_at_an_offset_of_one_queue(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=2)
    admin_server.send("flights", "a0", "a1", "a2")
    admin_server.send("flights", "b0")
    (queue_id,) = {
        each.system_properties.queue_id
        for each in admin_server.call("PeekMessages", topic=named("flights"), max=1).messages
    }
    peek: dict[str, Any] = {"topic": named("flights"), "queue_id": queue_id}
    assert ids(admin_server.call("PeekMessages", **peek).messages) == ["a0", "a1", "a2"]
    assert ids(admin_server.call("PeekMessages", **peek, from_offset=1, max=1).messages) == ["a1"]
    assert ids(admin_server.call("PeekMessages", **peek, from_offset=99).messages) == []


def test_an_answer_carries_a_bounded_number_of_bytes(
    admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "PAGE_BYTES_MAX", 2_500)
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1)
    admin_server.send("flights", "m0", "m1", "m2", body=b"x" * 1_000)
    admin_server.send("flights", "m3", body=b"x" * 5_000)
    peek: dict[str, Any] = {"topic": named("flights"), "queue_id": 0}
    assert ids(admin_server.call("PeekMessages", **peek).messages) == ["m0", "m1"]
    assert ids(admin_server.call("PeekMessages", **peek, from_offset=3).messages) == ["m3"]


def test_a_page_of_dead_letters_is_bounded_in_bytes_and_leads_on(
    admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "PAGE_BYTES_MAX", 2_500)
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1)
    admin_server.send("flights", "m0", "m1", "m2", body=b"x" * 1_000)
    for message in admin_server.receive("counters", "flights"):
        admin_server.give_up("counters", "flights", message)
    listing: dict[str, Any] = {"selection": admin.DeadLetterSelection(group=named("counters"))}
    first = admin_server.call("ListDeadLetters", **listing).dead_letters
    assert [each.origin_message_id for each in first] == ["m0", "m1"]
    rest = admin_server.call("ListDeadLetters", **listing, after_id=first[-1].id).dead_letters
    assert [each.origin_message_id for each in rest] == ["m2"]


@pytest.mark.row("L2")
@pytest.mark.row("G3")
def test_a_message_is_found_with_its_state_in_every_group(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1)
    admin_server.call("CreateTopic", topic=named("airports"))
    for group in ("committed", "held", "given-up", "failed"):
        admin_server.make_group(group, history="all")
    admin_server.send("flights", "m1", "m2")
    for group in ("committed", "held", "given-up", "failed"):
        first, *_ = admin_server.receive(group, "flights", batch_size=1)
        if group == "committed":
            admin_server.ack(group, "flights", first)
        if group == "given-up":
            admin_server.give_up(group, "flights", first)
    found = admin_server.call("GetMessage", message_id="m1")
    states = {each.group.name: each for each in found.states}
    assert {name: each.state for name, each in states.items()} == {
        "committed": "COMMIT",
        "held": "INFLIGHT",
        "given-up": "DLQ",
        "failed": "INFLIGHT",
    }
    assert states["held"].client_id == "worker-1"
    assert states["held"].delivery_attempt == 1
    assert states["held"].visible_at.ToMilliseconds() == admin_server.server.clock.now_ms() + 10_000
    assert not states["committed"].HasField("visible_at")
    assert states["committed"].client_id == ""
    history = [(each.group.name, each.event) for each in found.history]
    assert ("committed", "ACK") in history
    assert ("given-up", "FORWARD_TO_DLQ") in history
    assert found.message.topic.name == "flights"
    # The hold ends: Ready again, held by nobody.
    admin_server.server.clock.advance("10s")
    again = {each.group.name: each for each in admin_server.call("GetMessage", message_id="m1").states}["held"]
    assert (again.state, again.client_id, again.HasField("visible_at")) == ("READY", "", False)


def test_an_id_in_two_topics_asks_for_one(admin_server: AdminServer) -> None:
    admin_server.send("flights", "m1")
    admin_server.send("airports", "m1")
    status = admin_server.call("GetMessage", message_id="m1").status
    assert status.code == pb.BAD_REQUEST
    assert "'flights'" in status.message
    assert "'airports'" in status.message
    assert admin_server.call("GetMessage", message_id="m1", topic=named("airports")).message.topic.name == "airports"


def test_dead_letters_are_listed_page_by_page(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1)
    admin_server.call("CreateTopic", topic=named("airports"), queue_count=1)
    admin_server.send("flights", "m1", "m2", "m3", tag="UA")
    admin_server.send("airports", "a1")
    for topic in ("flights", "airports"):
        for message in admin_server.receive("counters", topic):
            admin_server.give_up("counters", topic, message)
    listing: dict[str, Any] = {"selection": admin.DeadLetterSelection(group=named("counters"))}
    everything = admin_server.call("ListDeadLetters", **listing).dead_letters
    assert [each.origin_message_id for each in everything] == ["m1", "m2", "m3", "a1"]
    first = admin_server.call("ListDeadLetters", **listing, max=2).dead_letters
    rest = admin_server.call("ListDeadLetters", **listing, after_id=first[-1].id).dead_letters
    assert [*first, *rest] == list(everything)
    of_topic = admin_server.call(
        "ListDeadLetters", selection=admin.DeadLetterSelection(group=named("counters"), topic=named("airports"))
    ).dead_letters
    assert [each.origin_message_id for each in of_topic] == ["a1"]
    letter = admin_server.call("GetDeadLetter", group=named("counters"), message_id="m2").dead_letter
    assert letter == everything[1]
    assert (letter.topic.name, letter.message.topic.name) == ("flights", "%DLQ%counters")
    assert letter.message.system_properties.dead_letter_queue.topic == "flights"
    assert letter.message.system_properties.dead_letter_queue.message_id == "m2"
    assert letter.message.system_properties.tag == "UA"
    assert (letter.delivery_attempt, letter.redrive_state) == (1, "")
    assert letter.reason
    assert letter.dead_at.ToMilliseconds() == admin_server.server.clock.now_ms()


def test_dead_letters_outlive_their_topic(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.send("flights", "m1")
    (message,) = admin_server.receive("counters", "flights")
    admin_server.give_up("counters", "flights", message)
    admin_server.call("DeleteTopic", topic=named("flights"))
    admin_server.server.settle()
    (letter,) = admin_server.call(
        "ListDeadLetters", selection=admin.DeadLetterSelection(group=named("counters"))
    ).dead_letters
    assert letter.message.body == b"body"
    assert letter.topic.name == ""
    assert admin_server.call("GetMessage", message_id="m1").message.topic.name == "%DLQ%counters"


def test_a_group_without_dead_letters_has_an_empty_list(admin_server: AdminServer) -> None:
    admin_server.make_group("counters")
    answer = admin_server.call("ListDeadLetters", selection=admin.DeadLetterSelection(group=named("counters")))
    assert (answer.status.code, len(answer.dead_letters)) == (pb.OK, 0)


@pytest.mark.row("O1")
def test_the_status_counts_without_counting(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    empty = admin_server.call("GetStatus")
    assert (empty.topics, empty.groups, empty.messages, empty.dead_letters, len(empty.lag)) == (0, 0, 0, 0, 0)
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1)
    admin_server.send("flights", "m1", "m2", "m3", "m4")
    stored_at = admin_server.server.clock.now_ms()
    admin_server.server.clock.advance("1m")
    first, second = admin_server.receive("counters", "flights", batch_size=2)
    admin_server.ack("counters", "flights", first)
    admin_server.give_up("counters", "flights", second)
    status = admin_server.call("GetStatus")
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
