# ruff: noqa: S608 - the words in the statements are our own
"""The invariants whose breach keeps messages from being delivered, each with its query and its repair.

`popmq db check` reads this table. A server reads it for its readiness and metrics (`maintenance.patrol`), for
`popmq why`, and for `popmq repair` (`maintenance.repair`). A new invariant is one entry here, and a damage in its test.
"""

from __future__ import annotations

from collections.abc import Iterable

from popserver.database.invariants.queries import Stuck, StuckIn
from popserver.database.states_of import OFFSET_MASK, is_shown_as
from popserver.model.group import CHOOSING, Mode
from popserver.model.retry import PUSH_HOLD_MS_MAX, Holder
from popserver.model.states import TIMED, State
from popserver.model.topic import OFFSET_BITS

# Rows of deleted topics and groups are removed in steps, so invariants hold only for those in use.
IN_USE = """
        JOIN progress p ON p.group_id = b.group_id AND p.queue_id = b.queue_id
        JOIN consumer_group g ON g.group_id = b.group_id AND g.deleted_at_ms IS NULL
        JOIN topic t ON t.topic_id = b.topic_id AND t.deleted_at_ms IS NULL"""
_DELIVERY_IN_USE = f"""
        JOIN progress p ON p.group_id = b.group_id AND p.queue_id = (b.message_key >> {OFFSET_BITS})
        JOIN consumer_group g ON g.group_id = b.group_id AND g.deleted_at_ms IS NULL
        JOIN topic t ON t.topic_id = b.topic_id AND t.deleted_at_ms IS NULL"""
_QUEUE_IN_USE = "JOIN topic t ON t.topic_id = b.topic_id AND t.deleted_at_ms IS NULL"
_PROGRESS_IN_USE = """
        JOIN consumer_group g ON g.group_id = b.group_id AND g.deleted_at_ms IS NULL
        JOIN queue q ON q.queue_id = b.queue_id
        JOIN topic t ON t.topic_id = q.topic_id AND t.deleted_at_ms IS NULL"""


def _delivery_of_group(columns: str, order: str, condition: str = "") -> str:
    """The first delivery of the message group of `b` in that order. No EXISTS and no MIN: Postgres would read all
    deliveries of the consumer group."""
    return f"""(
            SELECT {columns} FROM delivery d WHERE GROUP_OF(d) = b.group_id AND d.topic_id = b.topic_id
            AND d.message_group = b.message_group {condition} ORDER BY d.message_key {order} LIMIT 1)"""


def _subscription(condition: str = "") -> str:
    """The client of a subscription to the lite topic of `b`. No EXISTS: Postgres would read all subscriptions."""
    return f"""(
            SELECT s.client_id FROM lite_subscription s WHERE s.group_id = b.group_id AND s.topic_id = b.topic_id
            AND s.lite_topic = b.message_group {condition} LIMIT 1)"""


FIRST_OF_GROUP = _delivery_of_group("d.message_key", "ASC")
_IS_HEAD = f"b.message_group IS NOT NULL AND {FIRST_OF_GROUP} = b.message_key"
IS_PAUSED = """EXISTS (
            SELECT 1 FROM pause x
            WHERE x.group_id = b.group_id AND x.topic_id = b.topic_id AND x.message_group = b.message_group)"""
_START = """COALESCE(
            (SELECT o.start_offset FROM message_group_start o WHERE o.group_id = b.group_id
             AND o.queue_id = p.queue_id AND o.message_group = b.message_group), p.start_offset)"""


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"'{each}'" for each in sorted(names))


_CHOOSES = f"COALESCE(g.lite, '') IN ({_listed(CHOOSING)})"
_DELIVERY = "group_id = :group_id AND message_key = :row_id"
_PROGRESS = "group_id = :group_id AND queue_id = :queue_id"
_POSITION = f"{_PROGRESS} AND message_group = :message_group"
_OPEN = f"UPDATE message_group_progress SET open_since_ms = :now_ms WHERE {_POSITION} AND open_since_ms IS NULL"
_SUBSCRIBER = f"""(
            SELECT CASE WHEN {_CHOOSES} THEN
                (SELECT MIN(s.client_id) FROM lite_subscription s WHERE s.group_id = g.group_id
                 AND s.topic_id = :topic_id AND s.lite_topic = :message_group) ELSE '' END
            FROM consumer_group g WHERE g.group_id = :group_id)"""
