"""A search for messages that are READY again begins where the last one saw the first, and misses none."""

from __future__ import annotations

from popserver.delivery.ready import LOOK_AGAIN_MS, SLACK_MS, ReadyFrom
from tests.support.open_store import HOUR, SECOND, START_MS, OpenStore

NOW = START_MS


def test_the_first_search_looks_at_everything() -> None:
    ready = ReadyFrom()
    assert ready.of(1, 1, NOW) == 0
    ready.saw(1, 1, 0, None, NOW)
    assert (ready.of(1, 1, NOW), ready.of(1, 2, NOW), ready.of(2, 1, NOW)) == (NOW - SLACK_MS, 0, 0)


def test_the_next_begins_at_the_first_message() -> None:
    ready = ReadyFrom()
    ready.saw(1, 1, 0, NOW - HOUR, NOW)
    assert ready.of(1, 1, NOW) == NOW - HOUR
    ready.saw(1, 1, NOW - HOUR, None, NOW + 1)
    assert ready.of(1, 1, NOW + 1) == NOW + 1 - SLACK_MS
    ready.saw(1, 1, NOW + 1 - SLACK_MS, NOW, NOW + 2)
    assert ready.of(1, 1, NOW + 2) == NOW + 2 - SLACK_MS, "the clocks of servers differ"


def test_each_second_one_looks_at_everything() -> None:
    ready = ReadyFrom()
    ready.saw(1, 1, 0, None, NOW)
    ready.saw(1, 1, NOW - SLACK_MS, None, NOW + LOOK_AGAIN_MS - 1)
    assert ready.of(1, 1, NOW + LOOK_AGAIN_MS - 1) > 0
    assert ready.of(1, 1, NOW + LOOK_AGAIN_MS) == 0


def test_a_search_that_began_before_it_was_forgotten_tells_nothing() -> None:
    ready = ReadyFrom()
    ready.saw(1, 1, 0, None, NOW)
    ready.forget(1, 1)
    ready.saw(1, 1, NOW - SLACK_MS, None, NOW)
    assert ready.of(1, 1, NOW) == 0


def test_what_becomes_ready_late_is_found_at_once(store: OpenStore) -> None:
    """A server that was stopped has searched before it ends the holds that were over meanwhile."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 2)
    store.receive(group, topic, 1, invisible_ms=30 * SECOND)
    store.now_ms += HOUR
    assert len(store.receive(group, topic)) == 1
    assert store.receive(group, topic) == []
    store.end_due()
    assert [each.attempt for each in store.receive(group, topic)] == [2]
