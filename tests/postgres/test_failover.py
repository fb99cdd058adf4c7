"""A Postgres that fails over under load: nothing acknowledged is lost, and the server goes on by itself.

`make test-failover` runs all of it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from tests.postgres.patroni import Node, PatroniCluster, patroni_cluster
from tests.postgres.patroni_failures import EVERY_ACCIDENT, Accident, killed_postgres, repaired
from tests.postgres.pgbouncer import pgbouncer
from tests.support.checker import Outcome, Send, check
from tests.support.final_state import final, looking, unfinished
from tests.support.server_process import ServerProcess, served
from tests.support.waiting import eventually
from tests.support.workload import Load, now_ms

TOPIC, GROUPS = "orders", ("billing", "shipping")
PRODUCERS = 2  # at most as many servers
LOADED_S = 0.15  # by chance up to so long before an accident
RESUMED_S = 5.0
DRAINED_S = 120.0


@pytest.mark.timeout(240)
async def test_a_killed_primary(tmp_path: Path) -> None:
    async with patroni_cluster(nodes=2) as cluster:
        await _survive(cluster, tmp_path, [killed_postgres], come_back=False)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("servers", [1, 2])
async def test_every_accident(tmp_path: Path, servers: int) -> None:
    async with patroni_cluster() as cluster:
        await _survive(cluster, tmp_path, EVERY_ACCIDENT, come_back=True, servers=servers)


@pytest.mark.timeout(240)
async def test_a_killed_primary_behind_poolers(tmp_path: Path) -> None:
    async with patroni_cluster(nodes=2) as cluster:
        with _poolers(cluster) as url:
            await _survive(cluster, tmp_path, [killed_postgres], come_back=False, url=url)


@pytest.mark.slow
@pytest.mark.timeout(1_200)
async def test_every_accident_behind_poolers(tmp_path: Path) -> None:
    async with patroni_cluster() as cluster:
        with _poolers(cluster) as url:
            await _survive(cluster, tmp_path, EVERY_ACCIDENT, come_back=True, url=url)


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_what_an_asynchronous_standby_loses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Measured, not promised: what was acknowledged while the standbys heard nothing is gone."""
    async with patroni_cluster(synchronous_mode=False) as cluster:
        leader = await asyncio.to_thread(cluster.leader)
        timeline = leader.timeline()
        load = Load(TOPIC, GROUPS, producers=2, consumers=1, seed=1)
        async with served(cluster.libpq_url, "--min-invisible", "0s") as server:
            working = asyncio.create_task(load.run(server.endpoint))
            await _sent(load, now_ms())
            leader.to_standbys.cut()
            cut_ms = now_ms()
            await _sent(load, cut_ms)
            leader.kill()
            killed_ms = now_ms()
            await cluster.new_leader(leader, timeline)
            await _sent(load, now_ms())
            load.stop()
            await working
        with looking(cluster.url) as conn:
            stored = {each.message_id for each in final(conn, TOPIC).stored}
    sent = [call for call in load.history.calls if isinstance(call, Send) and call.outcome is Outcome.OK]
    lost = [call for call in sent if call.message_id not in stored]
    with capsys.disabled():
        print(f"\nasynchronous: killed {killed_ms - cut_ms:.0f} ms after the cut, {len(lost)} acknowledged sends lost")
    assert lost, "the standby had everything, so this measured nothing"


@contextmanager
def _poolers(cluster: PatroniCluster) -> Iterator[str]:
    """A PgBouncer beside each Postgres, as their machines have it. The URL has the poolers."""
    with ExitStack() as stack:
        urls = [stack.enter_context(pgbouncer(node.url, "session")) for node in cluster.nodes]
        hosts = ",".join(f"127.0.0.1:{make_url(url).port}" for url in urls)
        yield f"postgresql://postgres@{hosts}/postgres"


async def _survive(
    cluster: PatroniCluster,
    folder: Path,
    accidents: Sequence[Accident],
    *,
    come_back: bool,
    servers: int = 1,
    url: str = "",
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    chance = random.Random(seed)
    load = Load(TOPIC, GROUPS, producers=PRODUCERS, consumers=2, seed=seed)
    async with served(url or cluster.libpq_url, "--min-invisible", "0s") as one:
        if servers == 1:
            await _each([one], cluster, load, accidents, chance, come_back=come_back)
        else:
            async with served(cluster.url, "--min-invisible", "0s") as other:
                await _each([one, other], cluster, load, accidents, chance, come_back=come_back)
    load.history.write(folder / "history.jsonl")
    with looking(cluster.url) as conn:
        violations = check(load.history, final(conn, TOPIC))
    assert not violations, f"seed {seed}, history in {folder}:\n" + "\n".join(map(str, violations[:20]))


async def _each(
    servers: list[ServerProcess],
    cluster: PatroniCluster,
    load: Load,
    accidents: Sequence[Accident],
    chance: random.Random,
    *,
    come_back: bool,
) -> None:
    endpoints = [server.endpoint for server in servers]
    for accident in accidents:
        leader = await asyncio.to_thread(cluster.leader)
        working = asyncio.create_task(load.run(*endpoints))
        await _sent(load, now_ms())
        await asyncio.sleep(chance.uniform(0, LOADED_S))
        resumed_s = await _accident(cluster, load, accident, leader)
        print(f"{accident.__name__}: resumed {resumed_s:.2f} s after the new primary")
        assert resumed_s < RESUMED_S, f"{accident.__name__}: {resumed_s:.1f} s"
        if come_back:
            await repaired(cluster, leader)
        load.stop()
        await working
        assert all(server.is_running for server in servers)
    working = asyncio.create_task(load.run_consumers(*endpoints))
    await eventually(lambda: asyncio.to_thread(_all_done, cluster.url), "all consumed", within_s=DRAINED_S)
    load.stop()
    await working
    for server in servers:
        assert await server.stop() == 0


async def _accident(cluster: PatroniCluster, load: Load, accident: Accident, leader: Node) -> float:
    """How many seconds after the new primary accepts writes the last of the producers has a send answered OK.

    Each server has a producer of its own.
    """
    timeline = leader.timeline()
    known = len(load.history.calls)

    async def promoted() -> float:
        await cluster.new_leader(leader, timeline)
        return now_ms()

    looking_out = asyncio.create_task(promoted())
    await accident(cluster, leader)  # patronictl returns later than its switchover
    writable_ms = await looking_out
    first_ms: dict[str, float] = {}

    async def have_all() -> bool:
        for call in load.history.calls[known:]:
            if isinstance(call, Send) and _is_ok(call, writable_ms):
                first_ms.setdefault(call.message_id.rpartition("-")[0], call.completed_ms)
        return len(first_ms) == PRODUCERS

    await eventually(have_all, "a send of each producer that is OK", within_s=120)
    return (max(first_ms.values()) - writable_ms) / 1_000


async def _sent(load: Load, since_ms: float) -> None:
    """Wait for an answer to a send that is so."""

    async def is_there() -> bool:
        return any(_is_ok(call, since_ms) for call in load.history.calls[-1_000:])

    await eventually(is_there, "a send that is OK", within_s=120)


def _is_ok(call: object, since_ms: float) -> bool:
    return isinstance(call, Send) and call.outcome is Outcome.OK and call.completed_ms >= since_ms


def _all_done(url: str) -> bool:
    with looking(url) as conn:
        return unfinished(conn, TOPIC) == 0
