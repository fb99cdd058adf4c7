"""Settings, time zones, clocks and slow disks around servers are there, and honest servers keep their promises."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from popserver.engine.clock import ManualClock
from popserver.model.errors import StoreFull
from popserver.model.message import SendResult
from proof.history.events import ClockStep
from proof.history.scenes import Scene, judge
from proof.simulate.machine import ApartClock
from proof.simulate.run import Plan, simulate
from proof.simulate.stores import Store
from proof.surroundings import ALONE, ISOLATION, POOLER, SLOW_DISK, Surroundings
from proof.torture import round as rounds
from proof.torture.commands import can_have
from proof.torture.place import LAYOUTS
from proof.totals import COMBINATION, SETTING
from tests.support.builders import messages_of
from tests.support.checker import Final, History, Violation
from tests.support.hostile_settings import HOSTILE, UNHARMED
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.running_broker import TestedBroker

ALL = frozenset({POOLER, SLOW_DISK})


def drawn(seed: int, *, on_postgres: bool, can_have: frozenset[str] = ALL) -> Surroundings:
    return Surroundings.drawn(random.Random(seed), on_postgres=on_postgres, servers=2, can_have=can_have)


def test_the_seed_decides_and_each_part_comes() -> None:
    assert drawn(5, on_postgres=True) == drawn(5, on_postgres=True)
    many = [drawn(seed, on_postgres=place) for seed in range(300) for place in (True, False)]
    assert all(any(each[at] != ALONE[at] for each in many) for at in range(len(ALONE)))
    assert {name for each in many for name, _ in each.settings} == set(HOSTILE)


def test_what_a_machine_cannot_have_does_not_come() -> None:
    many = [drawn(seed, on_postgres=place, can_have=frozenset()) for seed in range(100) for place in (True, False)]
    assert not any(each.has_pooler or each.flush_ms for each in many)


def test_each_value_is_counted_and_the_parts_together() -> None:
    around = Surroundings(((ISOLATION, "serializable"), ("jit", "on")), "role", zone="Asia/Kathmandu", flush_ms=2)
    assert [*around.counts()] == [
        f"{SETTING}isolation serializable",
        f"{SETTING}jit=on",
        f"{SETTING}time zone Asia/Kathmandu",
        f"{SETTING}flushes that take 2 ms longer",
        f"{COMBINATION}isolation + settings of the role + time zone + slow disk",
    ]
    assert [*ALONE.counts()] == [f"{COMBINATION}none"]


@pytest.mark.full
@pytest.mark.timeout(540)
async def test_a_round_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The judge finds early messages if nobody tells it how the clock was set: so the clock is really wrong."""
    judged: list[tuple[Scene, History, Final]] = []

    def noted(scene: Scene, history: History, final: Final) -> list[Violation]:
        judged.append((scene, history, final))
        return judge(scene, history, final)

    monkeypatch.setattr(rounds, "judge", noted)
    flush_ms = 2 if SLOW_DISK in can_have() else 0
    around = Surroundings(zone="Asia/Kathmandu", apart=(4,), sets_clock=True, clock_ms=20_000, flush_ms=flush_ms)
    plan = rounds.Plan(1, LAYOUTS["sqlite"], Scene.DELAY, with_proxies=False, accidents=3, around=around)
    result = await rounds.run_round(plan, tmp_path)
    assert result.violations == []
    ((scene, history, final),) = judged
    untold = History([each for each in history.calls if not isinstance(each, ClockStep)])
    assert "I10" in {each.invariant for each in judge(scene, untold, final)}


@pytest.mark.full
@pytest.mark.timeout(540)
async def test_a_round_on_postgres(tmp_path: Path) -> None:
    around = Surroundings(
        ((ISOLATION, "serializable"), ("TimeZone", "Pacific/Chatham"), ("statement_timeout", "250ms")),
        has_pooler=POOLER in can_have(),
        apart=(0, 4),
        flush_ms=2 if SLOW_DISK in can_have() else 0,
    )
    plan = rounds.Plan(1, LAYOUTS["two"], Scene.PLAIN, with_proxies=False, accidents=3, around=around)
    with postgres_server(own=True) as postgres:
        assert isinstance(postgres, PostgresServer)
        result = await rounds.run_round(plan, tmp_path, postgres)
    assert result.violations == []


def plain_runs(servers: int) -> Iterator[Plan]:
    return (
        plan for plan in (Plan(seed, 100) for seed in range(60)) if (plan.scene, plan.servers) == (Scene.PLAIN, servers)
    )


def test_a_disk_that_is_far_too_slow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Plan, "around_on", lambda _plan, _store: Surroundings(flush_ms=3_000))
    assert any("I14" in {each.invariant for each in simulate(plan).violations} for plan in plain_runs(1))


def test_clocks_that_do_not_agree_are_found(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a server that starts does not care for the time of the others."""
    monkeypatch.setattr(Plan, "around_on", lambda _plan, _store: Surroundings(apart=(0, 4_000)))
    monkeypatch.setattr(ApartClock, "start_at_least", lambda _clock, _stored_ms: None)
    with closing(Store(postgres_url)) as store:
        found = (simulate(plan, store).violations for plan in plain_runs(2))
        assert any("I3" in {each.invariant for each in violations} for violations in found)


def test_the_simulation_s_database_has_the_settings_of_the_run_alone(postgres_url: str) -> None:
    def shown() -> tuple[str, str]:
        with psycopg.connect(postgres_url, options=UNHARMED) as conn:
            (isolation,) = conn.execute("SHOW default_transaction_isolation").fetchone() or ("",)
            (zone,) = conn.execute("SHOW TimeZone").fetchone() or ("",)
            return isolation, zone

    with closing(Store(postgres_url)) as store:
        before = shown()
        store.surround({ISOLATION: "serializable", "TimeZone": "Pacific/Chatham"})
        assert shown() == ("serializable", "Pacific/Chatham")
        store.surround({})
        assert shown() == before


async def test_a_postgres_without_space_refuses_until_there_is_some(postgres_url: str) -> None:
    with closing(Store(postgres_url)) as store:
        broker = TestedBroker(store.database, ManualClock(), auto_create=True)
        broker.engine.writer.start()
        await broker.start()
        await broker.send(messages_of(1))  # the topic is there
        store.fill()
        with pytest.raises(StoreFull):
            await broker.send(messages_of(1))
        store.free()
        (sent,) = await broker.send(messages_of(1))
        assert isinstance(sent, SendResult)
        await broker.stop()
