"""Delayed and half messages in a running broker: what goes wrong, and what happens then."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.broker.broker import Broker
from popserver.model.errors import CommitUnknown, IllegalDeliveryTime, StoreUnavailable
from popserver.model.message import Message, SendResult
from popserver.model.names import Resource
from popserver.model.topic import MessageType
from popserver.producing import enqueue, half_messages
from popserver.producing.half_messages import Check
from popserver.producing.rules import Resolution
from popserver.receiving.batch import Receive
from tests.support.builders import TOPIC, a_message
from tests.support.running_broker import RunningBroker, running_broker, until

SECOND, MINUTE = 1_000, 60_000


def delayed(broker: RunningBroker, after_ms: int = MINUTE) -> Message:
    return a_message(message_type=MessageType.DELAY, deliver_at_ms=broker.clock.now_ms() + after_ms)


def half() -> Message:
    return a_message(message_type=MessageType.TRANSACTION)


class Stream:
    """A producer's stream: notes what it is asked, or is broken."""

    def __init__(self, *, broken: bool = False) -> None:
        self.broken = broken
        self.asked: list[str] = []

    async def ask(self, check: Check) -> None:
        if self.broken:
            raise ConnectionResetError
        self.asked.append(check.stored.message.message_id)

    async def join(self, broker: RunningBroker, client_id: str) -> None:
        await broker.broker.producing.transactions.joined(client_id, self, [TOPIC], self.ask)


async def checks(broker: RunningBroker) -> list[int]:
    return [row.checks for row in await broker.query("SELECT checks FROM pending")]


def refuse(broker: Broker, monkeypatch: pytest.MonkeyPatch, operation: Any, times: int) -> None:
    """The store refuses that operation, so often."""
    submit, left = broker.engine.writer.submit, [times]

    async def refusing(request: Any, **more: Any) -> Any:
        if request.operation is operation and left[0]:
            left[0] -= 1
            raise StoreUnavailable("gone")
        return await submit(request, **more)

    monkeypatch.setattr(broker.engine.writer, "submit", refusing)


