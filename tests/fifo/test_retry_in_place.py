"""A failed message of a message group comes again after a fixed interval; none passes it (requirement L6)."""

from __future__ import annotations

import pytest

from popserver.catalog import groups
from popserver.model.group import Group
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import Topic
from tests.support.builders import in_order
from tests.support.open_store import HOUR, SECOND, OpenStore, bodies

CAP_MS = 3 * HOUR


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    """Three messages of one message group are there for it."""
    group = store.group(meets=[topic])
    store.send(topic, [message for body in (b"1", b"2", b"3") for message in in_order("g", body=body)])
    return group


def take(store: OpenStore, group: Group, topic: Topic) -> list[Delivery]:
    return store.receive(group, topic, holder=Holder.PUSH, invisible_ms=CAP_MS)


@pytest.mark.row("L6")
@pytest.mark.parametrize("says_ms", [0, 10 * SECOND, HOUR])
def test_three_seconds_apart_and_in_order(store: OpenStore, topic: Topic, group: Group, says_ms: int) -> None:
    """Whatever the client says: it may climb a ladder that is meant for others."""
    for attempt in range(1, 6):
        head, *behind = take(store, group, topic)
        assert bodies([head, *behind]) == [b"1", b"2", b"3"]
        assert (head.attempt, {each.attempt for each in behind}) == (attempt, {1})
        store.change(group, head, says_ms)
        for each in behind:
            store.change(group, each, 0, give_back=True)
        assert store.end_due(after_ms=2_999) == 0
        assert take(store, group, topic) == [], "nothing passes it"
        store.end_due(after_ms=1)
    store.ack(group, *take(store, group, topic))
    assert set(store.states(group).values()) == {State.COMMIT}


@pytest.mark.row("L6")
@pytest.mark.parametrize("interval_ms", [0, 500, 12 * HOUR])
def test_a_groups_own_interval(store: OpenStore, topic: Topic, group: Group, interval_ms: int) -> None:
    changed = store.one(groups.update_group, groups.UpdateGroup(group.name, fifo_interval_ms=interval_ms))
    head, *behind = take(store, changed, topic)
    store.change(changed, head, SECOND)
    for each in behind:
        store.change(changed, each, 0, give_back=True)
    if interval_ms:
        assert store.end_due(after_ms=interval_ms - 1) == 0
        store.now_ms += 1
    assert store.end_due() == 1
    assert bodies(take(store, changed, topic)) == [b"1", b"2", b"3"]
