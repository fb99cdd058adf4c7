"""The producers that have a stream to this server: which of them can be asked about a topic."""

from __future__ import annotations

from popserver.model.names import Resource
from popserver.producing.checks import Producers
from popserver.producing.half_messages import Check

ORDERS, BILLS, OTHERS = (Resource("", name) for name in ("orders", "bills", "others"))
FIRST, SECOND = object(), object()


async def ask(_check: Check) -> None:
    return


async def ask_again(_check: Check) -> None:
    return


def test_a_topic_s_producers_are_sorted() -> None:
    producers = Producers()
    assert (len(producers), producers.topics, producers.of_topic(ORDERS)) == (0, set(), [])
    producers.joined("b", FIRST, [ORDERS, BILLS], ask)
    producers.joined("a", FIRST, [ORDERS], ask)
    producers.joined("c", FIRST, [], ask)
    assert len(producers) == 3
    assert producers.topics == {ORDERS, BILLS}
    assert producers.of_topic(ORDERS) == ["a", "b"]
    assert producers.of_topic(BILLS) == ["b"]


def test_its_newest_stream_counts_and_its_topics_stay() -> None:
    producers = Producers()
    producers.joined("a", FIRST, [ORDERS], ask)
    assert producers.stream_of("a") == (FIRST, ask)
    producers.joined("a", SECOND, [BILLS], ask_again)
    assert producers.stream_of("a") == (SECOND, ask_again)
    assert producers.topics == {ORDERS, BILLS}
    assert producers.stream_of("b") is None


def test_a_producer_may_send_to_topics_that_it_did_not_name() -> None:
    producers = Producers()
    producers.sends("a", ORDERS)
    assert producers.topics == set()
    producers.joined("a", FIRST, [BILLS], ask)
    producers.sends("a", ORDERS)
    producers.sends("b", OTHERS)
    assert producers.topics == {ORDERS, BILLS}


def test_one_that_may_not_be_asked_about_a_topic_is_asked_about_others() -> None:
    producers = Producers()
    producers.joined("a", FIRST, [ORDERS, BILLS], ask)
    producers.may_not("a", SECOND, ORDERS)
    producers.may_not("b", FIRST, ORDERS)
    assert producers.of_topic(ORDERS) == ["a"], "it was said on another stream"
    producers.may_not("a", FIRST, ORDERS)
    producers.may_not("a", FIRST, OTHERS)
    assert (producers.of_topic(ORDERS), producers.of_topic(BILLS)) == ([], ["a"])
    producers.sends("a", ORDERS)
    assert producers.of_topic(ORDERS) == ["a"]


def test_a_producer_leaves_with_its_newest_stream() -> None:
    producers = Producers()
    producers.joined("a", FIRST, [ORDERS], ask)
    producers.joined("a", SECOND, [ORDERS], ask)
    producers.left("b")
    producers.left("a", FIRST)
    assert producers.of_topic(ORDERS) == ["a"]
    producers.left("a", SECOND)
    assert (len(producers), producers.topics) == (0, set())
    producers.joined("a", FIRST, [ORDERS], ask)
    producers.left("a")
    assert len(producers) == 0
