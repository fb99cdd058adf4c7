"""Each planted fault of a server is found, by the invariant that it breaks; those beside Spark: test_torture_spark."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from proof.history.scenes import Scene
from proof.torture.client_processes import is_there
from proof.torture.place import LAYOUTS
from proof.torture.planted import FAULTS
from proof.torture.round import Plan, run_round
from tests.support.built_programs import do_without

# These show that a fault is found at all; the others are of the heavy tests.
QUICK = (
    "an ack is answered and not carried out",
    "answers do not wait for the commit",
    "message groups are not locked",
)
ROUNDS = 3  # a fault shows itself only if an accident comes at its moment, which a busy machine may move


@pytest.mark.timeout(540)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.full)
        for name, fault in FAULTS.items()
        if fault.scene is not Scene.SPARK
    ],
)
async def test_it_is_found(name: str, tmp_path: Path) -> None:
    under, fault = (sys.executable, "-m", "proof.torture.planted", name), FAULTS[name]
    if not all(map(is_there, fault.programs)):
        do_without(f"{fault.programs}: a tool is missing, or the registry of its packages does not answer")
    for seed in range(1, ROUNDS + 1):
        plan = Plan(
            seed, LAYOUTS["sqlite"], fault.scene, with_proxies=False, accidents=2, calls=(100, 200),
            programs=fault.programs, engine=fault.engine,
        )  # fmt: skip
        folder = tmp_path / str(seed)
        folder.mkdir()
        result = await run_round(plan, folder, under=under, drain_within_s=6.0)
        if {violation.invariant for violation in result.violations} & fault.found_as:
            return
    raise AssertionError(f"{ROUNDS} rounds found nothing")
