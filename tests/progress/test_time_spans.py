"""When the messages around a group's progress were stored: each queue by itself, and no other group's progress."""

from __future__ import annotations

import pytest

from popserver.model.errors import ConsumerGroupNotFound, TopicNotFound
from popserver.model.group import Group
from popserver.model.names import Resource, retry_topic
from popserver.model.topic import Topic
from popserver.progress import time_span
from popserver.progress.time_span import QueueTimeSpan
from tests.support.builders import GROUP
from tests.support.open_store import SECOND, START_MS, OpenStore
from tests.support.progress import reset
from tests.support.pulls import trim


def spans(store: OpenStore, group: Group, *topics: Topic) -> list[QueueTimeSpan]:
    return time_span.time_spans(store.conn, group.name, [each.name for each in topics])


def seconds(span: QueueTimeSpan) -> list[int | None]:
    """Oldest, newest, passed and next, in seconds after the start."""
    return [None if each is None else (each - START_MS) // SECOND for each in span[3:]]


def filled(store: OpenStore, name: str | Resource, queues: int, count: int) -> Topic:
    """A topic with `count` messages in each queue, one each second: first all of the first queue."""
    topic = store.topic(name, queues=queues)
    for number in range(queues):
        for _ in range(count):
            store.send(topic, queue=number)
            store.now_ms += SECOND
    return topic


def test_each_queue_has_its_own_times(store: OpenStore) -> None:
    topic = filled(store, "orders", 3, 4)
    group, other = store.group(meets=[topic]), store.group("other", meets=[topic])
    for number, offset in enumerate((0, 4, 1)):
        reset(store, group, topic, offset, queue=number)
        reset(store, other, topic, 2, queue=number)
    found = spans(store, group)
    assert [(each.topic, each.number) for each in found] == [(topic.name, number) for number in range(3)]
    assert [seconds(each) for each in found] == [[0, 3, None, 0], [4, 7, 7, None], [8, 11, 8, 9]]


def test_topics_stand_in_the_order_of_their_names(store: OpenStore) -> None:
    names = [Resource("", "b"), Resource("ns", "a"), Resource("", "a")]
    topics = [filled(store, each, 2, 1) for each in names]
    group = store.group(meets=topics)
    listed = [(each.namespace, each.name, each.number) for each in spans(store, group)]
    assert listed == [(*name, number) for name in sorted(names) for number in range(2)]
    assert spans(store, group, *topics) == spans(store, group)


def test_queues_stand_in_the_order_of_their_numbers(store: OpenStore) -> None:
    """Whatever their ids."""
    topic = filled(store, "orders", 4, 1)
    group = store.group(meets=[topic])
    for change in ("number + 10", "13 - number"):
        store.conn.exec_driver_sql(f"UPDATE queue SET number = {change}")
    store.conn.commit()
    for named in ([], [topic]):
        found = spans(store, group, *named)
        assert [(each.number, *seconds(each)[:1]) for each in found] == [(0, 3), (1, 2), (2, 1), (3, 0)]


def test_only_topics_that_the_group_reads_and_that_are_named(store: OpenStore) -> None:
    one, other, unread = (filled(store, name, 1, 1) for name in ("one", "other", "unread"))
    group = store.group(meets=[one, other])
    store.group("another", meets=[unread])
    assert [each.name for each in spans(store, group)] == ["one", "other"]
    assert [each.name for each in spans(store, group, other, unread)] == ["other"]
    assert spans(store, group, unread) == []


@pytest.mark.parametrize(("kept_from", "expected"), [(2, [2, 3, 2, 3]), (3, [3, 3, None, 3]), (4, [None] * 4)])
def test_what_retention_has_removed_has_no_time(store: OpenStore, kept_from: int, expected: list[int | None]) -> None:
    topic = filled(store, "orders", 1, 4)
    group = store.group(meets=[topic])
    reset(store, group, topic, 3)
    trim(store, topic, kept_from)
    (span,) = spans(store, group)
    assert seconds(span) == expected


def test_the_retry_topic_of_another_group_is_a_topic_like_others(store: OpenStore) -> None:
    """Also one of the same name in another namespace."""
    group = store.group()
    names = [retry_topic(GROUP), retry_topic(Resource("ns", GROUP.name)), retry_topic(Resource("", "another"))]
    for each in names:
        store.meet(group, filled(store, each, 1, 1))
    assert {each.topic for each in spans(store, group)} == {*names[1:]}


def test_no_more_than_one_beyond_the_limit(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_span, "QUEUES_MAX", 2)
    topic = filled(store, "orders", 4, 1)
    group = store.group(meets=[topic])
    for change in ("number + 10", "13 - number"):
        store.conn.exec_driver_sql(f"UPDATE queue SET number = {change}")
    store.conn.commit()
    for named in ([], [topic]):
        assert [each.number for each in spans(store, group, *named)] == [0, 1, 2], "the first ones"


def test_the_limit_keeps_the_first_by_name(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_span, "QUEUES_MAX", 1)
    names = [Resource("ns", "a"), *(Resource("", name) for name in "cdb")]
    topics = [filled(store, each, 1, 1) for each in names]
    group = store.group(meets=topics)
    for named in ([], topics):
        assert [(each.namespace, each.name) for each in spans(store, group, *named)] == [("", "b"), ("", "c")]


def test_what_does_not_exist_is_named(store: OpenStore) -> None:
    topic, group = store.topic(), store.group()
    store.meet(group, topic)
    with pytest.raises(ConsumerGroupNotFound):
        time_span.time_spans(store.conn, Resource("", "nobody"), [topic.name])
    with pytest.raises(TopicNotFound):
        time_span.time_spans(store.conn, group.name, [topic.name, Resource("", "nowhere")])
