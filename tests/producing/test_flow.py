"""Decisions, checks and recalls in a running broker: who is asked, what is answered, and what is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import structlog

from popserver.engine.clock import ManualClock
from popserver.engine.wakeups import Woken
from popserver.model.errors import (
    BadRequest,
    InvalidTransactionId,
    MessageNotFound,
    MessagePropertyConflictWithType,
    PopError,
    StoreUnavailable,
    TopicNotFound,
)
from popserver.model.handles import RecallHandle, encode_recall
from popserver.model.message import PROPERTY, SendResult
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from popserver.producing import checks, enqueue
from popserver.producing.half_messages import Check
from popserver.producing.rules import CheckPolicy, Resolution
from popserver.producing.scheduled import is_pending
from tests.support.builders import TOPIC, a_message
from tests.support.running_broker import RunningBroker, running_broker

SECOND, MINUTE = 1_000, 60_000
OTHER = Resource("", "other")


class Stream:
    """A producer's stream: it notes what it is asked, and then fails if it has to."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure = failure
        self.asked: list[Check] = []

    async def ask(self, check: Check) -> None:
        self.asked.append(check)
        if self.failure is not None:
            raise self.failure

    async def join(self, broker: RunningBroker, client_id: str, *topics: Resource) -> Stream:
        await broker.broker.producing.transactions.joined(client_id, self, topics or [TOPIC], self.ask)
        return self


async def half(broker: RunningBroker, client_id: str = "p1", topic: Resource = TOPIC, **more: Any) -> SendResult:
    message = a_message(topic, message_type=MessageType.TRANSACTION, **more)
    (sent,) = await broker.broker.send([message], client_id)
    assert isinstance(sent, SendResult)
    return sent


async def end(broker: RunningBroker, sent: SendResult, resolution: Resolution | None, **more: Any) -> None:
    wish = {"topic_name": TOPIC, "message_id": sent.message_id, "transaction_id": sent.transaction_id} | more
    await broker.broker.producing.transactions.end(resolution=resolution, **wish)


def a_delayed(broker: RunningBroker, after_ms: int, **more: Any) -> Any:
    at_ms = broker.clock.now_ms() + after_ms
    return a_message(message_type=MessageType.DELAY, deliver_at_ms=at_ms, **more)


class TestADecision:
    async def test_of_nothing_decides_nothing(self, broker: RunningBroker) -> None:
        sent = await half(broker)
        await end(broker, sent, None)
        await end(broker, sent, Resolution.COMMIT)
        assert len(await broker.receive()) == 1

    @pytest.mark.parametrize("resolution", [None, Resolution.COMMIT])
    async def test_needs_a_transaction_id_and_a_topic(
        self, broker: RunningBroker, resolution: Resolution | None
    ) -> None:
        sent = await half(broker)
        with pytest.raises(InvalidTransactionId, match=f"of message '{sent.message_id}' is blank"):
            await end(broker, sent, resolution, transaction_id=" ")
        with pytest.raises(TopicNotFound, match="'other'"):
            await end(broker, sent, resolution, topic_name=OTHER)

    async def test_needs_a_message_id(self, broker: RunningBroker) -> None:
        sent = await half(broker)
        with pytest.raises(InvalidTransactionId, match=f"transaction '{sent.transaction_id}' names no message"):
            await end(broker, sent, Resolution.ROLLBACK, message_id=" ")
        await end(broker, sent, Resolution.COMMIT)

    async def test_of_another_topic_is_refused(self, broker: RunningBroker) -> None:
        sent = await half(broker)
        await half(broker, topic=OTHER)
        with pytest.raises(InvalidTransactionId, match="topic 'other' has no undecided half message"):
            await end(broker, sent, Resolution.COMMIT, topic_name=OTHER)


