"""An operator's verbs on a store, in few words."""

from __future__ import annotations

from typing import Any

from popserver.catalog import groups
from popserver.model.errors import PopError
from popserver.model.group import Group, Mode
from popserver.model.message import Delivery
from popserver.model.topic import MessageType, Topic, message_key
from popserver.progress import reset as progress_reset
from popserver.progress import skip as progress_skip
from popserver.progress.reset import Reset
from popserver.progress.rules import Goal, MovedOffset, Target
from popserver.progress.skip import Skip, Skipped
from popserver.pulling import commit as pulling_commit
from popserver.pulling.rules import QueueOffset
from tests.support.open_store import OpenStore

ORDERED = (MessageType.NORMAL, MessageType.FIFO)


def reset_of(group: Group, topic: Topic, to: Target, queue: int | None = None) -> Reset:
    places = topic.queues if queue is None else (topic.queues[queue],)
    return Reset(group, [Goal(topic, each, to) for each in places])


def reset(store: OpenStore, group: Group, topic: Topic, to: Target, queue: int | None = None) -> list[MovedOffset]:
    return store.one(progress_reset.reset, reset_of(group, topic, to, queue))


def refused_reset(store: OpenStore, request: Reset) -> PopError:
    before = store.digest()
    (refusal,) = store.do(progress_reset.reset, request)
    assert isinstance(refusal, PopError)
    assert store.digest() == before
    return refusal


def from_to(moved: list[MovedOffset]) -> list[tuple[int, int]]:
    return [(each.from_offset, each.to_offset) for each in moved]


def skip(store: OpenStore, group: Group, topic: Topic, offset: int, queue: int = 0) -> Skipped:
    key = message_key(topic.queues[queue].queue_id, offset)
    return store.one(progress_skip.skip, Skip(group, topic.topic_id, key))


def refused_skip(store: OpenStore, group: Group, topic: Topic, offset: int) -> Skipped:
    before = store.digest()
    done = skip(store, group, topic, offset)
    assert not done.is_done
    assert store.digest() == before
    return done


def pull_group(store: OpenStore, name: str = "pulling", **more: Any) -> Group:
    group = store.group(name, **more)
    store.one(groups.set_group_mode, groups.SetGroupMode(group, Mode.PULL))
    return group._replace(mode=Mode.PULL)


def commit(store: OpenStore, group: Group, topic: Topic, offset: int, resets: int | None = None) -> Any:
    """Of the topic's first queue."""
    wish = QueueOffset(topic, topic.queues[0], offset, resets)
    return store.one(pulling_commit.commit, pulling_commit.Commit(group, [wish]))[0]


def offsets_of(deliveries: list[Delivery]) -> list[int]:
    return [each.stored.offset for each in deliveries]


def states_by_offset(store: OpenStore, group: Group, topic: Topic) -> str:
    """One letter for each message of the topic, by place: Ready Inflight Waiting Commit Dlq."""
    rows = store.rows(
        "SELECT state FROM message_state WHERE consumer_group = :group AND topic = :topic ORDER BY message_key",
        group=group.name.name,
        topic=topic.name.name,
    )
    return "".join(row.state[0] for row in rows)
