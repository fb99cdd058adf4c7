"""A short torture: servers are killed, stopped and cut off under load, and no promise breaks."""

from __future__ import annotations

from pathlib import Path

import pytest

from proof.history.scenes import Scene
from proof.torture.place import LAYOUTS
from proof.torture.round import Plan, run_round
from tests.support.postgres import PostgresServer, postgres_server


@pytest.mark.timeout(540)
async def test_a_round_on_sqlite(tmp_path: Path) -> None:
    result = await run_round(Plan(1, LAYOUTS["sqlite"], Scene.PLAIN, with_proxies=True, accidents=5), tmp_path, None)
    assert result.violations == []
    assert result.counts["kills"] + result.counts["network_faults"] + result.counts["pauses"] == 5
    assert result.counts["sends"] > 0
    assert result.counts["deliveries"] > 0


@pytest.mark.full
@pytest.mark.timeout(540)
async def test_a_round_with_two_servers(tmp_path: Path) -> None:
    with postgres_server(own=True) as postgres:
        assert isinstance(postgres, PostgresServer)
        result = await run_round(
            Plan(1, LAYOUTS["two"], Scene.PLAIN, with_proxies=True, accidents=4), tmp_path, postgres
        )
    assert result.violations == []


@pytest.mark.full
@pytest.mark.timeout(540)
async def test_a_round_with_programs(tmp_path: Path) -> None:
    """popclient and the official Python client, killed and stopped."""
    plan = Plan(4, LAYOUTS["sqlite"], Scene.PLAIN, with_proxies=False, accidents=3, with_program=True)
    result = await run_round(plan, tmp_path)
    assert result.violations == []
    assert result.counts["client_kills"] == 2


def test_the_seed_decides() -> None:
    assert Plan.of(5) == Plan.of(5)
    assert {Plan.of(seed).layout.name for seed in range(40)} == set(LAYOUTS)
    assert Plan.of(5, "two").layout is LAYOUTS["two"]
