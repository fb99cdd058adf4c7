"""Whether what is stored makes sense: the database's own check, and PopMQ's invariants as queries that find nothing."""

from __future__ import annotations

from sqlalchemy import Connection, text

from popserver.domain.errors import StoreUnavailable

# Each finds what must not be (reliability invariants I1, I8, I13).
INVARIANTS = {
    "a delivery without its message": """
        SELECT COUNT(*) FROM delivery d
        WHERE NOT EXISTS (SELECT 1 FROM message m WHERE m.message_key = d.message_key)""",
    "a delivery of a message the group has not reached": """
        SELECT COUNT(*) FROM delivery d
        JOIN progress p ON p.group_id = d.group_id AND p.queue_id = (d.message_key >> 40)
        WHERE (d.message_key & 1099511627775) >= p.next_offset""",
    "a message beyond its queue's end": """
        SELECT COUNT(*) FROM queue q JOIN message m
        ON m.message_key = (SELECT MAX(l.message_key) FROM message l
                            WHERE l.message_key >= (q.queue_id << 40) AND l.message_key < ((q.queue_id + 1) << 40))
        WHERE (m.message_key & 1099511627775) >= q.next_offset""",
    "progress beyond its queue's end": """
        SELECT COUNT(*) FROM progress p JOIN queue q ON q.queue_id = p.queue_id
        WHERE p.next_offset > q.next_offset""",
    "a dead letter without its copy": """
        SELECT COUNT(*) FROM dead_letter l JOIN consumer_group g ON g.group_id = l.group_id
        WHERE g.deleted_at_ms IS NULL AND NOT EXISTS (SELECT 1 FROM message m WHERE m.message_key = l.copy_key)""",
    "a dead letter that is still being delivered": """
        SELECT COUNT(*) FROM dead_letter l
        JOIN delivery d ON d.group_id = l.group_id AND d.message_key = l.origin_key""",
}


def check_soundness(conn: Connection) -> None:
    """Raise `StoreUnavailable` naming what is wrong; silent when all is well."""
    if conn.dialect.name == "sqlite":
        found = str(conn.exec_driver_sql("PRAGMA integrity_check").scalar())
        if found != "ok":
            raise StoreUnavailable(f"the database file is damaged ({found}); restore it from a backup")
    for name, query in INVARIANTS.items():
        count = conn.execute(text(query)).scalar_one()
        if count:
            raise StoreUnavailable(f"the database holds {name}, {count} times; please report this")
