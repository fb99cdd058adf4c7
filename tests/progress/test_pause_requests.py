"""Pauses as the store keeps them: by whom, since when, in which queue, and who is told."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete

from popserver.catalog import groups
from popserver.database import schema
from popserver.database.notifications import PAUSES, Invalidation
from popserver.model.errors import BadRequest, ConsumerGroupNotFound, PopError
from popserver.model.group import Group
from popserver.model.topic import Topic, queue_of_group
from popserver.progress import pause
from popserver.progress.pause import SetPause
from tests.support.builders import in_order
from tests.support.open_store import SECOND, START_MS, OpenStore
from tests.support.progress import ORDERED, offsets_of


@pytest.fixture
def topics(store: OpenStore) -> list[Topic]:
    return [store.topic(name, queues=4, accepts=ORDERED) for name in ("orders", "letters")]


@pytest.fixture
def group(store: OpenStore, topics: list[Topic]) -> Group:
    store.group("another", meets=topics)
    return store.group(meets=topics)


def done(store: OpenStore, request: SetPause) -> object:
    (outcome,) = store.do(pause.set_pause, request)
    return outcome


def refused(store: OpenStore, request: SetPause) -> PopError:
    before = store.digest()
    outcome = done(store, request)
    assert isinstance(outcome, PopError)
    assert store.digest() == before
    return outcome


def stored(store: OpenStore) -> list[Any]:
    columns = "group_id, topic_id, message_group, queue_id, paused_at_ms, paused_by"
    return [tuple(row) for row in store.rows(f"SELECT {columns} FROM pause ORDER BY topic_id, message_group")]


def test_of_the_whole_group_it_is_in_all_topics(store: OpenStore, group: Group) -> None:
    assert done(store, SetPause(group, [], None, "ops")) is None
    assert stored(store) == [(group.group_id, 0, "", None, START_MS, "ops")]


def test_in_topics_it_is_one_for_each(store: OpenStore, group: Group, topics: list[Topic]) -> None:
    assert done(store, SetPause(group, topics, None, "ops")) is None
    assert stored(store) == [(group.group_id, each.topic_id, "", None, START_MS, "ops") for each in topics]


def test_of_a_message_group_it_names_its_queue(store: OpenStore, group: Group, topics: list[Topic]) -> None:
    store.now_ms += 7
    assert done(store, SetPause(group, topics, "g", "")) is None
    assert stored(store) == [
        (group.group_id, each.topic_id, "g", queue_of_group(each, "g").queue_id, START_MS + 7, "") for each in topics
    ]


@pytest.mark.parametrize("message_group", [None, "g"])
def test_everybody_is_told_of_changes_and_only_of_them(
    store: OpenStore, group: Group, topics: list[Topic], message_group: str | None
) -> None:
    told = {Invalidation(PAUSES, *group.name)}
    for paused_by, expected in (("ops", told), ("ada", set()), (None, told), (None, set())):
        assert done(store, SetPause(group, topics, message_group, paused_by)) is None
        assert store.outdated == expected, paused_by
    assert stored(store) == []


def test_where_it_is_paused_already_the_first_pause_stays(store: OpenStore, group: Group, topics: list[Topic]) -> None:
    done(store, SetPause(group, topics[:1], None, "ops"))
    store.now_ms += SECOND
    done(store, SetPause(group, topics, None, "ada"))
    assert [row[-2:] for row in stored(store)] == [(START_MS, "ops"), (START_MS + SECOND, "ada")]
    assert store.outdated == {Invalidation(PAUSES, *group.name)}
    done(store, SetPause(group, topics[:1], None, None))
    done(store, SetPause(group, topics, None, None))
    assert stored(store) == []


def test_to_resume_a_message_group_wakes_who_waits_for_its_messages(
    store: OpenStore, group: Group, topics: list[Topic]
) -> None:
    topic = topics[0]
    store.send(topic, [*in_order("g", 2), *in_order("h", 1)])
    done(store, SetPause(group, topics, "g", "ops"))
    assert store.rings == set()
    assert [each.stored.message.message_group for each in store.receive(group, topic)] == ["h"]
    done(store, SetPause(group, topics, "g", None))
    assert topic.topic_id in store.rings
    assert offsets_of(store.receive(group, topic)) == [0, 1]


def test_to_resume_a_message_group_that_is_held_gives_nothing_of_it(
    store: OpenStore, group: Group, topics: list[Topic]
) -> None:
    topic = topics[0]
    store.send(topic, in_order("g", 2))
    (held,) = store.receive(group, topic, 1)
    done(store, SetPause(group, topics[:1], "g", "ops"))
    done(store, SetPause(group, topics[:1], "g", None))
    assert store.receive(group, topic) == []
    assert store.ack(group, held) == [None]
    assert offsets_of(store.receive(group, topic)) == [1]


@pytest.mark.parametrize("paused_by", ["ops", None])
def test_of_a_group_that_is_gone_it_is_refused(store: OpenStore, topics: list[Topic], paused_by: str | None) -> None:
    leaving, gone = store.group("leaving", meets=topics), store.group("gone", meets=topics)
    store.one(groups.delete_group, groups.DeleteGroup(leaving.name))
    store.conn.execute(delete(schema.consumer_group).where(schema.consumer_group.c.group_id == gone.group_id))
    store.conn.commit()
    for each in (leaving, gone):
        refusal = refused(store, SetPause(each, topics, None, paused_by))
        assert isinstance(refusal, ConsumerGroupNotFound)
        assert f"'{each.name}'" in refusal.sentence


def test_of_a_message_group_in_a_topic_that_the_group_has_left_it_is_refused(
    store: OpenStore, group: Group, topics: list[Topic]
) -> None:
    """Of none of the topics: each could be the one that is meant."""
    unread = store.topic("unread", queues=4, accepts=ORDERED)
    refusal = refused(store, SetPause(group, [*topics, unread], "g", "ops"))
    assert isinstance(refusal, BadRequest)
    assert "consumer group 'billing' has not received from topic 'unread' yet" in refusal.sentence
    assert done(store, SetPause(group, [unread], None, "ops")) is None, "as a whole it may be paused before"
