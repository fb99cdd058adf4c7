"""What a group holds, and which of its message groups wait for their first message; on both databases."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.administration import holds as administration_holds
from tests.support.admin_server import AdminServer, named


def holds(admin_server: AdminServer, **fields: Any) -> list[Any]:
    answer = admin_server.call("ListHolds", group=named("counters"), **fields)
    assert answer.status.code == pb.OK, answer
    return list(answer.holds)


def locked(admin_server: AdminServer) -> list[Any]:
    answer = admin_server.call("ListLockedMessageGroups", group=named("counters"))
    assert answer.status.code == pb.OK, answer
    return list(answer.message_groups)


def make_topic(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1, accept_message_types=[pb.NORMAL, pb.FIFO])
    admin_server.make_group("counters", max_attempts=3)


def test_a_hold_has_its_place_its_client_and_its_end(either_admin_server: AdminServer) -> None:
    make_topic(either_admin_server)
    either_admin_server.send("flights", "m0", "m1", "m2")
    assert holds(either_admin_server) == []
    either_admin_server.receive("counters", "flights", 1)
    either_admin_server.server.clock.advance("2s")
    either_admin_server.receive("counters", "flights", 1)
    late, early = holds(either_admin_server)
    assert (late.message_id, late.queue_offset, early.message_id, early.queue_offset) == ("m1", 1, "m0", 0)
    assert (early.client_id, early.state, early.delivery_attempt, early.holder) == ("worker-1", "INFLIGHT", 1, "SIMPLE")
    assert late.visible_at.ToMilliseconds() - early.visible_at.ToMilliseconds() == 2_000
    assert [each.message_id for each in holds(either_admin_server, max=1)] == ["m1"]
    assert holds(either_admin_server, topic=named("flights"), max=1)[0].topic.name == "flights"


def test_a_message_that_is_done_is_held_no_more(either_admin_server: AdminServer) -> None:
    make_topic(either_admin_server)
    either_admin_server.send("flights", "m0")
    (message,) = either_admin_server.receive("counters", "flights")
    either_admin_server.ack("counters", "flights", message)
    assert holds(either_admin_server) == []


def test_a_message_group_is_locked_by_its_first_message(either_admin_server: AdminServer) -> None:
    make_topic(either_admin_server)
    either_admin_server.send("flights", "a0", "a1", "a2", message_group="a")
    either_admin_server.send("flights", "b0", message_group="b")
    assert locked(either_admin_server) == []
    either_admin_server.receive("counters", "flights", 1)
    (found,) = locked(either_admin_server)
    assert (found.message_group, found.first.message_id, found.behind) == ("a", "a0", 2)
    assert found.stored_at.ToMilliseconds() == either_admin_server.server.clock.now_ms()


def test_many_locked_message_groups_are_counted_and_some_are_shown(
    either_admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(either_admin_server)
    for number in range(40):
        either_admin_server.send("flights", f"m{number}", message_group=f"group-{number:02}")
    while either_admin_server.receive("counters", "flights"):
        pass

    def shown(**fields: Any) -> tuple[list[str], int]:
        answer = either_admin_server.call("ListLockedMessageGroups", group=named("counters"), **fields)
        return [each.message_group for each in answer.message_groups], answer.more

    names = [f"group-{number:02}" for number in range(40)]
    assert shown() == (names[:32], 8)
    assert shown(max=40) == (names, 0)
    monkeypatch.setattr(administration_holds, "MESSAGE_GROUPS_MAX", 25)
    assert shown(max=10) == (names[:10], 15), "the server looks at no more than 25"
    assert (
        either_admin_server.call("ListLockedMessageGroups", group=named("counters"), max=1_001).status.code
        == pb.BAD_REQUEST
    )


def test_who_is_not_there_has_no_holds(either_admin_server: AdminServer) -> None:
    assert either_admin_server.call("ListHolds", group=named("nobody")).status.code == pb.CONSUMER_GROUP_NOT_FOUND
    refused = either_admin_server.call("ListLockedMessageGroups", group=named("nobody"))
    assert refused.status.code == pb.CONSUMER_GROUP_NOT_FOUND
    make_topic(either_admin_server)
    refused = either_admin_server.call("ListHolds", group=named("counters"), max=1_001)
    assert (refused.status.code, "1 to 1000" in refused.status.message) == (pb.BAD_REQUEST, True)


def test_lag_counts_what_is_stored_and_what_ever_was(either_admin_server: AdminServer) -> None:
    make_topic(either_admin_server)
    either_admin_server.send("flights", "m0", "m1")
    (message, _) = either_admin_server.receive("counters", "flights")
    either_admin_server.give_up("counters", "flights", message)
    status = either_admin_server.call("GetStatus")
    (lag,) = status.lag
    assert (lag.stored, lag.appended, lag.dead_letters, status.appended) == (2, 2, 1, 2)
