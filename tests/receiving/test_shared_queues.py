"""Servers on one Postgres share out the queues of a topic: a receive locks as many as it needs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from popserver.model.group import Group
from popserver.model.topic import Topic
from popserver.receiving import receive
from popserver.receiving.batch import Received
from tests.support.open_store import OpenStore, a_receive

QUEUES, IN_EACH = 4, 4


@pytest.fixture
def other(store: OpenStore) -> OpenStore:
    """Another server's connection."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one server")
    return OpenStore(store.database)


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    """With messages in each queue, whose bodies are the numbers of their queues."""
    topic = store.topic(queues=QUEUES)
    for queue in range(QUEUES):
        store.send(topic, IN_EACH, queue=queue, body=b"%d" % queue)
    return topic


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])


def received(store: OpenStore, group: Group, topic: Topic, count: int, queue: int) -> Received:
    """A receive that begins at this queue."""
    return store.one(receive.receive, a_receive(group, topic, count, rotation=queue))


def beside(store: OpenStore, do: Callable[[], Received]) -> list[Received]:
    """Where its result comes, after the next commit of `store`: it is done before that."""
    found: list[Received] = []
    store.before_commit = lambda: found.append(do())
    return found


def queues_of(one: Received) -> bytes:
    return b"".join(each.stored.message.body for each in one.deliveries)


def test_a_receive_leaves_the_queues_that_it_does_not_need(
    store: OpenStore, other: OpenStore, topic: Topic, group: Group
) -> None:
    found = beside(store, lambda: received(other, group, topic, 6, queue=2))
    assert queues_of(received(store, group, topic, 6, queue=0)) == b"000011"
    assert [queues_of(each) for each in found] == [b"222233"]


def test_one_that_finds_its_queues_locked_knows_of_the_others(
    store: OpenStore, other: OpenStore, topic: Topic, group: Group
) -> None:
    found = beside(store, lambda: received(other, group, topic, 4, queue=0))
    received(store, group, topic, 4, queue=0)
    assert [(each.deliveries, each.more, each.is_locked) for each in found] == [([], True, True)]
    found = beside(store, lambda: received(other, group, topic, 8, queue=2))
    assert queues_of(received(store, group, topic, 4, queue=0)) == b"1111", "the first one that has messages"
    assert [(queues_of(each), each.more, each.is_locked) for each in found] == [(b"3333", True, False)]


def test_what_is_left_is_told(store: OpenStore, other: OpenStore, topic: Topic, group: Group) -> None:
    for count, more in ((6, True), (6, True), (5, False)):
        assert received(other, group, topic, count, queue=0).more is more
    assert received(store, group, topic, 1, queue=0) == Received([], more=False)