def requests_together(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> list[set[type]]:
    """The kinds of requests of each transaction from now on."""
    run, together = broker.engine.writer._run, list[set[type]]()

    def noting(batch: Any, *more: Any) -> None:
        together.append({type(entry.request) for entry in batch})
        run(batch, *more)

    monkeypatch.setattr(broker.engine.writer, "_run", noting)
    return together


async def test_a_waiting_poll_gets_it_in_the_transaction_in_which_it_is_due(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.group()
    await broker.send([delayed(broker, MINUTE), delayed(broker, 2 * MINUTE)])
    together = requests_together(broker.broker, monkeypatch)
    for _ in range(2):  # the second message is known from the step that enqueued the first one
        poll = await broker.poll(poll_ms=5 * MINUTE)
        together.clear()
        await broker.advance(MINUTE)
        (delivery,) = await poll
        await broker.ack(delivery)
        assert any({enqueue.EnqueueDue, Receive} <= kinds for kinds in together)


async def test_a_store_that_is_gone_makes_it_late_by_a_second(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.send([delayed(broker)])
    refuse(broker.broker, monkeypatch, enqueue.enqueue_due, 2)
    await broker.advance(MINUTE)
    assert await broker.receive() == []
    await broker.advance(SECOND)
    assert await broker.receive() == []
    await broker.advance(SECOND)
    assert len(await broker.receive()) == 1


@pytest.mark.parametrize("end", ["before the transaction", "within it"])
async def test_if_the_store_is_gone_waiting_polls_go_on_waiting(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    await broker.group()
    await broker.send([delayed(broker)])
    polls = [await broker.poll(poll_ms=5 * MINUTE, client_id=name) for name in "ab"]
    polls.append(await broker.poll(poll_ms=5 * MINUTE, group=Resource("", "others")))
    writer, failed = broker.broker.engine.writer, list[set[type]]()
    run, commit = writer._run, writer._commit

    def fail(batch: Any, result: Any, **more: Any) -> None:
        failed.append({type(entry.request) for entry in batch})
        result.fail(batch, StoreUnavailable("gone"))

    def fail_to_commit(tx: Any, outcomes: Any, result: Any) -> None:
        failed.append({type(each.entry.request) for each in outcomes})
        tx.conn.exec_driver_sql("ROLLBACK")
        result.outcomes += [each._replace(result=CommitUnknown("gone", each.result)) for each in outcomes]

    if end == "before the transaction":
        monkeypatch.setattr(writer, "_run", fail)
    else:
        monkeypatch.setattr(writer, "_commit", fail_to_commit)
    await broker.advance(MINUTE)
    monkeypatch.setattr(writer, "_run", run)
    monkeypatch.setattr(writer, "_commit", commit)
    assert {enqueue.EnqueueDue, Receive} in failed
    await until(lambda: broker.parked == 3)
    await broker.advance(SECOND)
    await until(lambda: sum(each.done() for each in polls) == 2)
    assert [len(await each) for each in polls if each.done()] == [1, 1]
    assert broker.parked == 1


async def test_a_restart_takes_up_what_waits(sqlite_url: str) -> None:
    async with running_broker(sqlite_url) as first:
        await first.send([delayed(first), half()])
        clock = first.clock
    clock._now_ms += 30 * SECOND
    async with running_broker(sqlite_url, clock=clock) as second:
        assert await second.receive() == []
        await second.advance(30 * SECOND)
        assert len(await second.receive()) == 1


async def test_a_broken_stream_passes_the_question_on(broker: RunningBroker) -> None:
    broken, fine = Stream(broken=True), Stream()
    await broken.join(broker, "p1")
    await fine.join(broker, "p2")
    (sent,) = await send_as(broker, "p1")
    await broker.advance(6 * SECOND)
    assert fine.asked == [sent.message_id]
    assert broker.broker.producing.transactions.producers.of_topic(TOPIC) == ["p2"]
    assert await checks(broker) == [1]


async def test_a_question_that_reaches_nobody_does_not_count(broker: RunningBroker) -> None:
    broken = Stream(broken=True)
    await broken.join(broker, "p1")
    await send_as(broker, "p1")
    await broker.advance(10 * MINUTE)
    assert await checks(broker) == [0]
    fine = Stream()
    await fine.join(broker, "p2")
    await broker.advance(0)
    assert len(fine.asked) == 1


async def test_the_newest_stream_of_a_producer_counts(broker: RunningBroker) -> None:
    old, new = Stream(), Stream()
    await old.join(broker, "p1")
    await new.join(broker, "p1")
    broker.broker.producing.transactions.producers.left("p1", old)
    await send_as(broker, "p1")
    await broker.advance(6 * SECOND)
    assert (len(old.asked), len(new.asked)) == (0, 1)


async def test_checks_wait_for_a_store_that_is_gone(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream()
    await stream.join(broker, "p1")
    await send_as(broker, "p1")
    await broker.advance(0)
    refuse(broker.broker, monkeypatch, half_messages.claim_checks, 1)
    await broker.advance(6 * SECOND)
    assert stream.asked == []
    await broker.advance(SECOND)
    assert len(stream.asked) == 1


async def test_a_queue_in_another_servers_hands_is_asked_for_again(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sent,) = await send_as(broker, "p1")
    submit, answers = broker.broker.engine.writer.submit, [False, False]

    async def busy(request: Any, **more: Any) -> Any:
        if request.operation is half_messages.end_transaction and answers:
            return half_messages.Decision(is_made=answers.pop())
        return await submit(request, **more)

    monkeypatch.setattr(broker.broker.engine.writer, "submit", busy)
    await broker.broker.producing.transactions.end(TOPIC, sent.message_id, sent.transaction_id, Resolution.COMMIT)
    assert len(await broker.receive()) == 1


async def test_a_limit_of_ones_own(broker: RunningBroker) -> None:
    broker.broker.producing.sending._delay_ms_max = MINUTE
    (refusal,) = await broker.broker.send([delayed(broker, MINUTE + 1)])
    assert isinstance(refusal, IllegalDeliveryTime)
    (stored,) = await broker.broker.send([delayed(broker, MINUTE)])
    assert isinstance(stored, SendResult)


async def send_as(broker: RunningBroker, client_id: str) -> list[SendResult]:
    outcomes = await broker.broker.send([half()], client_id)
    return [each for each in outcomes if isinstance(each, SendResult)]
