"""What becomes READY much later than it was due."""

from __future__ import annotations

from tests.support.open_store import HOUR, SECOND, OpenStore


def test_it_is_found_at_once(store: OpenStore) -> None:
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
