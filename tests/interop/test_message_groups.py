"""Message groups of the official clients: order, locks, retries in place. No consumer group is told anything of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from popserver.in_process import EmbeddedBroker
from popserver.model.topic import MessageType
from tests.interop.hearing import GONE_MS_MAX, advance_until_heard
from tests.interop.official import OfficialProducer, Program, Received, messages_of
from tests.interop.seen import Lag, Seen, until

pytestmark = pytest.mark.row("O8")

DEAD = "%DLQ%counters"


@pytest.fixture
def producer(program: Program, seen: Seen) -> OfficialProducer:
    """Of a topic that takes messages of message groups alone."""
    seen.make_topic("flights", 4, MessageType.FIFO)
    return program.producer("flights")


@pytest.mark.row("K5")
@pytest.mark.user("U10")
def test_a_group_is_worked_on_by_one_member_at_a_time(program: Program, producer: OfficialProducer, seen: Seen) -> None:
    one, other = (program.simple("counters", "flights") for _ in range(2))
    send(producer, "g1", "g2", "g3", "h1")
    (first, side) = sorted(one.receive(1) + one.receive(1), key=lambda message: message.body)
    assert (first.body, first.message_group, side.body) == ("g1", "g", "h1")
    answer = other.receive_later(1)
    until(lambda: seen.parked == 1)
    one.ack(first)
    (second,) = messages_of(answer)
    answer = one.receive_later(1)
    until(lambda: seen.parked == 1)
    other.ack(second)
    (third,) = messages_of(answer)
    assert (second.body, third.body) == ("g2", "g3")
    for message in (third, side):
        one.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=4)


@pytest.mark.row("K5")
def test_a_run_comes_again_whole_while_its_head_is_not_acked(
    broker: EmbeddedBroker, program: Program, producer: OfficialProducer, seen: Seen
) -> None:
    """Protocol 5.3, to the letter: of three the second and third are acked, and all three come again, nothing else."""
    consumer = program.simple("counters", "flights")
    send(producer, *(f"g{number}" for number in range(1, 6)))
    received = consumer.receive(3, invisible_s=10)
    for attempt in (1, 2):
        assert [message.body for message in received] == ["g1", "g2", "g3"]
        assert {message.attempt for message in received} == {attempt}
        for message in received[1:]:
            consumer.ack(message)
        broker.clock.advance("10s")
        received = consumer.receive(3, invisible_s=10)
    for message in received:
        consumer.ack(message)
    rest = consumer.receive(3)
    assert [(message.body, message.attempt) for message in rest] == [("g4", 1), ("g5", 1)]
    for message in rest:
        consumer.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=5)


@pytest.mark.row("K5")
def test_when_the_head_is_acked_late_the_others_are_done(
    program: Program, producer: OfficialProducer, seen: Seen
) -> None:
    consumer = program.simple("counters", "flights")
    send(producer, "g1", "g2", "g3")
    for message in reversed(consumer.receive(3)):
        consumer.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=3)


@pytest.mark.row("K5")
@pytest.mark.user("U10")
def test_a_listener_hears_each_group_in_its_order(program: Program, producer: OfficialProducer, seen: Seen) -> None:
    consumer = program.push("counters", "flights")
    groups = {group: [f"{group}{number}" for number in range(10)] for group in "ghi"}
    send(producer, *(body for together in zip(*groups.values(), strict=True) for body in together))
    heard = consumer.hear(30)
    assert {group: bodies_of(group, heard) for group in groups} == groups
    assert {message.attempt for message in heard} == {1}
    until(lambda: seen.lag("counters", "flights") == Lag(stored=30))


@pytest.mark.row("M3")
@pytest.mark.parametrize(
    ("expression", "sql"), [("UA||B6", False), ("TAGS IN ('UA', 'B6') AND n > 0", True)], ids=["tags", "sql"]
)
def test_what_a_filter_lets_through_stays_in_order(
    program: Program, producer: OfficialProducer, seen: Seen, expression: str, sql: bool
) -> None:
    for number, tag in enumerate(["UA", "DL", "B6", "UA", "DL"], start=1):
        producer.send("flights", f"g{number}", tag=tag, properties={"n": str(number)}, message_group="g")
    consumer = program.push("counters", "flights", expression, sql=sql)
    assert [message.body for message in consumer.hear(3)] == ["g1", "g3", "g4"]
    until(lambda: seen.lag("counters", "flights") == Lag(stored=5))


@pytest.mark.row("K5")
def test_groups_are_worked_on_side_by_side(program: Program, producer: OfficialProducer, seen: Seen) -> None:
    send(producer, "g1", "h1", "g2", "i1", "h2")
    consumer = program.push("counters", "flights", waits=True)
    assert {message.body for message in consumer.hear(3)} == {"g1", "h1", "i1"}
    until(lambda: seen.parked == 1)
    assert consumer.heard.empty()
    consumer.release()
    assert {message.body for message in consumer.hear(2)} == {"g2", "h2"}


@pytest.mark.row("L6")
def test_a_failing_head_is_tried_again_before_the_rest_of_its_group(
    broker: EmbeddedBroker, program: Program, producer: OfficialProducer, seen: Seen
) -> None:
    seen.make_group("counters", 17, fifo_interval_ms=1_000)
    send(producer, "g1", "g2", "h1", "g3")
    consumer = program.push("counters", "flights", fail=2, poison="g1")
    heard, _ = advance_until_heard(broker, consumer, 6)
    assert [(message.body, message.attempt) for message in heard if message.message_group == "g"] == [
        ("g1", 1),
        ("g1", 2),
        ("g1", 3),
        ("g2", 1),
        ("g3", 1),
    ]
    until(lambda: seen.lag("counters", "flights") == Lag(stored=4))


@pytest.mark.row("L6")
@pytest.mark.row("L12")
def test_a_head_out_of_attempts_dies_and_frees_its_group(
    broker: EmbeddedBroker, program: Program, producer: OfficialProducer, seen: Seen
) -> None:
    seen.make_group("counters", 2, fifo_interval_ms=1_000)
    send(producer, "g1", "g2", "g3")
    consumer = program.push("counters", "flights", fail=99, poison="g1", how="raise")
    heard, _ = advance_until_heard(broker, consumer, 4)
    assert [(message.body, message.attempt) for message in heard] == [("g1", 1), ("g1", 2), ("g2", 1), ("g3", 1)]
    until(lambda: seen.lag("counters", "flights") == Lag(dead_letters=1, stored=3))
    assert [message.body for message in program.push("doctors", DEAD).hear()] == ["g1"]


@pytest.mark.row("K5")
def test_beside_ungrouped_messages_a_listener_never_has_two_of_a_group(program: Program, seen: Seen) -> None:
    """A topic of any types: these clients would run a whole batch in parallel, so they get heads only."""
    send(program.producer("flights"), "g1", "g2", "-1", "g3", "-2")
    consumer = program.push("counters", "flights", waits=True)
    assert {message.body for message in consumer.hear(3)} == {"g1", "-1", "-2"}
    until(lambda: seen.parked == 1)
    assert consumer.heard.empty()
    consumer.release()
    assert [message.body for message in consumer.hear(2)] == ["g2", "g3"]
    until(lambda: seen.lag("counters", "flights") == Lag(stored=5))


@pytest.mark.row("L11")
@pytest.mark.user("U11")
def test_a_killed_clients_group_goes_on_elsewhere_at_once(
    broker: EmbeddedBroker, start: Callable[[str], Program], language: str, seen: Seen
) -> None:
    seen.make_topic("flights", 1, MessageType.FIFO)
    dying, living = start(language), start(language)
    send(living.producer("flights"), "g1", "g2")
    dying.push("counters", "flights", waits=True).hear()
    heir = living.push("counters", "flights")
    until(lambda: seen.parked == 2)
    dying.kill()
    until(lambda: seen.parked == 1)
    again, waited_ms = advance_until_heard(broker, heir, 2)
    assert [message.body for message in again] == ["g1", "g2"]
    assert again[0].attempt == 2
    assert waited_ms <= GONE_MS_MAX


def send(producer: OfficialProducer, *bodies: str) -> None:
    """A body starts with its message group's name, `-` is none."""
    for body in bodies:
        producer.send("flights", body, message_group=body[0] if body[0] != "-" else None)


def bodies_of(group: str, heard: Iterable[Received]) -> list[str]:
    return [message.body for message in heard if message.message_group == group]
