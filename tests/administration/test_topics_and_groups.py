"""Topics and groups: made, changed, shown, listed, deleted."""

from __future__ import annotations

from datetime import timedelta

import pytest

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named, opened


def test_a_topic_gets_the_defaults(admin_server: AdminServer) -> None:
    answer = admin_server.call("CreateTopic", topic=named("flights"))
    assert answer.status.code == pb.OK
    assert answer.topic.queue_count == 8
    assert list(answer.topic.accept_message_types) == [pb.NORMAL]
    assert answer.topic.created_at.ToMilliseconds() == admin_server.server.clock.now_ms()


def test_a_topic_is_changed_shown_and_listed(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=2, accept_message_types=[pb.NORMAL, pb.NORMAL])
    admin_server.call("CreateTopic", topic=named("airports"), queue_count=1)
    admin_server.send("flights", "m1", "m2", "m3")
    grown = admin_server.call("UpdateTopic", topic=named("flights"), queue_count=3)
    assert (grown.topic.queue_count, list(grown.topic.accept_message_types)) == (3, [pb.NORMAL])
    changed = admin_server.call("UpdateTopic", topic=named("flights"), accept_message_types=[pb.NORMAL])
    assert (changed.topic.queue_count, list(changed.topic.accept_message_types)) == (3, [pb.NORMAL])
    shown = admin_server.call("GetTopic", topic=named("flights")).topic
    assert shown.message_count == 3
    assert [queue.id for queue in shown.queues] == [0, 1, 2]
    assert sum(queue.max_offset - queue.min_offset for queue in shown.queues) == 3
    listed = admin_server.call("ListTopics").topics
    assert [(each.topic.name, each.message_count) for each in listed] == [("airports", 0), ("flights", 3)]
    assert not any(each.queues for each in listed)


def test_a_new_queue_is_met_by_the_groups_of_its_topic(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=1)
    admin_server.send("flights", "m1")
    assert len(admin_server.receive("counters", "flights")) == 1
    admin_server.call("UpdateTopic", topic=named("flights"), queue_count=2)
    for number in range(2, 6):  # one message per request: the queues take turns
        admin_server.send("flights", f"m{number}")
    (lag,) = admin_server.call("GetGroup", group=named("counters")).group.lag
    assert (lag.ready, lag.inflight) == (4, 1)


def test_a_topic_is_closed_for_producers_and_opened(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("flights"))
    admin_server.send("flights", "m1")
    closed = admin_server.call("UpdateTopic", topic=named("flights"), closed_because="it has moved")
    assert closed.topic.closed_because == admin_server.call("GetTopic", topic=named("flights")).topic.closed_because
    with pytest.raises(AssertionError, match="is closed for producers: it has moved"):
        admin_server.send("flights", "m2")
    assert len(admin_server.receive("counters", "flights")) == 1
    opened = admin_server.call("UpdateTopic", topic=named("flights"), closed_because="")
    assert opened.topic.closed_because == ""
    admin_server.send("flights", "m3")
    assert admin_server.call("GetTopic", topic=named("flights")).topic.message_count == 2


def test_a_deleted_topic_is_gone_and_its_name_is_free(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("flights"))
    admin_server.send("flights", "m1")
    assert admin_server.call("DeleteTopic", topic=named("flights")).status.code == pb.OK
    assert admin_server.call("GetTopic", topic=named("flights")).status.code == pb.TOPIC_NOT_FOUND
    assert admin_server.call("GetMessage", message_id="m1").status.code == pb.MESSAGE_NOT_FOUND
    assert admin_server.call("CreateTopic", topic=named("flights")).topic.message_count == 0


def test_a_group_gets_the_defaults(admin_server: AdminServer) -> None:
    group = admin_server.call("CreateGroup", group=named("counters")).group
    assert (group.max_attempts, group.consume_from, group.history, group.mode) == (17, "EARLIEST", "errors", "")
    assert [each.ToSeconds() for each in group.retry_intervals][:3] == [10, 30, 60]


def test_a_group_is_changed_shown_and_listed(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.make_group("counters", intervals_s=(1, 2), max_attempts=3, consume_from="LATEST", history="none")
    admin_server.make_group("auditors")
    assert admin_server.call("GetGroup", group=named("counters")).group.fifo_retry_interval.ToSeconds() == 3
    changed = admin_server.call(
        "UpdateGroup",
        group=named("counters"),
        max_attempts=5,
        history="all",
        fifo_retry_interval=timedelta(milliseconds=500),
    ).group
    assert changed.fifo_retry_interval.ToMilliseconds() == 500
    assert (changed.max_attempts, changed.consume_from, changed.history) == (5, "LATEST", "all")
    assert [each.ToSeconds() for each in changed.retry_intervals] == [1, 2]
    assert admin_server.call("GetGroup", group=named("counters")).group == changed
    assert [each.group.name for each in admin_server.call("ListGroups").groups] == ["auditors", "counters"]


def test_a_deleted_group_takes_its_dead_letters_along(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.send("flights", "m1")
    (message,) = admin_server.receive("counters", "flights")
    admin_server.give_up("counters", "flights", message)
    assert admin_server.call("GetStatus").dead_letters == 1
    assert admin_server.call("DeleteGroup", group=named("counters")).status.code == pb.OK
    admin_server.server.settle()
    status = admin_server.call("GetStatus")
    assert (status.groups, status.dead_letters, status.messages) == (0, 0, 1)
    assert [each.topic.name for each in admin_server.call("ListTopics").topics] == ["flights"]


@pytest.mark.row("G7")
def test_namespaces_are_apart(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("east/flights"), queue_count=2)
    admin_server.call("CreateTopic", topic=named("flights"), queue_count=3, namespace="west")
    admin_server.make_group("east/counters")
    assert admin_server.call("GetTopic", topic=named("west/flights")).topic.queue_count == 3
    assert admin_server.call("GetTopic", topic=named("flights"), namespace="east").topic.queue_count == 2
    assert admin_server.call("GetTopic", topic=named("flights")).status.code == pb.TOPIC_NOT_FOUND
    assert len(admin_server.call("ListTopics").topics) == 2
    assert [each.queue_count for each in admin_server.call("ListTopics", namespace="west").topics] == [3]
    assert not admin_server.call("ListGroups", namespace="west").groups


@pytest.mark.row("N3")
def test_nothing_is_made_by_looking_at_it(admin_server: AdminServer) -> None:
    before = admin_server.digest()
    for method, fields in (
        ("GetTopic", {"topic": named("flights")}),
        ("PeekMessages", {"topic": named("flights")}),
        ("GetGroup", {"group": named("counters")}),
        ("ListDeadLetters", {"selection": admin.DeadLetterSelection(group=named("counters"))}),
    ):
        status = admin_server.call(method, **fields).status
        assert status.code in (pb.TOPIC_NOT_FOUND, pb.CONSUMER_GROUP_NOT_FOUND)
        assert "popmq topic create flights" in status.message or "popmq group create counters" in status.message
    assert admin_server.digest() == before


def test_the_lists_are_bounded_and_say_so() -> None:
    with opened() as admin_server:
        for number in range(1_001):
            admin_server.make_group(f"group-{number:04}")
        answer = admin_server.call("ListGroups")
    assert len(answer.groups) == 1_000
    assert answer.status == pb.Status(code=pb.OK, message="the first 1000 of 1001 groups")
