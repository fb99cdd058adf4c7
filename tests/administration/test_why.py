"""Why a message is where it is: one sentence for every state, with what it rests on."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named


@pytest.fixture
def made(admin_server: AdminServer) -> AdminServer:
    """A topic of message groups with one queue, and a group of two attempts that keeps all of its history."""
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL, pb.FIFO])
    admin_server.make_group("counters", max_attempts=2, history="all")
    return admin_server


def why(admin_server: AdminServer, message_id: str, group: str = "counters") -> str:
    answer = admin_server.call("Why", group=named(group), message_id=message_id)
    assert answer.status.code == pb.OK, answer
    sentence: str = answer.sentence
    assert sentence.count("\n") == 0
    return sentence


def facts(admin_server: AdminServer, message_id: str) -> dict[str, str]:
    answer = admin_server.call("Why", group=named("counters"), topic=named("flights"), message_id=message_id)
    return {fact.name: fact.value for fact in answer.evidence}


def test_a_message_nobody_has_come_to(made: AdminServer) -> None:
    made.send("flights", "m0", "m1", "m2")
    assert "has not received from this topic yet; it will start at the earliest message" in why(made, "m1")
    made.receive("counters", "flights", 1)
    assert why(made, "m2") == "READY: group 'counters' has 1 message to read before it"
    assert why(made, "m1") == "READY: the next receive of group 'counters' may take it"
    assert facts(made, "m2") == {"group": "counters", "state": "READY", "messages ahead": "1"}


def test_a_message_somebody_holds(made: AdminServer) -> None:
    made.send("flights", "m0")
    made.receive("counters", "flights")
    assert why(made, "m0") == (
        "INFLIGHT: client 'worker-1' has it, attempt 1 of 2, until 2025-01-01 00:00:10.000+00:00 (in 10 s)"
    )
    assert facts(made, "m0")["client"] == "worker-1"


def test_a_message_that_came_back(made: AdminServer) -> None:
    made.send("flights", "m0")
    made.receive("counters", "flights")
    made.server.clock.advance("11s")
    assert why(made, "m0") == "READY again after attempt 1 (the hold's time ended); the next receive may take it"


def test_a_dead_letter(made: AdminServer) -> None:
    made.send("flights", "m0")
    for _ in range(2):
        made.receive("counters", "flights")
        made.server.clock.advance("11s")
    assert "DLQ: a dead letter of group 'counters' since 2025-01-01 00:00:2" in why(made, "m0")
    assert "after attempt 2: the hold's time ended, and no attempt remains" in why(made, "m0")


def test_a_dead_letter_of_a_message_that_was_removed(made: AdminServer) -> None:
    made.make_group("others", history="all")
    made.send("flights", "m0")
    for _ in range(2):
        made.receive("counters", "flights")
        made.server.clock.advance("11s")
    made.call("DeleteTopic", topic=named("flights"))
    assert "DLQ: a dead letter of group 'counters' since 2025-01-01 00:00:2" in why(made, "m0")
    states = made.call("GetMessage", message_id="m0").states
    assert [(each.group.name, each.state, each.delivery_attempt) for each in states] == [("counters", "DLQ", 2)]
    answer = made.call("Why", group=named("others"), message_id="m0")
    assert answer.status.code == pb.MESSAGE_NOT_FOUND
    assert answer.status.message == (
        "message 'm0' was removed by its age or with its topic; it is left as a dead letter of: 'counters'"
    )
    copy = made.call("Why", group=named("others"), topic=named("%DLQ%counters"), message_id="m0")
    assert "READY for group 'others', which has not received from this topic yet" in copy.sentence


@pytest.mark.parametrize(("history", "says"), [("all", "is done with it"), ("errors", "or skipped by an operator")])
def test_a_message_that_is_done(made: AdminServer, history: str, says: str) -> None:
    made.make_group("others", history=history)
    made.send("flights", "m0")
    (held,) = made.receive("others", "flights")
    made.ack("others", "flights", held)
    assert says in why(made, "m0", "others")


def test_a_message_that_a_filter_refused(made: AdminServer) -> None:
    """A step of it is in no history."""
    made.send("flights", "m0")
    assert made.receive("counters", "flights", wanted="other") == []
    assert why(made, "m0").startswith(
        "COMMIT: group 'counters' is done with it, and its history has no step of it: the"
    )


def test_a_message_behind_another_of_its_message_group(made: AdminServer) -> None:
    made.send("flights", "m0", "m1", "m2", "m3", message_group="g")
    _, second = made.receive("counters", "flights", 2)
    assert why(made, "m3") == (
        "READY, but message group 'g' is locked: message m0 comes first, INFLIGHT: client 'worker-1' has it, attempt 1"
        " of 2, until 2025-01-01 00:00:10.000+00:00 (in 10 s)"
    )
    made.ack("counters", "flights", second)
    assert why(made, "m1").startswith(
        "acked; it is committed when all messages before it in message group 'g' end: message m0 comes first"
    )
    assert facts(made, "m3")["first of its message group"] == "m0"


def test_its_steps_in_that_group_alone(made: AdminServer) -> None:
    made.make_group("others", history="all")
    made.send("flights", "m0")
    made.receive("counters", "flights")
    made.receive("others", "flights")
    answer = made.call("Why", group=named("counters"), message_id="m0")
    assert [(step.group.name, step.event) for step in answer.history] == [("counters", "RECEIVE")]


def test_what_is_nowhere(made: AdminServer) -> None:
    made.send("flights", "m0")
    refused: list[tuple[dict[str, Any], int, str]] = [
        ({"group": named("counters"), "message_id": "gone"}, pb.MESSAGE_NOT_FOUND, "'gone' is not in any topic"),
        ({"group": named("nobody"), "message_id": "m0"}, pb.CONSUMER_GROUP_NOT_FOUND, "'nobody' does not exist"),
        ({"group": named("counters"), "message_id": ""}, pb.ILLEGAL_MESSAGE_ID, "blank"),
        (
            {"group": named("counters"), "topic": named("nowhere"), "message_id": "m0"},
            pb.TOPIC_NOT_FOUND,
            "'nowhere' does not exist",
        ),
    ]
    for request, code, says in refused:
        before = made.digest()
        answer = made.call("Why", **request)
        assert (answer.status.code, says in answer.status.message) == (code, True), answer.status
        assert made.digest() == before


def test_a_message_of_a_paused_group(made: AdminServer) -> None:
    made.send("flights", "m0", "m1", message_group="LH1", message_type=pb.FIFO)
    made.receive("counters", "flights", 1)
    assert made.call("PauseGroup", group=named("counters"), topic=named("flights")).status.code == pb.OK
    assert why(made, "m1") == (
        "READY, but group 'counters' is paused in topic 'flights' since 2025-01-01 00:00:00.000+00:00 (0 ms ago);"
        " resume it with: popmq group resume counters --topic flights"
    )
    assert why(made, "m0").startswith("INFLIGHT: client 'worker-1' has it"), "a hold stays"
    assert facts(made, "m1")["paused"] == "2025-01-01 00:00:00.000+00:00 (0 ms ago)"
    made.call("PauseGroup", group=named("counters"))
    assert "group 'counters' is paused since" in why(made, "m1"), "the wider pause is named"
    for topic in (None, named("flights")):
        made.call("ResumeGroup", group=named("counters"), topic=topic)
    made.call("PauseGroup", group=named("counters"), topic=named("flights"), message_group="LH1")
    assert why(made, "m1") == (
        "READY, but message group 'LH1' is paused for group 'counters' since 2025-01-01 00:00:00.000+00:00 (0 ms ago);"
        " resume it with: popmq group resume counters --topic flights --message-group 'LH1'"
    )
