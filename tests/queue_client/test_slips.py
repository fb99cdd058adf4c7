"""A slip of the listener's in its context, or a store that raises: it is logged, and the queue goes on."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from popclient import ConsumeConcurrentlyStatus, ConsumeOrderlyStatus, MessageQueue, OrderlyListener
from tests.queue_client.queue_consumers import DictOffsetStore, Q, QueueConsumers
from tests.support.scripted_server import until

SUCCESS, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
SUSPEND = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


@pytest.fixture(autouse=True)
def _logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "popclient")


@pytest.mark.row("E15")
@pytest.mark.parametrize(
    "level, wanted", [(None, 0), ("3", 0), (True, 0), (2**40, 0), (19, 0), (18, 18), (-(2**40), -1)]
)
async def test_a_delay_level_that_means_nothing_leaves_it_to_the_group(
    consumers: QueueConsumers, level: Any, wanted: int, caplog: pytest.LogCaptureFixture
) -> None:
    async def listener(messages: Any, context: Any) -> Any:
        context.delay_level_when_next_consume = level
        return LATER

    await consumers.server.fill(Q, "a")
    core = await consumers.start(listener)
    await until(lambda: consumers.offset(core) == 1)
    assert [request.delay_level for request in consumers.server.sent_back] == [wanted]
    told = f"delay_level_when_next_consume of a listener at t:0 is {level!r}; it must be an integer up to 18"
    assert (told in caplog.text) == (wanted == 0)


@pytest.mark.row("E8")
async def test_an_ack_index_that_means_nothing_leaves_all_done(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    async def listener(messages: Any, context: Any) -> Any:
        context.ack_index = None
        return SUCCESS

    await consumers.server.fill(Q, "ab")
    core = await consumers.start(listener, consume_message_batch_max_size=2)
    await until(lambda: consumers.offset(core) == 2)
    assert consumers.server.sent_back == []
    assert "ack_index of a listener at t:0 is None; it must be an integer" in caplog.text


@pytest.mark.row("F7")
@pytest.mark.parametrize("millis", [None, "5", float("nan")])
async def test_a_pause_that_means_nothing_is_the_consumers(
    consumers: QueueConsumers, millis: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async def listener(messages: Any, context: Any) -> Any:
        consumers.note(messages)
        context.suspend_current_queue_millis = millis
        return SUSPEND if len(consumers.seen) == 1 else ConsumeOrderlyStatus.SUCCESS

    await consumers.server.fill(Q, "a")
    core = await consumers.start(OrderlyListener(listener), suspend_current_queue_time=2)
    await until(lambda: consumers.clock.waits(2.0))
    await consumers.clock.advance(2)
    await until(lambda: consumers.offset(core) == 1)
    assert f"suspend_current_queue_millis of a listener at t:0 is {millis!r}" in caplog.text


class Moody(DictOffsetStore):
    """A store that cannot note or keep the first of everything."""

    def __init__(self, stored: dict[MessageQueue, int]) -> None:
        super().__init__(stored)
        self.failures = {"update": 1, "persist": 1}

    def _fail(self, what: str) -> None:
        self.failures[what] -= 1
        if self.failures[what] >= 0:
            raise OSError(f"cannot {what}")

    def update_offset(self, mq: MessageQueue, offset: int, increase_only: bool) -> None:
        if mq == Q:
            self._fail("update")
        super().update_offset(mq, offset, increase_only)

    async def persist(self, mq: MessageQueue) -> None:
        if mq == Q:
            self._fail("persist")
        await super().persist(mq)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_store_that_cannot_note_a_progress_is_told_the_next(consumers: QueueConsumers, orderly: bool) -> None:
    async def succeed(messages: Any, context: Any) -> Any:
        consumers.note(messages)
        return ConsumeOrderlyStatus.SUCCESS if orderly else SUCCESS

    listener = OrderlyListener(succeed) if orderly else succeed
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(listener, offset_store=Moody({}), consume_threads=1)
    await until(lambda: consumers.offset(core) == 2)
    assert consumers.texts == ["a", "b"]


async def test_a_store_that_cannot_keep_a_progress_keeps_nobody_from_giving_a_queue_up(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    share = [0]

    def strategy(group: str, client_id: str, mqs: Any, members: Any) -> Any:
        return [mq for mq in mqs if mq.queue_id in share]

    core = await consumers.start(OrderlyListener(consumers.succeed), offset_store=Moody({}), allocate_strategy=strategy)
    await consumers.owns(core, 0)
    store: Any = core.parts.offset_store
    store.failures["persist"] = 99
    share.clear()
    await consumers.comes(lambda: ("t", 0) not in consumers.server.holders, 21)
    assert Q not in core.parts.table
    assert "t:0 is given up, but" in caplog.text
    store.failures["persist"] = 0
    share.append(0)
    await consumers.comes(lambda: Q in dict(core.parts.owned()), 21)
    store.failures["persist"] = 1
    await core.close()
    assert consumers.server.holders == {}


async def test_what_nobody_foresaw_costs_a_pause_not_the_queue(
    consumers: QueueConsumers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    core = consumers.make(OrderlyListener(consumers.succeed))
    consumed, failures = core.parts.statistics.consumed, iter([KeyError("a defect")])

    def fails_once(*given: Any) -> None:
        for failure in failures:
            raise failure
        consumed(*given)

    monkeypatch.setattr(core.parts.statistics, "consumed", fails_once)
    await consumers.server.fill(Q, "ab")
    await core.start()
    await until(lambda: consumers.clock.waits(3.0))
    assert "the result of its last batch could not be processed" in caplog.text
    await consumers.comes(lambda: consumers.texts[1:] == ["a", "b"] or len(consumers.texts) > 3, 10)