_RESUBSCRIBE = f"UPDATE message_group_progress SET subscriber = {_SUBSCRIBER} WHERE {_POSITION}"
_NO_START = (
    f"UPDATE progress SET start_offset = 0 WHERE {_PROGRESS}",
    f"DELETE FROM message_group_start WHERE {_PROGRESS}",
)
_REMOVE = (f"DELETE FROM delivery WHERE {_DELIVERY}",)
_DUE_NOW = (f"UPDATE delivery SET visible_at_ms = :now_ms WHERE {_DELIVERY}",)
_OFFSET = f"(:row_id & {OFFSET_MASK})"
_FIRST_IN_QUEUE = f"""(
            SELECT m.message_key FROM message m WHERE m.message_key >= (b.queue_id << {OFFSET_BITS})
            AND m.message_key < ((b.queue_id << {OFFSET_BITS}) | b.min_offset) ORDER BY m.message_key LIMIT 1)"""
_LAST_IN_QUEUE = f"""(
            SELECT m.message_key FROM message m WHERE m.message_key >= (b.queue_id << {OFFSET_BITS})
            AND m.message_key < ((b.queue_id + 1) << {OFFSET_BITS}) ORDER BY m.message_key DESC LIMIT 1)"""

# The number of the first queue of the topic that the group reads. No join and no MIN: Postgres would read all progress
# of the group.
_FIRST_READ = """(
            SELECT f.number FROM queue f WHERE f.topic_id = q.topic_id AND (
                SELECT r.queue_id FROM progress r WHERE r.group_id = b.group_id AND r.queue_id = f.queue_id LIMIT 1
            ) IS NOT NULL ORDER BY f.number LIMIT 1)"""


def _at_message(key: str) -> tuple[str, str, str, str, str]:
    return ("0", "b.queue_id", "b.topic_id", "''", key)


