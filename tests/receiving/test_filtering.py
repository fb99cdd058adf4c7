"""A filter judges a message once, and what it refuses is consumed."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.catalog import topics
from popserver.filters import Filter
from popserver.filters import sql as filters_sql
from popserver.filters.tags import parse
from popserver.model.group import Group
from popserver.model.names import dead_letter_topic
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic
from popserver.receiving import receive
from popserver.receiving.batch import Received
from tests.support.builders import a_message, in_order
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
    received = store.one(receive.receive, a_receive(group, topic, 1, wanted=parse("A")))
    assert received.more
    assert store.lag(group).ready == 2


def test_a_window_of_1000_offsets_then_others_are_let_in(store: OpenStore, topic: Topic, group: Group) -> None:
    send_tagged(store, topic, *["B"] * 1_000, "A")
    first = store.one(receive.receive, a_receive(group, topic, wanted=parse("A")))
    assert first == Received([], more=True), "unfinished, not empty"
    assert store.lag(group).ready == 1
    second = store.one(receive.receive, a_receive(group, topic, wanted=parse("A")))
    assert (bodies(second.deliveries), second.more) == ([b"A"], False)


def test_exactly_a_window_is_read_to_its_end(store: OpenStore, topic: Topic, group: Group) -> None:
    send_tagged(store, topic, *["B"] * 1_000)
    assert store.one(receive.receive, a_receive(group, topic, wanted=parse("A"))) == Received([], more=False)


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


def send_with(store: OpenStore, topic: Topic, *values: str | None, **more: Any) -> None:
    """Messages with property a, the body saying which."""
    properties: list[dict[str, str]] = [{} if value is None else {"a": value} for value in values]
    bodies = [(value or "none").encode() for value in values]
    store.send(topic, [a_message(properties=p, body=b, **more) for p, b in zip(properties, bodies, strict=True)])


@pytest.mark.row("M7")
@pytest.mark.parametrize(
    ("expression", "granted"),
    [
        ("a > 3", [b"4", b"10"]),
        ("a > 3 AND TAGS IN ('A', 'B')", [b"4", b"10"]),
        ("TAGS IN ('B')", []),
        ("a IS NULL", [b"none"]),
        ("a = 'x' OR a = '1'", [b"1", b"x"]),
        ("a <> 4", [b"1", b"10"]),
        ("TRUE", [b"1", b"4", b"x", b"none", b"10"]),
        ("FALSE", []),
    ],
)
def test_what_a_sql_filter_lets_through(
    store: OpenStore, topic: Topic, group: Group, expression: str, granted: list[bytes]
) -> None:
    send_with(store, topic, "1", "4", "x", None, "10", tag="A")
    assert bodies(store.receive(group, topic, wanted=filters_sql.parse(expression))) == granted
    lag = store.lag(group)
    assert (lag.ready, lag.inflight) == (0, len(granted)), "what it refuses is consumed"
    assert store.one_value("SELECT COUNT(*) FROM delivery") == len(granted)
    assert store.receive(group, topic) == []


@pytest.mark.parametrize("count", [1, 2, 3, 16, 17, 60])
def test_a_filter_of_any_number_of_properties(store: OpenStore, topic: Topic, group: Group, count: int) -> None:
    """Of a few the store picks them out, of many it takes all."""
    names = [f"p{number}" for number in range(count)]
    every = dict.fromkeys(names, "1")
    for properties in (every, every | {names[-1]: "2"}, {**every, "more": "x"}, dict.fromkeys(names[1:], "1"), {}):
        store.send(topic, [a_message(properties=properties, body=str(len(properties)).encode())])
    wanted = filters_sql.parse(" AND ".join(f"{name} = '1'" for name in names))
    assert bodies(store.receive(group, topic, wanted=wanted)) == [str(n).encode() for n in (count, count + 1)]


@pytest.mark.parametrize(
    "value", ["plain", "it's", 'in "quotes"', "back\\slash", "ünï 🛫", "[1, 2]", '{"a": 1}', "null", ""]
)
def test_a_property_of_any_text(store: OpenStore, topic: Topic, group: Group, value: str) -> None:
    send_with(store, topic, value, f"{value}!", None)
    written = value.replace("'", "''")
    wanted = filters_sql.parse(f"a = '{written}'")
    assert bodies(store.receive(group, topic, wanted=wanted)) == [value.encode() or b"none"]


def test_a_sql_filter_where_every_message_group_is_held(store: OpenStore) -> None:
    topic = store.topic(accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])
    store.send(topic, in_order("g", 3, properties={"a": "1"}))
    wanted = filters_sql.parse("a = 1")
    (held,) = store.receive(group, topic, 1, wanted=wanted)
    assert store.receive(group, topic, wanted=wanted) == []
    store.ack(group, held)
    assert len(store.receive(group, topic, wanted=wanted)) == 2


def test_a_property_of_any_name(store: OpenStore, topic: Topic, group: Group) -> None:
    properties = {"$a": "1", "a$.b": "x", "$": "2", "_0": "3", "a.b": "y"}
    store.send(topic, [a_message(properties=properties, body=b"named"), a_message(body=b"none")])
    wanted = filters_sql.parse("$a = 1 AND $ = 2 AND _0 = 3 AND a IS NULL AND b IS NULL")
    assert bodies(store.receive(group, topic, wanted=wanted)) == [b"named"]


def test_a_sql_filter_over_a_long_stretch(store: OpenStore, topic: Topic, group: Group) -> None:
    send_with(store, topic, *(str(number) for number in range(1_500)))
    wanted = filters_sql.parse("a > 1390")
    granted: list[bytes] = []
    for _ in range(20):
        received = store.one(receive.receive, a_receive(group, topic, 16, wanted=wanted))
        granted += bodies(received.deliveries)
        if not received.more:
            break
    assert granted == [str(number).encode() for number in range(1_391, 1_500)]
    assert store.lag(group).ready == 0


def test_a_full_batch_leaves_the_rest_to_be_judged(store: OpenStore, topic: Topic, group: Group) -> None:
    send_with(store, topic, "1", "5", "1", "5")
    received = store.one(receive.receive, a_receive(group, topic, 1, wanted=filters_sql.parse("a > 3")))
    assert (bodies(received.deliveries), received.more) == ([b"5"], True)
    assert store.lag(group).ready == 2


def test_receives_by_the_same_expression_share_one_look(store: OpenStore, topic: Topic, group: Group) -> None:
    send_with(store, topic, "1", "5", "6", "2", "7")
    requests = [
        a_receive(group, topic, 2, wanted=filters_sql.parse("a > 3"), client_id=client) for client in ("c1", "c2")
    ]
    first, second = store.do(receive.receive, *requests)
    assert isinstance(first, Received)
    assert isinstance(second, Received)
    assert (bodies(first.deliveries), bodies(second.deliveries)) == ([b"5", b"6"], [b"7"])


def test_a_sql_filter_judges_once(store: OpenStore, topic: Topic, group: Group) -> None:
    send_with(store, topic, "5")
    store.receive(group, topic, wanted=filters_sql.parse("a > 3"), invisible_ms=SECOND)
    store.end_due(after_ms=SECOND)
    assert bodies(store.receive(group, topic, wanted=filters_sql.parse("a > 9"))) == [b"5"]


@pytest.mark.parametrize("wanted", [parse("A"), filters_sql.parse("TAGS = 'A'")], ids=["tags", "SQL"])
def test_a_filter_on_a_dead_letter_topic(store: OpenStore, topic: Topic, group: Group, wanted: Filter) -> None:
    send_tagged(store, topic, "A", "B")
    for held in store.receive(group, topic):
        assert store.forward(group, held) is None
    dead = topics.find_topic(store.conn, dead_letter_topic(group.name))
    assert dead is not None
    reader = store.group("reader", meets=[dead])
    assert bodies(store.receive(reader, dead, wanted=wanted)) == [b"A"]