class TestACheck:
    async def test_asks_the_next_producer_if_one_may_not_be_asked(self, broker: RunningBroker) -> None:
        sent = await half(broker)
        refuses = await Stream(BadRequest("no right to this topic")).join(broker, "p1", TOPIC, OTHER)
        answers = await Stream().join(broker, "p2")
        await broker.advance(6 * SECOND)
        assert ([each.transaction_id for each in answers.asked], len(refuses.asked)) == ([sent.transaction_id], 1)
        producers = broker.broker.producing.transactions.producers
        assert (producers.of_topic(TOPIC), producers.of_topic(OTHER)) == (["p2"], ["p1"])
        await broker.advance(30 * SECOND)
        assert (len(answers.asked), len(refuses.asked)) == (2, 1)
        assert [each.checks_before for each in answers.asked] == [0, 1]

    async def test_asks_the_next_producer_if_a_stream_is_broken(self, broker: RunningBroker) -> None:
        await half(broker)
        broken = await Stream(ConnectionResetError()).join(broker, "p1", TOPIC, OTHER)
        answers = await Stream().join(broker, "p2")
        await broker.advance(6 * SECOND)
        assert (len(answers.asked), len(broken.asked)) == (1, 1)
        assert broker.broker.producing.transactions.producers.topics == {TOPIC}

    async def test_asks_the_next_producer_if_a_stream_takes_no_data(
        self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        takes_data = asyncio.Event()

        async def hang(_check: Check) -> None:
            await takes_data.wait()

        monkeypatch.setattr(checks, "ASK_TIMEOUT_S", checks.ASK_TIMEOUT_S / 500)
        await half(broker)
        await broker.broker.producing.transactions.joined("p1", object(), [TOPIC], hang)
        answers = await Stream().join(broker, "p2")
        try:
            async with asyncio.timeout(5):
                await broker.advance(6 * SECOND)
        finally:
            takes_data.set()
        assert len(answers.asked) == 1

    async def test_passes_over_a_producer_that_has_left_meanwhile(self, broker: RunningBroker) -> None:
        transactions = broker.broker.producing.transactions

        async def others_leave(_check: Check) -> None:
            transactions.producers.left("p2")
            raise ConnectionResetError

        await half(broker)
        await transactions.joined("p1", object(), [TOPIC], others_leave)
        leaves, answers = [await Stream().join(broker, name) for name in ("p2", "p3")]
        await broker.advance(6 * SECOND)
        assert (len(leaves.asked), len(answers.asked)) == (0, 1)

    async def test_goes_to_the_new_stream_of_a_producer_whose_old_one_breaks(self, broker: RunningBroker) -> None:
        new = Stream()

        async def come_back(_check: Check) -> None:
            await new.join(broker, "p1")
            raise ConnectionResetError

        await half(broker)
        await broker.broker.producing.transactions.joined("p1", object(), [TOPIC], come_back)
        await broker.advance(6 * SECOND)
        assert [each.checks_before for each in new.asked] == [0]

    async def test_is_due_also_if_its_producer_was_there_before(self, broker: RunningBroker) -> None:
        stream = await Stream().join(broker, "p1")
        await broker.advance(0)  # nothing is pending yet
        await half(broker)
        await broker.advance(6 * SECOND - 1)
        assert stream.asked == []
        await broker.advance(1)
        assert len(stream.asked) == 1

    async def test_asks_about_each_topic_its_own_producers(self, broker: RunningBroker) -> None:
        await half(broker, "p1")
        other = await half(broker, "p2", OTHER)
        one = await Stream().join(broker, "p1", TOPIC)
        two = await Stream().join(broker, "p2", OTHER)
        await broker.advance(6 * SECOND)
        assert [len(each.asked) for each in (one, two)] == [1, 1]
        assert two.asked[0].stored.message.message_id == other.message_id

    async def test_that_is_the_last_one_discards_and_is_counted(self, broker: RunningBroker) -> None:
        transactions = broker.broker.producing.transactions
        transactions.policy = CheckPolicy(SECOND, SECOND, 1)
        await Stream().join(broker, "p1")
        sent = [await half(broker), await half(broker)]
        await broker.advance(SECOND)
        assert transactions.discarded == 0
        with structlog.testing.capture_logs() as logs:
            await broker.advance(SECOND)
        assert transactions.discarded == 2
        told = [(each["topic"], each["message_id"], each["checks"]) for each in logs]
        assert told == [("orders", each.message_id, 1) for each in sent]

    async def test_begins_with_a_producer_that_comes_late(self, broker: RunningBroker) -> None:
        await half(broker)
        await broker.advance(10 * MINUTE)
        late = await Stream().join(broker, "p1")
        await broker.advance(0)
        assert len(late.asked) == 1

    async def test_reaches_a_sender_that_did_not_name_the_topic(self, broker: RunningBroker) -> None:
        await half(broker, "p1")
        late = await Stream().join(broker, "p1", OTHER)
        stranger = await Stream().join(broker, "p2", OTHER)
        await broker.advance(6 * SECOND)
        assert (len(late.asked), len(stranger.asked)) == (1, 0)

    async def test_asks_a_producer_also_if_its_own_half_messages_cannot_be_read(
        self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def gone(_query: object) -> object:
            raise StoreUnavailable("gone")

        await half(broker)
        with monkeypatch.context() as without_store, structlog.testing.capture_logs() as logs:
            without_store.setattr(broker.broker.engine.reader, "read", gone)
            stream = await Stream().join(broker, "p1")
        assert [(each["log_level"], each["reason"]) for each in logs] == [("warning", "gone")]
        await broker.advance(6 * SECOND)
        assert len(stream.asked) == 1


class TestARecall:
    async def test_takes_a_message_back_once(self, broker: RunningBroker) -> None:
        (sent,) = await broker.send([a_delayed(broker, MINUTE)])
        assert sent.deliver_at_ms is not None
        handle = encode_recall(RecallHandle(TOPIC.name, "b", sent.deliver_at_ms, sent.message_id))
        pending = broker.broker.producing.pending
        with pytest.raises(BadRequest, match="the recall handle is of topic 'orders', not of 'other'"):
            await pending.recall(OTHER, handle)
        assert await pending.recall(TOPIC, handle) == sent.message_id
        with pytest.raises(MessageNotFound, match="recalled already"):
            await pending.recall(TOPIC, handle)
        await broker.advance(MINUTE)
        assert await broker.receive() == []

    async def test_needs_a_topic_that_is_there(self, broker: RunningBroker) -> None:
        pending = broker.broker.producing.pending
        with pytest.raises(TopicNotFound, match="'orders'"):
            await pending.recall(TOPIC, encode_recall(RecallHandle(TOPIC.name, "b", broker.clock.now_ms(), "m1")))
        with pytest.raises(TopicNotFound, match="'orders'"):
            await pending.cancel(TOPIC, ["m1"])

    async def test_by_an_operator_takes_any_pending_message(self, broker: RunningBroker) -> None:
        (sent,) = await broker.send([a_delayed(broker, MINUTE)])
        undecided = await half(broker)
        ids = [sent.message_id, "unknown", undecided.message_id, sent.message_id]
        assert await broker.broker.producing.pending.cancel(TOPIC, ids) == [sent.message_id, undecided.message_id]
        assert await broker.query("SELECT COUNT(*) FROM pending") == [(0,)]


class TestTheEarliestDelayedMessage:
    async def test_is_that_of_which_polls_hear_ahead(
        self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pending = broker.broker.producing.pending
        woken: list[tuple[object, Woken]] = []
        monkeypatch.setattr(broker.broker.engine.wakeups, "wake", lambda key, why=Woken.READY: woken.append((key, why)))
        now_ms = broker.clock.now_ms()
        for topic_id, due_ms in ((7, 500), (8, 300), (9, 400), (6, 300)):
            pending.expect(topic_id, now_ms + due_ms)
        assert pending._next == (now_ms + 300, 8)
        pending.check_due()
        await broker.advance(0)
        assert (woken, pending._next) == ([], (now_ms + 300, 8))
        await broker.advance(300)
        pending.check_due()
        await broker.advance(0)
        assert (woken, pending._next) == ([(8, Woken.AHEAD)], None)

    async def test_of_each_send_counts(self, broker: RunningBroker) -> None:
        now_ms = broker.clock.now_ms()
        await broker.send([a_delayed(broker, 3 * MINUTE), a_delayed(broker, 2 * MINUTE)])
        topic_id = (await broker.broker.catalog.topic(TOPIC)).topic_id
        assert broker.broker.producing.pending._next == (now_ms + 2 * MINUTE, topic_id)
        await broker.send([a_delayed(broker, MINUTE)])
        assert broker.broker.producing.pending._next == (now_ms + MINUTE, topic_id)
        await broker.advance(MINUTE)
        assert broker.broker.producing.pending._next == (now_ms + 2 * MINUTE, topic_id)

    async def test_is_looked_for_again_a_little_later_if_others_have_it(
        self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pending, submit = broker.broker.producing.pending, broker.broker.engine.writer.submit
        steps: list[enqueue.EnqueueDue] = []
        start_ms = broker.clock.now_ms()

        async def noting(request: Any, **more: Any) -> Any:
            if isinstance(request, enqueue.EnqueueDue):
                steps.append(request)
                return enqueue.EnqueuedDue(entered=0, next_due_ms=start_ms if len(steps) < 3 else None)
            return await submit(request, **more)

        monkeypatch.setattr(broker.broker.engine.writer, "submit", noting)
        pending.check_due()
        await broker.advance(0)
        assert [each.looks_back for each in steps] == [True]
        assert pending._next is None, "nobody knows its topic"
        await broker.advance(4)
        assert len(steps) == 1
        await broker.advance(1)
        assert [each.looks_back for each in steps] == [True, False]
        await broker.advance(100)
        assert len(steps) == 3

    async def test_is_looked_back_for_until_the_store_has_answered(
        self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pending, submit = broker.broker.producing.pending, broker.broker.engine.writer.submit
        steps: list[bool] = []

        async def noting(request: Any, **more: Any) -> Any:
            if isinstance(request, enqueue.EnqueueDue):
                steps.append(request.looks_back)
                if len(steps) == 1:
                    raise StoreUnavailable("gone")
            return await submit(request, **more)

        monkeypatch.setattr(broker.broker.engine.writer, "submit", noting)
        pending.check_due()
        with structlog.testing.capture_logs() as logs:
            await broker.advance(0)
        assert [(each["log_level"], each["reason"]) for each in logs] == [("warning", "gone")]
        await broker.advance(SECOND)
        assert steps == [True, True]

    async def test_is_looked_back_for_also_if_that_is_wanted_during_a_step_that_fails(
        self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pending, submit = broker.broker.producing.pending, broker.broker.engine.writer.submit
        steps: list[bool] = []

        async def noting(request: Any, **more: Any) -> Any:
            if isinstance(request, enqueue.EnqueueDue):
                steps.append(request.looks_back)
                if len(steps) == 1:
                    pending.check_due()
                    raise StoreUnavailable("gone")
            return await submit(request, **more)

        await broker.send([a_delayed(broker, MINUTE)])
        monkeypatch.setattr(broker.broker.engine.writer, "submit", noting)
        await broker.advance(MINUTE)
        assert steps == [False, True]

    async def test_is_followed_at_once_by_others_that_are_due(
        self, broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(enqueue, "STEP_BYTES_MAX", 1)  # each message needs a step of its own
        await broker.send([a_delayed(broker, MINUTE) for _ in range(3)])
        await broker.advance(MINUTE)
        assert len(await broker.receive()) == 3


NOW_MS = ManualClock().now_ms()


@pytest.mark.parametrize(
    ("more", "waits"),
    [
        ({}, False),
        ({"message_type": MessageType.TRANSACTION}, True),
        ({"message_type": MessageType.DELAY, "deliver_at_ms": NOW_MS - 1}, False),
        ({"message_type": MessageType.DELAY, "deliver_at_ms": NOW_MS}, False),
        ({"message_type": MessageType.DELAY, "deliver_at_ms": NOW_MS + 1}, True),
    ],
)
def test_what_waits_for_its_queue(more: dict[str, Any], waits: bool) -> None:
    assert is_pending(a_message(**more), NOW_MS) is waits


async def test_a_request_may_have_messages_that_wait_and_others(broker: RunningBroker) -> None:
    batch = [
        a_message(body=b"now"),
        a_delayed(broker, MINUTE, body=b"later"),
        a_message(body=b""),
        a_delayed(broker, -1, body=b"late"),
    ]
    outcomes = await broker.broker.send(batch)
    first, second, refused, fourth = outcomes
    assert isinstance(refused, PopError)
    for outcome, message in ((first, batch[0]), (second, batch[1]), (fourth, batch[3])):
        assert isinstance(outcome, SendResult)
        assert outcome.message_id == message.message_id
    assert [each.stored.message.body for each in await broker.receive()] == [b"now", b"late"]


@pytest.mark.parametrize("after_ms", [None, MINUTE], ids=["at once", "delayed"])
async def test_a_key_counts_for_the_window_of_the_server(broker: RunningBroker, after_ms: int | None) -> None:
    def keyed() -> Any:
        properties = {PROPERTY: "order-42"}
        if after_ms is None:
            return a_message(properties=properties)
        return a_delayed(broker, after_ms, properties=properties)

    broker.broker.producing.sending._key_window_ms = SECOND
    (first,) = await broker.send([keyed()])
    await broker.advance(SECOND - 1)
    assert await broker.send([keyed()]) == [first]
    await broker.advance(1)
    (second,) = await broker.send([keyed()])
    assert second.message_id != first.message_id


@pytest.mark.parametrize(
    ("accepts", "sent", "words"),
    [
        (MessageType.LITE, MessageType.NORMAL, "give the message a lite topic .*"),
        (MessageType.LITE, MessageType.FIFO, "send to a topic that does"),
        (MessageType.NORMAL, MessageType.LITE, "send to a topic that does"),
        (
            MessageType.FIFO,
            MessageType.NORMAL,
            "send to a topic that does, or change this one: popmq topic update orders --type FIFO --type NORMAL",
        ),
    ],
)
async def test_a_message_of_another_type_is_told_its_way_out(
    broker: RunningBroker, accepts: MessageType, sent: MessageType, words: str
) -> None:
    await broker.broker.catalog.create_topic(NewTopic(TOPIC, 1, (accepts,)))
    refusal = f"^topic 'orders' takes {accepts} messages, not {sent} ones; {words}$"
    with pytest.raises(MessagePropertyConflictWithType, match=refusal):
        await broker.broker.send([a_message(message_type=sent, message_group="g")])


async def test_a_restart_knows_when_the_next_message_is_due(sqlite_url: str) -> None:
    async with running_broker(sqlite_url) as first:
        await first.send([a_delayed(first, 100)])
        clock = first.clock
    async with running_broker(sqlite_url, clock=clock) as second:
        await second.advance(99)
        assert await second.receive() == []
        await second.advance(1)
        assert len(await second.receive()) == 1
