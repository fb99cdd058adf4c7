# ruff: noqa: S608 - the words in the statements are our own
"""Checks a database: the database's own check for damage, and PopMQ's invariants, as queries that must find no rows."""

from __future__ import annotations

from sqlalchemy import Connection, text

from popserver.database.database import Database, plain_errors
from popserver.database.dialect import dialect_of
from popserver.database.states_of import OFFSET_MASK, is_shown_as
from popserver.model.errors import StoreUnavailable
from popserver.model.group import Mode
from popserver.model.names import RETRY_PREFIX
from popserver.model.states import CopyKind, LetterState, RedriveState, State
from popserver.model.topic import OFFSET_BITS

LOOKS_MAX = 50  # 20 ms apart: a Postgres backend ends a moment after its server has stopped

# Rows of deleted topics and groups are removed in steps, so invariants hold only for those in use.
_IN_USE = """
        JOIN progress p ON p.group_id = b.group_id AND p.queue_id = b.queue_id
        JOIN consumer_group g ON g.group_id = b.group_id AND g.deleted_at_ms IS NULL
        JOIN topic t ON t.topic_id = b.topic_id AND t.deleted_at_ms IS NULL"""
_OF_ITS_GROUP = "d.group_id = b.group_id AND d.topic_id = b.topic_id AND d.message_group = b.message_group"
_IS_READY = is_shown_as("h.state", State.READY)
_IS_PAUSED = """EXISTS (
            SELECT 1 FROM pause x
            WHERE x.group_id = b.group_id AND x.topic_id = b.topic_id AND x.message_group = b.message_group)"""
_START = """COALESCE(
            (SELECT o.start_offset FROM message_group_start o WHERE o.group_id = b.group_id
             AND o.queue_id = p.queue_id AND o.message_group = b.message_group), p.start_offset)"""
_HEADS = f"""
        SELECT group_id, topic_id, message_group, MIN(message_key) AS first_key,
               MIN(message_key >> {OFFSET_BITS}) AS queue_id
        FROM delivery WHERE message_group IS NOT NULL GROUP BY group_id, topic_id, message_group"""
