"""What a push consumer's log says of a listener that fails: the result's own name, and when the message comes again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

import popserver
from popclient import ConsumeResult, Message, MessageView, Producer, aio
from popclient.admin import Admin, MessageState, RedriveOrder
from tests.client.push_consumers import consumer_of, failed
from tests.support.scripted_server import ScriptedServer, put, until


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]


def _raise(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda: ConsumeResult.FAILURE, "the listener ended with FAILURE"),
        (lambda: True, "the listener ended with FAILURE"),
        (lambda: None, "the listener returned nothing, which counts as FAILURE"),
        (lambda: _raise(KeyError("x")), "the listener raised KeyError, which counts as FAILURE"),
    ],
)
@pytest.mark.parametrize(
    ("attempt", "follows"),
    [
        (1, "attempt 2 of 3 follows in 10 s"),
        (2, "attempt 3 of 3 follows in 30 s"),
        (3, "it was attempt 3 of 3: it becomes a dead letter"),
    ],
)
async def test_a_failure_is_called_by_its_name_and_the_next_attempt_is_told(
    server: ScriptedServer,
    caplog: pytest.LogCaptureFixture,
    answer: Callable[[], Any],
    says: str,
    attempt: int,
    follows: str,
) -> None:
    server.retry_intervals = (10, 30)
    server.attempts["t-0"] = attempt
    put(server, 1)

    async def listener(_: MessageView) -> Any:
        return answer()

    async with consumer_of(server, listener):
        await until(lambda: failed(server))
    (told,) = warnings(caplog)
    assert told.startswith("group push, <MessageView t-0 ")
    assert told.endswith(f": {says}; {follows}")


async def test_a_batch_is_told_of_together(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    server.retry_intervals = (10, 30)
    server.attempts["t-1"] = 2
    put(server, 3)

    async def listener(_: Any) -> ConsumeResult:
        return ConsumeResult.FAILURE

    async with consumer_of(server, listener, batch_size=3):
        await until(lambda: len(failed(server)) == 3)
    (told,) = warnings(caplog)
    assert told.startswith("group push, 3 messages from <MessageView t-0 ")
    assert told.endswith("; of the first, attempt 2 of 3 follows in 10 s")


async def test_a_listener_that_takes_too_long(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    put(server, 1)

    async def listener(_: MessageView) -> ConsumeResult:
        await until(lambda: bool(failed(server)))
        return ConsumeResult.SUCCESS

    async with consumer_of(server, listener, consumption_timeout=0.05):
        await until(lambda: bool(warnings(caplog)))
    (told,) = warnings(caplog)
    assert told.endswith(": the listener ended after the consumption timeout of 0.05 s, which counts as FAILURE")


async def test_in_order_the_group_says_when(caplog: pytest.LogCaptureFixture) -> None:
    """The ladder is not for message groups: their interval is the server's, and no client is told it."""
    with popserver.embedded() as broker, Admin(broker.endpoint) as admin:
        admin.create_topic("t", accept_message_types=["FIFO"])
        with Producer(broker.endpoint) as producer:
            producer.send(Message("t", "x", message_group="a"))

        async def listener(_: MessageView) -> ConsumeResult:
            return ConsumeResult.FAILURE

        async with aio.PushConsumer(broker.endpoint, "g", "t", listener):
            await until(lambda: bool(warnings(caplog)))
    assert warnings(caplog)[0].endswith(
        "; attempt 2 of 17 follows after its group's interval for messages in order, or in 10 s if it was redriven"
    )


@pytest.mark.parametrize("name", ["message_group", "lite_topic"])
async def test_a_redriven_message_in_order_waits_as_the_words_say(caplog: pytest.LogCaptureFixture, name: str) -> None:
    with popserver.embedded() as broker, Admin(broker.endpoint) as admin:
        is_lite = name == "lite_topic"
        admin.create_topic("t", accept_message_types=["LITE" if is_lite else "FIFO"])
        admin.create_group("g", max_attempts=1, lite="SHARED" if is_lite else "")
        with Producer(broker.endpoint) as producer:
            sent = producer.send(Message("t", "x", **{name: "a"}))  # type: ignore[arg-type]

        async def listener(_: MessageView) -> ConsumeResult:
            return ConsumeResult.FAILURE

        def consumer() -> aio.PushConsumer | aio.LitePushConsumer:
            if is_lite:
                return aio.LitePushConsumer(broker.endpoint, "g", "t", listener, "a")
            return aio.PushConsumer(broker.endpoint, "g", "t", listener)

        def states() -> list[MessageState]:
            return list(admin.get_message(sent.message_id, "t").states)

        async with consumer():
            await until(lambda: [each.state for each in states()] == ["DLQ"])
        admin.update_group("g", max_attempts=2)
        (letter,) = admin.dead_letters("g")
        admin.redrive_dead_letters("again", "g", [RedriveOrder(letter.id)])
        async with consumer():
            await until(lambda: [each.state for each in states()] == ["WAITING_RETRY"])
        assert warnings(caplog)[-1].endswith(" or in 10 s if it was redriven")
        (waiting,) = states()
        assert waiting.visible_at is not None
        assert timedelta(seconds=5) < waiting.visible_at - admin.status().now <= timedelta(seconds=10)
