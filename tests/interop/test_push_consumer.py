"""The official PushConsumers: consumption with a listener, the retry ladder, clients that end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from popserver.in_process import EmbeddedBroker
from popserver.model.retry import Exponential
from tests.interop.hearing import GONE_MS_MAX, STEP_MS, advance_until_heard
from tests.interop.official import Program
from tests.interop.seen import Lag, Seen, until

pytestmark = pytest.mark.row("O8")


def test_everything_sent_is_consumed_once(program: Program, seen: Seen) -> None:
    producer = program.producer("flights")
    consumer = program.push("counters", "flights")
    sent = {producer.send("flights", f"flight {number}").message_id for number in range(100)}
    heard = consumer.hear(100)
    assert {message.message_id for message in heard} == sent
    assert {message.attempt for message in heard} == {1}
    until(lambda: seen.lag("counters", "flights") == Lag(stored=100))
    assert consumer.heard.empty()


@pytest.mark.row("M3")
def test_only_matching_tags_are_consumed(program: Program, seen: Seen) -> None:
    producer = program.producer("flights")
    for tag in ("UA", "DL", "B6", "UA"):
        producer.send("flights", tag, tag=tag)
    consumer = program.push("counters", "flights", "UA||B6")
    assert sorted(message.body for message in consumer.hear(3)) == ["B6", "UA", "UA"]
    until(lambda: seen.lag("counters", "flights") == Lag(stored=4))


@pytest.mark.row("L14")
@pytest.mark.row("A10")
@pytest.mark.parametrize("how", ["return", "raise"])
def test_what_fails_once_waits_for_its_retry_and_comes_again(
    broker: EmbeddedBroker, program: Program, seen: Seen, how: str
) -> None:
    consumer = program.push("counters", "flights", fail=1, how=how)
    program.producer("flights").send("flights", "UA1545")
    (first,) = consumer.hear()
    until(lambda: seen.lag("counters", "flights") == Lag(waiting_retry=1, stored=1))
    until(lambda: seen.parked == 1)
    broker.clock.advance("9999ms")
    assert seen.lag("counters", "flights") == Lag(waiting_retry=1, stored=1)
    broker.clock.advance("1ms")
    (second,) = consumer.hear()
    assert (second.message_id, second.attempt) == (first.message_id, 2)
    until(lambda: seen.lag("counters", "flights") == Lag(stored=1))


@pytest.mark.row("L18")
def test_the_retry_counts_from_the_failure(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    consumer = program.push("counters", "flights", fail=1, waits=True)
    program.producer("flights").send("flights", "UA1545")
    consumer.hear()
    broker.clock.advance("4s")
    consumer.release()
    until(lambda: seen.lag("counters", "flights") == Lag(waiting_retry=1, stored=1))
    broker.clock.advance("9999ms")
    assert seen.lag("counters", "flights") == Lag(waiting_retry=1, stored=1)
    broker.clock.advance("1ms")
    assert consumer.hear()[0].attempt == 2


@pytest.mark.row("L7")
def test_exponential_intervals_hold(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    seen.make_group("counters", 3, exponential=Exponential(3_000, 60_000, 3))
    consumer = program.push("counters", "flights", fail=99)
    program.producer("flights").send("flights", "UA1545")
    for attempt, wait_ms in ((1, 3_000), (2, 9_000)):
        assert consumer.hear()[0].attempt == attempt
        until(lambda: seen.lag("counters", "flights") == Lag(waiting_retry=1, stored=1))
        broker.clock.advance(wait_ms - 1)
        assert seen.lag("counters", "flights") == Lag(waiting_retry=1, stored=1)
        broker.clock.advance(1)
    assert consumer.hear()[0].attempt == 3


@pytest.mark.row("L7")
@pytest.mark.row("L12")
def test_a_groups_own_ladder_and_limit_hold(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    seen.make_group("counters", 3, 3_000, 7_000)
    consumer = program.push("counters", "flights", fail=99)
    program.producer("flights").send("flights", "UA1545")
    for attempt, wait in ((1, "3s"), (2, "7s")):
        assert consumer.hear()[0].attempt == attempt
        until(lambda: seen.lag("counters", "flights") == Lag(waiting_retry=1, stored=1))
        broker.clock.advance(wait)
    assert consumer.hear()[0].attempt == 3
    until(lambda: seen.lag("counters", "flights") == Lag(dead_letters=1, stored=1))


def test_listeners_work_side_by_side(program: Program, seen: Seen) -> None:
    producer, consumer = program.producer("flights"), program.push("counters", "flights", waits=True)
    for number in range(10):
        producer.send("flights", str(number))
    assert {message.body for message in consumer.hear(10)} == set(map(str, range(10)))
    assert seen.lag("counters", "flights") == Lag(inflight=10, stored=10)
    consumer.release()
    until(lambda: seen.lag("counters", "flights") == Lag(stored=10))


@pytest.mark.row("L15")
@pytest.mark.user("U7")
def test_a_slow_listener_keeps_its_message(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    consumer = program.push("counters", "flights", waits=True)
    program.producer("flights").send("flights", "UA1545")
    consumer.hear()
    for _ in range(20):
        _poll_on(broker, seen, "15s")
    assert seen.lag("counters", "flights") == Lag(inflight=1, stored=1)
    consumer.release()
    until(lambda: seen.lag("counters", "flights") == Lag(stored=1))
    assert consumer.heard.empty()


@pytest.mark.row("L11")
@pytest.mark.row("L15")
def test_what_a_killed_client_held_comes_to_another_at_once(
    broker: EmbeddedBroker, start: Callable[[str], Program], language: str, seen: Seen
) -> None:
    dying, living = start(language), start(language)
    living.producer("flights").send("flights", "UA1545")
    (held,) = dying.push("counters", "flights", waits=True).hear()
    heir = living.push("counters", "flights")
    until(lambda: seen.parked == 2)
    dying.kill()
    until(lambda: seen.parked == 1)
    (again,), waited_ms = advance_until_heard(broker, heir)
    assert (again.message_id, again.attempt) == (held.message_id, 2)
    assert 1_000 <= waited_ms <= GONE_MS_MAX


def test_a_client_that_says_goodbye_leaves_nothing_behind(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    producer = program.producer("flights")
    consumer = program.push("counters", "flights")
    producer.send("flights", "UA1545")
    consumer.hear()
    until(lambda: seen.lag("counters", "flights") == Lag(stored=1) and seen.parked == 1)
    before = seen.clients
    closed = consumer.close()
    broker.clock.advance("20s")  # the Node client waits for the end of its poll
    closed.result(60)
    until(lambda: seen.clients == before - 1)
    assert seen.parked == 0


def test_what_is_sent_while_one_closes_is_consumed_by_the_next(
    broker: EmbeddedBroker, program: Program, seen: Seen
) -> None:
    """Whether or not its last poll was granted something, and listened to: nothing is lost."""
    producer, closing = program.producer("flights"), program.push("counters", "flights")
    until(lambda: seen.parked == 1)
    closed = closing.close()
    sent = {producer.send("flights", str(number)).message_id for number in range(5)}
    heir = program.push("counters", "flights")
    until(lambda: _ends_soon(broker, closed.done))
    until(lambda: _ends_soon(broker, lambda: seen.lag("counters", "flights") == Lag(stored=5)))
    assert sent == {message.message_id for each in (closing, heir) for message in each.hear(each.heard.qsize())}


def _poll_on(broker: EmbeddedBroker, seen: Seen, duration: str) -> None:
    """Let time pass in steps shorter than a poll, as it does for a client that is there."""
    until(lambda: seen.parked == 1)
    broker.clock.advance(duration)
    until(lambda: seen.parked == 1)


def _ends_soon(broker: EmbeddedBroker, fact: Callable[[], bool]) -> bool:
    if not fact():
        broker.clock.advance(STEP_MS)
    return fact()
