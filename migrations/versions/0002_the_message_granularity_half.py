"""Message groups, half and delayed messages, several servers, users and policies."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import op

from popserver.store import functions

revision = "0002"
down_revision = "0001"

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

MESSAGE_STATE = """
SELECT t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.message_key, q.number AS queue_id,
       m.message_key & 1099511627775 AS queue_offset, g.namespace AS group_namespace, g.name AS consumer_group,
       CASE WHEN l.group_id IS NOT NULL THEN 'DLQ'
            WHEN d.group_id IS NOT NULL THEN d.state
            WHEN (m.message_key & 1099511627775) >= p.next_offset THEN 'READY'
            WHEN b.next_offset <= (m.message_key & 1099511627775) THEN 'READY'
            ELSE 'COMMIT' END AS state,
       COALESCE(d.attempt, l.attempt) AS attempt, d.visible_at_ms, d.client_id, m.stored_at_ms, m.tag, m.keys,
       m.message_group
FROM message m
JOIN queue q ON q.queue_id = (m.message_key >> 40)
JOIN topic t ON t.topic_id = q.topic_id
JOIN progress p ON p.queue_id = q.queue_id
JOIN consumer_group g ON g.group_id = p.group_id
LEFT JOIN delivery d ON d.group_id = p.group_id AND d.message_key = m.message_key
LEFT JOIN dead_letter l ON l.group_id = p.group_id AND l.origin_key = m.message_key
LEFT JOIN message_group_progress b ON b.group_id = p.group_id AND b.queue_id = q.queue_id
      AND b.message_group = m.message_group AND m.origin_key = 0
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""

GROUP_LAG = """
SELECT g.group_id, g.namespace AS group_namespace, g.name AS consumer_group, t.topic_id,
       t.namespace AS topic_namespace, t.name AS topic,
       s.beyond + COALESCE(d.ready, 0) + COALESCE(b.behind, 0) AS ready, COALESCE(d.inflight, 0) AS inflight,
       COALESCE(d.waiting_retry, 0) AS waiting_retry, COALESCE(l.dead_letters, 0) AS dead_letters,
       s.stored, s.oldest_ready_ms
FROM (SELECT p.group_id, q.topic_id,
             SUM(q.next_offset - CASE WHEN p.next_offset < q.min_offset THEN q.min_offset
                                      ELSE p.next_offset END) AS beyond,
             SUM(q.next_offset - q.min_offset) AS stored,
             MIN((SELECT m.stored_at_ms FROM message m
                  WHERE m.message_key = ((p.queue_id << 40)
                        | CASE WHEN p.next_offset < q.min_offset THEN q.min_offset ELSE p.next_offset END))
                ) AS oldest_ready_ms
      FROM progress p JOIN queue q ON q.queue_id = p.queue_id GROUP BY p.group_id, q.topic_id) s
JOIN consumer_group g ON g.group_id = s.group_id
JOIN topic t ON t.topic_id = s.topic_id
LEFT JOIN (SELECT group_id, topic_id, SUM(CASE WHEN state = 'READY' THEN 1 ELSE 0 END) AS ready,
                  SUM(CASE WHEN state = 'INFLIGHT' THEN 1 ELSE 0 END) AS inflight,
                  SUM(CASE WHEN state = 'WAITING_RETRY' THEN 1 ELSE 0 END) AS waiting_retry
           FROM delivery GROUP BY group_id, topic_id) d ON d.group_id = s.group_id AND d.topic_id = s.topic_id
LEFT JOIN (SELECT b.group_id, q.topic_id, COUNT(*) AS behind
           FROM message_group_progress b
           JOIN queue q ON q.queue_id = b.queue_id
           JOIN progress p ON p.group_id = b.group_id AND p.queue_id = b.queue_id
           JOIN message m ON m.message_group = b.message_group AND m.origin_key = 0
                AND m.message_key >= ((b.queue_id << 40) | b.next_offset)
                AND m.message_key < ((b.queue_id << 40) | p.next_offset)
           GROUP BY b.group_id, q.topic_id) b ON b.group_id = s.group_id AND b.topic_id = s.topic_id
LEFT JOIN (SELECT group_id, origin_topic_id, COUNT(*) AS dead_letters
           FROM dead_letter GROUP BY group_id, origin_topic_id) l
       ON l.group_id = s.group_id AND l.origin_topic_id = s.topic_id
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""

DEAD_LETTERS = """
SELECT l.dead_letter_id AS id, g.namespace AS group_namespace, g.name AS consumer_group,
       t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.tag, m.keys, m.message_group, m.message_type,
       oq.number AS queue_id, l.origin_key & 1099511627775 AS queue_offset, l.origin_key, l.copy_key, m.properties,
       m.body_encoding, m.born_at_ms, m.stored_at_ms, l.dead_at_ms, l.attempt AS delivery_attempt, l.reason,
       l.redrive_state, m.body
