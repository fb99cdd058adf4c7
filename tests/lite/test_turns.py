"""Searches of lite topics begin at each queue in turn, so that none has to wait for the others to be empty."""

from __future__ import annotations

from tests.support.lite_broker import LiteBroker


async def test_searches_begin_at_each_queue_in_turn(lite: LiteBroker) -> None:
    names = [f"lite-{number}" for number in range(12)]
    await lite.sync(*names)
    await lite.send_lite(*names)
    found = [(await lite.receive(1))[0].stored.queue_number for _ in range(4)]
    assert found in ([0, 1, 0, 1], [1, 0, 1, 0])
