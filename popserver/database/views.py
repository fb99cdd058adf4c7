"""The views, for both databases: what operators and Spark read (docs/views.md)."""

from __future__ import annotations

from popserver.database import states_of
from popserver.database.states_of import OFFSET_MASK
from popserver.model.states import LetterState, RedriveState, State
from popserver.model.times import TIME_MS_MAX
from popserver.model.topic import OFFSET_BITS, MessageType

# A lite topic is stored as a message group (docs/design/0021), and shown in a column of its own.
_ORDERED_BY = f"""CASE WHEN m.message_type <> '{MessageType.LITE}' THEN m.message_group END AS message_group,
       CASE WHEN m.message_type = '{MessageType.LITE}' THEN m.message_group END AS lite_topic"""

# A message's state in each group that consumes its topic. It is for one message; to count by it is too expensive. A
# message that was redriven to its group has the state of its new key, if the group reads that queue (as in mode PULL).
_MESSAGE_STATE = f"""
SELECT t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.message_key, q.number AS queue_id,
       m.message_key & {OFFSET_MASK} AS queue_offset, g.namespace AS group_namespace, g.name AS consumer_group,
       {states_of.state("m.message_key", states_of.shown("d.state"), states_of.shown("rd.state"))} AS state,
       COALESCE(d.attempt, rd.attempt, CASE WHEN l.redrive_state IS NULL THEN l.attempt END) AS attempt,
       COALESCE(d.visible_at_ms, rd.visible_at_ms) AS visible_at_ms, COALESCE(d.client_id, rd.client_id) AS client_id,
       m.stored_at_ms, m.tag, m.keys, {_ORDERED_BY}
FROM message m
JOIN queue q ON q.queue_id = (m.message_key >> {OFFSET_BITS})
JOIN topic t ON t.topic_id = q.topic_id
JOIN progress p ON p.queue_id = q.queue_id
JOIN consumer_group g ON g.group_id = p.group_id
{states_of.joins("m.message_key", "m.message_key")}
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""  # noqa: S608

# The lag, from offsets and messages in flight: its cost does not depend on the number of stored messages. A message
# that a member sent back may be after the committed offset: it counts as waiting, and not as ready too. The oldest
# READY message is the oldest of three: of the messages that the group has not read, of those that are READY again, and
# of those in message groups behind the scan. In one queue a message with a smaller key was stored earlier. So the view
# reads only the first message of each queue, and none of a queue that the group has read to its end.
_LATEST = TIME_MS_MAX
_READY = "s.beyond - COALESCE(d.beyond, 0) + COALESCE(d.ready, 0) + COALESCE(b.behind, 0)"


def group_lag(*, of_groups: str = "", of_topics: str = "") -> str:
    """The text of the view. With `of_groups` or `of_topics`, such as `IN (1, 2)`, a query for only these groups and
    topics, which reads no rows of others."""

    def only(group_id: str, topic_id: str) -> str:
        wanted = [(group_id, of_groups), (topic_id, of_topics)]
        return "".join(f" AND {column} {given}" for column, given in wanted if given)

    of_queues = only("p.group_id", "q.topic_id")
    of_held = only("d.group_id", "d.topic_id").replace(" AND", " WHERE", 1)
    of_behind = only("b.group_id", "q.topic_id")
    of_dead = only("group_id", "origin_topic_id")
    return f"""
SELECT g.group_id, g.namespace AS group_namespace, g.name AS consumer_group, t.topic_id,
       t.namespace AS topic_namespace, t.name AS topic,
       {_READY} AS ready,
       COALESCE(d.inflight, 0) AS inflight,
       COALESCE(d.waiting_retry, 0) AS waiting_retry, COALESCE(l.dead_letters, 0) AS dead_letters,
       s.stored,
       CASE WHEN {_READY} = 0 THEN NULL
            WHEN COALESCE(s.oldest_ms, {_LATEST}) <= COALESCE(d.oldest_ms, {_LATEST})
                 AND COALESCE(s.oldest_ms, {_LATEST}) <= COALESCE(b.oldest_ms, {_LATEST}) THEN s.oldest_ms
            WHEN COALESCE(d.oldest_ms, {_LATEST}) <= COALESCE(b.oldest_ms, {_LATEST}) THEN d.oldest_ms
            ELSE b.oldest_ms END AS oldest_ready_ms