# A plan has a column for each state of its messages.
_MISCOUNTED = " OR ".join(
    f"p.{state.lower()} <> (SELECT COUNT(*) FROM redrive r WHERE r.plan_id = p.plan_id AND r.state = '{state}')"
    for state in RedriveState
)
# Each query counts rows that must not exist.
INVARIANTS = {
    "a delivery without its message": """
        SELECT COUNT(*) FROM delivery d
        WHERE NOT EXISTS (SELECT 1 FROM message m WHERE m.message_key = d.message_key)""",
    "a delivery of a message the group has not reached": f"""
        SELECT COUNT(*) FROM delivery d
        JOIN consumer_group g ON g.group_id = d.group_id AND g.mode = '{Mode.POP}'
        JOIN progress p ON p.group_id = d.group_id AND p.queue_id = (d.message_key >> {OFFSET_BITS})
        WHERE (d.message_key & {OFFSET_MASK}) >= p.next_offset""",
    "a message that a group has twice": """
        SELECT COUNT(*) FROM (SELECT 1 FROM delivery GROUP BY group_id, message_key HAVING COUNT(*) > 1) twice""",
    "a delivery that does not wait, of a group that owns whole queues": f"""
        SELECT COUNT(*) FROM delivery d
        JOIN consumer_group g ON g.group_id = d.group_id AND g.mode = '{Mode.PULL}'
        WHERE d.state <> '{State.WAITING_RETRY}'""",
    "a message that waits though its retry is there": f"""
        SELECT COUNT(*) FROM delivery d
        JOIN consumer_group g ON g.group_id = d.group_id AND g.mode = '{Mode.PULL}' AND g.deleted_at_ms IS NULL
        JOIN topic t ON t.namespace = g.namespace AND t.name = '{RETRY_PREFIX}' || g.name AND t.deleted_at_ms IS NULL
        JOIN message c ON c.copy_of = d.message_key AND c.topic_id = t.topic_id
             AND c.copy_kind = '{CopyKind.RETRY}'""",
    "an entry of the index of keys without its message": """
        SELECT COUNT(*) FROM keyed_message k
        WHERE NOT EXISTS (SELECT 1 FROM message m WHERE m.message_key = ((k.block << 12) | k.slot))""",
    "a message beyond its queue's end": f"""
        SELECT COUNT(*) FROM queue q JOIN message m
        ON m.message_key = (SELECT MAX(l.message_key) FROM message l
                            WHERE l.message_key >= (q.queue_id << {OFFSET_BITS})
                            AND l.message_key < ((q.queue_id + 1) << {OFFSET_BITS}))
        WHERE (m.message_key & {OFFSET_MASK}) >= q.next_offset""",
    "progress beyond its queue's end": """
        SELECT COUNT(*) FROM progress p JOIN queue q ON q.queue_id = p.queue_id
        WHERE p.next_offset > q.next_offset""",
    "a dead letter without its copy": """
        SELECT COUNT(*) FROM dead_letter l JOIN consumer_group g ON g.group_id = l.group_id
        WHERE g.deleted_at_ms IS NULL AND NOT EXISTS (SELECT 1 FROM message m WHERE m.message_key = l.copy_key)""",
    "a dead letter that is still being delivered": """
        SELECT COUNT(*) FROM dead_letter l
        JOIN delivery d ON d.group_id = l.group_id AND d.message_key = l.origin_key
        WHERE l.redrive_state IS NULL""",
    "a dead letter whose copy is being delivered to its group": f"""
        SELECT COUNT(*) FROM dead_letter l
        JOIN delivery d ON d.group_id = l.group_id AND d.message_key = l.copy_key
        WHERE l.redrive_state IS NULL AND NOT EXISTS (
            SELECT 1 FROM progress p WHERE p.group_id = l.group_id AND p.queue_id = (l.copy_key >> {OFFSET_BITS}))""",
    "a dead letter that was redriven, without the record of it": f"""
        SELECT COUNT(*) FROM dead_letter l JOIN consumer_group g ON g.group_id = l.group_id AND g.deleted_at_ms IS NULL
        WHERE l.redrive_state = '{LetterState.REDRIVEN}' AND NOT EXISTS (
            SELECT 1 FROM redrive r WHERE r.plan_id = l.plan_id AND r.dead_letter_id = l.dead_letter_id
            AND r.state = '{RedriveState.REDRIVEN}')""",
    "a dead letter that was redriven twice": f"""
        SELECT COUNT(*) FROM (SELECT dead_letter_id FROM redrive WHERE state = '{RedriveState.REDRIVEN}'
                              GROUP BY dead_letter_id HAVING COUNT(*) > 1) twice""",
    "a redrive plan that miscounts its messages": f"""
        SELECT COUNT(*) FROM redrive_plan p JOIN consumer_group g ON g.group_id = p.group_id AND g.deleted_at_ms IS NULL
        WHERE {_MISCOUNTED}""",
    "a message group with two positions": """
        SELECT COUNT(*) FROM (SELECT 1 FROM message_group_progress
                              GROUP BY group_id, queue_id, message_group HAVING COUNT(*) > 1) twice""",
    # A client may begin in a lite topic after messages that its group has not reached.
    "a message group that stands beyond its queue's progress": f"""
        SELECT COUNT(*) FROM message_group_progress b {_IN_USE}
        WHERE b.next_offset > p.next_offset AND g.lite IS NULL""",
    "a message group that nothing locks and that is not open": f"""
        SELECT COUNT(*) FROM message_group_progress b {_IN_USE}
        WHERE b.open_since_ms IS NULL AND NOT EXISTS (SELECT 1 FROM delivery d WHERE {_OF_ITS_GROUP})
        AND NOT {_IS_PAUSED}""",
    "an open message group that is paused": f"""
        SELECT COUNT(*) FROM message_group_progress b {_IN_USE}
        WHERE b.open_since_ms IS NOT NULL AND {_IS_PAUSED}""",
    "a paused message group without its position": """
        SELECT COUNT(*) FROM pause x
        JOIN progress p ON p.group_id = x.group_id AND p.queue_id = x.queue_id
        JOIN consumer_group g ON g.group_id = x.group_id AND g.deleted_at_ms IS NULL
        JOIN topic t ON t.topic_id = x.topic_id AND t.deleted_at_ms IS NULL
        WHERE NOT EXISTS (SELECT 1 FROM message_group_progress b WHERE b.group_id = x.group_id
                          AND b.queue_id = x.queue_id AND b.message_group = x.message_group)""",
    "an open message group whose first message is held": f"""
        SELECT COUNT(*) FROM message_group_progress b {_IN_USE}
        JOIN delivery h ON h.group_id = b.group_id
             AND h.message_key = (SELECT MIN(d.message_key) FROM delivery d WHERE {_OF_ITS_GROUP})
        WHERE b.open_since_ms IS NOT NULL AND NOT {_IS_READY}""",
    "a message group whose first message is ready and that is not open": f"""
        SELECT COUNT(*) FROM ({_HEADS}) b {_IN_USE}
        JOIN delivery h ON h.group_id = b.group_id AND h.message_key = b.first_key
        WHERE {_IS_READY} AND NOT {_IS_PAUSED} AND NOT EXISTS (
            SELECT 1 FROM message_group_progress o WHERE o.group_id = b.group_id AND o.queue_id = b.queue_id
            AND o.message_group = b.message_group AND o.open_since_ms IS NOT NULL)""",
    "a provisional ack with nothing before it": f"""
        SELECT COUNT(*) FROM ({_HEADS}) b {_IN_USE}
        JOIN delivery h ON h.group_id = b.group_id AND h.message_key = b.first_key
        WHERE h.state = '{State.ACKED_PROVISIONALLY}'""",
    "a delivery of a message its message group has not reached": f"""
        SELECT COUNT(*) FROM message_group_progress b {_IN_USE}
        JOIN delivery d ON {_OF_ITS_GROUP} AND d.message_key >= ((b.queue_id << {OFFSET_BITS}) | b.next_offset)""",
    "a delivery in a message group before its start": f"""
        SELECT COUNT(*) FROM delivery b
        JOIN progress p ON p.group_id = b.group_id AND p.queue_id = (b.message_key >> {OFFSET_BITS})
        WHERE b.message_group IS NOT NULL AND (b.message_key & {OFFSET_MASK}) < {_START}""",
    "a message group that stands before its start": f"""
        SELECT COUNT(*) FROM message_group_progress b {_IN_USE} WHERE b.next_offset < {_START}""",
    "a lite subscription without its client": """
        SELECT COUNT(*) FROM lite_subscription s WHERE NOT EXISTS (
            SELECT 1 FROM lite_client c WHERE c.client_id = s.client_id AND c.group_id = s.group_id
            AND c.topic_id = s.topic_id)""",
    "a lite client whose group or topic is gone": """
        SELECT COUNT(*) FROM lite_client c
        WHERE NOT EXISTS (SELECT 1 FROM consumer_group g WHERE g.group_id = c.group_id)
           OR NOT EXISTS (SELECT 1 FROM topic t WHERE t.topic_id = c.topic_id)""",
    "a lite topic whose topic is gone": """
        SELECT COUNT(*) FROM lite_topic l WHERE NOT EXISTS (SELECT 1 FROM topic t WHERE t.topic_id = l.topic_id)""",
    "a topic that miscounts its lite topics": """
        SELECT COUNT(*) FROM topic t WHERE t.deleted_at_ms IS NULL
        AND t.lite_topics <> (SELECT COUNT(*) FROM lite_topic l WHERE l.topic_id = t.topic_id)""",
    "a message group that is kept for a client that does not subscribe to it": f"""
        SELECT COUNT(*) FROM message_group_progress b {_IN_USE}
        WHERE b.subscriber <> '' AND NOT EXISTS (
            SELECT 1 FROM lite_subscription s WHERE s.group_id = b.group_id AND s.topic_id = b.topic_id
            AND s.lite_topic = b.message_group AND s.client_id = b.subscriber)""",
    "a message group that is kept for nobody though a client subscribes to it": f"""
        SELECT COUNT(*) FROM message_group_progress b {_IN_USE}
        WHERE b.subscriber IS NULL AND EXISTS (
            SELECT 1 FROM lite_subscription s WHERE s.group_id = b.group_id AND s.topic_id = b.topic_id
            AND s.lite_topic = b.message_group)""",
}


