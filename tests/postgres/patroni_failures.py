"""What happens to the primary of a Postgres under Patroni, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from tests.postgres.patroni import Node, PatroniCluster

Accident = Callable[[PatroniCluster, Node], Awaitable[None]]


async def killed_postgres(_cluster: PatroniCluster, leader: Node) -> None:
    leader.kill_postgres()


async def killed_node(_cluster: PatroniCluster, leader: Node) -> None:
    leader.kill()


async def switched_over(cluster: PatroniCluster, leader: Node) -> None:
    await asyncio.to_thread(cluster.switch_over, leader)


async def cut_off(_cluster: PatroniCluster, leader: Node) -> None:
    """From etcd and from its standbys, but not from the server, which goes on writing to it."""
    leader.to_etcd.cut()
    leader.to_standbys.cut()


async def frozen(_cluster: PatroniCluster, leader: Node) -> None:
    leader.freeze()


EVERY_ACCIDENT = (killed_postgres, killed_node, switched_over, cut_off, frozen)


async def repaired(cluster: PatroniCluster, leader: Node) -> None:
    """Whatever was done to the former primary ends: what was frozen goes on where it was."""
    leader.to_etcd.mend()
    leader.to_standbys.mend()
    leader.thaw()
    if not leader.is_running:
        leader.start()
    await cluster.whole()
