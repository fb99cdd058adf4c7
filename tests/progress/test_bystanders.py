"""What an operator does to one group in one topic leaves that group's other topics, and other groups, as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from popserver.model.group import Group
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import Topic, message_key
from popserver.progress import clone, pause, unsubscribe
from popserver.progress import reset as progress_reset
from popserver.progress import skip as progress_skip
from popserver.progress.clone import Clone
from popserver.progress.pause import SetPause
from popserver.progress.rules import Edge
from popserver.progress.skip import Skip
from popserver.progress.unsubscribe import Unsubscribe
from tests.support.builders import in_order
from tests.support.open_store import HOUR, OpenStore
from tests.support.progress import ORDERED, reset_of

# What a group has in the queues of a topic, by the column that names the topic or its queue.
TABLES = {
    "progress": "queue_id",
    "message_group_progress": "queue_id",
    "message_group_start": "queue_id",
    "delivery": "topic_id",
    "pause": "topic_id",
    "dead_letter": "origin_topic_id",
}


def rows_of(store: OpenStore, group: Group, topic: Topic) -> list[Any]:
    found: list[Any] = []
    for table, column in TABLES.items():
        of_queues = f"(SELECT queue_id FROM queue WHERE topic_id = {topic.topic_id})"
        is_of = f"{column} IN {of_queues}" if column == "queue_id" else f"{column} = {topic.topic_id}"
        rows = store.rows(f"SELECT * FROM {table} WHERE group_id = {group.group_id} AND {is_of}")
        found += sorted((table, repr(tuple(each))) for each in rows)
    return found


def live(store: OpenStore, group: Group, topic: Topic) -> None:
    """One message of each state, some behind the scan of their message group, and pauses."""
    store.meet(group, topic)
    held = store.receive(group, topic, 3, holder=Holder.PUSH)
    store.forward(group, held[0])
    store.change(group, held[1], HOUR)
    ordered = store.receive(group, topic, 2)
    store.ack(group, ordered[1])
    back, *_ = store.receive(group, topic, 2)
    store.change(group, back, 0, give_back=True)
    store.one(pause.set_pause, SetPause(group, [topic], None, "ops"))
    store.one(pause.set_pause, SetPause(group, [topic], "paused", "ops"))


def _reset(store: OpenStore, group: Group, topic: Topic, to: Any) -> object:
    return store.one(progress_reset.reset, reset_of(group, topic, to))


def _skip(store: OpenStore, group: Group, topic: Topic, offset: int, state: State, *, force: bool = False) -> object:
    done = store.one(
        progress_skip.skip,
        Skip(group, topic.topic_id, message_key(topic.queues[0].queue_id, offset), force),
    )
    assert (done.is_done, done.found.state) == (True, state)
    return done


def _clone(store: OpenStore, group: Group, topic: Topic) -> object:
    return store.one(clone.clone, Clone(group, store.group("copy"), [topic]))


ACTS: dict[str, Callable[[OpenStore, Group, Topic], object]] = {
    "back to the beginning": lambda store, group, topic: _reset(store, group, topic, Edge.BEGINNING),
    "to the end": lambda store, group, topic: _reset(store, group, topic, Edge.END),
    "skip what waits": lambda store, group, topic: _skip(store, group, topic, 1, State.WAITING_RETRY),
    "skip what is held": lambda store, group, topic: _skip(store, group, topic, 2, State.INFLIGHT, force=True),
    "skip the head of a message group": lambda store, group, topic: _skip(
        store, group, topic, 3, State.INFLIGHT, force=True
    ),
    "clone": _clone,
    "unsubscribe": lambda store, group, topic: store.one(unsubscribe.unsubscribe, Unsubscribe(group, topic, True)),
    "resume": lambda store, group, topic: store.one(pause.set_pause, SetPause(group, [topic], None, None)),
    "resume a message group": lambda store, group, topic: store.one(
        pause.set_pause, SetPause(group, [topic], "paused", None)
    ),
    "pause a message group": lambda store, group, topic: store.one(
        pause.set_pause, SetPause(group, [topic], "g", "ops")
    ),
}


@pytest.mark.parametrize("act", ACTS.values(), ids=ACTS)
def test_only_the_named_group_in_the_named_topic(
    store: OpenStore, act: Callable[[OpenStore, Group, Topic], object]
) -> None:
    topic, elsewhere = store.topic(accepts=ORDERED), store.topic("elsewhere", accepts=ORDERED)
    group, other = store.group(), store.group("other")
    for each in (topic, elsewhere):
        store.send(each, 3)
        store.send(
            each, [*in_order("g", 6, each.name), *in_order("h", 3, each.name), *in_order("paused", 2, each.name)]
        )
        for one in (group, other):
            live(store, one, each)
    bystanders = [(group, elsewhere), (other, topic), (other, elsewhere)]
    before = [rows_of(store, *each) for each in bystanders]
    assert {table for rows in before for table, _ in rows} >= TABLES.keys() - {"message_group_start"}
    act(store, group, topic)
    assert [rows_of(store, *each) for each in bystanders] == before
