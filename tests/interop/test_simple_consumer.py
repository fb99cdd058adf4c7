"""The official SimpleConsumers: receive, ack, extend, expire."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from popserver.in_process import EmbeddedBroker
from tests.interop.official import OfficialSimpleConsumer, Program, Refused, messages_of
from tests.interop.seen import Lag, Seen, until

pytestmark = pytest.mark.row("O8")

INVALID_RECEIPT_HANDLE = 40013
ILLEGAL_INVISIBLE_TIME = 40011


@pytest.mark.row("K3")
@pytest.mark.row("L3")
def test_received_is_held_and_acked_is_committed(program: Program, seen: Seen) -> None:
    consumer = program.simple("counters", "flights")
    program.producer("flights").send("flights", "UA1545")
    (message,) = consumer.receive()
    assert seen.lag("counters", "flights") == Lag(inflight=1, stored=1)
    consumer.ack(message)
    assert seen.lag("counters", "flights") == Lag(stored=1)


@pytest.mark.row("A4")
def test_an_empty_poll_is_held_for_its_time(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    answer = program.simple("counters", "flights", await_s=15).receive_later()
    until(lambda: seen.parked == 1)
    broker.clock.advance("14s")
    assert seen.parked == 1
    assert not answer.done()
    broker.clock.advance("1s")
    assert messages_of(answer) == []


@pytest.mark.row("A4")
@pytest.mark.row("A6")
def test_a_held_poll_is_answered_by_a_send(program: Program, seen: Seen) -> None:
    answer = program.simple("counters", "flights").receive_later()
    until(lambda: seen.parked == 1)
    program.producer("flights").send("flights", "UA1545")
    # The clock stands still: nothing but the send can have ended the poll.
    assert [message.body for message in messages_of(answer)] == ["UA1545"]


@pytest.mark.row("A7")
def test_a_held_poll_stays_held_for_another_tag(program: Program, seen: Seen) -> None:
    producer = program.producer("flights")
    answer = program.simple("counters", "flights", "UA").receive_later()
    until(lambda: seen.parked == 1)
    producer.send("flights", "DL 1", tag="DL")
    until(lambda: seen.lag("counters", "flights").ready == 0 and seen.parked == 1)
    assert not answer.done()
    producer.send("flights", "UA 2", tag="UA")
    assert [message.body for message in messages_of(answer)] == ["UA 2"]


@pytest.mark.row("L9")
@pytest.mark.row("K7")
@pytest.mark.row("O3")
@pytest.mark.user("U6")
def test_what_expires_comes_again_and_its_old_handle_is_dead(
    broker: EmbeddedBroker, program: Program, seen: Seen
) -> None:
    consumer = program.simple("counters", "flights")
    program.producer("flights").send("flights", "UA1545")
    (first,) = consumer.receive(invisible_s=30)
    broker.clock.advance("29999ms")
    assert seen.lag("counters", "flights") == Lag(inflight=1, stored=1)
    broker.clock.advance("1ms")
    assert seen.lag("counters", "flights") == Lag(ready=1, stored=1)
    (second,) = consumer.receive(invisible_s=30)
    assert (second.message_id, second.attempt) == (first.message_id, 2)
    assert second.handle != first.handle
    with pytest.raises(Refused) as refused:
        consumer.ack(first)
    assert refused.value.code == INVALID_RECEIPT_HANDLE
    assert seen.lag("counters", "flights") == Lag(inflight=1, stored=1)
    consumer.ack(second)
    assert seen.lag("counters", "flights") == Lag(stored=1)


@pytest.mark.row("L7")
@pytest.mark.user("U6")
def test_who_never_acks_sees_it_again_until_it_is_dead(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    consumer = program.simple("counters", "flights", await_s=5)
    sent = program.producer("flights").send("flights", "UA1545")
    for attempt in range(1, 18):
        (message,) = consumer.receive(invisible_s=10)
        assert (message.message_id, message.attempt) == (sent.message_id, attempt)
        broker.clock.advance("10s")
    assert seen.lag("counters", "flights") == Lag(dead_letters=1, stored=1)


@pytest.mark.row("A10")
def test_a_held_poll_is_answered_by_an_expiry(
    broker: EmbeddedBroker, start: Callable[[str], Program], language: str, seen: Seen
) -> None:
    holding, waiting = (start(language).simple("counters", "flights") for _ in range(2))
    start(language).producer("flights").send("flights", "UA1545")
    (first,) = holding.receive(invisible_s=10)
    answer = waiting.receive_later()
    until(lambda: seen.parked == 1)
    broker.clock.advance("10s")
    (again,) = messages_of(answer)
    assert (again.message_id, again.attempt) == (first.message_id, 2)


@pytest.mark.row("L10")
@pytest.mark.row("L14")
@pytest.mark.row("K7")
@pytest.mark.user("U8")
@pytest.mark.user("U9")
def test_an_extension_restarts_the_time_with_a_new_handle(broker: EmbeddedBroker, program: Program, seen: Seen) -> None:
    consumer = program.simple("counters", "flights")
    program.producer("flights").send("flights", "UA1545")
    (message,) = consumer.receive(invisible_s=10)
    broker.clock.advance("9s")
    extended = consumer.change_invisible(message, 60)
    assert extended != message.handle
    broker.clock.advance("59s")
    # A simple consumer's message stays in its hands: it waits for no retry.
    assert seen.lag("counters", "flights") == Lag(inflight=1, stored=1)
    for refuse in (lambda: consumer.ack(message), lambda: consumer.change_invisible(message, 30)):
        with pytest.raises(Refused) as refused:
            refuse()
        assert refused.value.code == INVALID_RECEIPT_HANDLE
    # Only the same request again, as after a lost answer, is answered as the first was.
    assert consumer.change_invisible(message, 60) == extended
    consumer.ack(message, extended)
    assert seen.lag("counters", "flights") == Lag(stored=1)


@pytest.mark.row("L10")
def test_what_was_extended_comes_again_at_the_end_of_the_new_time(
    broker: EmbeddedBroker, program: Program, seen: Seen
) -> None:
    consumer = program.simple("counters", "flights")
    program.producer("flights").send("flights", "UA1545")
    (message,) = consumer.receive(invisible_s=60)
    consumer.change_invisible(message, 5)
    broker.clock.advance("4999ms")
    assert seen.lag("counters", "flights") == Lag(inflight=1, stored=1)
    broker.clock.advance("1ms")
    (again,) = consumer.receive()
    assert again.attempt == 2


@pytest.mark.row("L8")
def test_an_invisible_duration_out_of_range_is_refused(program: Program, seen: Seen) -> None:
    consumer = program.simple("counters", "flights")
    program.producer("flights").send("flights", "UA1545")
    for invisible_s, words in ((9, "too small"), (12 * 3_600 + 1, "too large")):
        with pytest.raises(Refused, match=words) as refused:
            consumer.receive(invisible_s=invisible_s)
        assert refused.value.code == ILLEGAL_INVISIBLE_TIME
    (message,) = consumer.receive(invisible_s=10)
    with pytest.raises(Refused, match="too large"):
        consumer.change_invisible(message, 12 * 3_600 + 1)
    # A refused change gives the handle back as it was, so the client still holds the message.
    consumer.ack(message)


@pytest.mark.row("K2")
@pytest.mark.row("K3")
@pytest.mark.row("K4")
def test_members_of_both_languages_share_one_queue_and_no_message(
    broker: EmbeddedBroker, start: Callable[[str], Program], seen: Seen
) -> None:
    seen.make_topic("flights", queue_count=1)
    producer = start("python").producer("flights")
    with ThreadPoolExecutor(8) as senders:
        list(senders.map(lambda number: producer.send("flights", str(number)), range(300)))
    members = [start(language).simple("counters", "flights") for language in ("python", "node", "python")]
    shares = [[message.message_id for message in member.receive(8)] for member in members]

    def take(member: OfficialSimpleConsumer, share: list[str]) -> None:
        while received := member.receive(8):
            share += [message.message_id for message in received]

    with ThreadPoolExecutor(len(members)) as threads:
        taking = [threads.submit(take, member, share) for member, share in zip(members, shares, strict=True)]
        until(lambda: seen.parked == len(members))
        broker.clock.advance("20s")  # the end of everybody's poll, and of nobody's hold
        for taken in taking:
            taken.result()
    assert all(shares)
    assert set(Counter(message_id for share in shares for message_id in share).values()) == {1}
    assert seen.lag("counters", "flights") == Lag(inflight=300, stored=300)


@pytest.mark.row("L11")
def test_what_a_killed_consumer_held_comes_at_the_end_of_its_time(
    broker: EmbeddedBroker, start: Callable[[str], Program], language: str, seen: Seen
) -> None:
    dying, living = start(language), start(language)
    consumer = living.simple("counters", "flights")
    living.producer("flights").send("flights", "UA1545")
    (held,) = dying.simple("counters", "flights").receive(invisible_s=30)
    dying.kill()
    broker.clock.advance("29s")
    assert seen.lag("counters", "flights") == Lag(inflight=1, stored=1)
    broker.clock.advance("1s")
    (again,) = consumer.receive()
    assert (again.message_id, again.attempt) == (held.message_id, 2)
