"""What points of clients add: each value once, whatever clients repeat, and in each caller's share."""

from __future__ import annotations

import pytest

from popserver.client_metrics.numbers import (
    COUNT_MAX,
    EXACT_MAX,
    FORGET_MS,
    FRESH_MS,
    LIMITS_MS,
    OLD_MS,
    SILENT_MS,
    ClientGauge,
    ClientHistogram,
    ClientMeters,
    Unusable,
    exported_max,
    series_of,
)
from popserver.engine.clock import ManualClock
from popserver.metrics.families import Families, Identity
from popserver.metrics.server_numbers import Names
from popserver.model.budget import Budget
from popserver.model.names import Resource
from popserver.model.retry import HOUR_MS, MINUTE_MS

TOPIC, GROUP = Resource("", "orders"), Resource("", "billing")
SEND = series_of("rocketmq_send_cost_time", TOPIC, GROUP, "success")
BYTES = series_of("rocketmq_consumer_cached_bytes", TOPIC, GROUP, "")
START_MS = 1_800_000_000_000
LIMITS = LIMITS_MS["rocketmq_send_cost_time"]
HERE, THERE = "address 10.0.0.1", "address 10.0.0.2"


def sent(
    counts: list[int],
    total: float,
    *,
    client: str = "c1",
    began_ms: int = 0,
    at_ms: int = 1,
    is_total: bool = True,
    series: object = SEND,
) -> ClientHistogram:
    """A histogram with these first counts; times in ms since the server's start."""
    assert isinstance(series, type(SEND))
    counts = counts + [0] * (len(LIMITS) + 1 - len(counts))
    began_ns, measured_ns = (round((START_MS + each) * 1e6) for each in (began_ms, at_ms))
    return ClientHistogram(client, series, LIMITS, counts, total, began_ns, measured_ns, is_total)


async def _nothing() -> None:
    """Nothing has to settle."""


class Server:
    """The meters of a server that started an hour ago."""

    def __init__(self, kept: int = 100, exported: int = 100) -> None:
        self.clock = ManualClock(START_MS - HOUR_MS)
        self.kept = Budget("client metrics", kept, "series", "max_client_metric_series")
        self.exported = Budget("exported client metrics", exported, "series", "max_metric_series")
        self.meters = ClientMeters(self.kept, self.exported, self.clock)

    async def after(self, by_ms: int) -> None:
        await self.clock.advance(by_ms, _nothing)

    def take(self, *points: ClientHistogram | ClientGauge, holder: str = HERE) -> list[str]:
        return [self.meters.take(each, holder) for each in points]

    @property
    def counted(self) -> tuple[int, float]:
        histogram = self.meters._exported[SEND].histogram
        return histogram.count, histogram.total


@pytest.fixture
async def server() -> Server:
    made = Server()
    await made.after(HOUR_MS)
    return made


def test_totals_are_counted_once_whatever_a_client_repeats(server: Server) -> None:
    server.take(sent([1], 1.0, at_ms=1), sent([1], 1.0, at_ms=1), sent([2, 1], 9.0, at_ms=2))
    server.take(sent([3], 3.0, client="c2"))
    assert server.counted == (6, 12.0)
    server.take(sent([1], 1.0, at_ms=1))  # late: of a request that was on its way for longer
    assert server.counted == (6, 12.0)
    server.take(sent([1], 1.0, began_ms=5, at_ms=6))  # the client began anew
    assert server.counted == (7, 13.0)
    server.take(sent([2, 1], 9.0, at_ms=7))  # of a process of the same name that began before it
    assert server.counted == (7, 13.0)


def test_totals_that_shrink_without_a_new_start_add_nothing(server: Server) -> None:
    server.take(sent([5], 5.0, at_ms=1), sent([3], 3.0, at_ms=2))
    assert server.counted == (5, 5.0)
    server.take(sent([4], 4.0, at_ms=3))
    assert server.counted == (6, 6.0)


def test_values_since_the_last_ones_are_added_once(server: Server) -> None:
    server.take(sent([1], 1.0, at_ms=1, is_total=False))
    server.take(
        sent([2], 2.0, began_ms=1, at_ms=2, is_total=False), sent([2], 2.0, began_ms=1, at_ms=2, is_total=False)
    )
    assert server.counted == (3, 3.0)
    server.take(sent([9], 9.0, at_ms=3))  # totals now, with the values that were added already
    assert server.counted == (3, 3.0)


@pytest.mark.parametrize("silent_ms", [FORGET_MS + 1, 2 * SILENT_MS])
async def test_a_client_that_comes_back_after_a_long_silence_is_not_counted_twice(
    server: Server, silent_ms: int
) -> None:
    server.take(sent([5], 5.0))
    await server.after(silent_ms)
    server.meters.sweep()
    assert not server.kept.used
    server.take(sent([6], 6.0, at_ms=silent_ms))
    server.take(sent([8], 8.0, at_ms=silent_ms + MINUTE_MS))
    known = 5 if silent_ms < SILENT_MS else 0
    assert server.counted == (known + 2, known + 2.0)


@pytest.mark.parametrize(("age_ms", "counted"), [(MINUTE_MS, 5), (FRESH_MS + 1, 0)])
def test_first_totals_count_only_of_a_client_that_just_began(server: Server, age_ms: int, counted: int) -> None:
    """An older one has sent them to another server, or to this one before it forgot the client."""
    skew_ms = 5 * HOUR_MS  # of the client's clock, which is only compared with itself
    server.take(sent([5], 5.0, began_ms=skew_ms, at_ms=skew_ms + age_ms))
    assert server.counted == (counted, counted)


