"""The first schema: topics, groups, messages, deliveries, dead letters, history, and the views over them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

MESSAGE_STATE = """
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

GROUP_LAG = """
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


def upgrade() -> None:
    op.create_table(
        "consumer_group",
        sa.Column("group_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("intervals_ms", sa.Text(), nullable=False),
        sa.Column("consume_from", sa.Text(), nullable=False),
        sa.Column("history", sa.Text(), nullable=False),
        sa.Column("mode", sa.Text(), nullable=True),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("history IN ('none', 'errors', 'all')", name="consumer_group_history"),
        sa.PrimaryKeyConstraint("group_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "consumer_group_name",
        "consumer_group",
        ["namespace", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at_ms IS NULL"),
        postgresql_where=sa.text("deleted_at_ms IS NULL"),
    )
    op.create_table(
        "dead_letter",
        sa.Column("dead_letter_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("origin_key", sa.BigInteger(), nullable=False),
        sa.Column("origin_topic_id", sa.BigInteger(), nullable=False),
        sa.Column("copy_key", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("dead_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("redrive_state", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("dead_letter_id"),
        sa.UniqueConstraint("group_id", "origin_key", name="dead_letter_once"),
        sqlite_autoincrement=True,
    )
    op.create_index("dead_letter_copy", "dead_letter", ["copy_key"], unique=False)
    op.create_index("dead_letter_dead_at", "dead_letter", ["dead_at_ms"], unique=False)
    op.create_table(
        "delivery",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("message_key", sa.BigInteger(), nullable=False),
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("hold_id", sa.BigInteger(), nullable=False),
        sa.Column("visible_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.CheckConstraint("holder IN ('PUSH', 'SIMPLE', 'ORPHAN')", name="delivery_holder"),
        sa.CheckConstraint("state IN ('READY', 'INFLIGHT', 'WAITING_RETRY')", name="delivery_state"),
        sa.PrimaryKeyConstraint("group_id", "message_key", name="delivery_pk"),
        postgresql_with={"fillfactor": "70"},
        sqlite_with_rowid=False,
    )
    op.create_index(
        "delivery_client",
        "delivery",
        ["client_id"],
        unique=False,
        sqlite_where=sa.text("holder = 'PUSH' OR holder = 'ORPHAN'"),
        postgresql_where=sa.text("holder = 'PUSH' OR holder = 'ORPHAN'"),
    )
    op.create_index(
        "delivery_due",
        "delivery",
        ["visible_at_ms"],
        unique=False,
        sqlite_where=sa.text("state IN ('INFLIGHT', 'WAITING_RETRY')"),
        postgresql_where=sa.text("state IN ('INFLIGHT', 'WAITING_RETRY')"),
    )
    op.create_index(
        "delivery_ready",
        "delivery",
        ["group_id", "topic_id", "visible_at_ms"],
        unique=False,
        sqlite_where=sa.text("state IN ('READY')"),
        postgresql_where=sa.text("state IN ('READY')"),
    )
    op.create_table(
        "history",
        sa.Column("history_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("message_key", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("from_state", sa.Text(), nullable=False),
        sa.Column("to_state", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("history_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("history_message", "history", ["message_key", "group_id"], unique=False)
    op.create_table(
        "message",
        sa.Column(
            "message_key", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("origin_key", sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sa.Column("stored_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("born_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("tag_hash", sa.Integer(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=True),
        sa.Column("keys", sa.Text(), nullable=True),
        sa.Column("properties", sa.Text(), nullable=True),
        sa.Column("message_group", sa.Text(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), nullable=True),
        sa.Column("message_type", sa.Text(), nullable=False),
        sa.Column("body_encoding", sa.Text(), nullable=False),
        sa.Column("born_host", sa.Text(), nullable=False),
        sa.Column("trace_context", sa.Text(), nullable=True),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("message_key"),
        sa.UniqueConstraint("message_id", "topic_id", "origin_key", name="message_id_once"),
    )
    op.create_table(
        "pending",
        sa.Column("pending_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("due_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("born_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("tag", sa.Text(), nullable=True),
        sa.Column("keys", sa.Text(), nullable=True),
        sa.Column("properties", sa.Text(), nullable=True),
        sa.Column("priority", sa.SmallInteger(), nullable=True),
        sa.Column("message_type", sa.Text(), nullable=False),
        sa.Column("body_encoding", sa.Text(), nullable=False),
        sa.Column("born_host", sa.Text(), nullable=False),
        sa.Column("trace_context", sa.Text(), nullable=True),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.CheckConstraint("kind IN ('DELAY', 'HALF')", name="pending_kind"),
        sa.PrimaryKeyConstraint("pending_id"),
        sa.UniqueConstraint("message_id", "topic_id", name="pending_id_once"),
        sqlite_autoincrement=True,
    )
    op.create_index("pending_due", "pending", ["due_at_ms"], unique=False)
    op.create_table(
        "progress",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("group_id", "queue_id", name="progress_pk"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "queue",
        sa.Column("queue_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("topic_id", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("min_offset", sa.BigInteger(), nullable=False),
        sa.Column("next_offset", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("queue_id"),
        sa.UniqueConstraint("topic_id", "number", name="queue_number"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "topic",
        sa.Column("topic_id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("namespace", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("accepts", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("deleted_at_ms", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("topic_id"),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "topic_name",
        "topic",
        ["namespace", "name"],
        unique=True,
        sqlite_where=sa.text("deleted_at_ms IS NULL"),
        postgresql_where=sa.text("deleted_at_ms IS NULL"),
    )
    op.execute(f"CREATE VIEW message_state AS {MESSAGE_STATE}")
    op.execute(f"CREATE VIEW group_lag AS {GROUP_LAG}")
    op.execute(f"CREATE VIEW dead_letters AS {DEAD_LETTERS}")


def downgrade() -> None:
    op.execute("DROP VIEW dead_letters")
    op.execute("DROP VIEW group_lag")
    op.execute("DROP VIEW message_state")
    op.drop_index(
        "topic_name",
        table_name="topic",
        sqlite_where=sa.text("deleted_at_ms IS NULL"),
        postgresql_where=sa.text("deleted_at_ms IS NULL"),
    )
    op.drop_table("topic")
    op.drop_table("queue")
    op.drop_table("progress")
    op.drop_index("pending_due", table_name="pending")
    op.drop_table("pending")
    op.drop_table("message")
    op.drop_index("history_message", table_name="history")
    op.drop_table("history")
    op.drop_index(
        "delivery_ready",
        table_name="delivery",
        sqlite_where=sa.text("state IN ('READY')"),
        postgresql_where=sa.text("state IN ('READY')"),
    )
    op.drop_index(
        "delivery_due",
        table_name="delivery",
        sqlite_where=sa.text("state IN ('INFLIGHT', 'WAITING_RETRY')"),
        postgresql_where=sa.text("state IN ('INFLIGHT', 'WAITING_RETRY')"),
    )
    op.drop_index(
        "delivery_client",
        table_name="delivery",
        sqlite_where=sa.text("holder = 'PUSH' OR holder = 'ORPHAN'"),
        postgresql_where=sa.text("holder = 'PUSH' OR holder = 'ORPHAN'"),
    )
    op.drop_table("delivery")
    op.drop_index("dead_letter_dead_at", table_name="dead_letter")
    op.drop_index("dead_letter_copy", table_name="dead_letter")
    op.drop_table("dead_letter")
    op.drop_index(
        "consumer_group_name",
        table_name="consumer_group",
        sqlite_where=sa.text("deleted_at_ms IS NULL"),
        postgresql_where=sa.text("deleted_at_ms IS NULL"),
    )
    op.drop_table("consumer_group")