STUCK: tuple[Stuck, ...] = (
    # Queues.
    Stuck(
        "a message beyond its queue's end",
        StuckIn.QUEUES,
        f"{_QUEUE_IN_USE} WHERE ({_LAST_IN_QUEUE} & {OFFSET_MASK}) >= b.next_offset",
        "its queue ends before a message of it, so that messages are not read and none can be appended",
        "moves the queue's end behind its last message",
        (f"UPDATE queue SET next_offset = {_OFFSET} + 1 WHERE queue_id = :queue_id",),
        at=_at_message(_LAST_IN_QUEUE),
    ),
    Stuck(
        "a message before its queue's beginning",
        StuckIn.QUEUES,
        f"{_QUEUE_IN_USE} WHERE {_FIRST_IN_QUEUE} IS NOT NULL",
        "its queue begins behind a message of it, which no receive reads",
        "moves the queue's beginning to its first message",
        (f"UPDATE queue SET min_offset = {_OFFSET} WHERE queue_id = :queue_id",),
        at=_at_message(_FIRST_IN_QUEUE),
    ),
    Stuck(
        "a queue that begins beyond its end",
        StuckIn.QUEUES,
        f"{_QUEUE_IN_USE} WHERE b.min_offset > b.next_offset",
        "its queue begins beyond its end, so that new messages are not read",
        "moves the queue's beginning to its end",
        ("UPDATE queue SET min_offset = next_offset WHERE queue_id = :queue_id AND min_offset > next_offset",),
    ),
    # Delayed messages.
    Stuck(
        "a delayed message that is late",
        StuckIn.DELAYED,
        """JOIN topic t ON t.topic_id = b.topic_id AND t.deleted_at_ms IS NULL
        WHERE CASE WHEN b.due_at_ms = 0 THEN b.stored_at_ms < :late_ms ELSE TRUE END""",
        "its time is over and no server has taken it into its queue",
        "makes it due now and wakes the servers",
        ("UPDATE pending SET due_at_ms = :calendar_ms WHERE pending_id = :row_id",),
        is_late=True,
    ),
    # A group's progress.
    Stuck(
        "progress beyond its queue's end",
        StuckIn.PROGRESS,
        f"{_PROGRESS_IN_USE} WHERE b.next_offset > q.next_offset",
        "the group's progress is beyond the queue's end, so that it would miss new messages",
        "moves the progress back to the queue's end",
        (
            "UPDATE progress SET next_offset = (SELECT q.next_offset FROM queue q WHERE q.queue_id = :queue_id)"
            f" WHERE {_PROGRESS}",
        ),
    ),
    Stuck(
        "a start beyond the progress",
        StuckIn.PROGRESS,
        f"{_PROGRESS_IN_USE} WHERE b.start_offset > b.next_offset",
        "searches for message groups begin beyond the group's progress",
        "lets them begin at the queue's beginning",
        _NO_START,
    ),
    Stuck(
        "a queue that a group of its topic does not read",
        StuckIn.PROGRESS,
        f"""{_PROGRESS_IN_USE}
        JOIN queue n ON n.topic_id = q.topic_id
        WHERE g.mode = '{Mode.POP}' AND n.queue_id <> b.queue_id
        AND q.number = {_FIRST_READ}
        AND NOT EXISTS (SELECT 1 FROM progress r WHERE r.group_id = b.group_id AND r.queue_id = n.queue_id)""",
        "the group reads other queues of the topic, and not this one",
        "has the group read the queue from its beginning, or from behind what it holds of it",
        (
            f"""INSERT INTO progress (group_id, queue_id, next_offset)
            SELECT g.group_id, n.queue_id, COALESCE((SELECT MAX(d.message_key & {OFFSET_MASK}) + 1 FROM delivery d
                   WHERE d.group_id = g.group_id AND d.message_key >= (n.queue_id << {OFFSET_BITS})
                   AND d.message_key < ((n.queue_id + 1) << {OFFSET_BITS})), 0)
            FROM consumer_group g JOIN queue n ON n.queue_id = :queue_id WHERE g.group_id = :group_id""",
        ),
        at=("b.group_id", "n.queue_id", "n.topic_id", "''", "0"),
        is_one="b.group_id = :group_id AND b.queue_id IN (SELECT f.queue_id FROM queue f WHERE f.topic_id = :topic_id)",
    ),
    # Deliveries.
    Stuck(
        "a delivery without its message",
        StuckIn.DELIVERIES,
        """WHERE (SELECT m.message_key FROM message m WHERE m.message_key = b.message_key) IS NULL""",
        "a message of its message group is no longer stored, and the group waits for it",
        "removes the delivery",
        _REMOVE,
    ),
    Stuck(
        "a message that a group has twice",
        StuckIn.DELIVERIES,
        """WHERE (SELECT d.uncounted FROM delivery d WHERE d.group_id = b.group_id AND d.message_key = b.message_key
               AND d.uncounted <> b.uncounted LIMIT 1) IS NOT NULL""",
        "the group has two deliveries of it",
        "keeps the one whose attempts count most",
        (
            f"DELETE FROM delivery WHERE {_DELIVERY} AND uncounted > (SELECT MIN(d.uncounted) FROM delivery d"
            " WHERE d.group_id = :group_id AND d.message_key = :row_id)",
        ),
    ),
    Stuck(
        "a delivery of a message the group has not reached",
        StuckIn.DELIVERIES,
        f"""{_DELIVERY_IN_USE} JOIN queue q ON q.queue_id = p.queue_id AND q.topic_id = b.topic_id
        WHERE g.mode = '{Mode.POP}' AND (b.message_key & {OFFSET_MASK}) >= p.next_offset""",
        "the group's progress is before a message that it has received, so that its receives fail there",
        "moves the progress behind that message",
        (f"UPDATE progress SET next_offset = {_OFFSET} + 1 WHERE {_PROGRESS} AND next_offset <= {_OFFSET}",),
    ),
    Stuck(
        "a delivery that does not wait, of a group that owns whole queues",
        StuckIn.DELIVERIES,
        f"""JOIN consumer_group g ON g.group_id = b.group_id AND g.mode = '{Mode.PULL}' AND g.deleted_at_ms IS NULL
        WHERE b.state <> '{State.WAITING_RETRY}'""",
        "the group owns whole queues and cannot receive it",
        "sends it to the group's retry topic",
        (f"UPDATE delivery SET state = '{State.WAITING_RETRY}', visible_at_ms = :now_ms WHERE {_DELIVERY}",),
    ),
    Stuck(
        "a hold or a retry that is late",
        StuckIn.DELIVERIES,
        f"WHERE b.state IN ({_listed(TIMED)}) AND b.visible_at_ms > 0 AND b.visible_at_ms < :late_ms",
        "its time is over and no server has ended it",
        "makes it due now and wakes the servers",
        _DUE_NOW,
        is_late=True,
    ),
    Stuck(
        "a hold of a push consumer that no server has",
        StuckIn.DELIVERIES,
        f"""WHERE b.holder = '{Holder.PUSH}' AND b.state = '{State.INFLIGHT}'
        AND b.visible_at_ms < :late_ms + {PUSH_HOLD_MS_MAX} AND EXISTS (SELECT 1 FROM server)
        AND NOT EXISTS (SELECT 1 FROM client c WHERE c.client_id = b.client_id)""",
        "a push consumer holds it that is connected to no server",
        "ends the hold",
        (f"UPDATE delivery SET holder = '{Holder.ORPHAN}', visible_at_ms = :now_ms WHERE {_DELIVERY}",),
        is_late=True,
    ),
    # Message groups.
    Stuck(
        "a provisional ack with nothing before it",
        StuckIn.DELIVERIES,
        f"{_DELIVERY_IN_USE} WHERE {_IS_HEAD} AND b.state = '{State.ACKED_PROVISIONALLY}'",
        "the first message of its message group is acked, and its ack was not completed",
        "completes the ack",
        _REMOVE,
    ),
    Stuck(
        "a delivery in a message group before its start",
        StuckIn.DELIVERIES,
        f"{_DELIVERY_IN_USE} WHERE b.message_group IS NOT NULL AND (b.message_key & {OFFSET_MASK}) < {_START}",
        "searches for its message group begin behind a message of it",
        "lets them begin at the queue's beginning",
        _NO_START,
    ),
    Stuck(
        "a message group before its start",
        StuckIn.POSITIONS,
        f"{IN_USE} WHERE b.next_offset < {_START}",
        "searches for its message group begin behind the group's position",
        "lets them begin at the queue's beginning",
        _NO_START,
    ),
    Stuck(
        "a message group with two positions",
        StuckIn.POSITIONS,
        """WHERE (SELECT o.next_offset FROM message_group_progress o WHERE o.group_id = b.group_id
               AND o.queue_id = b.queue_id AND o.message_group = b.message_group AND o.next_offset <> b.next_offset
               LIMIT 1) IS NOT NULL""",
        "its message group has two positions",
        "keeps the first one",
        (
            f"DELETE FROM message_group_progress WHERE {_POSITION} AND next_offset > (SELECT MIN(o.next_offset)"
            " FROM message_group_progress o WHERE o.group_id = :group_id AND o.queue_id = :queue_id"
            " AND o.message_group = :message_group)",
        ),
    ),
    Stuck(
        "a message group of another topic",
        StuckIn.POSITIONS,
        f"{IN_USE} JOIN queue q ON q.queue_id = b.queue_id WHERE q.topic_id <> b.topic_id",
        "its message group has the topic of another queue",
        "gives it the topic of its queue",
        (
            "UPDATE message_group_progress SET topic_id = (SELECT q.topic_id FROM queue q WHERE q.queue_id = :queue_id)"
            f" WHERE {_POSITION}",
        ),
    ),
    # A client may begin in a lite topic after messages that its group has not reached.
    Stuck(
        "a message group beyond its queue's progress",
        StuckIn.POSITIONS,
        f"{IN_USE} WHERE b.next_offset > p.next_offset AND g.lite IS NULL",
        "its message group is beyond the group's progress, and would miss the messages in between",
        "moves the message group back to the progress",
        (
            "UPDATE message_group_progress SET is_single = 0, next_offset = (SELECT p.next_offset FROM progress p"
            f" WHERE p.group_id = :group_id AND p.queue_id = :queue_id) WHERE {_POSITION}",
        ),
    ),
    Stuck(
        "a delivery of a message its message group has not reached",
        StuckIn.POSITIONS,
        f"""{IN_USE} WHERE {_delivery_of_group("d.message_key", "DESC")}
        >= ((b.queue_id << {OFFSET_BITS}) | b.next_offset)""",
        "its message group is before a message that was received, so that receives fail there",
        "moves the message group behind that message",
        (f"UPDATE message_group_progress SET next_offset = {_OFFSET} + 1, is_single = 0 WHERE {_POSITION}",),
        at=("b.group_id", "b.queue_id", "b.topic_id", "b.message_group", _delivery_of_group("d.message_key", "DESC")),
    ),
    Stuck(
        "a message group that is neither locked nor open",
        StuckIn.POSITIONS,
        f"{IN_USE} WHERE b.open_since_ms IS NULL AND {FIRST_OF_GROUP} IS NULL AND NOT {IS_PAUSED}",
        "no message of its message group is held or waits, and yet the group is not open: no receive reads it",
        "opens the message group",
        (_OPEN,),
    ),
    Stuck(
        "a message group whose first message is ready and that is not open",
        StuckIn.DELIVERIES,
        f"""{_DELIVERY_IN_USE} WHERE {_IS_HEAD} AND {is_shown_as("b.state", State.READY)} AND NOT {IS_PAUSED}
        AND NOT EXISTS (SELECT 1 FROM message_group_progress o WHERE o.group_id = b.group_id
                        AND o.queue_id = p.queue_id AND o.message_group = b.message_group
                        AND o.open_since_ms IS NOT NULL)""",
        "the first message of its message group is READY, and yet the group is not open: no receive reads it",
        "opens the message group",
        (
            _OPEN,
            f"""INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset,
                                                open_since_ms, subscriber)
            SELECT d.group_id, p.queue_id, d.message_group, d.topic_id, p.next_offset, :now_ms, {_SUBSCRIBER}
            FROM delivery d JOIN progress p ON p.group_id = d.group_id AND p.queue_id = :queue_id
            WHERE d.group_id = :group_id AND d.message_key = :row_id
            AND NOT EXISTS (SELECT 1 FROM message_group_progress o WHERE o.group_id = :group_id
                            AND o.queue_id = :queue_id AND o.message_group = :message_group)""",
        ),
    ),
    # Lite topics.
    Stuck(
        "a lite subscription without its client",
        StuckIn.SUBSCRIPTIONS,
        """WHERE NOT EXISTS (
            SELECT 1 FROM lite_client c WHERE c.client_id = b.client_id AND c.group_id = b.group_id
            AND c.topic_id = b.topic_id)""",
        "a client that no longer exists subscribes to its lite topic",
        "ends the subscription",
        (
            """DELETE FROM lite_subscription WHERE group_id = :group_id AND topic_id = :topic_id
            AND lite_topic = :message_group AND NOT EXISTS (
                SELECT 1 FROM lite_client c WHERE c.client_id = lite_subscription.client_id
                AND c.group_id = :group_id AND c.topic_id = :topic_id)""",
        ),
    ),
    # The expression keeps Postgres from the index of clients: each client may have 2,000 lite topics there.
    Stuck(
        "a message group assigned to a client that does not subscribe to it",
        StuckIn.POSITIONS,
        f"""{IN_USE} WHERE b.subscriber <> ''
        AND {_subscription("AND (s.client_id || '') = b.subscriber")} IS NULL""",
        "its lite topic is assigned to a client that does not subscribe to it",
        "assigns it to one that does, if any",
        (_RESUBSCRIBE,),
    ),
    Stuck(
        "a message group assigned to no client, though one subscribes to it",
        StuckIn.POSITIONS,
        f"{IN_USE} WHERE b.subscriber IS NULL AND {_subscription()} IS NOT NULL",
        "its lite topic is assigned to no client, though one subscribes to it",
        "assigns it to a client that subscribes",
        (_RESUBSCRIBE,),
    ),
    Stuck(
        "a message group assigned as in a group of another kind",
        StuckIn.POSITIONS,
        f"{IN_USE} WHERE CASE WHEN {_CHOOSES} THEN b.subscriber = '' ELSE COALESCE(b.subscriber, '-') <> '' END",
        "its message group is assigned as in a group of another kind, and no receive of this group finds it",
        "assigns it to the clients of the group",
        (_RESUBSCRIBE,),
    ),
    Stuck(
        "a message group with one message that has more",
        StuckIn.POSITIONS,
        f"""{IN_USE} WHERE b.is_single = 1 AND (
            SELECT m.message_key FROM message m WHERE m.message_group = b.message_group AND m.copy_of IS NULL
            AND m.message_key > ((b.queue_id << {OFFSET_BITS}) | b.next_offset)
            AND m.message_key < ((b.queue_id << {OFFSET_BITS}) | p.next_offset)
            ORDER BY m.message_key LIMIT 1) IS NOT NULL""",
        "its lite topic is marked to have one message, and has more",
        "lets receives read the others",
        (f"UPDATE message_group_progress SET is_single = 0 WHERE {_POSITION}",),
    ),
)
