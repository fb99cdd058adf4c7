"""Official clients whose line breaks under an answer: what nobody heard of must not stay in nobody's hands."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from popserver.in_process import EmbeddedBroker
from popserver.model.topic import MessageType
from tests.interop.hearing import GONE_MS_MAX, advance_until_heard
from tests.interop.line import Line, line_to
from tests.interop.official import OfficialSimpleConsumer, Program, Received, Refused, Start, messages_of
from tests.interop.seen import Lag, Seen, until

pytestmark = [pytest.mark.row("O8"), pytest.mark.user("U11")]


@pytest.fixture
def line(broker: EmbeddedBroker) -> Iterator[Line]:
    with line_to(broker.endpoint) as line:
        yield line


@pytest.fixture
def far(start_at: Start, line: Line, language: str) -> Program:
    """A program at the far end of the line."""
    return start_at(language, line.endpoint)


@pytest.fixture
def near(start: Callable[[str], Program], language: str) -> Program:
    """A program with a line of its own."""
    return start(language)


@pytest.mark.row("K9")
@pytest.mark.parametrize("message_group", [None, "g"], ids=["ungrouped", "in a message group"])
def test_a_push_consumer_asks_again_and_gets_the_same(
    far: Program, near: Program, line: Line, seen: Seen, message_group: str | None
) -> None:
    """The clock stands still: nothing but the repeated attempt id can bring the message back."""
    seen.make_topic("flights", 1, MessageType.FIFO if message_group else MessageType.NORMAL)
    consumer, producer = far.push("counters", "flights"), near.producer("flights")
    until(lambda: seen.parked == 1)
    line.lose("first")
    sent = [producer.send("flights", body, message_group=message_group) for body in ("first", "second")]
    assert line.has_lost.wait(60)
    heard = consumer.hear(2)
    assert [message.message_id for message in heard] == [each.message_id for each in sent]
    assert [message.attempt for message in heard] == [1, 1]
    until(lambda: seen.lag("counters", "flights") == Lag(stored=2))


@pytest.mark.row("L11")
def test_a_message_group_is_not_blocked_when_nobody_asks_again(
    broker: EmbeddedBroker, far: Program, near: Program, line: Line, seen: Seen
) -> None:
    seen.make_topic("flights", 1, MessageType.FIFO)
    far.push("counters", "flights")
    producer = near.producer("flights")
    until(lambda: seen.parked == 1)
    line.lose("first")
    producer.send("flights", "first", message_group="g")
    assert line.has_lost.wait(60)
    far.kill()
    producer.send("flights", "second", message_group="g")
    heir = near.push("counters", "flights")
    until(lambda: seen.parked == 1)
    (first, second), waited_ms = advance_until_heard(broker, heir, 2)
    assert waited_ms <= GONE_MS_MAX
    assert [(first.body, first.attempt), (second.body, second.attempt)] == [("first", 2), ("second", 1)]


def test_a_simple_consumer_sees_it_at_the_end_of_its_time(
    broker: EmbeddedBroker, far: Program, near: Program, line: Line, seen: Seen
) -> None:
    consumer = far.simple("counters", "flights")
    answer = consumer.receive_later(invisible_s=10)
    until(lambda: seen.parked == 1)
    line.lose("first")
    near.producer("flights").send("flights", "first")
    with pytest.raises(Refused):
        messages_of(answer)
    assert seen.lag("counters", "flights") == Lag(inflight=1, stored=1)
    broker.clock.advance("10s")
    again = receive_at_last(consumer)
    assert [(message.body, message.attempt) for message in again] == [("first", 2)]


def receive_at_last(consumer: OfficialSimpleConsumer) -> list[Received]:
    """What the consumer receives once its line stands again."""
    received: list[Received] = []

    def has_received() -> bool:
        try:
            received.extend(consumer.receive())
        except Refused:
            return False
        return True

    until(has_received)
    return received
