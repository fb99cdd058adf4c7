"""Where the messages of message groups begin that are not done, on Postgres: it moves on, and never too far."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from popserver.database.database import Database
from popserver.delivery import moving_starts
from popserver.model.group import Group
from popserver.model.topic import MessageType, Topic
from popserver.progress.rules import Edge
from tests.support.builders import in_order
from tests.support.open_store import SECOND, OpenStore, open_store
from tests.support.progress import reset
from tests.support.stores import emptied


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
    monkeypatch.setattr(moving_starts, "LOOK_AGAIN_MS", SECOND)

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
