"""What a load needs: disk, memory, processors, servers; and what ends first when the load grows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from popserver.config import WORKERS_MAX, Config
from popserver.model.topic import OFFSET_BITS
from popserver.sizing.load import Load
from popserver.sizing.units import Units

BUSY_MAX = 0.7  # of a core: what is left is for peaks and for maintenance
DISK_SPARE = 1.3  # for the log, free pages and rows that Postgres has not vacuumed yet
DAY_S = 86_400
YEAR_S = 365 * DAY_S
_MIB = 1 << 20
# Settings of memory for clients, in MiB; workers divide them.
_BUFFERS = ("max_incoming", "send_backlog", "max_undelivered", "max_filter_memory")
CONNECTIONS_DEFAULT = int(Config.model_fields["max_connections"].default)


class Limit(NamedTuple):
    """Something that ends. `used`: how much of it the load takes, 1.0 for all."""

    name: str
    used: float
    advice: str


class Need(NamedTuple):
    """Bytes, cores (1.0: one core, always busy), and counts."""

    message_bytes: float
    stored: float
    disk_bytes: float
    disk_planned_bytes: float
    dead_letters_per_day: float
    dead_letter_bytes_per_day: float
    server_cores: float
    database_cores: float
    workers: int
    memory_bytes: float
    memory_bytes_max: float
    connections: int
    limits: list[Limit]  # the first one is reached first
    beyond: list[str]  # what is more than was measured

    @property
    def fits(self) -> bool:
        return self.limits[0].used <= 1


def need(load: Load, units: Units, reached: Mapping[str, float], *, is_sqlite: bool) -> Need:
    server, database = _server_cores(load, units), _database_cores(load, units)
    workers = 1 if is_sqlite else max(1, math.ceil(server / BUSY_MAX))
    message = units.bytes_of(load.body) + (units.ordered_bytes if load.message_groups else 0.0)
    dead = load.deliveries * load.dead / 100 * DAY_S
    held = load.deliveries * load.hold / 1_000 + load.groups * load.message_groups
    disk = load.stored * message + held * units.held_bytes
    # Each worker knows all groups; a poll is at one worker.
    of_workers = workers * (units.server_bytes + load.groups * units.group_bytes)
    memory = of_workers + load.idle_polls * units.poll_bytes
    limits = sorted(_limits(load, server, database, is_sqlite=is_sqlite), key=lambda limit: -limit.used)
    return Need(
        message_bytes=message,
        stored=load.stored,
        disk_bytes=disk,
        disk_planned_bytes=disk * DISK_SPARE,
        dead_letters_per_day=dead,
        dead_letter_bytes_per_day=dead * (units.bytes_of(load.body) + units.dead_letter_bytes),
        server_cores=server,
        database_cores=database,
        workers=workers,
        memory_bytes=memory,
        memory_bytes_max=memory + sum(Config.model_fields[name].default for name in _BUFFERS) * _MIB,
        connections=load.idle_polls,
        limits=limits,
        beyond=list(_beyond(load, workers, reached)),
    )


def _server_cores(load: Load, units: Units) -> float:
    receive = units.receive.at(load.per_receive) * (units.ordered if load.message_groups else 1)
    idle = load.groups * units.group_us + load.idle_polls * units.poll_us
    return (load.rate * (units.send.at(load.per_send) + units.removal_us) + load.deliveries * receive + idle) / 1e6


def _database_cores(load: Load, units: Units) -> float:
    """Of Postgres; SQLite runs in the server."""
    receive = units.receive_database.at(load.per_receive) * (units.ordered_database if load.message_groups else 1)
    return (load.rate * units.send_database.at(load.per_send) + load.deliveries * receive) / 1e6


def _limits(load: Load, cores: float, database_cores: float, *, is_sqlite: bool) -> Iterator[Limit]:
    if is_sqlite:
        yield Limit(
            "one server on SQLite, which has one core",
            cores / BUSY_MAX,
            "use Postgres and --workers; or send and receive more messages in one request, or make the topics of"
            " several brokers out of one",
        )
    else:
        yield Limit(
            f"{WORKERS_MAX} workers on one port",
            cores / (BUSY_MAX * WORKERS_MAX),
            "divide the topics among several databases, each with servers of its own",
        )
        yield Limit(
            f"one Postgres with {load.postgres_cores} cores",
            database_cores / (BUSY_MAX * load.postgres_cores),
            "give Postgres a larger machine (--postgres-cores), or divide the topics among several databases",
        )
    yield Limit(
        f"offsets of a queue, of which there are 2^{OFFSET_BITS}, in a year",
        load.rate * YEAR_S / load.queues / (1 << OFFSET_BITS),
        "spread the messages over more queues: popmq topic update --queues",
    )


def _beyond(load: Load, workers: int, reached: Mapping[str, float]) -> Iterator[str]:
    planned = {
        "stored": (load.stored, "messages stored"),
        "groups": (load.groups, "consumer groups"),
        "message_groups": (load.message_groups, "message groups"),
        "idle_polls": (load.idle_polls, "idle polls"),
        "body": (load.body, "bytes in a body"),
        "workers": (workers, "workers"),
    }
    for name, (value, what) in planned.items():
        if value > reached[name]:
            yield f"{value:,.0f} {what}: measured up to {reached[name]:,.0f}"