FROM (SELECT p.group_id, q.topic_id,
             SUM(q.next_offset - CASE WHEN p.next_offset < q.min_offset THEN q.min_offset
                                      ELSE p.next_offset END) AS beyond,
             SUM(q.next_offset - q.min_offset) AS stored,
             MIN(CASE WHEN p.next_offset < q.next_offset AND q.min_offset < q.next_offset THEN
                 (SELECT m.stored_at_ms FROM message m
                  WHERE m.message_key >= ((p.queue_id << {OFFSET_BITS})
                        | CASE WHEN p.next_offset < q.min_offset THEN q.min_offset ELSE p.next_offset END)
                  AND m.message_key < ((p.queue_id + 1) << {OFFSET_BITS})
                  ORDER BY m.message_key LIMIT 1) END) AS oldest_ms
      FROM progress p JOIN queue q ON q.queue_id = p.queue_id{of_queues} GROUP BY p.group_id, q.topic_id) s
JOIN consumer_group g ON g.group_id = s.group_id
JOIN topic t ON t.topic_id = s.topic_id
LEFT JOIN (SELECT e.group_id, e.topic_id, SUM(e.ready) AS ready, SUM(e.inflight) AS inflight,
                  SUM(e.waiting_retry) AS waiting_retry, SUM(e.beyond) AS beyond, MIN(m.stored_at_ms) AS oldest_ms
           FROM (
           SELECT d.group_id, d.topic_id,
                  {states_of.count_of("d.state", State.READY)} AS ready,
                  {states_of.count_of("d.state", State.INFLIGHT)} AS inflight,
                  {states_of.count_of("d.state", State.WAITING_RETRY)} AS waiting_retry,
                  SUM(CASE WHEN (d.message_key & {OFFSET_MASK}) >= p.next_offset THEN 1 ELSE 0 END) AS beyond,
                  MIN(CASE WHEN {states_of.is_shown_as("d.state", State.READY)} THEN d.message_key END) AS first_key
           FROM delivery d
           LEFT JOIN progress p ON p.group_id = d.group_id AND p.queue_id = (d.message_key >> {OFFSET_BITS}){of_held}
           GROUP BY d.group_id, d.topic_id, (d.message_key >> {OFFSET_BITS})) e
           LEFT JOIN message m ON m.message_key = e.first_key
           GROUP BY e.group_id, e.topic_id) d ON d.group_id = s.group_id AND d.topic_id = s.topic_id
LEFT JOIN (SELECT b.group_id, q.topic_id, COUNT(*) AS behind, MIN(m.stored_at_ms) AS oldest_ms
           FROM message_group_progress b
           JOIN queue q ON q.queue_id = b.queue_id
           JOIN progress p ON p.group_id = b.group_id AND p.queue_id = b.queue_id
           JOIN message m ON m.message_group = b.message_group AND m.copy_of IS NULL
                AND m.message_key >= ((b.queue_id << {OFFSET_BITS}) | b.next_offset)
                AND m.message_key < ((b.queue_id << {OFFSET_BITS}) | p.next_offset){of_behind}
           GROUP BY b.group_id, q.topic_id) b ON b.group_id = s.group_id AND b.topic_id = s.topic_id
LEFT JOIN (SELECT group_id, origin_topic_id, COUNT(*) AS dead_letters
           FROM dead_letter WHERE redrive_state IS NULL{of_dead} GROUP BY group_id, origin_topic_id) l
       ON l.group_id = s.group_id AND l.origin_topic_id = s.topic_id
WHERE t.deleted_at_ms IS NULL AND g.deleted_at_ms IS NULL
"""  # noqa: S608


# For Spark and `popmq dlq`: the facts and the message in one row. A dead letter stays when its topic is deleted.
_DEAD_LETTERS = f"""
SELECT l.dead_letter_id AS id, g.namespace AS group_namespace, g.name AS consumer_group,
       t.namespace AS topic_namespace, t.name AS topic, m.message_id, m.tag, m.keys, {_ORDERED_BY}, m.message_type,
       oq.number AS queue_id, l.origin_key & {OFFSET_MASK} AS queue_offset, l.origin_key, l.copy_key, m.properties,
       m.body_encoding, m.born_at_ms, m.stored_at_ms, l.dead_at_ms, l.attempt AS delivery_attempt, l.reason,
       l.redrive_state, l.plan_id, m.body
