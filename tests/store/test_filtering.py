"""A tag filter judges a message once, and what it refuses is consumed."""

from __future__ import annotations

import pytest

from popserver.domain.delivery import State
from popserver.domain.filtering.tag import parse
from popserver.domain.group import Group
from popserver.domain.topic import Topic
from popserver.store import receiving
from tests.support.builders import a_message
from tests.support.open_store import SECOND, OpenStore, a_receive, bodies


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic()


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic])


def send_tagged(store: OpenStore, topic: Topic, *tags: str | None) -> None:
    store.send(topic, [a_message(tag=tag, body=(tag or "none").encode()) for tag in tags])


@pytest.mark.row("M3")
@pytest.mark.parametrize(
    ("expression", "granted"),
    [
        ("*", [b"A", b"B", b"a", b"none", b"*"]),
        ("A", [b"A"]),
        ("A||B", [b"A", b"B"]),
        ("A||*", [b"A", b"*"]),
        ("C", []),
    ],
)
def test_what_an_expression_lets_through(
    store: OpenStore, topic: Topic, group: Group, expression: str, granted: list[bytes]
) -> None:
    send_tagged(store, topic, "A", "B", "a", None, "*")
    assert bodies(store.receive(group, topic, wanted=parse(expression))) == granted


@pytest.mark.row("M5")
def test_tags_with_the_same_hash(store: OpenStore, topic: Topic, group: Group) -> None:
    send_tagged(store, topic, "BB", "Aa", "BB", "AaBB", "BBAa", "Aa")
    assert bodies(store.receive(group, topic, wanted=parse("Aa"))) == [b"Aa", b"Aa"]
    assert store.lag(group).ready == 0


@pytest.mark.row("M6")
def test_what_is_filtered_out_counts_as_consumed(store: OpenStore, topic: Topic, group: Group) -> None:
    send_tagged(store, topic, *["B"] * 40)
    assert store.receive(group, topic, wanted=parse("A")) == []
    lag = store.lag(group)
    assert (lag.ready, lag.inflight, lag.waiting_retry, lag.dead_letters) == (0, 0, 0, 0)
    assert set(store.states(group).values()) == {State.COMMIT}
    assert store.one_value("SELECT COUNT(*) FROM delivery") == 0
    # And for good: another filter later does not bring it back.
    assert store.receive(group, topic) == []


def test_a_full_batch_does_not_look_further_than_it_must(store: OpenStore, topic: Topic, group: Group) -> None:
    send_tagged(store, topic, "B", "A", "B", "A")
    received = store.one(receiving.receive, a_receive(group, topic, 1, wanted=parse("A")))
    assert received.more
    assert store.lag(group).ready == 2


def test_a_window_of_1000_offsets_then_others_are_let_in(store: OpenStore, topic: Topic, group: Group) -> None:
    send_tagged(store, topic, *["B"] * 1_000, "A")
    first = store.one(receiving.receive, a_receive(group, topic, wanted=parse("A")))
    assert first == receiving.Received([], more=True), "unfinished, not empty"
    assert store.lag(group).ready == 1
    second = store.one(receiving.receive, a_receive(group, topic, wanted=parse("A")))
    assert (bodies(second.deliveries), second.more) == ([b"A"], False)


def test_exactly_a_window_is_read_to_its_end(store: OpenStore, topic: Topic, group: Group) -> None:
    send_tagged(store, topic, *["B"] * 1_000)
    assert store.one(receiving.receive, a_receive(group, topic, wanted=parse("A"))) == receiving.Received(
        [], more=False
    )


def test_what_comes_again_is_not_judged_again(store: OpenStore, topic: Topic, group: Group) -> None:
    send_tagged(store, topic, "A")
    store.receive(group, topic, wanted=parse("A"), invisible_ms=SECOND)
    store.end_due(after_ms=SECOND)
    assert bodies(store.receive(group, topic, wanted=parse("B"))) == [b"A"]


def test_groups_filter_for_themselves(store: OpenStore, topic: Topic, group: Group) -> None:
    other = store.group("other", meets=[topic])
    send_tagged(store, topic, "A", "B")
    assert bodies(store.receive(group, topic, wanted=parse("A"))) == [b"A"]
    assert bodies(store.receive(other, topic, wanted=parse("B"))) == [b"B"]
