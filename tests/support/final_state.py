"""What a database holds, read past the server: the ground truth that histories are judged against."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, create_engine, make_url, text

from popserver.database.check import check_integrity
from popserver.model.message import id_from_bytes
from tests.support.checker import Final, Lag, StateRow, Stored
from tests.support.workload import digest

_STORED = """
SELECT m.message_id, m.body, m.properties, m.message_group, m.message_key, q.number
FROM message m JOIN topic t ON t.topic_id = m.topic_id JOIN queue q ON q.queue_id = m.message_key >> 40
WHERE t.name = :topic ORDER BY m.message_key
"""
_STATES = "SELECT consumer_group, message_id, state, attempt FROM message_state WHERE topic = :topic"
_LAG = """
SELECT consumer_group, ready, inflight, waiting_retry, dead_letters, stored FROM group_lag WHERE topic = :topic
"""
_BEGUN = """
SELECT g.name, q.queue_id
FROM queue q JOIN topic t ON t.topic_id = q.topic_id JOIN progress p ON p.queue_id = q.queue_id
JOIN consumer_group g ON g.group_id = p.group_id
WHERE t.name = :topic AND q.next_offset > 0
"""
_WITH_MESSAGES = """
SELECT q.queue_id FROM queue q JOIN topic t ON t.topic_id = q.topic_id WHERE t.name = :topic AND q.next_offset > 0
"""
_UNFINISHED = "SELECT COALESCE(SUM(ready + inflight + waiting_retry), 0) FROM group_lag WHERE topic = :topic"


def final(conn: Connection, topic: str, *, max_attempts: int = 17) -> Final:
    """The state of one topic. Raises where the database itself is not sound (invariant I13)."""
    check_integrity(conn)
    names = {"topic": topic}
    return Final(
        stored=[
            Stored(
                id_from_bytes(row.message_id),
                digest(row.body, json.loads(row.properties or "{}")),
                row.message_group or "",
                row.number,
                row.message_key & ((1 << 40) - 1),
            )
            for row in conn.execute(text(_STORED), names)
        ],
        states=[
            StateRow(row.consumer_group, id_from_bytes(row.message_id), row.state, row.attempt)
            for row in conn.execute(text(_STATES), names)
        ],
        lag=[Lag(group, *map(int, counts)) for group, *counts in conn.execute(text(_LAG), names)],
        max_attempts=max_attempts,
    )


def unfinished(conn: Connection, topic: str) -> int:
    """How many messages are still to be consumed, over all groups; one that is not due yet counts once."""
    delayed = conn.execute(text("SELECT COUNT(*) FROM pending WHERE kind = 'DELAY'")).scalar_one()
    return int(conn.execute(text(_UNFINISHED), {"topic": topic}).scalar_one()) + int(delayed)


def all_have_begun(conn: Connection, topic: str, groups: Collection[str]) -> bool:
    """Whether each of these groups has progress in each queue that ever had a message; before, nothing of it counts as
    unfinished."""
    queues = set(conn.execute(text(_WITH_MESSAGES), {"topic": topic}).scalars())
    begun = {tuple(row) for row in conn.execute(text(_BEGUN), {"topic": topic})}
    return all((group, queue) in begun for group in groups for queue in queues)


def stored(conn: Connection, topic: str) -> int:
    """How many messages there are."""
    return int(conn.execute(text(f"SELECT COUNT(*) FROM ({_STORED}) every"), {"topic": topic}).scalar_one())


@contextmanager
def looking(database_url: str) -> Iterator[Connection]:
    """A connection that only reads, also beside a running server."""
    url = make_url(database_url)
    if url.get_backend_name() == "sqlite":
        engine = create_engine(f"sqlite:///file:{url.database}?mode=ro&uri=true")
    else:
        engine = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="REPEATABLE READ")
    try:
        with engine.connect() as conn:
            yield conn
    finally:
        engine.dispose()
