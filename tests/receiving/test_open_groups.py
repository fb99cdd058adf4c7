"""What a search takes of open message groups on the store: how many messages, of which, and which stay open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from popserver.engine.transaction import Transaction
from popserver.filters import tags
from popserver.messages.by_key import DEFERRED, SMALL_BODY_BYTES
from popserver.model.group import Group
from popserver.model.message import Delivery
from popserver.model.topic import Topic
from popserver.receiving import message_groups, receive, scan
from popserver.receiving.batch import SHARE_MIN, OpenGroup
from tests.support.builders import in_order
from tests.support.open_store import OpenStore, a_receive
from tests.support.progress import ORDERED

LARGE = bytes(SMALL_BODY_BYTES + 1)


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(accepts=ORDERED)


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])


def left_behind(
    store: OpenStore, group: Group, topic: Topic, names: str, count: int = 1, *, last_tag: str = "A"
) -> list[Delivery]:
    """The scan passes `count` messages of each message group. It is open when the one that is returned is acked."""
    store.send(topic, [each for name in names for each in in_order(name, 1)])
    held = store.receive(group, topic)
    assert len(held) == len(names)
    rest = [each._replace(tag="A") for name in names for each in in_order(name, count)]
    store.send(topic, [*rest[:-1], rest[-1]._replace(tag=last_tag)])
    assert store.receive(group, topic) == []
    return held


def given_back(store: OpenStore, group: Group, topic: Topic, name: str, count: int) -> None:
    """So many messages of a message group, all with deliveries, which are READY again."""
    store.send(topic, [each._replace(body=LARGE) for each in in_order(name, count)])
    held = [each for _ in range(count) for each in store.receive(group, topic)]
    assert len(held) == count
    for each in held:
        store.change(group, each, 0, give_back=True)


class Search:
    """A search of a group; `advance` says whether a message group stays open if nothing is granted."""

    def __init__(self, tx: Transaction, group: Group, topic: Topic) -> None:
        self.batch = receive.receive_batch_of([a_receive(group, topic)])
        self.tx = tx
        self._queues = scan.lock_queues(self.tx, self.batch)

    def find(self, limit: int = 32, *, heads_only: bool = False) -> tuple[list[OpenGroup], bool]:
        return message_groups.find(
            self.tx, self.batch, self._queues, repeats_max=32, limit=limit, heads_only=heads_only
        )

    def advance(self, found: list[OpenGroup]) -> bool:
        return message_groups.advance(self.tx, found, self.batch.group.group_id, set())


@contextmanager
def searching(store: OpenStore, group: Group, topic: Topic) -> Iterator[Search]:
    with store.rolled_back() as tx:
        yield Search(tx, group, topic)


def counts(found: list[OpenGroup]) -> dict[str, int]:
    return {each.group_key.message_group: len(each.found) for each in found}


def test_heads_only_is_one_of_each(store: OpenStore, topic: Topic, group: Group) -> None:
    store.ack(group, *left_behind(store, group, topic, "abc", 3))
    with searching(store, group, topic) as search:
        assert counts(search.find(heads_only=True)[0]) == {"a": 1, "b": 1, "c": 1}
        assert counts(search.find()[0]) == {"a": 3, "b": 3, "c": 3}


def test_one_alone_may_fill_the_answer(store: OpenStore, topic: Topic, group: Group) -> None:
    store.ack(group, *left_behind(store, group, topic, "a", 3 * SHARE_MIN))
    with searching(store, group, topic) as search:
        assert counts(search.find(2 * SHARE_MIN)[0]) == {"a": 2 * SHARE_MIN}


def test_whether_others_are_open(store: OpenStore, topic: Topic, group: Group) -> None:
    store.ack(group, *left_behind(store, group, topic, "abc"))
    for limit, is_all in ((2, False), (3, False), (4, True)):
        with searching(store, group, topic) as search:
            assert search.find(limit)[1] is is_all


def test_those_that_come_again_leave_the_rest_of_the_answer_to_others(
    store: OpenStore, topic: Topic, group: Group
) -> None:
    heads = left_behind(store, group, topic, "a", 9)
    given_back(store, group, topic, "again", 3)
    store.ack(group, *heads)
    with searching(store, group, topic) as search:
        assert counts(search.find(5)[0]) == {"again": 3, "a": 2}


def test_the_rest_of_those_that_come_again_keeps_its_message_group(
    store: OpenStore, topic: Topic, group: Group
) -> None:
    heads = left_behind(store, group, topic, "abc")
    given_back(store, group, topic, "again", SHARE_MIN + 3)
    store.ack(group, *heads)
    with searching(store, group, topic) as search:
        found, _ = search.find()
        assert counts(found) == {"again": SHARE_MIN, "a": 1, "b": 1, "c": 1}
        (again,) = (each for each in found if each.group_key.message_group == "again")
        rest = message_groups.rest_of(search.tx, search.batch, found, 2)
        assert [(each.group_key, each.has_delivery) for each in rest] == [(again.group_key, True)] * 2
        assert [each.row.body for each in rest] == [DEFERRED] * 2, "read when they are granted"


def test_one_that_comes_again_and_is_not_granted_stays_open(store: OpenStore, topic: Topic, group: Group) -> None:
    given_back(store, group, topic, "again", 2)
    with searching(store, group, topic) as search:
        assert search.advance(search.find()[0])


def test_one_whose_first_message_is_held_is_open_no_more(store: OpenStore, topic: Topic, group: Group) -> None:
    given_back(store, group, topic, "again", 2)
    with searching(store, group, topic) as search:
        hold = f"state = 'INFLIGHT', visible_at_ms = {store.now_ms + 9_000}"
        search.tx.conn.exec_driver_sql(f"UPDATE delivery SET {hold}")
        found, _ = search.find()
        assert counts(found) == {"again": 0}
        assert not search.advance(found)


def test_large_bodies_that_a_filter_accepts_are_read_when_they_are_granted(
    store: OpenStore, topic: Topic, group: Group
) -> None:
    store.send(topic, in_order("a", 1))
    (head,) = store.receive(group, topic)
    store.send(topic, in_order("a", 2, tag="A", body=LARGE))
    assert store.receive(group, topic) == []
    store.ack(group, head)
    with searching(store, group, topic) as search:
        search.batch = search.batch._replace(wanted=tags.parse("A"))
        assert [each.row.body for each in search.find()[0][0].found] == [DEFERRED] * 2


def test_messages_that_a_filter_refuses_do_not_hide_later_ones(store: OpenStore, topic: Topic, group: Group) -> None:
    store.ack(group, *left_behind(store, group, topic, "a", 3 * SHARE_MIN, last_tag="B"))
    got = [each for _ in range(9) for each in store.receive(group, topic, 1, wanted=tags.parse("B"))]
    assert [each.stored.message.tag for each in got] == ["B"]
