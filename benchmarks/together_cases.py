"""Cases of several servers on one Postgres: what each message costs with one server, with two and with four.

The same load processes make the same calls of one server, or of several. CPU time is counted for the servers and for
Postgres, from before the first call until after the last one, so it does not depend on what else the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.case import STOCK_TOPIC, Case, Figures, Rounds, window
from benchmarks.filling import fill, fill_in_order
from benchmarks.generator import Generator
from benchmarks.machine import cpu_seconds
from benchmarks.servers import Server

LOADS = 4
COUNTS = {"1 server": 1, "2 servers": 2, "4 servers": 4}
MESSAGE_GROUPS = 1_000
ORDERED_TOPIC = f"{STOCK_TOPIC}-in-order"


class Together(NamedTuple):
    """Servers on one database, and the loads that call them."""

    servers: Sequence[Server]
    loads: Sequence[Generator]
    database_url: str


def together(load: str, *, callers: int, grows: bool = False, **options: Any) -> Callable[[Bench], Rounds]:
    """The same load on one server, on two and on four. `callers`: of all loads; `grows`: of each server."""

    def measure(bench: Bench) -> Rounds:
        made = {name: (count, _database(bench, count, load, options)) for name, count in COUNTS.items()}
        found: Rounds = {}
        with bench.running() as running:
            sides = {name: _started(bench, running, count, url) for name, (count, url) in made.items()}
            for number in range(bench.plan.rounds):
                for name, side in sides.items():
                    bench.say(f"round {number + 1} of {bench.plan.rounds}: {name}")
                    own = callers * (len(side.servers) if grows else 1) // LOADS
                    figures = _measured(bench, side, load, number, {**options, "callers": own})
                    found.setdefault(name, []).append(figures)
        for of_name in found.values():
            for each, alone in zip(of_name, found["1 server"], strict=True):
                each["cpu_of_one"] = each["cpu_us_per_message"] / alone["cpu_us_per_message"]
                each["server_cpu_of_one"] = each["server_us_per_message"] / alone["server_us_per_message"]
        return found

    return measure


def _database(bench: Bench, count: int, load: str, options: dict[str, Any]) -> str:
    url = bench.new_url("postgres", f"together_{count}")
    if load == "raw.receive":
        bench.say(f"storing {bench.plan.stock:,} messages for {count} servers")
        if options["topic"] == ORDERED_TOPIC:
            fill_in_order(url, ORDERED_TOPIC, bench.plan.stock, bench.plan.body_bytes, MESSAGE_GROUPS)
        else:
            fill(url, options["topic"], bench.plan.stock, bench.plan.body_bytes)
    return url


def _started(bench: Bench, running: Any, count: int, url: str) -> Together:
    servers = [running.enter_context(bench.server("postgres", url)) for _ in range(count)]
    loads = [running.enter_context(Generator(servers[number % count], None)) for number in range(LOADS)]
    return Together(servers, loads, url)


def _measured(bench: Bench, side: Together, load: str, number: int, options: dict[str, Any]) -> Figures:
    servers_s, postgres_s = _servers_cpu_s(side), bench.postgres_cpu_s()
    before, begun = bench.postgres.counters(), time.perf_counter()
    for each in side.loads:
        each.begin(load, **options, **_window(bench, load, number))
    figures = [each.figures() for each in side.loads]
    taken, after = time.perf_counter() - begun, bench.postgres.counters()
    servers_s, postgres_s = _servers_cpu_s(side) - servers_s, bench.postgres_cpu_s() - postgres_s
    messages = max(sum(own["messages"] for own in figures), 1)
    transactions = after.transactions - before.transactions
    return {
        "rate": sum(own["rate"] for own in figures),
        "server_busy": servers_s / taken,
        "load_busy": sum(own["load_busy"] for own in figures),
        "postgres_busy": postgres_s / taken,
        "server_us_per_message": servers_s * 1e6 / messages,
        "postgres_us_per_message": postgres_s * 1e6 / messages,
        "cpu_us_per_message": (servers_s + postgres_s) * 1e6 / messages,
        "transactions_per_s": transactions / taken,
        "messages_per_transaction": messages / max(transactions, 1),
        "wal_bytes_per_message": (after.wal_bytes - before.wal_bytes) / messages,
        "messages_per_call": sum(own["messages_per_call"] for own in figures) / len(figures),
        "call_p50_ms": max(own["call_ms"]["p50"] for own in figures),
        "call_p99_ms": max(own["call_ms"]["p99"] for own in figures),
    }


def _servers_cpu_s(side: Together) -> float:
    return sum(cpu_seconds(each.pid) for each in side.servers)


def _window(bench: Bench, load: str, number: int) -> dict[str, Any]:
    if load != "raw.receive":
        return window(bench, body=True)
    # All loads share a group. Less than their share for each, so that none waits for messages that another one has.
    stock = int(bench.plan.stock * 0.8) // LOADS
    groups = 1 + int(bench.plan.seconds * 40_000 / bench.plan.stock)
    return window(bench) | {"stock": stock, "groups": groups, "group": f"bench-together-{number}"}


def _sends(per_request: int, callers: int, **more: Any) -> Callable[[Bench], Rounds]:
    return together("raw.send", topic="bench-send", per_request=per_request, callers=callers, **more)


def _receives(topic: str, callers: int, **more: Any) -> Callable[[Bench], Rounds]:
    return together("raw.receive", topic=topic, ack_each=False, callers=callers, **more)


def _paced(rate: int) -> Callable[[Bench], Rounds]:
    return together("raw.paced", topic="bench-send", per_request=1, callers=256, rate=rate / LOADS)


TOGETHER_CASES: dict[str, Case] = {
    "servers_send_1": Case("servers: send 1 per request, 64 callers", _sends(1, 64)),
    "servers_send_1_each": Case("servers: send 1 per request, 64 callers of each server", _sends(1, 64, grows=True)),
    "servers_send_1_slow": Case("servers: send 1 per request, 500 a second", _paced(500)),
    "servers_send_1_paced": Case("servers: send 1 per request, 2,000 a second", _paced(2_000)),
    "servers_send_32": Case("servers: send 32 per request, 64 callers", _sends(32, 64)),
    "servers_send_32_each": Case("servers: send 32 per request, 64 callers of each", _sends(32, 64, grows=True)),
    "servers_receive": Case("servers: receive 32 + batch ack, 64 consumers", _receives(STOCK_TOPIC, 64)),
    "servers_receive_each": Case(
        "servers: receive 32 + batch ack, 64 consumers of each", _receives(STOCK_TOPIC, 64, grows=True)
    ),
    "servers_fifo": Case(
        "servers: receive 32 + batch ack, 1,000 message groups, 64 consumers", _receives(ORDERED_TOPIC, 64)
    ),
}