FROM dead_letter l
JOIN consumer_group g ON g.group_id = l.group_id
LEFT JOIN topic t ON t.topic_id = l.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (l.origin_key >> {OFFSET_BITS})
JOIN message m ON m.message_key = l.copy_key
"""  # noqa: S608

# The original, its dead letter, the repair, and `outcome`: the state of the redriven message in the group now. After a
# reset it is the state at the first key. It is NULL if the note gives the reason.
_LINEAGE = f"""
SELECT r.plan_id, g.namespace AS group_namespace, g.name AS consumer_group, t.namespace AS topic_namespace,
       t.name AS topic, r.message_id, oq.number AS queue_id, r.origin_key & {OFFSET_MASK} AS queue_offset,
       r.dead_letter_id, r.dead_at_ms, r.attempt AS delivery_attempt, r.dead_reason, r.reason, r.change,
       rp.target_topic, r.state, r.note, r.redriven_message_id, r.redriven_at_ms,
       CASE WHEN r.state <> '{RedriveState.REDRIVEN}' THEN NULL
            WHEN l.group_id IS NOT NULL THEN '{State.DLQ}'
            WHEN r.note IS NOT NULL THEN NULL
            WHEN d.group_id IS NOT NULL THEN {states_of.shown("d.state")}
            WHEN own.group_id IS NOT NULL THEN
                 (SELECT s.state FROM message_state s WHERE s.message_key = r.origin_key
                         AND s.group_namespace = g.namespace AND s.consumer_group = g.name)
            WHEN r.target_topic_id IS NOT NULL AND p.group_id IS NULL THEN NULL
            WHEN {states_of.is_ready_at("r.redriven_key", "p")} THEN '{State.READY}'
            ELSE '{State.COMMIT}' END AS outcome
FROM redrive r
JOIN consumer_group g ON g.group_id = r.group_id
LEFT JOIN topic t ON t.topic_id = r.origin_topic_id
LEFT JOIN queue oq ON oq.queue_id = (r.origin_key >> {OFFSET_BITS})
LEFT JOIN redrive_plan rp ON rp.plan_id = r.plan_id
LEFT JOIN dead_letter l ON l.group_id = r.group_id AND l.dead_letter_id > r.dead_letter_id
      AND l.origin_key = CASE WHEN r.target_topic_id IS NULL THEN r.origin_key ELSE r.redriven_key END
LEFT JOIN dead_letter own ON own.dead_letter_id = r.dead_letter_id AND own.redrive_state = '{LetterState.RESET}'
      AND r.target_topic_id IS NULL
LEFT JOIN delivery d ON d.group_id = r.group_id AND d.message_key = r.redriven_key
LEFT JOIN progress p ON p.group_id = r.group_id AND p.queue_id = (r.redriven_key >> {OFFSET_BITS})
"""  # noqa: S608

# The pauses. `topic` is NULL if the group is paused in all topics, `message_group` if it is paused in whole topics.
_GROUP_PAUSES = """
SELECT g.namespace AS group_namespace, g.name AS consumer_group, t.namespace AS topic_namespace, t.name AS topic,
       NULLIF(x.message_group, '') AS message_group, x.paused_at_ms, x.paused_by
FROM pause x
JOIN consumer_group g ON g.group_id = x.group_id
LEFT JOIN topic t ON t.topic_id = x.topic_id
WHERE g.deleted_at_ms IS NULL AND (x.topic_id = 0 OR t.deleted_at_ms IS NULL)
"""

VIEWS = {
    "message_state": _MESSAGE_STATE,
    "group_lag": group_lag(),
    "dead_letters": _DEAD_LETTERS,
    "lineage": _LINEAGE,
    "group_pauses": _GROUP_PAUSES,
}
