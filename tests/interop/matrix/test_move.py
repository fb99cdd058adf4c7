"""`popmq move` between PopMQ and a real RocketMQ cluster under load, while what takes part is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.matrix import rocketmq
from tests.moving.fire import Fire, Kill, Part, again, make_at_popmq, show, told
from tests.support.built_programs import do_without
from tests.support.rocketmq_cluster import BROKERS, PROXY, Cluster, accepting, cluster
from tests.support.server_process import ServerProcess

pytestmark = [
    pytest.mark.matrix,
    pytest.mark.timeout(1_800),
    pytest.mark.xdist_group(rocketmq.NAME),
    pytest.mark.row("O9"),
]
KILLS, APART = 8, 400
THERE = [Part("flights", in_order=True, groups=["radar"]), Part("orders", in_order=False, groups=["billing"])]
BACK = [Part("trains", in_order=True, groups=["signals"]), Part("bills", in_order=False, groups=["till"])]
AND_BACK = [Part("ships", in_order=True, groups=["harbour"]), Part("letters", in_order=False, groups=["desk"])]
IN_ORDER = {"consumeMessageOrderly": True}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    topics = {each.topic: accepting("FIFO" if each.in_order else "NORMAL") for each in BACK}
    groups = {group: IN_ORDER if each.in_order else {} for each in BACK for group in each.groups}
    try:
        with cluster(tmp_path_factory.mktemp("move"), topics, groups) as it:
            yield it
    except rocketmq.Missing as missing:
        do_without(str(missing))


@pytest.mark.parametrize("back", [False, True], ids=["there", "there-and-back"])
async def test_to_rocketmq(running: Cluster, tmp_path: Path, back: bool) -> None:
    parts = AND_BACK if back else THERE
    server = ServerProcess(f"sqlite:///{tmp_path}/popmq.db")
    await server.start()
    try:
        await make_at_popmq(server.endpoint, parts)
        words = ["--from", server.endpoint, "--to", running.endpoint, "--to-name-server", running.name_server]
        fire = Fire(tmp_path, server.endpoint, running.endpoint, parts, victims(server, running), words)
        await judged(fire, lax="new", back=back)
    finally:
        await server.stop()


async def test_from_rocketmq(running: Cluster, tmp_path: Path) -> None:
    server = ServerProcess(f"sqlite:///{tmp_path}/popmq.db")
    await server.start()
    try:
        words = ["--from", running.endpoint, "--from-name-server", running.name_server, "--to", server.endpoint]
        fire = Fire(tmp_path, running.endpoint, server.endpoint, BACK, victims(server, running), words)
        await judged(fire, lax="old")
    finally:
        await server.stop()


async def judged(fire: Fire, lax: str, *, back: bool = False) -> None:
    verdict = await fire.run(KILLS, APART, lax, back=back)
    show(told(fire, verdict))
    assert verdict.violations == []
    assert {each.side for each in fire.sent} == {each.side for each in fire.consumed} == {"old", "new"}


def victims(server: ServerProcess, running: Cluster) -> dict[str, Kill]:
    async def restarted(name: str) -> None:
        await asyncio.to_thread(running.kill, name)
        await asyncio.to_thread(running.start, name)

    return {"PopMQ": lambda: again(server), **{name: lambda name=name: restarted(name) for name in (*BROKERS, PROXY)}}
