"""apache.rocketmq.v2.Admin about a group's progress: accumulation, time spans, reset, the end of a subscription."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named
from tests.support.builders import an_id

GROUP, TOPIC, OTHER = named("workers"), named("jobs"), named("more")
START_MS = 1_735_689_600_000  # of the manual clock


@pytest.fixture
def admin_server(either_admin_server: AdminServer) -> AdminServer:
    return either_admin_server


@pytest.fixture
def ids(admin_server: AdminServer) -> list[str]:
    """Ten messages in the one queue of each topic, one each second; the group holds three of `jobs`, acked one more,
    and has looked at the other topic."""
    sent = [an_id() for _ in range(10)]
    admin_server.make_group("workers", intervals_s=(3_600,))
    for topic in (TOPIC, OTHER):
        assert admin_server.call("CreateTopic", topic=topic, queue_count=1).status.code == pb.OK
    for each in sent:
        admin_server.send("jobs", each)
        admin_server.send("more", each)
        admin_server.server.clock.advance("1s")
    (done,) = admin_server.receive("workers", "jobs", 1)
    admin_server.ack("workers", "jobs", done)
    assert len(admin_server.receive("workers", "jobs", 3)) == 3
    assert len(admin_server.receive("workers", "more", 1)) == 1
    return sent


def counted(answer: Any) -> tuple[int, int, int]:
    return answer.inflight_messages, answer.ready_messages, answer.accumulation


def test_the_accumulation_of_a_group(admin_server: AdminServer, ids: list[str]) -> None:
    answer = admin_server.ask("DescribeGroupAccumulation", group=GROUP)
    assert answer.status == pb.Status(code=pb.OK, message="OK")
    assert counted(answer.accumulation) == (4, 15, 19)
    by_topic = {name: counted(each) for name, each in answer.topic_accumulation.items()}
    assert by_topic == {"jobs": (3, 6, 9), "more": (1, 9, 10)}
    # The oldest READY message of each topic was stored 6 s and 9 s ago.
    delays = {name: each.deliver_delay_time.seconds for name, each in answer.topic_accumulation.items()}
    assert delays == {"jobs": 6, "more": 9}
    assert answer.accumulation.deliver_delay_time.seconds == 9
    assert not answer.accumulation.last_consume_timestamp


def test_the_accumulation_of_named_topics(admin_server: AdminServer, ids: list[str]) -> None:
    answer = admin_server.ask("DescribeGroupAccumulation", group=GROUP, topics=[OTHER, OTHER])
    assert counted(answer.accumulation) == (1, 9, 10)
    assert set(answer.topic_accumulation) == {"more"}
    admin_server.call("CreateTopic", topic=named("unread"))
    nothing = admin_server.ask("DescribeGroupAccumulation", group=GROUP, topics=[named("unread")])
    assert (counted(nothing.accumulation), len(nothing.topic_accumulation)) == ((0, 0, 0), 0)
    missing = admin_server.ask("DescribeGroupAccumulation", group=GROUP, topics=[named("nowhere")])
    assert (missing.status.code, "'nowhere'" in missing.status.message) == (pb.TOPIC_NOT_FOUND, True)


def test_the_whole_group_is_added_up_though_few_topics_are_listed(
    admin_server: AdminServer, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.progress.accumulation.TOPICS_MAX", 1)
    answer = admin_server.ask("DescribeGroupAccumulation", group=GROUP)
    assert counted(answer.accumulation) == (4, 15, 19)
    assert set(answer.topic_accumulation) == {"jobs"}
    assert answer.status == pb.Status(code=pb.OK, message="only the first 1 of 2 topics; name those that you want")


def test_a_topic_of_another_namespace_is_named_in_full(admin_server: AdminServer) -> None:
    admin_server.make_group("eu/workers")
    for topic in ("eu/jobs", "us/jobs"):
        admin_server.send(topic, an_id())
        admin_server.receive("eu/workers", topic, 0) or admin_server.receive("eu/workers", topic, 1)
    answer = admin_server.ask("DescribeGroupAccumulation", group=named("eu/workers"))
    assert set(answer.topic_accumulation) == {"jobs", "us/jobs"}


def test_topics_of_one_name_are_two_entries(admin_server: AdminServer) -> None:
    admin_server.make_group("eu/workers")
    for topic, count in (("jobs", 1), ("eu/jobs", 2)):
        admin_server.send(topic, *(an_id() for _ in range(count)))
        assert len(admin_server.receive("eu/workers", topic)) == count
    answer = admin_server.ask("DescribeGroupAccumulation", group=named("eu/workers"))
    by_topic = {name: each.inflight_messages for name, each in answer.topic_accumulation.items()}
    assert by_topic == {"/jobs": 1, "jobs": 2}


def test_time_spans(admin_server: AdminServer, ids: list[str]) -> None:
    answer = admin_server.ask("QueryTimeSpan", group=GROUP, topics=[TOPIC])
    (span,) = answer.queue_time_span_list
    assert (span.message_queue.topic, span.message_queue.id) == (TOPIC, 0)
    assert span.message_queue.broker.name == "popmq"
    # Ten messages in ten seconds; the group's progress has passed four.
    assert [each - START_MS for each in (span.min_timestamp, span.max_timestamp, span.consume_timestamp)] == [
        0,
        9_000,
        3_000,
    ]
    assert span.delay_time_ms == 6_000
    every = admin_server.ask("QueryTimeSpan", group=GROUP).queue_time_span_list
    assert [each.message_queue.topic.name for each in every] == ["jobs", "more"]


def test_the_time_span_of_a_queue_without_messages(admin_server: AdminServer) -> None:
    admin_server.make_group("workers")
    admin_server.call("CreateTopic", topic=TOPIC, queue_count=1)
    admin_server.receive("workers", "jobs", 1)
    (span,) = admin_server.ask("QueryTimeSpan", group=GROUP).queue_time_span_list
    times = span.min_timestamp, span.max_timestamp, span.consume_timestamp, span.delay_time_ms
    assert times == (0, 0, 0, 0)


def test_the_time_spans_of_a_group_are_without_its_retries(admin_server: AdminServer, ids: list[str]) -> None:
    retries = named("%RETRY%workers")
    assert admin_server.receive("workers", "%RETRY%workers", 1) == []
    every = admin_server.ask("QueryTimeSpan", group=GROUP).queue_time_span_list
    assert [each.message_queue.topic.name for each in every] == ["jobs", "more"]
    (own,) = admin_server.ask("QueryTimeSpan", group=GROUP, topics=[retries]).queue_time_span_list
    assert own.message_queue.topic == retries


def test_time_spans_have_a_limit(admin_server: AdminServer, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("time_span", "rpc_rocketmq"):
        monkeypatch.setattr(f"popserver.progress.{module}.QUEUES_MAX", 1)
    answer = admin_server.ask("QueryTimeSpan", group=GROUP)
    assert [each.message_queue.topic.name for each in answer.queue_time_span_list] == ["jobs"]
    assert answer.status.message == "only the first 1 queues; name fewer topics"


@pytest.mark.row("H13")
def test_a_group_is_reset_to_a_time(admin_server: AdminServer, ids: list[str]) -> None:
    answer = admin_server.ask(
        "ResetGroupOffset", group=GROUP, topic=TOPIC, reset_timestamp={"seconds": START_MS // 1_000 + 7}
    )
    assert answer.status == pb.Status(code=pb.OK, message="OK")
    assert [each.system_properties.message_id for each in admin_server.receive("workers", "jobs")] == ids[7:]


def test_a_reset_without_a_time_is_refused(admin_server: AdminServer, ids: list[str]) -> None:
    before = admin_server.digest()
    for at in (None, {"seconds": 0}, {"seconds": -1}):
        status = admin_server.ask("ResetGroupOffset", group=GROUP, topic=TOPIC, reset_timestamp=at).status
        assert (status.code, "reset_timestamp" in status.message) == (pb.BAD_REQUEST, True)
    assert admin_server.digest() == before


def test_a_subscription_is_deleted(admin_server: AdminServer, ids: list[str]) -> None:
    (held, *_) = admin_server.receive("workers", "more", 1)
    assert admin_server.ask("DeleteSubscription", group=GROUP, topic=OTHER).status == pb.Status(
        code=pb.OK, message="OK"
    )
    assert set(admin_server.ask("DescribeGroupAccumulation", group=GROUP).topic_accumulation) == {"jobs"}
    assert [each.topic.name for each in admin_server.ask("ListSubscription", group=GROUP).subscription_info] == ["jobs"]
    again = admin_server.ask("DeleteSubscription", group=GROUP, topic=OTHER).status
    assert (again.code, "'workers' does not consume topic 'more'" in again.message) == (pb.NOT_FOUND, True)
    late = admin_server.acked("workers", "more", held)
    assert late.code == pb.INVALID_RECEIPT_HANDLE
    # A group that reads the topic again begins as one that has never read it.
    assert [each.system_properties.message_id for each in admin_server.receive("workers", "more")] == ids
    assert admin_server.acked("workers", "more", held).code == pb.INVALID_RECEIPT_HANDLE


def test_pauses_end_with_the_subscription(admin_server: AdminServer, ids: list[str]) -> None:
    admin_server.call("PauseGroup", group=GROUP, topic=OTHER)
    admin_server.call("PauseGroup", group=GROUP, topic=TOPIC)
    assert admin_server.ask("DeleteSubscription", group=GROUP, topic=OTHER).status.code == pb.OK
    (group,) = admin_server.call("ListGroups").groups
    assert [each.topic.name for each in group.pauses] == ["jobs"]
    assert len(admin_server.receive("workers", "more")) == 10


def test_dead_letters_outlive_the_subscription(admin_server: AdminServer, ids: list[str]) -> None:
    (held,) = admin_server.receive("workers", "jobs", 1)
    admin_server.give_up("workers", "jobs", held)
    assert admin_server.ask("DeleteSubscription", group=GROUP, topic=TOPIC).status.code == pb.OK
    assert len(admin_server.call("ListDeadLetters", selection={"group": GROUP}).dead_letters) == 1


@pytest.mark.parametrize(
    ("method", "fields", "code", "words"),
    [
        ("DescribeGroupAccumulation", {}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
        ("DescribeGroupAccumulation", {"group": named("nobody")}, pb.CONSUMER_GROUP_NOT_FOUND, "'nobody'"),
        ("DescribeGroupAccumulation", {"group": GROUP, "topics": [named("a b")]}, pb.ILLEGAL_TOPIC, "'a b'"),
        ("DescribeGroupAccumulation", {"group": GROUP, "topics": [TOPIC] * 1_025}, pb.BAD_REQUEST, "1024"),
        ("QueryTimeSpan", {}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
        ("QueryTimeSpan", {"group": named("nobody")}, pb.CONSUMER_GROUP_NOT_FOUND, "'nobody'"),
        ("QueryTimeSpan", {"group": GROUP, "topics": [named("nowhere")]}, pb.TOPIC_NOT_FOUND, "'nowhere'"),
        ("QueryTimeSpan", {"group": GROUP, "topics": [TOPIC] * 1_025}, pb.BAD_REQUEST, "1024"),
        ("ResetGroupOffset", {"reset_timestamp": {"seconds": 1}}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
        (
            "ResetGroupOffset",
            {"group": GROUP, "topic": named("nowhere"), "reset_timestamp": {"seconds": 1}},
            pb.TOPIC_NOT_FOUND,
            "'nowhere'",
        ),
        (
            "ResetGroupOffset",
            {"group": GROUP, "topic": TOPIC, "reset_timestamp": {"seconds": 1 << 40}},
            pb.BAD_REQUEST,
            "9999",
        ),
        ("DeleteSubscription", {"topic": TOPIC}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
        ("DeleteSubscription", {"group": GROUP}, pb.ILLEGAL_TOPIC, "blank"),
        ("DeleteSubscription", {"group": named("nobody"), "topic": TOPIC}, pb.CONSUMER_GROUP_NOT_FOUND, "'nobody'"),
        (
            "DeleteSubscription",
            {"group": GROUP, "topic": TOPIC, "expression": {"type": pb.SQL, "expression": "a >"}},
            pb.ILLEGAL_FILTER_EXPRESSION,
            "line 1",
        ),
    ],
)
def test_bad_input(admin_server: AdminServer, ids: list[str], method: str, fields: Any, code: int, words: str) -> None:
    before = admin_server.digest()
    status = admin_server.ask(method, **fields).status
    assert (status.code, words in status.message) == (code, True), status
    assert admin_server.digest() == before
