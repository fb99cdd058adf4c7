"""What the history says: how many messages were in each state over time, and which flight has most to tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from examples.flights.data import TOPIC
from examples.flights.groups import ARRIVALS
from examples.flights.watching import Database

STATES: Final = ("COMMIT", "DLQ", "INFLIGHT", "WAITING_RETRY", "READY")
STEPS: Final = 300
GRAIN_MS: Final = 10

# A message begins as READY when it is stored, and each row of history moves it from one state to another. Redriven
# messages are left out: they are new messages, and their redrive is after the run.
_MOVES = f"""\
WITH
  sent AS (
    SELECT m.message_key, m.stored_at_ms FROM message m JOIN topic t USING (topic_id)
    WHERE t.name = '{TOPIC}' AND m.copy_of IS NULL),
  moved AS (
    SELECT g.name, h.at_ms, h.from_state, h.to_state FROM history h
    JOIN consumer_group g USING (group_id) JOIN sent s USING (message_key) WHERE h.event <> 'REDRIVE'),
  moves(name, state, at_ms, change) AS (
    SELECT g.name, 'READY', s.stored_at_ms, 1 FROM sent s CROSS JOIN consumer_group g
    UNION ALL SELECT name, to_state, at_ms, 1 FROM moved
    UNION ALL SELECT name, from_state, at_ms, -1 FROM moved)
SELECT name, state, at_ms / {GRAIN_MS}, sum(change) FROM moves GROUP BY 1, 2, 3
"""

# The dead letter that most clients have held.
_FLIGHT = f"""\
SELECT hex(d.message_id) FROM dead_letters d
JOIN consumer_group g ON g.name = d.consumer_group
JOIN history h ON h.message_key = d.origin_key AND h.group_id = g.group_id
WHERE d.consumer_group = '{ARRIVALS}' GROUP BY d.id
ORDER BY count(DISTINCT h.client_id) DESC, count(*) DESC, d.id LIMIT 1
"""


class Course(NamedTuple):
    """How many messages each group had in each state, at the end of each step of `step_ms` since `began_ms`."""

    began_ms: int
    step_ms: int
    groups: Mapping[str, Mapping[str, Sequence[int]]]


def course_of(database: Database) -> Course:
    """The states of all flights, from the first that was stored until the last has ended."""
    rows = database.rows(_MOVES)
    began, ended = min(row[2] for row in rows), max(row[2] for row in rows)
    step = (ended - began) // STEPS + 1
    changes = {name: {state: [0] * ((ended - began) // step + 1) for state in STATES} for name in _names(rows)}
    for name, state, at, change in rows:
        changes[name][state][(at - began) // step] += change
    groups = {name: {state: list(accumulate(each)) for state, each in of.items()} for name, of in changes.items()}
    return Course(began * GRAIN_MS, step * GRAIN_MS, groups)


def flight_that_failed(database: Database) -> str:
    """The message id of a dead letter; empty without one."""
    found = database.rows(_FLIGHT)
    return str(found[0][0]) if found else ""


def _names(rows: Sequence[Sequence[str]]) -> list[str]:
    return sorted({row[0] for row in rows})
