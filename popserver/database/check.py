# ruff: noqa: S608 - the words in the statements are our own
"""Checks a database for damage and for broken invariants; and what a restore reads and would replace."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text

from popserver.database.database import Database, plain_errors
from popserver.database.dialect import dialect_of
from popserver.database.invariants.queries import statement
from popserver.database.invariants.stuck import FIRST_OF_GROUP, IN_USE, IS_PAUSED, STUCK
from popserver.database.states_of import is_shown_as
from popserver.model.errors import StoreUnavailable
from popserver.model.group import Mode
from popserver.model.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from popserver.model.states import CopyKind, LetterState, RedriveState, State
from popserver.model.topic import OFFSET_BITS

CHECKS_MAX = 50  # 20 ms apart: a Postgres backend ends a moment after its server has stopped

# A plan has a column for each state of its messages.
_MISCOUNTED = " OR ".join(
    f"p.{state.lower()} <> (SELECT COUNT(*) FROM redrive r WHERE r.plan_id = p.plan_id AND r.state = '{state}')"
    for state in RedriveState
)
# Each query counts rows that must not exist, but that keep no message from being delivered.
_WRONG = {
    "a message that waits though its retry is there": f"""
        SELECT COUNT(*) FROM delivery d
        JOIN consumer_group g ON g.group_id = d.group_id AND g.mode = '{Mode.PULL}' AND g.deleted_at_ms IS NULL
        JOIN topic t ON t.namespace = g.namespace AND t.name = '{RETRY_PREFIX}' || g.name AND t.deleted_at_ms IS NULL
        JOIN message c ON c.copy_of = d.message_key AND c.topic_id = t.topic_id
             AND c.copy_kind = '{CopyKind.RETRY}'""",
    "an entry of the index of keys without its message": """
        SELECT COUNT(*) FROM keyed_message k
        WHERE NOT EXISTS (SELECT 1 FROM message m WHERE m.message_key = ((k.block << 12) | k.slot))""",
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
    "an open message group that is paused": f"""
        SELECT COUNT(*) FROM message_group_progress b {IN_USE}
        WHERE b.open_since_ms IS NOT NULL AND {IS_PAUSED}""",
    "a paused message group without its position": """
        SELECT COUNT(*) FROM pause x
        JOIN progress p ON p.group_id = x.group_id AND p.queue_id = x.queue_id
        JOIN consumer_group g ON g.group_id = x.group_id AND g.deleted_at_ms IS NULL
        JOIN topic t ON t.topic_id = x.topic_id AND t.deleted_at_ms IS NULL
        WHERE NOT EXISTS (SELECT 1 FROM message_group_progress b WHERE b.group_id = x.group_id
                          AND b.queue_id = x.queue_id AND b.message_group = x.message_group)""",
    "an open message group whose first message is held": f"""
        SELECT COUNT(*) FROM message_group_progress b {IN_USE}
        JOIN delivery h ON h.group_id = b.group_id
             AND h.message_key = {FIRST_OF_GROUP}
        WHERE b.open_since_ms IS NOT NULL AND NOT {is_shown_as("h.state", State.READY)}""",
    "a lite client of a group or topic that does not exist": """
        SELECT COUNT(*) FROM lite_client c
        WHERE NOT EXISTS (SELECT 1 FROM consumer_group g WHERE g.group_id = c.group_id)
           OR NOT EXISTS (SELECT 1 FROM topic t WHERE t.topic_id = c.topic_id)""",
    "a lite topic of a topic that does not exist": """
        SELECT COUNT(*) FROM lite_topic l WHERE NOT EXISTS (SELECT 1 FROM topic t WHERE t.topic_id = l.topic_id)""",
    "a topic that miscounts its lite topics": """
        SELECT COUNT(*) FROM topic t WHERE t.deleted_at_ms IS NULL
        AND t.lite_topics <> (SELECT COUNT(*) FROM lite_topic l WHERE l.topic_id = t.topic_id)""",
}
# The invariants that hold whether or not a server runs.
INVARIANTS = _WRONG | {each.name: each.count() for each in STUCK if not each.is_late}


def check_integrity(conn: Connection) -> None:
    """Raise `StoreUnavailable` with all problems that were found, and what to do."""
    if (damage := dialect_of(conn).damage(conn)) is not None:
        raise StoreUnavailable(
            f"the database file is damaged ({damage}); keep a copy of it with its -wal, and restore a backup;"
            " without a backup, try: sqlite3 FILE .recover"
        )
    counts = {name: conn.execute(statement(conn, query)).scalar_one() for name, query in INVARIANTS.items()}
    if found := {name: f"{name} ({count})" for name, count in counts.items() if count}:
        remedy = "restore a backup that popmq db check accepts"
        if not found.keys() & _WRONG.keys():
            remedy = "have a server repair it with popmq repair, which shows first what it would do"
        raise StoreUnavailable(
            f"the database holds {', '.join(found.values())}; keep a copy of it, and {remedy}; if only PopMQ wrote to"
            " the database, please report this sentence"
        )


def check_unused(database: Database, conn: Connection) -> None:
    """Raise `StoreUnavailable` while a server uses this Postgres. A SQLite file has a lock for that."""
    if not database.is_shared:
        return
    for _ in range(CHECKS_MAX):
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


# A transaction reads `pg_stat_activity` once and keeps that snapshot, until it is cleared.
_WAIT = text("SELECT pg_sleep(0.02), pg_stat_clear_snapshot()")
_OTHERS = text(
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name ~ '^popmq( |$)'"
    " AND pid <> pg_backend_pid()"
)


# ---- What a restore reads, and what it would replace ----

_MAGIC_DUMP: Final = b"PGDMP"  # of pg_dump's custom format
_MAGIC_SQLITE: Final = b"SQLite format 3\0"


def check_kind(file: Path, wanted: str) -> None:
    """Raise `StoreUnavailable` if the file is a backup of the other kind of database."""
    with file.open("rb") as opened:
        begin = opened.read(len(_MAGIC_SQLITE))
    if wanted == "sqlite" and begin.startswith(_MAGIC_DUMP):
        raise StoreUnavailable(
            f"{file} is a dump of Postgres, and the database to restore is SQLite; restore it into Postgres"
            " (--database-url postgresql://USER@HOST/NAME), then copy it: popmq db copy --from postgresql://… --to"
            " sqlite:///FILE"
        )
    if wanted == "postgresql" and begin == _MAGIC_SQLITE:
        raise StoreUnavailable(
            f"{file} is a backup of SQLite, and the database to restore is Postgres; copy it: popmq db copy --from"
            f" sqlite:///{file} --to postgresql://…"
        )


def in_words(topics: int, messages: int, letters: int) -> str:
    parts = zip((topics, messages, letters), ("topic", "message", "dead letter"), strict=True)
    named = [f"{count:,} {noun}{'' if count == 1 else 's'}" for count, noun in parts]
    return f"{named[0]}, {named[1]} and {named[2]}"


def _is_own(topic: str) -> str:
    """Whether a topic is one that `popmq status` counts: it exists, and is none of a group."""
    prefixes = (DEAD_LETTER_PREFIX, RETRY_PREFIX)
    return " AND ".join(
        [
            f"{topic}.deleted_at_ms IS NULL",
            *(f"SUBSTR({topic}.name, 1, {len(each)}) <> '{each}'" for each in prefixes),
        ]
    )


# What `popmq status` counts. From the counters of queues, because to count messages takes long.
CONTENTS: Final = f"""
SELECT (SELECT COUNT(*) FROM topic t WHERE {_is_own("t")}),
       (SELECT COALESCE(SUM(q.next_offset - q.min_offset), 0) FROM queue q JOIN topic t ON t.topic_id = q.topic_id
        WHERE {_is_own("t")}),
       (SELECT COUNT(*) FROM dead_letter l JOIN consumer_group g ON g.group_id = l.group_id
        WHERE l.redrive_state IS NULL AND g.deleted_at_ms IS NULL)
"""
