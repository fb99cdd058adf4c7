"""Plans by which dead letters are sent back, and the record of what was."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

MESSAGE_STATE_BEFORE = """
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
LEFT JOIN dead_letter l ON l.group_id = p.group_id AND l.origin_key = m.message_key AND l.redrive_state IS NULL
LEFT JOIN message_group_progress b ON b.group_id = p.group_id AND b.queue_id = q.queue_id
      AND b.message_group = m.message_group AND m.origin_key = 0
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""

MESSAGE_STATE = """
SELECT t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.message_key, q.number AS queue_id,
       m.message_key & 1099511627775 AS queue_offset, g.namespace AS group_namespace, g.name AS consumer_group,
       CASE WHEN l.group_id IS NOT NULL AND l.redrive_state IS NULL THEN 'DLQ'
            WHEN d.group_id IS NOT NULL THEN d.state
            WHEN rd.group_id IS NOT NULL THEN rd.state
            WHEN (g.mode = 'PULL' OR rp.group_id IS NOT NULL)
                 AND (r.redriven_key & 1099511627775) >= COALESCE(rp.next_offset, 0) THEN 'READY'
            WHEN (m.message_key & 1099511627775) >= p.next_offset THEN 'READY'
            WHEN b.next_offset <= (m.message_key & 1099511627775) THEN 'READY'
            ELSE 'COMMIT' END AS state,
       COALESCE(d.attempt, rd.attempt, CASE WHEN l.redrive_state IS NULL THEN l.attempt END) AS attempt,
       COALESCE(d.visible_at_ms, rd.visible_at_ms) AS visible_at_ms, COALESCE(d.client_id, rd.client_id) AS client_id,
       m.stored_at_ms, m.tag, m.keys, m.message_group
FROM message m
JOIN queue q ON q.queue_id = (m.message_key >> 40)
JOIN topic t ON t.topic_id = q.topic_id
JOIN progress p ON p.queue_id = q.queue_id
JOIN consumer_group g ON g.group_id = p.group_id
LEFT JOIN delivery d ON d.group_id = p.group_id AND d.message_key = m.message_key
LEFT JOIN dead_letter l ON l.group_id = p.group_id AND l.origin_key = m.message_key
LEFT JOIN redrive r ON r.plan_id = l.plan_id AND r.dead_letter_id = l.dead_letter_id
      AND l.redrive_state = 'REDRIVEN' AND r.target_topic_id IS NULL
LEFT JOIN delivery rd ON rd.group_id = p.group_id AND rd.message_key = r.redriven_key
LEFT JOIN progress rp ON rp.group_id = p.group_id AND rp.queue_id = (r.redriven_key >> 40)
LEFT JOIN message_group_progress b ON b.group_id = p.group_id AND b.queue_id = q.queue_id
      AND b.message_group = m.message_group AND m.origin_key = 0
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""

DEAD_LETTERS = """
SELECT l.dead_letter_id AS id, g.namespace AS group_namespace, g.name AS consumer_group,
       t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.tag, m.keys, m.message_group, m.message_type,
       oq.number AS queue_id, l.origin_key & 1099511627775 AS queue_offset, l.origin_key, l.copy_key, m.properties,
       m.body_encoding, m.born_at_ms, m.stored_at_ms, l.dead_at_ms, l.attempt AS delivery_attempt, l.reason,
       l.redrive_state, l.plan_id, m.body
FROM dead_letter l
JOIN consumer_group g ON g.group_id = l.group_id
LEFT JOIN topic t ON t.topic_id = l.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (l.origin_key >> 40)
JOIN message m ON m.message_key = l.copy_key
"""

LINEAGE = """
SELECT r.plan_id, g.namespace AS group_namespace, g.name AS consumer_group, t.namespace AS topic_namespace,
       t.name AS topic, r.message_id, oq.number AS queue_id, r.origin_key & 1099511627775 AS queue_offset,
       r.dead_letter_id, r.dead_at_ms, r.attempt AS delivery_attempt, r.dead_reason, r.reason, r.change,
       rp.target_topic, r.state, r.note, r.redriven_message_id, r.redriven_at_ms,
       CASE WHEN r.state <> 'REDRIVEN' THEN NULL
            WHEN l.group_id IS NOT NULL THEN 'DLQ'
            WHEN r.note IS NOT NULL THEN NULL
            WHEN d.group_id IS NOT NULL THEN d.state
            WHEN own.group_id IS NOT NULL THEN
                 (SELECT s.state FROM message_state s WHERE s.message_key = r.origin_key
                         AND s.group_namespace = g.namespace AND s.consumer_group = g.name)
            WHEN r.target_topic_id IS NOT NULL AND p.group_id IS NULL THEN NULL
            WHEN (g.mode = 'PULL' OR p.group_id IS NOT NULL)
                 AND (r.redriven_key & 1099511627775) >= COALESCE(p.next_offset, 0) THEN 'READY'
            ELSE 'COMMIT' END AS outcome
