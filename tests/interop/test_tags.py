"""Tag expressions of official consumers."""

from __future__ import annotations

import pytest

from tests.interop.official import Program, Refused
from tests.interop.seen import Lag, Seen

pytestmark = pytest.mark.row("O8")

TAGS = ("UA", "DL", "B6", "ua", None)


@pytest.mark.row("M2")
@pytest.mark.row("M3")
@pytest.mark.row("M6")
@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("UA", ["UA"]),
        ("UA||B6", ["B6", "UA"]),
        (" UA || DL ||", ["DL", "UA"]),
        ("*", ["B6", "DL", "None", "UA", "ua"]),
        ("AA", []),
    ],
)
def test_a_consumer_gets_what_its_expression_names(
    program: Program, seen: Seen, expression: str, wanted: list[str]
) -> None:
    producer = program.producer("flights")
    for tag in TAGS:
        producer.send("flights", str(tag), tag=tag)
    # One message that always matches, so that the last poll need not wait for its end.
    consumer = program.simple("counters", "flights", f"{expression}||stop" if expression != "*" else "*")
    producer.send("flights", "stop", tag="stop")
    bodies: list[str] = []
    while "stop" not in bodies or len(bodies) <= len(wanted):
        received = consumer.receive()
        bodies += [message.body for message in received]
        # What the server kept back counts as consumed: nothing but what this client holds is open.
        for message in received:
            consumer.ack(message)
    assert sorted(bodies) == sorted([*wanted, "stop"])
    assert seen.lag("counters", "flights") == Lag(stored=6)


@pytest.mark.row("M5")
def test_tags_of_equal_hash_are_told_apart(program: Program, seen: Seen) -> None:
    seen.make_topic("flights", queue_count=1)
    producer = program.producer("flights")
    for tag in ("BB", "Aa", "BB", "Aa"):
        producer.send("flights", tag, tag=tag)
    assert [message.body for message in program.simple("counters", "flights", "Aa").receive()] == ["Aa", "Aa"]
    assert seen.lag("counters", "flights") == Lag(inflight=2, stored=4)


@pytest.mark.row("M1")
def test_an_illegal_tag_is_refused(program: Program, seen: Seen) -> None:
    producer = program.producer("flights")
    with pytest.raises(Refused):
        producer.send("flights", "two tags", tag="UA|DL")
    producer.send("flights", "one tag", tag="UA")
    assert [message.body for message in program.simple("counters", "flights").receive()] == ["one tag"]
    assert seen.lag("counters", "flights").stored == 1
