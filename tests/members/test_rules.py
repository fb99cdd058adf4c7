"""Shares of queues: the same for whoever computes them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popserver.filters import tags
from popserver.filters.subscription import TopicFilter, topic_filters
from popserver.members.rules import Member, averagely, idle, share_of, shares_of
from popserver.model.group import Model
from popserver.model.names import Resource
from popserver.model.topic import MessageQueue, Topic

ORDERS, REFUNDS = Resource("", "orders"), Resource("", "refunds")
NAMES = st.lists(st.text("abAB-0@", min_size=1, max_size=4), min_size=1, max_size=9, unique=True)


def a_topic(queues: int, name: Resource = ORDERS) -> Topic:
    return Topic(1, name, tuple(MessageQueue(100 + number, number) for number in range(queues)), (), 0)


def a_member(client_id: str, *topics: Resource, model: Model = Model.CLUSTERING) -> Member:
    return Member(client_id, model, topic_filters((each, tags.parse("*")) for each in topics or (ORDERS,)), 0)


@pytest.mark.row("J3")
@pytest.mark.parametrize(
    ("queues", "members", "sizes"),
    [(6, 1, [6]), (6, 2, [3, 3]), (5, 2, [3, 2]), (3, 2, [2, 1]), (8, 3, [3, 3, 2]), (2, 3, [1, 1, 0])],
)
def test_shares_are_ranges_and_the_first_are_longer_by_one(queues: int, members: int, sizes: list[int]) -> None:
    names = [f"c{number}" for number in range(members)]
    shares = [averagely(name, range(queues), names) for name in names]
    assert [len(share) for share in shares] == sizes
    assert [queue for share in shares for queue in share] == list(range(queues))


@pytest.mark.row("G1", "J3")
@given(queues=st.integers(1, 20), names=NAMES, shuffle=st.randoms())
def test_whatever_order_they_are_listed_in_together_they_have_everything_once(
    queues: int, names: list[str], shuffle: object
) -> None:
    topic = a_topic(queues)
    members = [a_member(name) for name in names]
    shares = {}
    for name in names:
        shuffle.shuffle(members)  # type: ignore[attr-defined]
        mixed = list(topic.queues)
        shuffle.shuffle(mixed)  # type: ignore[attr-defined]
        shares[name] = share_of(name, topic._replace(queues=tuple(mixed)), members)
    assert sorted(queue for share in shares.values() for queue in share) == sorted(topic.queues)


def test_a_topic_is_shared_among_those_that_want_it() -> None:
    members = [a_member("a", ORDERS), a_member("b", ORDERS, REFUNDS), a_member("c", REFUNDS)]
    orders, refunds = a_topic(4), a_topic(4, REFUNDS)
    assert [[queue.number for queue in share_of(name, orders, members)] for name in "abc"] == [[0, 1], [2, 3], []]
    assert [[queue.number for queue in share_of(name, refunds, members)] for name in "abc"] == [[], [0, 1], [2, 3]]


def test_who_broadcasts_or_is_no_member_has_everything_and_takes_nothing_from_others() -> None:
    members = [a_member("a"), a_member("b", model=Model.BROADCASTING)]
    assert [len(share_of(name, a_topic(3), members)) for name in ("a", "b", "stranger")] == [3, 3, 3]


@pytest.mark.row("J10")
def test_more_members_than_queues_leave_some_idle() -> None:
    members = [a_member(name) for name in "cab"]
    assert idle(members, [a_topic(2)]) == ["c"]
    assert idle(members, [a_topic(3)]) == []
    assert idle([a_member("a"), a_member("b", ORDERS, REFUNDS)], [a_topic(1), a_topic(1, REFUNDS)]) == []


@pytest.mark.row("J10")
@given(
    sizes=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    asked=st.dictionaries(
        st.text("abc0", min_size=1, max_size=3),
        st.tuples(st.sampled_from(Model), st.sets(st.sampled_from([ORDERS, REFUNDS, Resource("", "unknown")]))),
        max_size=9,
    ),
)
def test_who_is_idle_has_no_share_of_anything(
    sizes: tuple[int, int], asked: dict[str, tuple[Model, set[Resource]]]
) -> None:
    topics = [a_topic(size, name) for size, name in zip(sizes, (ORDERS, REFUNDS), strict=True)]
    members = [
        Member(name, model, topic_filters((each, tags.parse("*")) for each in sorted(wanted)), 0)
        for name, (model, wanted) in asked.items()
    ]
    without = [
        each.client_id
        for each in members
        if not any(
            share_of(each.client_id, topic, members)
            for topic in topics
            if topic.name in {want.topic for want in each.filters}
        )
    ]
    assert idle(members, topics) == sorted(without)


def test_thousands_of_members_are_looked_through_at_once() -> None:
    members = [a_member(f"c{number:05d}", ORDERS, REFUNDS) for number in range(2_000)]
    began = time.thread_time()
    assert len(idle(members, [a_topic(16), a_topic(16, REFUNDS)])) == 1_984
    assert time.thread_time() - began < 1, "pair by pair it takes longer by far"


@pytest.mark.row("J3")
class Noted(tuple[TopicFilter, ...]):
    """Subscriptions that note when they are read."""

    note: Callable[[], None]

    def __iter__(self) -> Iterator[TopicFilter]:
        self.note()
        return super().__iter__()


def test_the_shares_of_many_topics_are_found_at_once() -> None:
    """A member may have 1,024 topics: an operator asks for the queues of all of them."""
    names = [Resource("", f"t{number:04d}") for number in range(1_024)]
    members = [a_member(f"c{number}", *names) for number in range(16)]
    read: list[str] = []
    for index, each in enumerate(members):
        noted = Noted(each.filters)
        noted.note = partial(read.append, each.client_id)
        members[index] = each._replace(filters=noted)
    shares = shares_of("c1", [a_topic(16, name) for name in names], members)
    assert [[queue.number for queue in share] for share in shares] == [[1]] * 1_024
    assert sorted(read) == sorted(each.client_id for each in members), "each member's subscriptions are read once"
