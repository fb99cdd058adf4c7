"""Names of topics and groups at the edges of what protocol 4.1 allows."""

from __future__ import annotations

import pytest

from popserver.model.errors import IllegalConsumerGroup, IllegalTopic
from popserver.model.names import (
    Resource,
    check_group,
    check_topic,
    check_topic_to_send,
    dead_letter_topic,
    is_system_derived,
    owner_of,
)


def named(name: str) -> Resource:
    return Resource("", name)


@pytest.mark.parametrize(
    "name", ["t", "T-1_x", "a|b", "100%", "x" * 127, "%DLQ%" + "g" * 120, "%RETRY%g", "RMQ_SYSTEM"]
)
def test_a_topic_that_may_be_consumed(name: str) -> None:
    check_topic(named(name))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("x" * 128, "128 characters, at most 127"),
        ("%DLQ%" + "g" * 251, "256 characters, at most 255"),
        ("a b", "not allowed"),
        ("tópic", "not allowed"),
        ("a/b", "not allowed"),
        ("a\n", "not allowed"),
        ("TBW102", "reserved"),
        ("SCHEDULE_TOPIC_XXXX", "reserved"),
        ("BenchmarkTest", "reserved"),
        ("TRANS_CHECK_MAX_TIME_TOPIC", "reserved"),
        ("SELF_TEST_TOPIC", "reserved"),
        ("OFFSET_MOVED_EVENT", "reserved"),
        ("CHECKPOINT_TOPIC", "reserved"),
        ("rmq_sys_x", "reserved"),
        ("RMQ_SYS_TRACE_TOPIC", "reserved"),
    ],
)
def test_a_topic_that_may_not_be(name: str, says: str) -> None:
    with pytest.raises(IllegalTopic, match=says):
        check_topic(named(name))


@pytest.mark.parametrize("name", ["%DLQ%", "%RETRY%", "%DLQ%" + "g" * 121, "%RETRY%CID_RMQ_SYS_x"])
def test_a_topic_of_a_group_that_may_not_be(name: str) -> None:
    with pytest.raises(IllegalConsumerGroup):
        check_topic(named(name))


@pytest.mark.parametrize("name", ["%DLQ%g", "%RETRY%g"])
def test_only_the_server_fills_derived_topics(name: str) -> None:
    check_topic(named(name))
    with pytest.raises(IllegalTopic, match="only the server sends"):
        check_topic_to_send(named(name))


@pytest.mark.parametrize("name", ["g", "x" * 120, "%a|B-_9", "CID_RMQ"])
def test_a_group_that_may_be(name: str) -> None:
    check_group(named(name))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "blank"),
        ("\t", "blank"),
        ("x" * 121, "121 characters, at most 120"),
        ("a.b", "not allowed"),
        ("CID_RMQ_SYS_x", "reserved"),
    ],
)
def test_a_group_that_may_not_be(name: str, says: str) -> None:
    with pytest.raises(IllegalConsumerGroup, match=says):
        check_group(named(name))


def test_the_longest_group_has_a_legal_dead_letter_topic() -> None:
    check_topic(dead_letter_topic(named("x" * 120)))


def test_a_groups_dead_letter_topic_leads_back_to_it() -> None:
    group = Resource("tenant", "billing")
    topic = dead_letter_topic(group)
    assert topic == Resource("tenant", "%DLQ%billing")
    assert owner_of(topic) == group
    assert owner_of(Resource("tenant", "%RETRY%billing")) == group
    assert owner_of(Resource("tenant", "billing")) is None
    assert [is_system_derived(name) for name in ("%DLQ%x", "%RETRY%x", "x%DLQ%")] == [True, True, False]


def test_a_resource_is_written_with_its_namespace() -> None:
    assert (str(Resource("", "t")), str(Resource("ns", "t"))) == ("t", "ns/t")
