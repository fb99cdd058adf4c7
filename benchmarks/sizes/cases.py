"""The cases of sizes. `python -m benchmarks.sizes.pages` writes their figures where `popmq size` and the page are."""

from __future__ import annotations

from benchmarks.bench import Bench
from benchmarks.case import Case, Rounds
from benchmarks.generator import Generator
from benchmarks.peers.processes import free_port
from benchmarks.servers import Variant
from benchmarks.sizes.stored import stored
from benchmarks.sizes.units import polls_of, units


def polls_over_workers(bench: Bench) -> Rounds:
    """Idle polls that workers on one Postgres share."""
    count, workers = bench.plan.sizes_polls_over_workers, bench.plan.sizes_workers
    options = ["--max-connections", str(count), "--max-connections-per-address", str(count)]
    # The workers share a port, so it is a given one.
    options += ["--workers", str(workers), "--port", str(free_port()), "--http", "off"]
    variant = Variant("postgres", bench.new_url("postgres", "many_polls"), tuple(options))
    with bench.alone(variant) as server, Generator(server, None) as load:
        bench.say(f"{count:,} idle polls over {workers} workers")
        figures = polls_of(server, load, count, bench.plan.idle_seconds, bench.postgres_cpu_s)
    return {"postgres": [figures | {"workers": workers}]}


SIZES_CASES = {
    "sizes_units": Case("bytes of a message with 64 bytes", units, key="message_bytes_64", unit="bytes"),
    "sizes_stored": Case("a start with so many messages stored", stored, key="start_s", unit="s"),
    "sizes_polls": Case("idle polls over workers", polls_over_workers, key="poll_us", unit="µs/s"),
}
