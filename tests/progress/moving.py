"""An operator's verbs on a store, in few words."""

from __future__ import annotations

from typing import Any

from popserver.domain.errors import PopError
from popserver.domain.group import Group, Mode
from popserver.domain.message import Delivery, MessageType
from popserver.domain.offsets import QueueOffset
from popserver.domain.resetting import Goal, MovedOffset, Target
from popserver.domain.topic import Topic, message_key
from popserver.store import catalog, offsets, resetting, skipping
from popserver.store.resetting import Reset
from popserver.store.skipping import Skip, Skipped
from tests.support.open_store import OpenStore

ORDERED = (MessageType.NORMAL, MessageType.FIFO)


def reset_of(group: Group, topic: Topic, to: Target, queue: int | None = None) -> Reset:
    places = topic.queues if queue is None else (topic.queues[queue],)
    return Reset(group, [Goal(topic, each, to) for each in places])


def reset(store: OpenStore, group: Group, topic: Topic, to: Target, queue: int | None = None) -> list[MovedOffset]:
    return store.one(resetting.reset, reset_of(group, topic, to, queue))


def refused_reset(store: OpenStore, request: Reset) -> PopError:
    before = store.digest()
    (refusal,) = store.do(resetting.reset, request)
    assert isinstance(refusal, PopError)
    assert store.digest() == before
    return refusal


def from_to(moved: list[MovedOffset]) -> list[tuple[int, int]]:
    return [(each.from_offset, each.to_offset) for each in moved]


def skip(store: OpenStore, group: Group, topic: Topic, offset: int, queue: int = 0) -> Skipped:
    key = message_key(topic.queues[queue].queue_id, offset)
    return store.one(skipping.skip, Skip(group, topic.topic_id, key))


def refused_skip(store: OpenStore, group: Group, topic: Topic, offset: int) -> Skipped:
    before = store.digest()
    done = skip(store, group, topic, offset)
    assert not done.is_done
    assert store.digest() == before
    return done


def pull_group(store: OpenStore, name: str = "pulling", **more: Any) -> Group:
    group = store.group(name, **more)
    store.one(catalog.fix_mode, catalog.FixMode(group, Mode.PULL))
    return group._replace(mode=Mode.PULL)


def commit(store: OpenStore, group: Group, topic: Topic, offset: int, resets: int | None = None) -> Any:
    """Of the topic's first queue."""
    wish = QueueOffset(topic, topic.queues[0], offset, resets)
    return store.one(offsets.commit, offsets.Commit(group, [wish]))[0]


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
