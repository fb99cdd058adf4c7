"""The simulation: equal seeds give equal runs, honest runs break no promise, and planted faults are found."""

from __future__ import annotations

from contextlib import closing

import pytest

from proof.history.scenes import Scene
from proof.simulate.jobs import run_all
from proof.simulate.planted import PLANTED, planted
from proof.simulate.run import SCENES, Plan, simulate
from proof.simulate.shrink import shrunk
from proof.simulate.stores import Store

BUDGET = 12  # runs within which a planted fault is found


def _seeds(scene: Scene, count: int, *, servers: int | None = None) -> list[int]:
    """Of runs on Postgres, those with so many servers."""
    plans = (plan for plan in map(Plan, range(200)) if plan.scene is scene)
    return [plan.seed for plan in plans if servers in (None, plan.servers)][:count]


@pytest.mark.parametrize("scene", SCENES)
def test_an_honest_run_breaks_nothing_and_can_be_repeated(scene: Scene) -> None:
    plan = Plan(_seeds(scene, 1)[0], 120)
    result = simulate(plan)
    assert result.violations == []
    assert result.counts["faults"]
    assert simulate(plan).mark == result.mark


def test_a_clock_that_is_set_back_makes_the_end_late() -> None:
    """A message is sent with a delay, then the clock goes back: it is due after all other things are done."""
    plan = Plan(1072, 300, frozenset(range(300)) - {283, 284})
    result = simulate(plan)
    assert (plan.scene, result.violations) == (Scene.DELAY, [])
    assert result.counts["faults"] == 1  # the clock


@pytest.mark.parametrize("servers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_an_honest_run_breaks_nothing_on_postgres(postgres_url: str, servers: int) -> None:
    with closing(Store(postgres_url)) as store:
        plan = Plan(_seeds(Scene.PLAIN, 1, servers=servers)[0], 60)
        result = simulate(plan, store)
        assert result.violations == []
        assert simulate(plan, store).mark == result.mark


@pytest.mark.full
def test_processes_share_the_runs_and_give_the_same_in_order() -> None:
    plans = [Plan(seed, 30) for seed in range(5)]
    told = list(run_all(iter(plans), ["sqlite://"] * 2))
    assert [plan for plan, _ in told] == plans
    assert [result.mark for _, result in told] == [simulate(plan).mark for plan in plans]


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, fault in PLANTED.items() if fault.servers == 1])
def test_a_planted_fault_is_found(name: str) -> None:
    fault = PLANTED[name]
    with planted(fault):
        found = (simulate(Plan(seed)).violations for seed in _seeds(fault.scene, BUDGET))
        first = next((each for each in found if each), [])
    assert {each.invariant for each in first} & set(fault.found_as), first[:3]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, fault in PLANTED.items() if fault.servers > 1])
def test_a_planted_fault_of_several_servers_is_found(name: str, postgres_url: str) -> None:
    fault = PLANTED[name]
    with closing(Store(postgres_url)) as store, planted(fault):
        seeds = _seeds(fault.scene, BUDGET, servers=fault.servers)
        found = (simulate(Plan(seed, 150), store).violations for seed in seeds)
        first = next((each for each in found if each), [])
    assert {each.invariant for each in first} & set(fault.found_as), first[:3]


@pytest.mark.full
def test_a_failing_run_is_made_smaller() -> None:
    fault = PLANTED["an ack is answered and not carried out"]
    plan = Plan(_seeds(fault.scene, 1)[0], 100)
    with planted(fault):
        result = simulate(plan)
        small = shrunk(plan, result, tries=40)
        assert len(small.without) > 50
        assert simulate(small).violations
