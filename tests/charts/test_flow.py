"""Charts of a broker: kept over restarts, by one of several servers, and shown to operators."""

from __future__ import annotations

import pytest

import popserver
from popclient import Producer, SimpleConsumer
from popclient.admin import Admin, Chart
from popclient.errors import BadRequest, NotFound
from popserver.charts import flow
from popserver.charts.flow import NewDelays
from popserver.charts.rules import ChartKind, Delays, Owner
from popserver.engine.clock import ManualClock
from popserver.engine.meters import Delivered, Tallies
from popserver.model.names import Resource
from popserver.model.retry import MINUTE_MS, SECOND_MS
from tests.support.builders import GROUP, TOPIC
from tests.support.running_broker import running_broker
from tests.support.several_brokers import SeveralBrokers, silence

STEP_MS = 15 * SECOND_MS
QUARTER_MS = 15 * MINUTE_MS


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look of a busy machine takes long, and the tests' clock stands still meanwhile."""
    monkeypatch.setattr(flow, "PAUSE_FACTOR", 0)


async def test_what_happened_is_in_the_chart(database_url: str) -> None:
    async with running_broker(database_url, chart_series=10) as broker:
        await broker.topic()
        await broker.advance(STEP_MS)
        await broker.send(30)
        held = await broker.receive(8)
        await broker.ack(*held[:5])
        await broker.advance(STEP_MS)
        chart = await broker.broker.charts.chart(ChartKind.GROUP, GROUP, QUARTER_MS)
        last = chart.points[-1]
        assert (last.ready, last.inflight, last.waiting_retry, last.oldest_age_ms) == (22, 3, 0, STEP_MS)
        assert (last.mean_delay_ms, last.slow_delay_ms) == (0.0, 1)
        of_topic = (await broker.broker.charts.chart(ChartKind.TOPIC, TOPIC, QUARTER_MS)).points[-1]
        assert of_topic.stored_rate == pytest.approx(2.0)
        await broker.ack(*held[5:])
        await broker.advance(STEP_MS)
        last = (await broker.broker.charts.chart(ChartKind.GROUP, GROUP, QUARTER_MS)).points[-1]
        assert last.done_rate == pytest.approx(0.2)


async def test_charts_survive_a_restart(sqlite_url: str, clock: ManualClock) -> None:
    for _ in range(2):
        async with running_broker(sqlite_url, clock=clock, chart_series=10) as broker:
            await broker.send(3)
            await broker.receive(1)
            await broker.advance(4 * STEP_MS)
            for range_ms in (QUARTER_MS, 60 * MINUTE_MS, 24 * 60 * MINUTE_MS, 7 * 24 * 60 * MINUTE_MS):
                chart = await broker.broker.charts.chart(ChartKind.GROUP, GROUP, range_ms)
                assert chart.points, range_ms
            fine = await broker.broker.charts.chart(ChartKind.GROUP, GROUP, QUARTER_MS)
    assert len(fine.points) >= 8


async def test_a_chart_needs_a_range_and_a_name(database_url: str) -> None:
    async with running_broker(database_url, chart_series=10) as broker:
        for wrong_ms in (0, -1, 8 * 24 * 60 * MINUTE_MS):
            with pytest.raises(Exception, match="is not kept; ask for more than 0 s, and at most 7 days"):
                await broker.broker.charts.chart(ChartKind.GROUP, GROUP, wrong_ms)
        with pytest.raises(Exception, match="consumer group 'nobody' does not exist"):
            await broker.broker.charts.chart(ChartKind.GROUP, Resource("", "nobody"), 1)


async def test_charts_have_a_limit(database_url: str) -> None:
    async with running_broker(database_url, chart_series=3) as broker:
        for number in range(5):
            await broker.topic(Resource("", f"t{number}"))
        await broker.advance(2 * STEP_MS)
        charts = await broker.query("SELECT DISTINCT kind, owner_id FROM chart_point")
        assert len(charts) == 3
        assert await broker.broker.charts.chart(ChartKind.TOPIC, Resource("", "t0"), 1)


async def test_without_a_limit_nothing_is_kept(database_url: str) -> None:
    async with running_broker(database_url) as broker:
        await broker.topic()
        await broker.advance(4 * STEP_MS)
        assert await broker.query("SELECT * FROM chart_point") == []
        assert not (await broker.broker.charts.chart(ChartKind.TOPIC, TOPIC, 1)).is_kept


async def test_one_of_two_servers_counts_and_another_goes_on(lone_server: SeveralBrokers) -> None:
    for _ in range(2):
        await lone_server.one_more(chart_series=10)
    await lone_server.know_each_other()
    _, *both = lone_server._all
    silence(lone_server.a)
    await lone_server.advance(10 * SECOND_MS)
    await both[0].topic()
    leading = [each.broker.servers.leads for each in both]
    assert sorted(leading) == [False, True]
    for each in both:
        await each.send(4)
        await each.receive(3)
    await lone_server.advance(2 * STEP_MS)
    rows = await both[0].query("SELECT delivered FROM chart_point WHERE kind = 'GROUP' AND step_s = 3600")
    assert sum(row.delivered for row in rows) == 6, "each server's deliveries, once"
    chart = await both[0].broker.charts.chart(ChartKind.GROUP, GROUP, QUARTER_MS)
    assert chart.points[-1].inflight == 6
    silence(both[leading.index(True)])
    await lone_server.advance(3 * STEP_MS)
    follower = both[leading.index(False)]
    assert follower.broker.servers.leads
    later = await follower.broker.charts.chart(ChartKind.GROUP, GROUP, QUARTER_MS)
    assert later.points[-1].at_ms > chart.points[-1].at_ms


def test_a_delivery_is_taken_once() -> None:
    delivered: Tallies[tuple[int, int], Delivered] = Tallies(Delivered)
    new = NewDelays(delivered)
    delivered[1, 10].delays.add(4)
    delivered[1, 11].delays.add(40)
    for _ in range(2):  # the first one was not written
        assert new.look() == {
            Owner(ChartKind.GROUP, 1): Delays(2, 44, 50),
            Owner(ChartKind.TOPIC, 10): Delays(1, 4, 5),
            Owner(ChartKind.TOPIC, 11): Delays(1, 40, 50),
        }
    new.take()
    assert new.look() == {}
    new.take()
    delivered[1, 10].delays.add(1)
    assert new.look() == {Owner(ChartKind.GROUP, 1): Delays(1, 1, 1), Owner(ChartKind.TOPIC, 10): Delays(1, 1, 1)}


def test_operators_get_charts(database_url: str) -> None:
    with popserver.embedded(database_url, manual_clock=True, max_chart_series=10) as broker:
        with Producer(broker.endpoint) as producer, SimpleConsumer(broker.endpoint, "billing", "orders") as consumer:
            producer.send("orders", "an espresso")
            consumer.receive()
            broker.clock.advance("30s")
        with Admin(broker.endpoint) as admin:
            chart = admin.chart(topic="orders")
            assert isinstance(chart, Chart) and chart.kept and chart.step.total_seconds() == 15
            assert chart.points[-1].inflight == 1
            assert admin.chart(group="billing", over=86_400).step.total_seconds() == 600
            with pytest.raises(BadRequest, match="must name either a group or a topic"):
                admin.chart()
            with pytest.raises(BadRequest, match="a chart of 8 days is not kept"):
                admin.chart(topic="orders", over=8 * 86_400)
            with pytest.raises(NotFound):
                admin.chart(group="nobody")
