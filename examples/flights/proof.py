"""The proof, only in SQL: all sent messages have ended, once, and no message had two holders at the same time."""

from __future__ import annotations

from typing import NamedTuple

from examples.flights.groups import AGAIN_S, ARRIVALS, HOLD_S, RADAR, RADAR_HOLD_S
from examples.flights.watching import Database

# These groups keep their whole history: one row per event, written in the transaction of the event.
_SQL = """\
WITH
  promised(consumer_group, event, ms) AS (VALUES
    ('{arrivals}', 'RECEIVE', {hold_ms}), ('{arrivals}', 'CHANGE_INVISIBLE', {again_ms}),
    ('{arrivals}', 'GIVE_BACK', 0), ('{radar}', 'RECEIVE', {radar_ms}),
    -- A hold whose answer reached nobody, because its consumer was killed, ends early; it names no client.
    ('{arrivals}', 'RELEASE', 0), ('{radar}', 'RELEASE', 0)),
  sent AS (
    SELECT m.message_key, json_extract(CAST(m.body AS TEXT), '$.arr_time') IS NOT NULL AS arrived
    FROM message m JOIN topic t ON t.topic_id = m.topic_id WHERE t.name = 'flights'),
  acked AS (SELECT group_id, message_key, count(*) AS times FROM history WHERE event = 'ACK' GROUP BY 1, 2),
  holds AS (
    SELECT h.group_id, h.event, h.at_ms,
           lag(h.at_ms + p.ms) OVER (PARTITION BY h.group_id, h.message_key ORDER BY h.history_id) AS held_until_ms
    FROM history h JOIN consumer_group g USING (group_id)
    JOIN promised p ON p.consumer_group = g.name AND p.event = h.event
    WHERE h.event <> 'RELEASE' OR h.client_id = ''),
  ends AS (
    SELECT g.group_id, s.message_key, s.arrived, COALESCE(a.times, 0) AS acks, l.origin_key IS NOT NULL AS is_dead,
           d.message_key IS NOT NULL OR (s.message_key & 1099511627775) >= p.next_offset AS is_waiting
    FROM sent s JOIN progress p ON p.queue_id = s.message_key >> 40 JOIN consumer_group g USING (group_id)
    LEFT JOIN delivery d ON d.group_id = g.group_id AND d.message_key = s.message_key
    LEFT JOIN acked a ON a.group_id = g.group_id AND a.message_key = s.message_key
    LEFT JOIN dead_letter l ON l.group_id = g.group_id AND l.origin_key = s.message_key)
SELECT g.name AS consumer_group,
       count(*) AS sent,
       sum(e.acks > 0) AS committed,
       sum(e.is_dead) AS dead_letters,
       sum(e.is_waiting) AS waiting,
       sum(e.acks = 0 AND NOT e.is_dead AND NOT e.is_waiting) AS lost,
       sum(e.acks + e.is_dead + e.is_waiting > 1) AS ended_twice,
       (SELECT count(*) FROM holds h WHERE h.group_id = g.group_id AND h.event = 'RECEIVE'
          AND h.at_ms < h.held_until_ms) AS duplicates,
       sum(e.is_dead = e.arrived) AS misjudged
FROM ends e JOIN consumer_group g USING (group_id)
GROUP BY g.name ORDER BY g.name;
"""


class Proof(NamedTuple):
    """One group's result, in messages."""

    consumer_group: str
    sent: int
    committed: int
    dead_letters: int
    waiting: int  # READY or held
    lost: int  # none of the three
    ended_twice: int  # two of the three, or acknowledged more than once
    duplicates: int  # delivered before their holder's time was over
    misjudged: int  # arrived but dead, or the reverse; only for a group that checks arrivals

    def holds(self, flights: int, *, all_read: bool) -> bool:
        """Whether the group's result is correct. `all_read`: whether it had the time to read all messages."""
        judges = self.consumer_group == ARRIVALS
        return (
            self.sent == flights == self.committed + self.dead_letters + self.waiting
            and self.lost == self.ended_twice == self.duplicates == 0
            and not (self.misjudged if judges else self.dead_letters)
            and not (all_read and self.waiting)
        )


def sql() -> str:
    """The query as text, so that users can run it themselves."""
    return _SQL.format(
        arrivals=ARRIVALS,
        hold_ms=round(HOLD_S * 1_000),
        again_ms=round(AGAIN_S * 1_000),
        radar=RADAR,
        radar_ms=RADAR_HOLD_S * 1_000,
    )


def prove(database: Database) -> list[Proof]:
    return [Proof(*row) for row in database.rows(sql())]
