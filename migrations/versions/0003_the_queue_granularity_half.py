"""Members of groups, locks of queues, progress that operators move; times that within a queue do not go back."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

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
LEFT JOIN dead_letter l ON l.group_id = p.group_id AND l.origin_key = m.message_key AND l.redrive_state IS NULL
LEFT JOIN message_group_progress b ON b.group_id = p.group_id AND b.queue_id = q.queue_id
      AND b.message_group = m.message_group AND m.origin_key = 0
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""

GROUP_LAG = """
SELECT g.group_id, g.namespace AS group_namespace, g.name AS consumer_group, t.topic_id,
       t.namespace AS topic_namespace, t.name AS topic,
       s.beyond - COALESCE(d.beyond, 0) + COALESCE(d.ready, 0) + COALESCE(b.behind, 0) AS ready,
       COALESCE(d.inflight, 0) AS inflight,
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
LEFT JOIN (SELECT d.group_id, d.topic_id, SUM(CASE WHEN d.state = 'READY' THEN 1 ELSE 0 END) AS ready,
                  SUM(CASE WHEN d.state = 'INFLIGHT' THEN 1 ELSE 0 END) AS inflight,
                  SUM(CASE WHEN d.state = 'WAITING_RETRY' THEN 1 ELSE 0 END) AS waiting_retry,
                  SUM(CASE WHEN (d.message_key & 1099511627775) >= p.next_offset THEN 1 ELSE 0 END) AS beyond
           FROM delivery d
           LEFT JOIN progress p ON p.group_id = d.group_id AND p.queue_id = (d.message_key >> 40)
           GROUP BY d.group_id, d.topic_id) d ON d.group_id = s.group_id AND d.topic_id = s.topic_id
LEFT JOIN (SELECT b.group_id, q.topic_id, COUNT(*) AS behind
           FROM message_group_progress b
           JOIN queue q ON q.queue_id = b.queue_id
           JOIN progress p ON p.group_id = b.group_id AND p.queue_id = b.queue_id
           JOIN message m ON m.message_group = b.message_group AND m.origin_key = 0
                AND m.message_key >= ((b.queue_id << 40) | b.next_offset)
                AND m.message_key < ((b.queue_id << 40) | p.next_offset)
           GROUP BY b.group_id, q.topic_id) b ON b.group_id = s.group_id AND b.topic_id = s.topic_id
LEFT JOIN (SELECT group_id, origin_topic_id, COUNT(*) AS dead_letters
           FROM dead_letter WHERE redrive_state IS NULL GROUP BY group_id, origin_topic_id) l
       ON l.group_id = s.group_id AND l.origin_topic_id = s.topic_id
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""


NEWEST_OF_QUEUES = """
UPDATE queue SET newest_stored_at_ms = COALESCE(
    (SELECT m.stored_at_ms FROM message m
     WHERE m.message_key >= (queue.queue_id << 40) AND m.message_key < ((queue.queue_id + 1) << 40)
     ORDER BY m.message_key DESC LIMIT 1), 0)
"""


def upgrade() -> None:
    _drop_views()
    op.add_column("queue", sa.Column("newest_stored_at_ms", sa.BigInteger(), server_default="0", nullable=False))
    op.execute(NEWEST_OF_QUEUES)
    op.add_column("progress", sa.Column("resets", sa.Integer(), server_default="0", nullable=False))
    op.create_table(
        "member",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("server_id", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("subscription", sa.Text(), nullable=False),
        sa.Column("joined_at_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("model IN ('CLUSTERING', 'BROADCASTING')", name="member_model"),
        sa.PrimaryKeyConstraint("group_id", "client_id", name="member_pk"),
        sqlite_with_rowid=False,
    )
    op.create_index("member_of_server", "member", ["server_id"])
    op.create_table(
        "queue_lock",
        sa.Column("group_id", sa.BigInteger(), nullable=False),
        sa.Column("queue_id", sa.BigInteger(), nullable=False),
        sa.Column("client_id", sa.Text(), nullable=False),
        sa.Column("locked_until_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("group_id", "queue_id", name="queue_lock_pk"),
        sqlite_with_rowid=False,
    )
    _create_views(MESSAGE_STATE, GROUP_LAG)


def downgrade() -> None:
    op.drop_table("queue_lock")
    op.drop_table("member")
    # The views stand on the columns' tables, and the databases look at them before they let go of one.
    _drop_views()
    op.drop_column("progress", "resets")
    op.drop_column("queue", "newest_stored_at_ms")
    _create_views(_before(MESSAGE_STATE), _before(GROUP_LAG))


def _drop_views() -> None:
    op.execute("DROP VIEW group_lag")
    op.execute("DROP VIEW message_state")


def _create_views(message_state: str, group_lag: str) -> None:
    op.execute(f"CREATE VIEW message_state AS {message_state}")
    op.execute(f"CREATE VIEW group_lag AS {group_lag}")


def _before(view: str) -> str:
    """A dead letter that was sent back still counted as one."""
    return view.replace(" AND l.redrive_state IS NULL", "").replace(" WHERE redrive_state IS NULL", "")
