"""What an operator's request names for the writer to lock before: the progress of its groups in its queues."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from popserver.catalog import progress
from popserver.catalog.progress import GroupQueueKey
from popserver.engine.transaction import LockOrder, Locks
from popserver.model.group import Group
from popserver.model.topic import Topic, message_key, queue_of_group
from popserver.progress.clone import Clone
from popserver.progress.pause import SetPause
from popserver.progress.skip import Skip
from popserver.progress.unsubscribe import Unsubscribe
from tests.support.open_store import OpenStore
from tests.support.progress import ORDERED, reset_of


@pytest.fixture
def topics(store: OpenStore) -> list[Topic]:
    return [store.topic(name, queues=3, accepts=ORDERED) for name in ("orders", "letters")]


@pytest.fixture
def group(store: OpenStore) -> Group:
    store.group("first")  # so that no id is 1
    return store.group()


def named(locks: Iterable[Locks]) -> list[tuple[int, int]]:
    """The groups and queues whose progress is locked."""
    (only,) = locks
    assert (only.order, only.take) == (LockOrder.PROGRESS, progress.lock)
    keys = [*only.keys]
    assert all(isinstance(each, GroupQueueKey) for each in keys)
    return sorted({(each[0], each[1]) for each in keys if isinstance(each, GroupQueueKey)})


def in_all_queues(*groups: Group, topics: Iterable[Topic]) -> list[tuple[int, int]]:
    ids = [queue.queue_id for topic in topics for queue in topic.queues]
    return sorted((group.group_id, each) for group in groups for each in ids)


def test_of_a_reset_its_queues(group: Group, topics: list[Topic]) -> None:
    assert named(reset_of(group, topics[0], 0).locks()) == in_all_queues(group, topics=topics[:1])
    assert named(reset_of(group, topics[0], 0, queue=1).locks()) == [(group.group_id, topics[0].queues[1].queue_id)]


def test_of_an_unsubscribe_all_queues_of_the_topic(group: Group, topics: list[Topic]) -> None:
    assert named(Unsubscribe(group, topics[1], ends_holds=True).locks()) == in_all_queues(group, topics=topics[1:])


def test_of_a_clone_all_queues_of_both_groups(store: OpenStore, group: Group, topics: list[Topic]) -> None:
    source = store.group("source")
    assert named(Clone(source, group, topics).locks()) == in_all_queues(source, group, topics=topics)


def test_of_a_skip_the_queue_of_its_message(group: Group, topics: list[Topic]) -> None:
    queue_id = topics[0].queues[2].queue_id
    request = Skip(group, topics[0].topic_id, message_key(queue_id, 7))
    assert named(request.locks()) == [(group.group_id, queue_id)]


def test_of_a_pause_the_queue_of_its_message_group_in_each_topic(group: Group, topics: list[Topic]) -> None:
    queue_ids = sorted(queue_of_group(each, "g").queue_id for each in topics)
    paused = SetPause(group, topics, "g", "ops")
    assert named(paused.locks()) == [(group.group_id, each) for each in queue_ids]
    assert named(SetPause(group, topics, None, "ops").locks()) == []
