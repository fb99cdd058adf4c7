"""What a skip leaves: a row of the history, woken receives, the members' notice, and the progress of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from popserver.database.notifications import RESETS, Invalidation
from popserver.model.group import Group, HistoryLevel
from popserver.model.retry import Holder
from popserver.model.states import Event, State
from popserver.model.topic import Topic, message_key
from popserver.progress import skip as progress_skip
from popserver.progress.skip import Skip
from tests.support.builders import in_order
from tests.support.open_store import HOUR, OpenStore
from tests.support.progress import ORDERED, commit, offsets_of, pull_group, skip, states_by_offset
from tests.support.redrive import die, redrive_all

Prepare = Callable[[OpenStore, Group, Topic], object]


def unread(store: OpenStore, group: Group, topic: Topic) -> None:
    pass


def given_back(store: OpenStore, group: Group, topic: Topic) -> None:
    store.change(group, store.receive(group, topic, 1, client_id="c7")[0], 0, give_back=True)


def waiting(store: OpenStore, group: Group, topic: Topic) -> None:
    store.change(group, store.receive(group, topic, 1, holder=Holder.PUSH, client_id="c7")[0], HOUR)


def held(store: OpenStore, group: Group, topic: Topic) -> None:
    store.receive(group, topic, 1, client_id="c7")


def told(store: OpenStore) -> list[Any]:
    columns = "at_ms, message_key, event, from_state, to_state, attempt, client_id, reason"
    return [tuple(row) for row in store.rows(f"SELECT {columns} FROM history ORDER BY history_id")]


@pytest.mark.parametrize("level", HistoryLevel)
@pytest.mark.parametrize(
    ("prepare", "state", "attempt", "client_id"),
    [
        (unread, State.READY, 0, ""),
        (given_back, State.READY, 0, "c7"),
        (waiting, State.WAITING_RETRY, 1, "c7"),
    ],
)
def test_a_history_that_keeps_skips_says_when_what_and_why(
    store: OpenStore, level: HistoryLevel, prepare: Prepare, state: State, attempt: int, client_id: str
) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=level)
    store.send(topic)
    prepare(store, group, topic)
    store.conn.exec_driver_sql("DELETE FROM history")
    store.conn.commit()
    store.now_ms += 5
    assert skip(store, group, topic, 0).is_done
    key = message_key(topic.queues[0].queue_id, 0)
    row = (store.now_ms, key, "SKIP", state, "COMMIT", attempt, client_id, progress_skip.REASON)
    assert told(store) == ([row] if Event.SKIP in level.kept else [])


@pytest.mark.parametrize("prepare", [unread, given_back, waiting, held])
@pytest.mark.parametrize("message_group", [None, "g"], ids=["unordered", "in-order"])
def test_it_wakes_those_who_wait_for_the_topic(store: OpenStore, prepare: Prepare, message_group: str | None) -> None:
    store.topic("another")
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic], intervals_ms=[HOUR])
    store.send(topic, in_order("g", 2) if message_group else 2)
    prepare(store, group, topic)
    key = message_key(topic.queues[0].queue_id, 0)
    assert store.one(progress_skip.skip, Skip(group, topic.topic_id, key, force=True)).is_done
    assert store.rings == {topic.topic_id}
    assert states_by_offset(store, group, topic) == "CR"
    assert offsets_of(store.receive(group, topic)) == [1]


@pytest.mark.parametrize("prepare", [given_back, waiting, held])
def test_a_message_without_a_message_group_leaves_all_message_groups_alone(store: OpenStore, prepare: Prepare) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic], intervals_ms=[HOUR])
    store.send(topic, in_order("g", 3))
    store.receive(group, topic, 1)
    assert store.receive(group, topic) == []
    store.send(topic)
    prepare(store, group, topic)
    before = store.rows("SELECT * FROM message_group_progress")
    assert len(before) == 1
    key = message_key(topic.queues[0].queue_id, 3)
    assert store.one(progress_skip.skip, Skip(group, topic.topic_id, key, force=True)).is_done
    assert store.rows("SELECT * FROM message_group_progress") == before
    assert states_by_offset(store, group, topic) == "IRRC"


def test_a_message_that_the_group_has_not_read_is_no_reset_for_consumers_of_messages(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 2)
    assert skip(store, group, topic, 0).is_done
    assert store.outdated == set()
    assert store.rows("SELECT next_offset, resets FROM progress") == [(1, 0)]


def test_for_members_it_is_a_reset_each_time(store: OpenStore) -> None:
    topic = store.topic()
    group, other = pull_group(store), pull_group(store, "other")
    store.send(topic, 3)
    for each in (group, other):
        commit(store, each, topic, 0)
    for count in (1, 2):
        assert skip(store, group, topic, count - 1).is_done
        assert store.outdated == {Invalidation(RESETS, *group.name)}
        rows = store.rows("SELECT next_offset, resets FROM progress ORDER BY group_id")
        assert rows == [(count, count), (0, 0)]


def test_in_one_queue_of_several(store: OpenStore) -> None:
    topic = store.topic(queues=3)
    group = store.group(meets=[topic])
    for number in range(3):
        store.send(topic, 2, queue=number)
    assert skip(store, group, topic, 0, queue=1).is_done
    assert states_by_offset(store, group, topic) == "RRCRRR"


def test_messages_before_it_that_another_message_group_has_are_not_passed_over(store: OpenStore) -> None:
    """It is the next message of its message group, but not of the queue."""
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    store.send(topic, [*in_order("a", 1), *in_order("b", 1)])
    assert not skip(store, group, topic, 1).is_done
    assert states_by_offset(store, group, topic) == "RR"


@pytest.mark.parametrize("is_held", [False, True], ids=["ready", "held"])
@pytest.mark.parametrize("names_first_key", [True, False], ids=["by its first key", "by its new key"])
def test_a_redriven_message(store: OpenStore, is_held: bool, names_first_key: bool) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    die(store, group, topic)
    redrive_all(store, group)
    new_key = store.one_value("SELECT message_key FROM delivery")
    if is_held:
        assert len(store.receive(group, topic)) == 1
    key = message_key(topic.queues[0].queue_id, 0) if names_first_key else new_key
    done = store.one(progress_skip.skip, Skip(group, topic.topic_id, key, force=is_held))
    assert (done.is_done, done.found.state) == (True, State.INFLIGHT if is_held else State.READY)
    assert store.rows("SELECT 1 FROM delivery") == []
    assert store.receive(group, topic) == []