FROM redrive r
JOIN consumer_group g ON g.group_id = r.group_id
LEFT JOIN topic t ON t.topic_id = r.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (r.origin_key >> 40)
LEFT JOIN redrive_plan rp ON rp.plan_id = r.plan_id
LEFT JOIN dead_letter l ON l.group_id = r.group_id AND l.dead_letter_id > r.dead_letter_id
      AND l.origin_key = CASE WHEN r.target_topic_id IS NULL THEN r.origin_key ELSE r.redriven_key END
LEFT JOIN dead_letter own ON own.dead_letter_id = r.dead_letter_id AND own.redrive_state = 'RESET'
      AND r.target_topic_id IS NULL
LEFT JOIN delivery d ON d.group_id = r.group_id AND d.message_key = r.redriven_key
LEFT JOIN progress p ON p.group_id = r.group_id AND p.queue_id = (r.redriven_key >> 40)
"""


def upgrade() -> None:
    _drop_views()
    op.add_column("dead_letter", sa.Column("plan_id", sa.Text(), nullable=True))
    op.create_index("dead_letter_of_group", "dead_letter", ["group_id", "dead_letter_id"])
    op.create_table(
        "redrive_plan",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("selection", sa.Text(), nullable=False),
        sa.Column("target_topic_id", sa.BigInteger(), nullable=True),
        sa.Column("target_namespace", sa.Text(), nullable=True),
        sa.Column("target_topic", sa.Text(), nullable=True),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("created_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("finished_at_ms", sa.BigInteger(), nullable=True),
        sa.Column("planned_up_to", sa.BigInteger(), nullable=False),
        sa.Column("planned", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("redriven", sa.BigInteger(), nullable=False, server_default="0"),
        sa.Column("skipped", sa.BigInteger(), nullable=False, server_default="0"),
        sa.CheckConstraint("state IN ('DRAFT', 'PLANNED', 'RUNNING', 'DONE', 'CANCELLED')", name="redrive_plan_state"),
        sa.PrimaryKeyConstraint("plan_id"),
    )
    op.create_index("redrive_plan_of_group", "redrive_plan", ["group_id", "created_at_ms"])
    op.create_table(
        "redrive",
        sa.Column("plan_id", sa.Text(), nullable=False),
        sa.Column("dead_letter_id", sa.BigInteger(), nullable=False),
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("origin_key", sa.BigInteger(), nullable=False),
        sa.Column("origin_topic_id", sa.BigInteger(), nullable=False),
        sa.Column("message_id", sa.LargeBinary(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("dead_reason", sa.Text(), nullable=False),
        sa.Column("dead_at_ms", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("change", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("target_topic_id", sa.BigInteger(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("redriven_key", sa.BigInteger(), nullable=True),
        sa.Column("redriven_message_id", sa.LargeBinary(), nullable=True),
        sa.Column("redriven_at_ms", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("state IN ('PLANNED', 'REDRIVEN', 'SKIPPED')", name="redrive_state"),
        sa.CheckConstraint("change IN ('NONE', 'REPAIR')", name="redrive_change"),
        sa.PrimaryKeyConstraint("plan_id", "dead_letter_id", name="redrive_pk"),
        sqlite_with_rowid=False,
    )
    op.create_index("redrive_of_origin", "redrive", ["origin_key", "group_id"])
    _create_partial_index("redrive_planned", ["plan_id", "dead_letter_id"], "state = 'PLANNED'")
    _create_partial_index("redrive_of_key", ["redriven_key", "group_id"], "redriven_key IS NOT NULL")
    _create_views(MESSAGE_STATE, DEAD_LETTERS)
    op.execute(f"CREATE VIEW lineage AS {LINEAGE}")


def downgrade() -> None:
    op.execute("DROP VIEW lineage")
    _drop_views()
    op.drop_table("redrive")
    op.drop_table("redrive_plan")
    op.drop_index("dead_letter_of_group", "dead_letter")
    op.drop_column("dead_letter", "plan_id")
    _create_views(MESSAGE_STATE_BEFORE, DEAD_LETTERS.replace(" l.plan_id,", ""))


def _create_partial_index(name: str, columns: list[str], where: str) -> None:
    op.create_index(name, "redrive", columns, sqlite_where=sa.text(where), postgresql_where=sa.text(where))


def _drop_views() -> None:
    op.execute("DROP VIEW dead_letters")
    op.execute("DROP VIEW message_state")


def _create_views(message_state: str, dead_letters: str) -> None:
    op.execute(f"CREATE VIEW message_state AS {message_state}")
    op.execute(f"CREATE VIEW dead_letters AS {dead_letters}")
