"""SQL filter expressions of official consumers."""

from __future__ import annotations

import pytest

from tests.interop.official import Program, Refused
from tests.interop.seen import Lag, Seen

pytestmark = pytest.mark.row("O8")


@pytest.mark.row("M7")
@pytest.mark.row("M10")
def test_a_consumer_gets_what_its_condition_says(program: Program, seen: Seen) -> None:
    seen.make_topic("flights", queue_count=1)
    producer = program.producer("flights")
    for body, tag, properties in (
        ("short", "UA", {"distance": "900"}),
        ("long", "UA", {"distance": "1400"}),
        ("other", "B6", {"distance": "1400"}),
        ("far", "UA", {"distance": "far"}),
        ("none", "UA", {}),
    ):
        producer.send("flights", body, tag=tag, properties=properties)
    consumer = program.simple("counters", "flights", "distance > 1000 AND TAGS IN ('UA', 'DL')", sql=True)
    (message,) = consumer.receive()
    assert (message.body, message.properties["distance"]) == ("long", "1400")
    consumer.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=5)


def test_a_push_consumer_as_well(program: Program, seen: Seen) -> None:
    seen.make_topic("flights", queue_count=1)
    producer = program.producer("flights")
    for number in range(10):
        producer.send("flights", str(number), properties={"a": str(number)})
    consumer = program.push("counters", "flights", "a BETWEEN 4 AND 5 OR a = 9", sql=True)
    assert sorted(message.body for message in consumer.hear(3)) == ["4", "5", "9"]


@pytest.mark.row("M17")
def test_a_bad_condition_is_refused(program: Program, seen: Seen) -> None:
    seen.make_topic("flights", queue_count=1)
    with pytest.raises(Refused) as refused:
        program.simple("counters", "flights", "distance > 'far'", sql=True).receive()
    assert refused.value.code == 40010, refused.value
