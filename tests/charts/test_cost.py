"""What keeping charts costs: less than a hundredth of a core with 200 groups and 200 topics."""

from __future__ import annotations

import time

import pytest

from popserver.charts import flow
from popserver.charts.rules import LEVELS
from popserver.model.names import Resource
from tests.support.running_broker import running_broker

STEPS = 40


@pytest.mark.slow
async def test_charts_of_200_groups_and_topics_take_little(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "PAUSE_FACTOR", 0)  # by which a slow look would cost less
    async with running_broker(database_url, chart_series=1_000) as broker:
        for number in range(200):
            topic, group = Resource("", f"t{number}"), Resource("", f"g{number}")
            await broker.topic(topic, queues=8)
            await broker.group(group)
            await broker.send(8, topic=topic)
            await broker.receive(4, group=group, topic=topic)
        began_s, began_ms = time.process_time(), broker.clock.now_ms()
        await broker.advance(STEPS * LEVELS[0].step_ms)
        took_s, passed_s = time.process_time() - began_s, (broker.clock.now_ms() - began_ms) / 1_000
        rows = (await broker.query("SELECT COUNT(*) FROM chart_point"))[0][0]
    print(f"{100 * took_s / passed_s:.2f} % of a core, {rows} rows")
    assert took_s < 0.01 * passed_s
