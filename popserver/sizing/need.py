"""What a load needs: disk, memory, processors, servers; and which limit it reaches first when it grows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from popserver.config import WORKERS_MAX, Config
from popserver.model.topic import OFFSET_BITS
from popserver.serve.rules import share_of
from popserver.sizing.load import Load
from popserver.sizing.units import Units

BUSY_MAX = 0.7  # of a core: what is left is for peaks and for maintenance
DISK_SPARE = 1.3  # for the log, free pages and rows that Postgres has not vacuumed yet
DAY_S = 86_400
YEAR_S = 365 * DAY_S
# Of `--workers`: docs/design/0022-workers.md.
SUPERVISOR_BYTES, WORKER_BYTES = 48e6, 112e6
WORKER_CONNECTIONS = 10  # to Postgres, in a reload, which starts the new workers first; otherwise half
POSTGRES_CONNECTIONS = 97  # of its default of 100, of which it keeps three for superusers
# Workers have equal shares of the connections, but the system does not spread connections equally.
UNEVEN = 1.25
# Settings of memory for clients, in MiB; workers divide them.
_BUFFERS = ("max_incoming", "send_backlog", "max_undelivered", "max_filter_memory")
_MIB = 1 << 20
CONNECTIONS_DEFAULT = int(Config.model_fields["max_connections"].default)


class Limit(NamedTuple):
    """A resource with a limit. `used`: the part that the load takes; 1.0: all."""

    name: str
    used: float
    advice: str


class Need(NamedTuple):
    """Bytes, cores (1.0: one core, always busy), and counts.

    Cores are those of many callers, whose requests share transactions; `…_max` those if each request comes alone.
    """

    message_bytes: float
    stored: float
    disk_bytes: float
    disk_planned_bytes: float
    dead_letters_per_day: float
    dead_letter_bytes_per_day: float
    server_cores: float
    server_cores_max: float
    database_cores: float
    database_cores_max: float
    workers: int
    memory_bytes: float
    memory_bytes_max: float
    connections: int
    limits: list[Limit]  # the first one is reached first
    beyond: list[str]  # what is more than was measured

    @property
    def fits(self) -> bool:
        return self.limits[0].used <= 1


class _Cores(NamedTuple):
    server: float
    database: float


def need(load: Load, units: Units, *, is_sqlite: bool) -> Need:
    workers = 1 if is_sqlite else _workers(load, units)
    cores, most = _cores(load, units, workers), _cores_alone(load, units, workers)
    message = units.bytes_of(load.body) + (units.ordered_bytes if load.message_groups else 0.0)
    dead = load.average_deliveries * load.dead / 100 * DAY_S
    held = load.deliveries * load.hold_ms / 1_000 + load.groups * load.message_groups
    disk = load.stored * message + held * units.held_bytes
    memory = _memory_bytes(load, units, workers)
    limits = sorted(_limits(load, cores, workers, is_sqlite=is_sqlite), key=lambda limit: -limit.used)
    return Need(
        message_bytes=message,
        stored=load.stored,
        disk_bytes=disk,
        disk_planned_bytes=disk * DISK_SPARE,
        dead_letters_per_day=dead,
        dead_letter_bytes_per_day=dead * (units.bytes_of(load.body) + units.dead_letter_bytes),
        server_cores=cores.server,
        server_cores_max=most.server,
        database_cores=cores.database,
        database_cores_max=most.database,
        workers=workers,
        memory_bytes=memory,
        memory_bytes_max=memory + _buffers_bytes(workers),
        connections=load.idle_polls,
        limits=limits,
        beyond=list(_beyond(load, workers, units)),
    )


def _workers(load: Load, units: Units) -> int:
    """So many that none is too busy. Each worker does the work of all groups."""
    free_cores = BUSY_MAX - load.groups * units.group / 1e6
    return max(1, math.ceil(_cores(load, units, 0).server / free_cores)) if free_cores > 0 else WORKERS_MAX + 1


def _cores(load: Load, units: Units, workers: int) -> _Cores:
    """Of the server, and of Postgres; SQLite runs in the server."""
    ordered, ordered_database = (units.ordered, units.ordered_database) if load.message_groups else (1.0, 1.0)
    sends, receives = (load.per_send, load.body), (load.per_receive, load.body)
    server = (
        load.rate * (units.send.at(*sends) + units.removal)
        + load.deliveries * units.receive.at(*receives) * ordered
        + load.idle_polls * units.poll
        + workers * load.groups * units.group
    )
    database = (
        load.rate * (units.send_database.at(*sends) + units.removal_database)
        + load.deliveries * units.receive_database.at(*receives) * ordered_database
        + load.idle_polls * units.poll_database
        + workers * load.groups * units.group_database
    )
    return _Cores(server / 1e6, database / 1e6)


def _cores_alone(load: Load, units: Units, workers: int) -> _Cores:
    """If no requests share a transaction. A server that is always busy has requests that do: it has one core."""
    cores = _cores(load, units, workers)

    def more(send: float, receive: float) -> float:
        return (load.rate * send + load.deliveries * receive) / 1e6

    sends, receives = (load.per_send, load.body), (load.per_receive, load.body)
    server = more(
        units.send.alone_at(*sends) - units.send.at(*sends),
        units.receive.alone_at(*receives) - units.receive.at(*receives),
    )
    database = more(
        units.send_database.alone_at(*sends) - units.send_database.at(*sends),
        units.receive_database.alone_at(*receives) - units.receive_database.at(*receives),
    )
    part = min(1.0, max(0.0, workers - cores.server) / server) if server else 1.0
    return _Cores(cores.server + part * server, cores.database + part * database)


def _memory_bytes(load: Load, units: Units, workers: int) -> float:
    """Each worker knows all groups; a poll is at one worker."""
    server, supervisor = units.server_bytes, 0.0
    if workers > 1:
        server, supervisor = max(units.server_bytes, WORKER_BYTES), SUPERVISOR_BYTES
    return supervisor + workers * (server + load.groups * units.group_bytes) + load.idle_polls * units.poll_bytes


def _buffers_bytes(workers: int) -> int:
    # Without the settings of this process, which is not that server.
    share = share_of(Config.model_construct(workers=workers))
    return workers * sum(int(getattr(share, name)) for name in _BUFFERS) * _MIB


def _limits(load: Load, cores: _Cores, workers: int, *, is_sqlite: bool) -> Iterator[Limit]:
    if is_sqlite:
        yield Limit(
            "one server on SQLite, which has one core",
            cores.server / BUSY_MAX,
            "use Postgres and --workers; or send and receive more messages in one request, or divide the topics among"
            " several brokers",
        )
    else:
        yield Limit(
            f"{WORKERS_MAX} workers on one port",
            workers / WORKERS_MAX,
            "divide the topics among several databases, each with servers of its own",
        )
        yield Limit(
            f"one Postgres with {load.postgres_cores} cores",
            cores.database / (BUSY_MAX * load.postgres_cores),
            "give Postgres a larger machine (--postgres-cores), or divide the topics among several databases",
        )
        yield Limit(
            f"connections to Postgres, of which its default leaves {POSTGRES_CONNECTIONS}",
            workers * WORKER_CONNECTIONS / POSTGRES_CONNECTIONS,
            f"set max_connections of Postgres to {workers * WORKER_CONNECTIONS + 3:,} or more: a reload needs ten for"
            " each worker",
        )
    connections = math.ceil(load.idle_polls * (UNEVEN if workers > 1 else 1))
    yield Limit(
        f"connections of clients, of which the default is {CONNECTIONS_DEFAULT:,}",
        connections / CONNECTIONS_DEFAULT,
        f"if each client has one poll, set --max-connections to {connections:,} or more, and LimitNOFILE or ulimit -n"
        " above that",
    )
    yield Limit(
        f"offsets of a queue, of which there are 2^{OFFSET_BITS}, in a year",
        load.average * YEAR_S / load.queues / (1 << OFFSET_BITS),
        "spread the messages over more queues: popmq topic update --queues",
    )


def _beyond(load: Load, workers: int, units: Units) -> Iterator[str]:
    planned = {
        "stored": (load.stored, "messages stored"),
        "groups": (load.groups, "consumer groups"),
        "message_groups": (load.message_groups, "message groups"),
        "idle_polls": (load.idle_polls, "idle polls"),
        "body": (load.body, "bytes in a body"),
        "workers": (workers, "workers"),
    }
    for name, (value, what) in planned.items():
        if value > units.reached[name]:
            yield f"{value:,.0f} {what}: measured up to {units.reached[name]:,.0f}"
