"""What a group holds, and which of its message groups wait for their first message; on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.administration import holds as administration_holds
from tests.support.desk import Desk, named


def holds(desk: Desk, **fields: Any) -> list[Any]:
    answer = desk.call("ListHolds", group=named("counters"), **fields)
    assert answer.status.code == pb.OK, answer
    return list(answer.holds)


def locked(desk: Desk) -> list[Any]:
    answer = desk.call("ListLockedMessageGroups", group=named("counters"))
    assert answer.status.code == pb.OK, answer
    return list(answer.message_groups)


def make_topic(desk: Desk) -> None:
    desk.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL, pb.FIFO])
    desk.make_group("counters", max_attempts=3)


def test_a_hold_has_its_place_its_client_and_its_end(stored_desk: Desk) -> None:
    make_topic(stored_desk)
    stored_desk.send("flights", "m0", "m1", "m2")
    assert holds(stored_desk) == []
    stored_desk.receive("counters", "flights", 1)
    stored_desk.server.clock.advance("2s")
    stored_desk.receive("counters", "flights", 1)
    late, early = holds(stored_desk)
    assert (late.message_id, late.queue_offset, early.message_id, early.queue_offset) == ("m1", 1, "m0", 0)
    assert (early.client_id, early.state, early.delivery_attempt, early.holder) == ("worker-1", "INFLIGHT", 1, "SIMPLE")
    assert late.visible_at.ToMilliseconds() - early.visible_at.ToMilliseconds() == 2_000
    assert [each.message_id for each in holds(stored_desk, max=1)] == ["m1"]
    assert holds(stored_desk, topic=named("flights"), max=1)[0].topic.name == "flights"


def test_a_message_that_is_done_is_held_no_more(stored_desk: Desk) -> None:
    make_topic(stored_desk)
    stored_desk.send("flights", "m0")
    (message,) = stored_desk.receive("counters", "flights")
    stored_desk.ack("counters", "flights", message)
    assert holds(stored_desk) == []


def test_a_message_group_is_locked_by_its_first_message(stored_desk: Desk) -> None:
    make_topic(stored_desk)
    stored_desk.send("flights", "a0", "a1", "a2", message_group="a")
    stored_desk.send("flights", "b0", message_group="b")
    assert locked(stored_desk) == []
    stored_desk.receive("counters", "flights", 1)
    (found,) = locked(stored_desk)
    assert (found.message_group, found.first.message_id, found.behind) == ("a", "a0", 2)
    assert found.stored_at.ToMilliseconds() == stored_desk.server.clock.now_ms()


def test_many_locked_message_groups_are_counted_and_some_are_shown(
    stored_desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(stored_desk)
    for number in range(40):
        stored_desk.send("flights", f"m{number}", message_group=f"group-{number:02}")
    while stored_desk.receive("counters", "flights"):
        pass

    def shown(**fields: Any) -> tuple[list[str], int]:
        answer = stored_desk.call("ListLockedMessageGroups", group=named("counters"), **fields)
        return [each.message_group for each in answer.message_groups], answer.more

    names = [f"group-{number:02}" for number in range(40)]
    assert shown() == (names[:32], 8)
    assert shown(max=40) == (names, 0)
    monkeypatch.setattr(administration_holds, "MESSAGE_GROUPS_MAX", 25)
    assert shown(max=10) == (names[:10], 15), "the server looks at no more than 25"
    assert stored_desk.call("ListLockedMessageGroups", group=named("counters"), max=1_001).status.code == pb.BAD_REQUEST


def test_who_is_not_there_has_no_holds(stored_desk: Desk) -> None:
    assert stored_desk.call("ListHolds", group=named("nobody")).status.code == pb.CONSUMER_GROUP_NOT_FOUND
    refused = stored_desk.call("ListLockedMessageGroups", group=named("nobody"))
    assert refused.status.code == pb.CONSUMER_GROUP_NOT_FOUND
    make_topic(stored_desk)
    refused = stored_desk.call("ListHolds", group=named("counters"), max=1_001)
    assert (refused.status.code, "1 to 1000" in refused.status.message) == (pb.BAD_REQUEST, True)


def test_lag_counts_what_is_stored_and_what_ever_was(stored_desk: Desk) -> None:
    make_topic(stored_desk)
    stored_desk.send("flights", "m0", "m1")
    (message, _) = stored_desk.receive("counters", "flights")
    stored_desk.give_up("counters", "flights", message)
    status = stored_desk.call("GetStatus")
    (lag,) = status.lag
    assert (lag.stored, lag.appended, lag.dead_letters, status.appended) == (2, 2, 1, 2)
