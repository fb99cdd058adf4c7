"""What the tests of handing back say in few words."""

from __future__ import annotations

from typing import Any

from popserver.catalog import groups, topics
from popserver.model.errors import PopError
from popserver.model.group import Group, HistoryLevel, Mode
from popserver.model.message import StoredMessage
from popserver.model.names import dead_letter_topic, retry_topic
from popserver.model.topic import Topic
from popserver.progress import reset as progress_reset
from popserver.progress.rules import Goal
from popserver.pulling import commit as pulling_commit
from popserver.pulling.rules import Committed, QueueOffset
from popserver.pulling.send_back import SendBack, send_back
from tests.support.builders import GROUP
from tests.support.open_store import OpenStore
from tests.support.pulls import look


def pull_group(store: OpenStore, name: Any = GROUP, *, history: HistoryLevel = HistoryLevel.ALL, **more: Any) -> Group:
    group = store.group(name, history=history, **more)
    store.one(groups.set_group_mode, groups.SetGroupMode(group, Mode.PULL))
    return group


def a_failure(group: Group, topic: Topic, offset: int = 0, delay_level: int = 0, **more: Any) -> SendBack:
    return SendBack(group, topic, topic.queues[0], offset, "c1", delay_level, **more)


def hand_back(
    store: OpenStore, group: Group, topic: Topic, offset: int = 0, delay_level: int = 0, **more: Any
) -> bool | PopError:
    """Whether it is a dead letter now, or the refusal."""
    (outcome,) = store.do(send_back, a_failure(group, topic, offset, delay_level, **more))
    return outcome


def fail_again(store: OpenStore, group: Group, *, delay_level: int = 1) -> bool | PopError:
    """The newest retry of the group is due, is pulled, and fails too."""
    store.end_due(after_ms=3 * 3_600_000)
    copies = retries(store, group)
    return hand_back(store, group, retries_of(store, group), copies[-1].offset, delay_level)


def commit(store: OpenStore, group: Group, topic: Topic, offset: int) -> Committed:
    (done,) = store.one(
        pulling_commit.commit, pulling_commit.Commit(group, [QueueOffset(topic, topic.queues[0], offset)])
    )
    return done


def reset(store: OpenStore, group: Group, topic: Topic, offset: int = 0) -> None:
    """As an operator does."""
    store.one(progress_reset.reset, progress_reset.Reset(group, [Goal(topic, topic.queues[0], offset)]))


def retries_of(store: OpenStore, group: Group) -> Topic:
    return _found(store, retry_topic(group.name))


def retries(store: OpenStore, group: Group) -> list[StoredMessage]:
    """All of the group's copies, as a pull brings them."""
    topic = topics.find_topic(store.conn, retry_topic(group.name))
    return [] if topic is None else look(store, topic).messages


def dead(store: OpenStore, group: Group) -> list[StoredMessage]:
    topic = topics.find_topic(store.conn, dead_letter_topic(group.name))
    return [] if topic is None else look(store, topic).messages


def letters(store: OpenStore) -> list[Any]:
    return store.rows("SELECT * FROM dead_letters ORDER BY id")


def _found(store: OpenStore, name: Any) -> Topic:
    found = topics.find_topic(store.conn, name)
    assert found is not None
    return found