FROM dead_letter l
JOIN consumer_group g ON g.group_id = l.group_id
LEFT JOIN topic t ON t.topic_id = l.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (l.origin_key >> 40)
JOIN message m ON m.message_key = l.copy_key
"""

MESSAGE_STATE_BEFORE = """
SELECT t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.message_key, q.number AS queue_id,
       m.message_key & 1099511627775 AS queue_offset, g.namespace AS group_namespace, g.name AS consumer_group,
       CASE WHEN l.group_id IS NOT NULL THEN 'DLQ'
            WHEN d.group_id IS NOT NULL THEN d.state
            WHEN (m.message_key & 1099511627775) >= p.next_offset THEN 'READY'
            ELSE 'COMMIT' END AS state,
       COALESCE(d.attempt, l.attempt) AS attempt, d.visible_at_ms, d.client_id, m.stored_at_ms, m.tag, m.keys
FROM message m
JOIN queue q ON q.queue_id = (m.message_key >> 40)
JOIN topic t ON t.topic_id = q.topic_id
JOIN progress p ON p.queue_id = q.queue_id
JOIN consumer_group g ON g.group_id = p.group_id
LEFT JOIN delivery d ON d.group_id = p.group_id AND d.message_key = m.message_key
LEFT JOIN dead_letter l ON l.group_id = p.group_id AND l.origin_key = m.message_key
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""