async def test_what_a_client_counted_before_the_server_started_does_not_count() -> None:
    server = Server()
    await server.after(MINUTE_MS // 2)
    server.take(sent([100], 100.0, at_ms=MINUTE_MS))
    assert server.counted == (0, 0.0)
    server.take(sent([101], 102.0, at_ms=2 * MINUTE_MS))
    assert server.counted == (1, 2.0)


async def test_there_is_room_for_so_many_clients_and_again_when_they_are_gone() -> None:
    server = Server(kept=4)
    await server.after(HOUR_MS)
    assert server.take(*(sent([1], 1.0, client=f"c{number}") for number in range(2))) == ["", ""]
    [refusal] = server.take(sent([1], 1.0, client="c2"))
    assert "of address 10.0.0.1, which has 2 of them" in refusal
    assert "--max-client-metric-series" in refusal
    assert server.take(*(sent([1], 1.0, client=f"c{number}") for number in range(2)), holder=THERE) == ["", ""]
    await server.after(FORGET_MS + 1)
    server.meters.sweep()
    assert server.take(sent([1], 1.0, client="c2")) == [""]
    assert server.kept.used == 1


def _topics(count: int) -> list[ClientHistogram]:
    made = (series_of("rocketmq_send_cost_time", Resource("", f"t{each}"), GROUP, "success") for each in range(count))
    return [sent([1], 1.0, series=series) for series in made]


async def test_one_caller_can_have_half_of_the_series_that_are_exported() -> None:
    server = Server(exported=4)
    await server.after(HOUR_MS)
    assert [bool(refusal) for refusal in server.take(*_topics(4))] == [False, False, True, True]
    assert server.kept.used == 2
    assert server.take(sent([1], 1.0), holder=THERE) == [""]
    assert server.take(_topics(1)[0], holder=THERE) == [""]  # a series that is there needs no place
    assert server.exported.used == 3
    await server.after(SILENT_MS + 1)
    server.meters.sweep()
    assert (server.exported.used, server.kept.used) == (0, 0)


def test_a_series_can_be_forgotten(server: Server) -> None:
    server.take(sent([1], 1.0))
    server.meters.forget({SEND})
    server.meters.forget({SEND})
    assert (server.exported.used, server.kept.used) == (0, 0)


def test_the_series_of_clients_have_a_tenth_of_a_scrape_after_all_others(server: Server) -> None:
    assert exported_max(50_000) == 500
    assert exported_max(500) == 5
    server.take(*_topics(3), ClientGauge("c1", BYTES, 5.0))
    names = Names({number: Resource("", f"t{number}") for number in range(4)}, {})
    families = Families(Identity("c", "broker", "n"), 25)
    assert server.meters.add_to(families, names) == 1
    assert [len(each.samples) for each in families.all()] == [2 * (len(LIMITS) + 3)]


async def test_what_is_cached_is_known_for_a_while(server: Server) -> None:
    assert server.take(ClientGauge("c1", BYTES, 5.0), ClientGauge("c2", BYTES, 6.0)) == ["", ""]
    assert server.meters._cached() == {BYTES: 11.0}
    await server.after(OLD_MS + 1)
    assert server.meters._cached() == {}


async def test_what_nobody_sends_is_not_exported_even_if_no_client_is_left(server: Server) -> None:
    server.take(*_topics(1))
    names = Names({0: Resource("", "t0")}, {})
    await server.after(SILENT_MS)
    assert server.meters.add_to(families := Families(Identity("c", "broker", "n"), 25), names) == 0
    assert families.all()
    await server.after(1)
    assert server.meters.add_to(families := Families(Identity("c", "broker", "n"), 25), names) == 0
    assert not families.all()


def test_totals_stay_exact(server: Server) -> None:
    most = float(EXACT_MAX - 1)
    assert server.take(sent([COUNT_MAX], most)) == [""]
    [refusal] = server.take(sent([1], 1.0, client="c2"))
    assert str(EXACT_MAX) in refusal
    assert server.counted == (COUNT_MAX, most)
    assert server.meters.left_out[Unusable.WRONG] == 1


@pytest.mark.parametrize(
    "wrong",
    [
        sent([1], -1.0),
        sent([1], float("nan")),
        sent([1], float(1 << 54)),
        sent([COUNT_MAX + 1], 1.0),
        sent([-1], 1.0),
        sent([1], 1.0, client="c" * 256),
        sent([0] * 9, 1.0),
        sent([1], 1.0, at_ms=-1),
        sent([1], 1.0, began_ms=-START_MS, at_ms=-START_MS),
        ClientGauge("c1", BYTES, -1.0),
        ClientGauge("c1", BYTES, float("inf")),
        ClientGauge("c1", BYTES, COUNT_MAX + 1),
    ],
)
def test_numbers_that_cannot_be_are_left_out(server: Server, wrong: ClientHistogram | ClientGauge) -> None:
    assert server.take(wrong) != [""]
    assert server.meters.left_out == {Unusable.WRONG: 1, Unusable.UNKNOWN: 0, Unusable.FORBIDDEN: 0}
    assert not server.meters._exported
    assert not server.meters._last
