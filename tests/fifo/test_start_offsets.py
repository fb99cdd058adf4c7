"""Where the messages of message groups begin that are not done, on Postgres: it moves on, and never too far."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popserver.database.database import Database
from popserver.fifo import moving_starts
from popserver.model.group import Group
from popserver.model.topic import MessageType, Topic
from popserver.progress.rules import Edge
from tests.support.builders import in_order
from tests.support.emptied_database import emptied
from tests.support.open_store import SECOND, OpenStore, open_store
from tests.support.progress import reset


@pytest.fixture
def store(postgres_database: Database) -> Iterator[OpenStore]:
    with emptied(postgres_database) as opened:
        yield opened


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(queues=1, accepts=(MessageType.FIFO,))


def start_of(store: OpenStore) -> int:
    return int(store.one_value("SELECT MAX(start_offset) FROM progress"))


def test_it_follows_the_scan_when_all_is_done(store: OpenStore, group: Group, topic: Topic) -> None:
    for number in range(3):
        store.send(topic, in_order("a", 2))
        assert start_of(store) == max(0, 2 * (number - 1)), "of the receive before"
        store.ack(group, *store.receive(group, topic))


def test_what_is_held_holds_it_back(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic, [*in_order("done", 2), *in_order("held", 2), *in_order("late", 2)])
    done, _, held, *_ = got = store.receive(group, topic)
    store.ack(group, done, got[1], *got[4:])
    store.send(topic, in_order("late", 1))
    assert len(store.receive(group, topic)) == 1
    assert start_of(store) == held.stored.offset == 2


def test_a_message_group_behind_the_scan_holds_it_back(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic, in_order("a", 1))
    (first,) = store.receive(group, topic)
    store.send(topic, [*in_order("a", 1), *in_order("b", 3)])
    store.ack(group, *store.receive(group, topic))
    store.ack(group, first)
    store.send(topic, in_order("b", 1))
    store.receive(group, topic, 1)
    assert start_of(store) == 1, "the message that the scan passed over"


def own_starts(store: OpenStore) -> dict[str, int]:
    rows = store.rows("SELECT message_group, start_offset FROM message_group_start")
    return {each.message_group: each.start_offset for each in rows}


def go_on(store: OpenStore, group: Group, topic: Topic, *names: str) -> None:
    """A message of each of these message groups comes, and the free ones are consumed."""
    store.send(topic, [each for name in names for each in in_order(name, 1)])
    store.ack(group, *store.receive(group, topic))
    assert store.check() is None


def test_a_slow_message_group_gets_its_own(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic, in_order("slow", 2))
    slow, after = store.receive(group, topic)
    store.send(topic, [*in_order("behind", 1), *in_order("slow", 1)])
    (behind,) = store.receive(group, topic)
    for _ in range(3):
        go_on(store, group, topic, "other", "behind")
    assert own_starts(store) == {"slow": 0, "behind": 2}
    assert start_of(store) >= 4
    assert store.receive(group, topic) == [], "the slow ones are locked"

    store.ack(group, behind)
    assert [each.stored.offset for each in store.receive(group, topic)] == [5, 7, 9], "as before"
    go_on(store, group, topic, "other")
    assert own_starts(store) == {"slow": 0, "behind": 5}, "it has moved on"

    assert store.ack(group, slow, after) == [None, None]
    (last,) = store.receive(group, topic)
    assert last.stored.offset == 3, "it was behind the scan"
    store.ack(group, last)
    go_on(store, group, topic, "other")
    assert own_starts(store) == {"behind": 5}


def test_it_follows_the_message_group_when_that_is_fast_again(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic, in_order("slow", 1))
    (slow,) = store.receive(group, topic)
    for _ in range(3):
        go_on(store, group, topic, "other", "slow")
    assert own_starts(store) == {"slow": 0}
    store.ack(group, slow)
    for _ in range(3):
        go_on(store, group, topic, "slow")
    assert own_starts(store) == {}
    for _ in range(3):
        go_on(store, group, topic, "other")
    assert start_of(store) == store.one_value("SELECT next_offset FROM queue") - 1


def test_few_get_their_own(store: OpenStore, group: Group, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_starts, "SLOW_MAX", 2)
    store.send(topic, [each for name in "abcd" for each in in_order(name, 1)])
    store.receive(group, topic)
    for _ in range(3):
        go_on(store, group, topic, "other")
    assert own_starts(store) == {"a": 0, "b": 1}
    assert start_of(store) == 2, "the third holds it back"


def test_it_takes_some_time(store: OpenStore, group: Group, topic: Topic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving_starts, "SLOW_AFTER_MS", SECOND)
    store.send(topic, in_order("slow", 1))
    store.receive(group, topic)
    for _ in range(3):
        go_on(store, group, topic, "other")
    assert own_starts(store) == {}
    for _ in range(2):
        store.now_ms += SECOND
        go_on(store, group, topic, "other")
    assert own_starts(store) == {"slow": 0}


def test_a_reset_ends_those_of_message_groups(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic, in_order("slow", 1))
    store.receive(group, topic)
    for _ in range(3):
        go_on(store, group, topic, "other")
    assert own_starts(store) == {"slow": 0}
    reset(store, group, topic, Edge.END)
    assert own_starts(store) == {}


def test_a_reset_sets_it_to_zero(store: OpenStore, group: Group, topic: Topic) -> None:
    for _ in range(2):
        store.send(topic, in_order("a", 2))
        store.ack(group, *store.receive(group, topic))
    assert start_of(store) == 2
    reset(store, group, topic, Edge.BEGINNING)
    assert start_of(store) == 0
    held = store.receive(group, topic, 2)
    assert [each.stored.offset for each in held] == [0, 1]
    assert store.receive(group, topic) == [], "the message group is locked"


def test_it_is_looked_for_now_and_then(
    store: OpenStore, group: Group, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving_starts, "ADVANCE_INTERVAL_MS", SECOND)

    def after_one_more() -> int:
        store.send(topic, in_order("a", 1))
        store.ack(group, *store.receive(group, topic))
        return start_of(store)

    assert [after_one_more() for _ in range(3)] == [0, 0, 0]
    store.now_ms += SECOND
    assert [after_one_more() for _ in range(3)] == [3, 3, 3]
    store.now_ms -= 10 * SECOND
    assert after_one_more() == 6, "a clock that went back delays nothing"


def test_on_sqlite_it_stays(sqlite_url: str) -> None:
    with open_store(sqlite_url) as store:
        topic = store.topic(queues=1, accepts=(MessageType.FIFO,))
        group = store.group(meets=[topic])
        for _ in range(3):
            store.send(topic, in_order("a", 2))
            store.ack(group, *store.receive(group, topic))
        assert start_of(store) == 0
