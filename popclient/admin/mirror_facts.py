"""The facts about mirrors: processes that hand messages over from one server to another."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class MirrorReport:
    """What a mirror reports about itself.

    mirror_id: 1 to 64 characters out of A-Z a-z 0-9 _ -. source, target: the endpoints, without secrets. group: None
    for the whole topic. owner: a random id of the process, written like mirror_id. host: where the process runs, for
    people. state: RUNNING, HELD (it waits), STOPPED or DONE. sentence: what it waits for, or why it has stopped.
    position: where another process continues, at most 16 KiB that only the mirror understands.
    handed: messages that the other side has stored; repeated: that it had already. Counts are since the mirror was
    recorded. lag: messages that are left at the source; None: not known.
    """

    mirror_id: str
    source: str
    target: str
    topic: str
    group: str | None
    owner: str
    host: str
    state: str = "RUNNING"
    sentence: str = ""
    position: str = ""
    handed: int = 0
    repeated: int = 0
    dead_letters: int = 0
    scheduled: int = 0
    bytes: int = 0
    lag: int | None = None


@dataclass(frozen=True, slots=True)
class MirrorFacts:
    """The record of a mirror, with what it reported last (`MirrorReport`).

    lease_until: until then no other process can take it. started_at: when its owner took the lease first; updated_at:
    the last report. has_lease: whether the lease lasts now, by the server's clock; report_age: since the last report.
    A list has no positions.
    """

    mirror_id: str
    source: str
    target: str
    namespace: str
    topic: str
    group: str | None
    owner: str
    host: str
    state: str
    sentence: str
    position: str
    handed: int
    repeated: int
    dead_letters: int
    scheduled: int
    bytes: int
    lag: int | None
    lease_until: datetime
    started_at: datetime
    updated_at: datetime
    has_lease: bool
    report_age: timedelta
