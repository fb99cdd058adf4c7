"""PopMQ beside other brokers: each is installed, started so that an answered send is on the disk, and measured in turn.

Every round starts each server anew, one after the other, on any core. The load is one process with the peer's own
client, on the other side of the loopback.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.case import Case, Figures, Rounds
from benchmarks.generator import Load
from benchmarks.machine import family_memory_bytes, fsync_us
from benchmarks.peers.known import known
from benchmarks.peers.peer import BATCH_SIZE, Peer
from benchmarks.peers.tools import Missing, Tools

INSTALLED = Path("bench-out") / "peers"
_MIB = 1024 * 1024


class Workload(NamedTuple):
    """`name` begins the names of its figures; `load` is a method of `PeerLoad`."""

    name: str
    title: str
    load: str
    topic: str
    options: Mapping[str, int]


WORKLOADS = (
    Workload("send_1", "single sends, 1 at once", "send", "send-1", {"callers": 1, "batch": 1}),
    Workload("send_64", "single sends, 64 at once", "send", "send-64", {"callers": 64, "batch": 1}),
    Workload("batch_32", "sends of 32 together", "send", "batch-32", {"callers": 1, "batch": BATCH_SIZE}),
    Workload("receive_1", "receive and ack, 1 consumer", "receive", "receive-1", {"consumers": 1}),
    Workload("receive_8", "receive and ack, 8 consumers", "receive", "receive-8", {"consumers": 8}),
    Workload("latency", "send to delivery", "latency", "latency", {}),
)


def peers(bench: Bench) -> Rounds:
    tools = Tools(INSTALLED.absolute())
    found: Rounds = {}
    at_hand: list[Peer] = []
    for name, peer in known().items():
        bench.say(f"installing {name}")
        try:
            peer.install(tools)
        except Missing as missing:
            found[name] = [{"skipped": str(missing)}]
        else:
            found[name] = []
            at_hand.append(peer)
    for number in range(bench.plan.rounds):
        for peer in at_hand:
            found[peer.name].append(_measured(bench, tools, peer, number))
    return found


def _measured(bench: Bench, tools: Tools, peer: Peer, number: int) -> Figures:
    with bench.folder("peer") as folder, peer.running(folder) as server:
        program = [str(tools.python), "-m", "benchmarks.peers.load", peer.name, server.address]
        with Load(peer.name, [*program, *map(str, server.pids)], None) as load:
            figures: Figures = {"version": server.version, "sends": peer.sends, "acks": peer.acks, **load.figures()}
            # The disk of a shared machine changes from minute to minute.
            figures["fsync_us"] = fsync_us(folder)["p50"]
            if peer.compiles:
                _compile(bench, load)
            for workload in WORKLOADS:
                bench.say(f"round {number + 1} of {bench.plan.rounds}: {peer.name}, {workload.title}")
                got = load.run(workload.load, topic=workload.topic, **workload.options, **_bounds(bench, workload))
                figures |= {f"{workload.name}_{name}": value for name, value in got.items()}
            return figures | {"memory_mib": family_memory_bytes(*server.pids) / _MIB}


def _compile(bench: Bench, load: Load) -> None:
    plan = bench.plan
    quarter = plan.peers_compiling_seconds / 4
    bounds = {"topic": "first", "body_bytes": plan.body_bytes, "count": plan.peers_messages, "warm_up": 0}
    load.run("send", callers=64, batch=1, seconds=2 * quarter, **bounds)
    load.run("receive", consumers=8, stock=plan.peers_stock, stock_seconds=quarter, seconds=quarter, **bounds)


def _bounds(bench: Bench, workload: Workload) -> dict[str, Any]:
    plan = bench.plan
    size = {"body_bytes": plan.body_bytes}
    if workload.load == "latency":
        return size | {"rate": plan.peers_rate, "seconds": plan.peers_latency_seconds}
    bounds = size | {"seconds": plan.seconds, "count": plan.peers_messages}
    if workload.load == "send":
        return bounds | {"warm_up": plan.warm_up}
    return bounds | {"warm_up": 0, "stock": plan.peers_stock, "stock_seconds": plan.peers_stock_seconds}


PEER_CASES = {"peers": Case("beside other brokers: single sends, 64 at once", peers, key="send_64_rate")}
