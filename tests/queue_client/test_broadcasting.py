"""Who gets everything deals with what fails by himself: nothing of it reaches the group."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from popclient import ConsumeOrderlyStatus, MessageView, OrderlyListener
from tests.queue_client.queue_consumers import Q, QueueConsumers
from tests.support.scripted_server import until


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files of offsets are under it."""
    monkeypatch.setenv("HOME", str(tmp_path))


def failing_at(consumers: QueueConsumers, text: str) -> OrderlyListener:
    async def listener(messages: Sequence[MessageView], _: object) -> ConsumeOrderlyStatus:
        consumers.note(messages)
        failed = messages[0].text == text
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if failed else ConsumeOrderlyStatus.SUCCESS

    return OrderlyListener(listener)


@pytest.mark.row("E11")
@pytest.mark.row("E16")
async def test_in_order_what_has_failed_often_enough_is_dropped_and_no_dead_letter(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    await consumers.server.fill(Q, "abc")
    core = await consumers.start(failing_at(consumers, "b"), model="BROADCASTING", max_reconsume_times=2)
    await consumers.comes(lambda: consumers.offset(core) == 3, 5)
    assert consumers.texts == ["a", "b", "b", "b", "c"]
    assert consumers.server.sent_back == []
    assert caplog.text.count("has failed for good and is dropped, as broadcasting does") == 1


@pytest.mark.row("E16")
async def test_in_order_it_is_tried_for_ever_unless_told_otherwise(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "ab")
    core = await consumers.start(failing_at(consumers, "a"), model="BROADCASTING")
    await until(lambda: consumers.texts)
    await consumers.comes(lambda: len(consumers.texts) == 20, 30)
    assert (set(consumers.texts), consumers.offset(core)) == ({"a"}, None)
