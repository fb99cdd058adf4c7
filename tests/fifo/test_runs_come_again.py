"""How much of a run comes again in one receive: all that there is room for, but new messages keep their half."""

from __future__ import annotations

import pytest

from popserver.model.group import Group
from popserver.model.topic import Topic
from tests.support.builders import in_order
from tests.support.open_store import SECOND, OpenStore, bodies

HOLD_MS = 30 * SECOND


def numbered(store: OpenStore, topic: Topic, message_group: str, *numbers: int) -> None:
    for number in numbers:
        store.send(topic, in_order(message_group, body=str(number).encode()))


@pytest.mark.row("K5")
def test_nothing_else_waits_but_what_is_locked_behind_it(store: OpenStore, topic: Topic, group: Group) -> None:
    """Protocol 5.3: of three the second and third are acked; all three come again, and nothing beyond them."""
    numbered(store, topic, "g", *range(1, 6))
    held = store.receive(group, topic, 3, invisible_ms=HOLD_MS)
    for attempt in (1, 2, 3):
        assert bodies(held) == [b"1", b"2", b"3"]
        assert {each.attempt for each in held} == {attempt}
        store.ack(group, *held[1:])
        store.end_due(after_ms=HOLD_MS)
        held = store.receive(group, topic, 3, invisible_ms=HOLD_MS)
    store.ack(group, *held)
    assert bodies(store.receive(group, topic, 3)) == [b"4", b"5"]


@pytest.mark.row("K6")
def test_new_messages_keep_their_half(store: OpenStore, topic: Topic, group: Group) -> None:
    numbered(store, topic, "g", 1, 2, 3, 4)
    store.receive(group, topic, 4, invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS)
    numbered(store, topic, "h", 5, 6, 7)
    assert sorted(bodies(store.receive(group, topic, 4))) == [b"1", b"2", b"5", b"6"]


@pytest.mark.row("K6")
def test_what_they_leave_of_it_goes_to_the_run(store: OpenStore, topic: Topic, group: Group) -> None:
    numbered(store, topic, "g", 1, 2, 3, 4)
    store.receive(group, topic, 4, invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS)
    numbered(store, topic, "h", 5)
    assert sorted(bodies(store.receive(group, topic, 4))) == [b"1", b"2", b"3", b"5"]


@pytest.mark.row("K5")
def test_who_takes_heads_only_gets_no_more_of_it(store: OpenStore, topic: Topic, group: Group) -> None:
    numbered(store, topic, "g", 1, 2, 3, 4)
    store.receive(group, topic, 3, invisible_ms=HOLD_MS)
    store.end_due(after_ms=HOLD_MS)
    assert bodies(store.receive(group, topic, 3, heads_only=True)) == [b"1"]
