"""The facts about a server as a whole: its health, its numbers and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from popclient.admin.facts import GroupLag


@dataclass(frozen=True, slots=True)
class Budget:
    """How much of something the server's callers may take up at once.

    option: the setting of `popmq serve` that sets the limit. unit: what is counted, such as "bytes". peak: the highest
    use since the start of the server; refused: how often there was no room since then.
    """

    name: str
    option: str
    unit: str
    limit: int
    used: int
    peak: int
    refused: int


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """One condition of readiness, and a sentence that says how it is."""

    name: str
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the server's process works, and whether the server should get requests. Warnings change neither."""

    live: bool
    ready: bool
    checks: tuple[HealthCheck, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StuckRow:
    """A row of the store because of which messages may never be delivered, and what its repair does.

    group, topic: empty, and queue_id, queue_offset: None, if it has none. message_group: or its lite topic. repaired:
    whether it is repaired now; if it is not, another transaction had it, or it was sound by then.
    """

    invariant: str
    repair: str
    group: str
    topic: str
    queue_id: int | None
    message_group: str
    queue_offset: int | None
    repaired: bool


@dataclass(frozen=True, slots=True)
class StoreRepair:
    """What was found, at most 1,000 rows of it; how many there are in all, and how many are repaired."""

    rows: tuple[StuckRow, ...]
    found: int
    repaired: int


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values were at most `limits[i]` and above the limit before; the last of the counts: above all limits."""

    limits: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


@dataclass(frozen=True, slots=True)
class Storage:
    """The space that the database takes, in bytes; None for what is not known, such as the disk of a Postgres.

    database_bytes: WAL included.
    """

    database_bytes: int | None = None
    wal_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """A server that stops as soon as its clients have had the time of `handover` to go to other servers.

    address: for clients; empty if it is not known.
    """

    address: str
    handover: timedelta


@dataclass(frozen=True, slots=True)
class KnownServer:
    """A server that uses the database, or used it until a short time ago.

    address: for clients; empty if it is not known. last_seen: its last heartbeat; running: that is not late.
    asked: it gave this answer. leaving: it hands its clients over to other servers, or stops.
    """

    server_id: str
    address: str
    last_seen: datetime
    running: bool
    asked: bool
    leaving: bool


@dataclass(frozen=True, slots=True)
class Status:
    """Server statistics. `store` is its database URL without the password.

    topics: without those of groups, for dead letters and retries. messages: stored in these topics now; appended: ever
    stored there.
    oldest_overdue: how late the latest hold, back-off or delayed message is that should have ended; 0 when none is.
    hints: a sentence for each thing that needs attention.
    commit_times: seconds of the server's commits since its start; None from a server that does not tell them.
    storage: the space that the database takes; None from a server that does not tell it.
    servers: those on its Postgres, itself too; none on SQLite, whose file has one server.
    dead_elsewhere: the dead letters of deleted topics, and of those that a group was removed from, which lag does not
    count.
    """

    version: str
    store: str
    durability: str
    schema_revision: str
    started_at: datetime
    now: datetime
    topics: int
    groups: int
    messages: int
    dead_letters: int
    parked_polls: int
    connected_clients: int
    discarded_transactions: int
    lag: tuple[GroupLag, ...]
    oldest_overdue: timedelta
    hints: tuple[str, ...]
    budgets: tuple[Budget, ...]
    appended: int = 0
    commit_times: Histogram | None = None
    storage: Storage | None = None
    servers: tuple[KnownServer, ...] = ()
    dead_elsewhere: tuple[GroupLag, ...] = ()


@dataclass(frozen=True, slots=True)
class ChartPoint:
    """A moment of a chart. None: not known. Counts are the highest ones since the point before.

    stored_rate, done_rate: messages per second since the point before. oldest_age: since the oldest ready message was
    stored. mean_delay: from storing to the first delivery, of the deliveries since then; within slow_delay 99 % of them
    came, of several servers the longest.
    """

    at: datetime
    stored_rate: float | None
    done_rate: float | None
    ready: int | None
    inflight: int | None
    waiting_retry: int | None
    oldest_age: timedelta | None
    mean_delay: timedelta | None
    slow_delay: timedelta | None


@dataclass(frozen=True, slots=True)
class Chart:
    """How a group, over all of its topics, or a topic, over all of its groups, has done lately; the oldest point first.

    step: the time between two points, if there is no pause. kept: whether the server keeps charts.
    """

    step: timedelta
    points: tuple[ChartPoint, ...]
    kept: bool


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that needs a person, and the next step.

    subject: the group, server or limit that it is about; empty for the server that was asked. detail: what else is
    known, such as the reason of a dead letter; a webhook does not get it. page: its page in the console, in parts.
    """

    kind: str
    namespace: str
    subject: str
    sentence: str
    detail: str
    next_step: str
    page: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Alerts:
    """What needs a person now, the most urgent first.

    untold: events that the server's webhook has not accepted yet; webhook_failure: why it has not accepted the first of
    them.
    """

    alerts: tuple[Alert, ...]
    has_webhook: bool
    untold: int
    webhook_failure: str
