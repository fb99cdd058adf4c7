"""The dead letters that no lag counts: of deleted topics, and of topics that the group was removed from."""

from __future__ import annotations

from popserver.administration.facts import DeadElsewhere, dead_elsewhere, group_lag
from popserver.catalog import topics
from popserver.catalog.topics import DeleteTopic
from popserver.progress import unsubscribe
from popserver.progress.unsubscribe import Unsubscribe
from tests.support.open_store import OpenStore
from tests.support.redrive import die, redrive_all


def test_those_of_deleted_topics_are_counted_together_and_those_of_others_by_topic(store: OpenStore) -> None:
    stays, left, gone, also_gone = (store.topic(name) for name in ("stays", "left", "gone", "also-gone"))
    group = store.group(meets=[stays, left, gone, also_gone])
    for topic in (left, stays, gone, gone, also_gone):
        die(store, group, topic)
    assert dead_elsewhere(store.conn, None, 9) == []
    store.one(unsubscribe.unsubscribe, Unsubscribe(group, left, False))
    for topic in (gone, also_gone):
        assert store.do(topics.delete_topic, DeleteTopic(topic.name)) == [None]
    elsewhere = [DeadElsewhere(group.name, None, 3), DeadElsewhere(group.name, left.name, 1)]
    for found in (dead_elsewhere(store.conn, None, 9), dead_elsewhere(store.conn, group.group_id, 9)):
        assert sorted(found, key=lambda each: -each.letters) == elsewhere
    assert [(each.topic, each.dead_letters) for each in group_lag(store.conn, None, 9)] == [(stays.name, 1)]
    assert len(dead_elsewhere(store.conn, None, 1)) == 1
    assert dead_elsewhere(store.conn, group.group_id + 1, 9) == []
    redrive_all(store, group)
    assert dead_elsewhere(store.conn, None, 9) == elsewhere[:1], "only messages of existing topics go back"
