"""What a listener may be, and what its answers mean: to the messages, the interceptors and the statistics alike."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from popclient import (
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyStatus,
    ConsumeResult,
    ConsumeStatus,
    OrderlyListener,
    aio,
)
from popclient._queue_push.core import QueuePushCore
from tests.queue_client.queue_consumers import Q, QueueConsumers, Watching, sent_back
from tests.support.scripted_server import until

# ---- What it may be ----


def plain(messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
    return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class Consumes:
    async def consume(self, messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


class Called:
    async def __call__(self, messages: Any, context: Any) -> ConsumeConcurrentlyStatus:
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS


@pytest.mark.row("N8")
@pytest.mark.parametrize("listener", [plain, OrderlyListener(plain)])
def test_what_is_no_coroutine_function_belongs_to_the_synchronous_consumer(listener: Any) -> None:
    with pytest.raises(TypeError, match=r"is no coroutine function; .* use popclient\.QueuePushConsumer$"):
        aio.QueuePushConsumer("127.0.0.1:1", "g", "t", listener)


@pytest.mark.parametrize("listener", [Consumes(), Consumes().consume, Called()])
def test_what_consumes_by_a_coroutine_is_taken(listener: Any) -> None:
    assert aio.QueuePushConsumer("127.0.0.1:1", "g", "t", listener).group == "g"


# ---- What it answers ----


@pytest.mark.row("E7")
@pytest.mark.row("E8")
@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeStatus.SUCCESS),
        ("CONSUME_SUCCESS", ConsumeStatus.SUCCESS),
        ("RECONSUME_LATER", ConsumeStatus.FAILED),
        (ConsumeOrderlyStatus.SUCCESS, ConsumeStatus.FAILED),
        (ConsumeResult.SUCCESS, ConsumeStatus.FAILED),
        (True, ConsumeStatus.FAILED),
        ([], ConsumeStatus.FAILED),
        (None, ConsumeStatus.RETURNNULL),
    ],
)
async def test_all_tallies_agree_on_what_a_listener_has_said(
    consumers: QueueConsumers, answer: Any, wanted: ConsumeStatus, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")

    async def listener(messages: Any, _: Any) -> Any:
        return answer

    watching = Watching()
    await consumers.server.fill(Q, "a")
    core = await consumers.start(listener, interceptors=[watching])
    await until(lambda: consumers.offset(core) == 1)
    failed = wanted is not ConsumeStatus.SUCCESS
    assert [each.status for each in watching.ends] == [wanted]
    assert (len(sent_back(consumers)), _failures(core)) == (failed, failed)
    understood = answer in (None, "CONSUME_SUCCESS", "RECONSUME_LATER")
    said = f"the listener has returned {answer!r}, which is none of CONSUME_SUCCESS, RECONSUME_LATER"
    assert (said in caplog.text) is not understood


@pytest.mark.row("E7")
@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (ConsumeOrderlyStatus.SUCCESS, ConsumeStatus.SUCCESS),
        ("SUCCESS", ConsumeStatus.SUCCESS),
        (ConsumeResult.SUCCESS, ConsumeStatus.SUCCESS),
        (ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeStatus.FAILED),
        ("SUSPEND_CURRENT_QUEUE_A_MOMENT", ConsumeStatus.FAILED),
    ],
)
async def test_so_they_do_in_order(consumers: QueueConsumers, answer: Any, wanted: ConsumeStatus) -> None:
    async def listener(messages: Any, _: Any) -> Any:
        return answer

    watching = Watching()
    await consumers.server.fill(Q, "a")
    core = await consumers.start(OrderlyListener(listener), interceptors=[watching])
    failed = wanted is not ConsumeStatus.SUCCESS
    await until(lambda: _failures(core) == 1 if failed else consumers.offset(core) == 1)
    assert [each.status for each in watching.ends] == [wanted]
    assert (consumers.offset(core) != 1, _failures(core)) == (failed, failed)


def _failures(core: QueuePushCore) -> int:
    counted = core.parts.statistics.by_topic().get("t")
    return 0 if counted is None else counted.consume_failed_msgs


def test_an_orderly_listener_without_a_listener_is_refused_where_it_is_made() -> None:
    class Forgotten(OrderlyListener):
        pass

    for kind in (OrderlyListener, Forgotten):
        with pytest.raises(TypeError, match=f"{kind.__name__} has no listener; define consume"):
            kind()
