"""The proof, in SQL alone: what was sent has ended, once, and nobody shared a message while it was held."""

from __future__ import annotations

from typing import NamedTuple

from examples.flights.groups import AGAIN_S, ARRIVALS, HOLD_S, RADAR, RADAR_HOLD_S
from examples.flights.watching import Database

# Groups keep their whole history here: one row per event, written in the transaction that makes the event true.
_SQL = """\
WITH
  promised(consumer_group, event, ms) AS (VALUES
    ('{arrivals}', 'RECEIVE', {hold_ms}), ('{arrivals}', 'CHANGE_INVISIBLE', {again_ms}),
    ('{arrivals}', 'GIVE_BACK', 0), ('{radar}', 'RECEIVE', {radar_ms})),
  sent AS (
    SELECT m.message_key, json_extract(CAST(m.body AS TEXT), '$.arr_time') IS NOT NULL AS arrived
    FROM message m JOIN topic t ON t.topic_id = m.topic_id WHERE t.name = 'flights'),
  acked AS (SELECT group_id, message_key, count(*) AS times FROM history WHERE event = 'ACK' GROUP BY 1, 2),
  holds AS (
    SELECT h.group_id, h.event, h.at_ms,
           lag(h.at_ms + p.ms) OVER (PARTITION BY h.group_id, h.message_key ORDER BY h.history_id) AS held_until_ms
    FROM history h JOIN consumer_group g USING (group_id)
    JOIN promised p ON p.consumer_group = g.name AND p.event = h.event),
  ends AS (
    SELECT g.group_id, s.message_key, s.arrived, COALESCE(a.times, 0) AS acks, d.origin_key IS NOT NULL AS is_dead
    FROM sent s CROSS JOIN consumer_group g
    LEFT JOIN acked a ON a.group_id = g.group_id AND a.message_key = s.message_key
    LEFT JOIN dead_letter d ON d.group_id = g.group_id AND d.origin_key = s.message_key)
SELECT g.name AS consumer_group,
       count(*) AS sent,
       sum(e.acks > 0) AS committed,
       sum(e.is_dead) AS dead_letters,
       sum(e.acks = 0 AND NOT e.is_dead) AS lost,
       sum(e.acks + e.is_dead > 1) AS ended_twice,
       (SELECT count(*) FROM holds h WHERE h.group_id = g.group_id AND h.event = 'RECEIVE'
          AND h.at_ms < h.held_until_ms) AS duplicates,
       sum(e.is_dead = e.arrived) AS misjudged,
       (SELECT count(*) FROM holds h WHERE h.group_id = g.group_id AND h.event = 'RECEIVE') AS deliveries
FROM ends e JOIN consumer_group g USING (group_id)
GROUP BY g.name ORDER BY g.name;
"""


class Proof(NamedTuple):
    """One group's account, in messages."""

    consumer_group: str
    sent: int
    committed: int
    dead_letters: int
    lost: int  # neither committed nor a dead letter
    ended_twice: int  # both, or acknowledged more than once
    duplicates: int  # delivered before the time was over that their holder had been promised
    misjudged: int  # arrived but dead, or the reverse; of no meaning for a group that judges nothing
    deliveries: int

    def holds(self, flights: int) -> bool:
        judged = self.consumer_group == ARRIVALS
        expected_dead = self.dead_letters if judged else 0
        return (
            self.sent == flights == self.committed + expected_dead
            and self.lost == self.ended_twice == self.duplicates == 0
            and not (judged and self.misjudged)
        )


def sql() -> str:
    """The query, to be run again by whoever doubts it."""
    return _SQL.format(
        arrivals=ARRIVALS,
        hold_ms=round(HOLD_S * 1_000),
        again_ms=round(AGAIN_S * 1_000),
        radar=RADAR,
        radar_ms=RADAR_HOLD_S * 1_000,
    )


def prove(database: Database) -> list[Proof]:
    return [Proof(*row) for row in database.rows(sql())]