def check_integrity(conn: Connection) -> None:
    """Raise `StoreUnavailable` with all problems that were found, and what to do."""
    if (damage := dialect_of(conn).damage(conn)) is not None:
        raise StoreUnavailable(
            f"the database file is damaged ({damage}); keep a copy of it with its -wal, and restore a backup;"
            " without a backup, try: sqlite3 FILE .recover"
        )
    counts = {name: conn.execute(text(query)).scalar_one() for name, query in INVARIANTS.items()}
    if found := [f"{name} ({count})" for name, count in counts.items() if count]:
        raise StoreUnavailable(
            f"the database holds {', '.join(found)}; keep a copy of it, and restore a backup that popmq db check"
            " accepts; if only PopMQ wrote to the database, please report this sentence"
        )


def check_unused(database: Database, conn: Connection) -> None:
    """Raise `StoreUnavailable` while a server uses this Postgres. A SQLite file has a lock for that."""
    if not database.is_shared:
        return
    for _ in range(LOOKS_MAX):
        if not (count := conn.execute(_OTHERS).scalar_one()):
            return
        conn.execute(_WAIT)
    raise StoreUnavailable(
        f"{database.name} is in use: popmq has {count} connections to it; stop every server, and repeat"
    )


def compact(database: Database) -> tuple[int, int]:
    """Rewrite a SQLite file without its free pages, while no server runs. Returns its size before and after, in bytes.

    Raises `StoreUnavailable` for Postgres, and `StoreFull` if the disk has no room for the copy; then the file is
    unchanged.
    """
    file = database.file
    if file is None:
        raise StoreUnavailable(f"{database.name} is not a SQLite file; Postgres reuses free space itself (autovacuum)")
    with plain_errors(database.name), database.connect_writer() as conn:
        # First, so that the size includes rows that are only in the WAL.
        conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        before = file.stat().st_size
        conn.exec_driver_sql("VACUUM")
        conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return before, file.stat().st_size


# A transaction sees the connections as they were at its first look, unless it forgets them.
_WAIT = text("SELECT pg_sleep(0.02), pg_stat_clear_snapshot()")
_OTHERS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ '^popmq( |$)'"
    " AND pid <> pg_backend_pid()"
)
