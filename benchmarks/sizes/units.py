"""What one message, one group and one idle poll cost: the figures that `popmq size` multiplies."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.bench import Bench
from benchmarks.case import CALLERS, STOCK_TOPIC, Figures, Rounds, window
from benchmarks.filling import fill, fill_held, fill_in_order
from benchmarks.generator import Generator
from benchmarks.machine import family_cpu_seconds, family_memory_bytes
from benchmarks.raw_load import Wire
from benchmarks.servers import Server, Variant
from benchmarks.sizes.stored import database_clock, disk_bytes, removal
from benchmarks.spark_filling import fill_dead_letters
from popserver.sizing.units import BODY_BYTES, LARGE_BODY_BYTES

BODIES = (64, BODY_BYTES, LARGE_BODY_BYTES)
MESSAGE_GROUPS = 1_000
RATE_MAX = 40_000  # messages that a server delivers in a second
POLL_S = 20
POLLS_PER_CONNECTION = 10
LARGE = BODIES[-1]
SETTLED_S = 2.0

Fill = Callable[[str, int], object]


def units(bench: Bench) -> Rounds:
    """One round for each database: bytes, CPU time in µs, memory."""
    found: Rounds = {}
    for name in bench.stores:
        found[name] = [
            _disk(bench, name)
            | _sends_and_receives(bench, name)
            | _large_bodies(bench, name)
            | _in_order(bench, name)
            | _groups(bench, name)
            | _polls(bench, name)
        ]
    return found


def _disk(bench: Bench, name: str) -> Figures:
    """Bytes for each message, by the size of its body; and how many more for one that is held, or in order."""
    count = bench.plan.sizes_stored

    def bytes_each(what: str, fill_with: Fill, how_many: int = count) -> float:
        bench.say(f"{name}: bytes of {how_many:,} messages ({what})")
        url = bench.new_url(name, f"bytes_{what}")
        fill_with(url, 8)
        empty = disk_bytes(url)
        url = bench.new_url(name, f"bytes_{what}")
        fill_with(url, how_many)
        return (disk_bytes(url) - empty) / (how_many - 8)

    def body_of(size: int) -> Fill:
        return lambda url, how_many: fill(url, STOCK_TOPIC, how_many, size, packs=False)

    # Large bodies are few, because their bytes are known from few.
    stored = {f"message_bytes_{size}": bytes_each(str(size), body_of(size), _few(count, size)) for size in BODIES}
    plain = stored[f"message_bytes_{BODIES[0]}"]
    small = BODIES[0]
    more: Mapping[str, Fill] = {
        "held": lambda url, how_many: fill_held(url, STOCK_TOPIC, how_many, small),
        "ordered": lambda url, how_many: fill_in_order(url, STOCK_TOPIC, how_many, small, MESSAGE_GROUPS),
        "dead_letter": lambda url, how_many: fill_dead_letters(url, how_many, small),
    }
    extra = {f"{kind}_bytes": bytes_each(kind, fill_with) - plain for kind, fill_with in more.items()}
    bench.say(f"{name}: retention")
    url = bench.new_url(name, "bytes_removal")
    fill(url, STOCK_TOPIC, count, bench.plan.body_bytes)
    removed = removal(url, time.time_ns() // 1_000_000, count // 2_000, database_clock(bench, name))
    return stored | extra | {unit: removed[unit] for unit in ("removal_server_us", "removal_database_us")}


def _few(count: int, body_bytes: int) -> int:
    return count if body_bytes < LARGE else count // 20


def _sends_and_receives(bench: Bench, name: str) -> Figures:
    """CPU time for each message, of the server and of the database: at full load of one server, and of one caller."""
    bench.stock(STOCK_TOPIC)
    load, found = bench.load(name), Figures()
    kinds = {"1": (1, CALLERS), "32": (32, CALLERS), "light": (1, 1)}
    for number, (kind, (per_request, callers)) in itertools.product(range(bench.plan.rounds), kinds.items()):
        bench.say(f"{name}: round {number + 1}, {per_request} per request, {callers} callers")
        sending = {"topic": "bench-sizes", "per_request": per_request, "body_bytes": BODY_BYTES}
        receiving = _receiving(bench, f"sizes-{number}-{kind}", per_request, rate=RATE_MAX if callers > 1 else 1)
        _keep(found, f"send_{kind}", _load(bench, load, "raw.send", callers, **sending))
        _keep(found, f"receive_{kind}", _load(bench, load, "raw.receive", callers, **receiving))
    return _medians(found)


def _large_bodies(bench: Bench, name: str) -> Figures:
    """The same with large bodies, 32 in a request: what a byte costs."""
    url, topic, count = bench.new_url(name, "large"), f"{STOCK_TOPIC}-bodies", _few(bench.plan.stock, LARGE)
    fill(url, topic, count, LARGE, packs=False)
    found = Figures()
    with bench.serving(name, url) as server, Generator(server, bench.cores.load) as load:
        for number in range(bench.plan.rounds):
            bench.say(f"{name}: round {number + 1}, bodies of {LARGE:,} bytes")
            receiving = _receiving(bench, f"large-{number}", 32, topic, count, rate=RATE_MAX // 4)
            send = _load(bench, load, "raw.send", topic="bench-sizes-large", per_request=32, body_bytes=LARGE)
            _keep(found, "send_large", send)
            _keep(found, "receive_large", _load(bench, load, "raw.receive", **receiving))
    return _medians(found)


def _in_order(bench: Bench, name: str) -> Figures:
    """The same of messages in message groups: in some, and in so many that each has few messages."""
    counts, found = {"ordered": MESSAGE_GROUPS, "ordered_many": bench.plan.sizes_message_groups}, Figures()
    with bench.in_order(name, {f"{STOCK_TOPIC}-{kind}": count for kind, count in counts.items()}) as load:
        for number, kind in itertools.product(range(bench.plan.rounds), counts):
            options = _receiving(bench, f"{kind}-{number}", 32, f"{STOCK_TOPIC}-{kind}")
            _keep(found, f"receive_{kind}", _load(bench, load, "raw.receive", **options))
    return _medians(found)


def _receiving(
    bench: Bench,
    group: str,
    per_request: int,
    topic: str = STOCK_TOPIC,
    stock: int | None = None,
    rate: int = RATE_MAX,
) -> dict[str, Any]:
    """Options of a load that receives at most `rate` messages a second. Groups for so many are made before."""
    stock = stock or bench.plan.stock
    return {
        "topic": topic,
        "group": f"bench-{group}",
        "stock": stock,
        # No more than are needed, because the time of the database has what it takes to make them.
        "groups": 1 + int(bench.plan.seconds * rate / stock),
        "ack_each": False,
        "batch_size": per_request,
    }


def _load(bench: Bench, load: Generator, verb: str, callers: int = CALLERS, **options: Any) -> dict[str, float]:
    """µs of CPU time for each message."""
    database_s = database_clock(bench, load.name)
    before_s, begun = database_s(), time.perf_counter()
    figures = load.run(verb, callers=callers, **options, **window(bench))
    # With the warm-up, during which there are messages too.
    used_s, took_s = database_s() - before_s, time.perf_counter() - begun
    return {
        "us": figures["server_us_per_message"],
        "database_us": used_s * 1e6 / max(figures["rate"] * took_s, 1),
        "rate": figures["rate"],
    }


def _keep(found: Figures, kind: str, figures: Mapping[str, float]) -> None:
    for name, value in figures.items():
        found.setdefault(f"{kind}_{name}", []).append(value)


def _medians(found: Figures) -> Figures:
    return {name: sorted(values)[len(values) // 2] for name, values in found.items()}


def _groups(bench: Bench, name: str) -> Figures:
    """Many consumer groups that have received, and are idle: memory, CPU time; a send to their topic."""
    count, topic = bench.plan.sizes_groups, "bench-groups"
    with bench.alone(Variant(name, bench.new_url(name, "groups"))) as server:
        bench.say(f"{name}: {count:,} groups")
        asyncio.run(_meet(server.endpoint, topic, 8))
        memory = family_memory_bytes(server.pid)
        figures: Figures = {"server_bytes": memory}
        with Generator(server, None) as load:
            alone = load.run("raw.send", topic=topic, per_request=32, callers=CALLERS, **window(bench, body=True))
            memory = family_memory_bytes(server.pid)
            asyncio.run(_meet(server.endpoint, topic, count))
            figures["group_bytes"] = (family_memory_bytes(server.pid) - memory) / count
            # The least of three, because Postgres cleans up after the groups were made.
            windows = [_idle_us(server, database_clock(bench, name)) for _ in range(3)]
            figures |= {f"group_{kind}": min(each[kind] for each in windows) / count for kind in windows[0]}
            beside = load.run("raw.send", topic=topic, per_request=32, callers=CALLERS, **window(bench, body=True))
        of_few = beside["server_us_per_message"] / alone["server_us_per_message"]
        return figures | {"groups": count, "send_of_few_groups": of_few}


def _idle_us(server: Server, database_s: Callable[[], float], seconds: float = 5.0) -> dict[str, float]:
    """µs of CPU time in a second, of the server and of the database."""
    time.sleep(SETTLED_S)
    before_s, database_before_s, begun = family_cpu_seconds(server.pid), database_s(), time.perf_counter()
    time.sleep(seconds)
    took_s = time.perf_counter() - begun
    used = {"us": family_cpu_seconds(server.pid) - before_s, "database_us": database_s() - database_before_s}
    return {kind: max(0.0, used_s) * 1e6 / took_s for kind, used_s in used.items()}


async def _meet(endpoint: str, topic: str, groups: int) -> None:
    """Receive once for each group, so that it has progress in each queue."""
    link = Wire(endpoint)
    numbers = iter(range(groups))

    async def caller() -> None:
        for number in numbers:
            await link.receive(f"bench-many-{number}", topic, poll_s=0)

    await link.receive("bench-many-0", topic, poll_s=0)
    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    await link.channel.close()


def _polls(bench: Bench, name: str) -> Figures:
    """Idle polls, ten on each connection, each renewed after 20 s."""
    count = bench.plan.sizes_polls
    options = ("--max-connections", str(count), "--max-connections-per-address", str(count))
    with (
        bench.alone(Variant(name, bench.new_url(name, "polls"), options)) as server,
        Generator(server, None) as load,
    ):
        bench.say(f"{name}: {count:,} idle polls")
        return polls_of(server, load, count, bench.plan.idle_seconds, database_clock(bench, name))


def polls_of(server: Server, load: Generator, count: int, seconds: float, database_s: Callable[[], float]) -> Figures:
    """Bytes and µs of CPU time in a second for each poll. Raises RuntimeError if one is refused."""
    # A server holds 1,024 polls of a group on a topic.
    options = {"topic": "bench-idle", "groups": max(10, count // 500), "poll_seconds": POLL_S}
    load.run("polls.open", polls=10, connections=1, **options)
    load.run("polls.close")
    time.sleep(1.0)
    memory = family_memory_bytes(server.pid)
    load.run("polls.open", polls=count, connections=count // POLLS_PER_CONNECTION, **options)
    used = _idle_us(server, database_s, seconds)
    held = family_memory_bytes(server.pid) - memory
    said = load.run("polls.close")
    unexpected = said["answers"].keys() - {"OK", "MESSAGE_NOT_FOUND", "connections lost"}
    if unexpected or said["open"] != count:
        raise RuntimeError(f"{said['open']} of {count} polls are open, and these were answered: {said['answers']}")
    return {"polls": count, "poll_bytes": held / count} | {f"poll_{kind}": each / count for kind, each in used.items()}