GROUP_LAG_BEFORE = """
SELECT g.group_id, g.namespace AS group_namespace, g.name AS consumer_group, t.topic_id,
       t.namespace AS topic_namespace, t.name AS topic,
       s.beyond + COALESCE(d.ready, 0) AS ready, COALESCE(d.inflight, 0) AS inflight,
       COALESCE(d.waiting_retry, 0) AS waiting_retry, COALESCE(l.dead_letters, 0) AS dead_letters,
       s.stored, s.oldest_ready_ms
FROM (SELECT p.group_id, q.topic_id,
             SUM(q.next_offset - CASE WHEN p.next_offset < q.min_offset THEN q.min_offset
                                      ELSE p.next_offset END) AS beyond,
             SUM(q.next_offset - q.min_offset) AS stored,
             MIN((SELECT m.stored_at_ms FROM message m
                  WHERE m.message_key = ((p.queue_id << 40)
                        | CASE WHEN p.next_offset < q.min_offset THEN q.min_offset ELSE p.next_offset END))
                ) AS oldest_ready_ms
      FROM progress p JOIN queue q ON q.queue_id = p.queue_id GROUP BY p.group_id, q.topic_id) s
JOIN consumer_group g ON g.group_id = s.group_id
JOIN topic t ON t.topic_id = s.topic_id
LEFT JOIN (SELECT group_id, topic_id, SUM(CASE WHEN state = 'READY' THEN 1 ELSE 0 END) AS ready,
                  SUM(CASE WHEN state = 'INFLIGHT' THEN 1 ELSE 0 END) AS inflight,
                  SUM(CASE WHEN state = 'WAITING_RETRY' THEN 1 ELSE 0 END) AS waiting_retry
           FROM delivery GROUP BY group_id, topic_id) d ON d.group_id = s.group_id AND d.topic_id = s.topic_id
LEFT JOIN (SELECT group_id, origin_topic_id, COUNT(*) AS dead_letters
           FROM dead_letter GROUP BY group_id, origin_topic_id) l
       ON l.group_id = s.group_id AND l.origin_topic_id = s.topic_id
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""


def upgrade() -> None:
    _drop_views()
    op.add_column("topic", sa.Column("fifo_queues", sa.Integer(), server_default="1", nullable=False))
    # Nothing was in a message group yet: every topic may still count all the queues it has.
    op.execute("UPDATE topic SET fifo_queues = (SELECT COUNT(*) FROM queue WHERE queue.topic_id = topic.topic_id)")
    op.add_column("consumer_group", sa.Column("fifo_interval_ms", sa.Integer(), server_default="3000", nullable=False))
    _alter_message()
    _alter_delivery()
    # It was never written before.
    op.drop_table("pending")
    _create_pending(_pending(), ["message_id", "topic_id", "enqueued"])
    op.create_index("pending_of_topic", "pending", ["topic_id", "due_at_ms"])
    _index("pending_due", "pending", ["due_at_ms"], "kind = 'DELAY'")
    _index("pending_check", "pending", ["topic_id", "due_at_ms"], "kind = 'HALF'")
    _index("pending_of_client", "pending", ["client_id"], "kind = 'HALF'")
    _index("pending_of_group", "pending", ["topic_id", "message_group"], "message_group IS NOT NULL")
    _create_new_tables()
    _create_views(MESSAGE_STATE, GROUP_LAG, DEAD_LETTERS)
    functions.create(op.get_bind(), Path(__file__).parents[1] / "functions" / "0002.sql")


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION popmq_enqueue")
        op.execute("DROP FUNCTION popmq_ack")
    _drop_views()
    for table in ("acl_policy", "acl_user", "client", "server", "message_group_progress", "idempotency", "pending"):
        op.drop_table(table)
    _create_pending(_pending_before(), ["message_id", "topic_id"])
    op.create_index("pending_due", "pending", ["due_at_ms"])
    for index in ("delivery_attempt", "delivery_of_group", "delivery_ready"):
        op.drop_index(index, "delivery")
    for column in ("attempt_id", "provisional_ack", "message_group"):
        op.drop_column("delivery", column)
    _index("delivery_ready", "delivery", ["group_id", "topic_id", "visible_at_ms"], "state IN ('READY')")
    op.drop_index("message_of_group", "message")
    op.drop_column("message", "deliver_at_ms")
    op.drop_column("consumer_group", "fifo_interval_ms")
    op.drop_column("topic", "fifo_queues")
    _create_views(MESSAGE_STATE_BEFORE, GROUP_LAG_BEFORE, DEAD_LETTERS)


def _alter_message() -> None:
    if op.get_bind().dialect.name == "sqlite":
        # Only a copy puts the column before the body: behind it, reading it would walk through every body's pages.
        with op.batch_alter_table("message", recreate="always") as batch:
            batch.add_column(sa.Column("deliver_at_ms", sa.BigInteger()), insert_before="body")
    else:
        op.add_column("message", sa.Column("deliver_at_ms", sa.BigInteger()))
    in_a_group = "message_group IS NOT NULL AND origin_key = 0"
    _index("message_of_group", "message", ["message_group", "message_key"], in_a_group)


def _alter_delivery() -> None:
    op.add_column("delivery", sa.Column("message_group", sa.Text()))
    op.add_column("delivery", sa.Column("provisional_ack", sa.SmallInteger(), server_default="0", nullable=False))
    op.add_column("delivery", sa.Column("attempt_id", sa.Text()))
    op.drop_index("delivery_ready", "delivery")
    ready_again = "state IN ('READY') AND message_group IS NULL"
    _index("delivery_ready", "delivery", ["group_id", "topic_id", "visible_at_ms"], ready_again)
    of_group = ["group_id", "topic_id", "message_group", "message_key"]
    _index("delivery_of_group", "delivery", of_group, "message_group IS NOT NULL")
    _index("delivery_attempt", "delivery", ["attempt_id"], "attempt_id IS NOT NULL")


def _create_pending(columns: list[sa.Column[object]], once: list[str]) -> None:
    op.create_table(
        "pending",
        *columns,
        sa.UniqueConstraint(*once, name="pending_id_once"),
        sa.CheckConstraint("kind IN ('DELAY', 'HALF')", name="pending_kind"),
        sqlite_autoincrement=True,
    )


def _create_new_tables() -> None:
    op.create_table(
        "idempotency",
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("topic_id", "idempotency_key", name="idempotency_pk"),
        sqlite_with_rowid=False,
    )
    op.create_index("idempotency_expires", "idempotency", ["expires_at_ms"])
    op.create_table(
        "message_group_progress",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("message_group", sa.Text(), nullable=False),
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.Column("open_since_ms", sa.BigInteger()),
        sa.PrimaryKeyConstraint("group_id", "queue_id", "message_group", name="message_group_progress_pk"),
        sqlite_with_rowid=False,
        postgresql_with={"fillfactor": "70"},
    )
    is_open = ["group_id", "topic_id", "open_since_ms"]
    _index("message_group_open", "message_group_progress", is_open, "open_since_ms IS NOT NULL")
    op.create_table(
        "server",
        sa.Column("server_id", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("server_id"),
    )
    op.create_table(
        "client",
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("server_id", sa.Text(), nullable=False),
        sa.Column("last_seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("client_id", "server_id", name="client_pk"),
        sqlite_with_rowid=False,
    )
    op.create_index("client_last_seen", "client", ["last_seen_ms"])
    op.create_table(
        "acl_user",
        sa.Column("access_key", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("is_admin", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("disabled_at_ms", sa.BigInteger()),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("access_key"),
    )
    op.create_table(
        "acl_policy",
        sa.Column("policy_id", _ID, nullable=False),
        sa.Column("access_key", sa.Text(), nullable=False),
        sa.Column("effect", sa.Text(), nullable=False),
        sa.Column("actions", sa.Text(), nullable=False),
        sa.Column("resource_kind", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("pattern", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("effect IN ('ALLOW', 'DENY')", name="acl_policy_effect"),
        sa.CheckConstraint("resource_kind IN ('TOPIC', 'GROUP')", name="acl_policy_resource_kind"),
        sa.PrimaryKeyConstraint("policy_id"),
        sa.UniqueConstraint("access_key", "effect", "resource_kind", "namespace", "pattern", name="acl_policy_once"),
        sqlite_autoincrement=True,
    )


def _index(name: str, table: str, columns: list[str], where: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _create_views(message_state: str, group_lag: str, dead_letters: str) -> None:
    op.execute(f"CREATE VIEW message_state AS {message_state}")
    op.execute(f"CREATE VIEW group_lag AS {group_lag}")
    op.execute(f"CREATE VIEW dead_letters AS {dead_letters}")


def _drop_views() -> None:
    for view in ("dead_letters", "group_lag", "message_state"):
        op.execute(f"DROP VIEW {view}")


def _pending_before() -> list[sa.Column[object]]:
    return [
        sa.Column("pending_id", _ID, primary_key=True),
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("born_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("tag", sa.Text()),
        sa.Column("keys", sa.Text()),
        sa.Column("properties", sa.Text()),
        sa.Column("priority", sa.SmallInteger()),
        sa.Column("message_type", sa.Text(), nullable=False),
        sa.Column("body_encoding", sa.Text(), nullable=False),
        sa.Column("born_host", sa.Text(), nullable=False),
        sa.Column("trace_context", sa.Text()),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    ]


def _pending() -> list[sa.Column[object]]:
    return [
        sa.Column("pending_id", _ID, primary_key=True),
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("stored_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("transaction_id", sa.Text()),
        sa.Column("checks", sa.Integer(), server_default="0", nullable=False),
        sa.Column("client_id", sa.Text(), server_default="", nullable=False),
        sa.Column("enqueued", sa.SmallInteger(), server_default="0", nullable=False),
        sa.Column("born_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("tag", sa.Text()),
        sa.Column("keys", sa.Text()),
        sa.Column("properties", sa.Text()),
        sa.Column("message_group", sa.Text()),
        sa.Column("priority", sa.SmallInteger()),
        sa.Column("message_type", sa.Text(), nullable=False),
        sa.Column("body_encoding", sa.Text(), nullable=False),
        sa.Column("born_host", sa.Text(), nullable=False),
        sa.Column("trace_context", sa.Text()),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("deliver_at_ms", sa.BigInteger()),
        sa.Column("body", sa.LargeBinary(), nullable=False),
    ]
