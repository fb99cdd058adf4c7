"""SQL that derives the state of a message in a group: for the views, for `why`, for refusals and for lag.

A message has a row in `delivery` only while a consumer holds it or while it waits; then the row has its state. Without
a row, a dead letter is DLQ, a message that the group or its message group has not reached is READY, and any other one
is COMMIT (docs/design/0003). In the SQL here m is message, g consumer_group, p progress, d delivery, l dead_letter and
b message_group_progress; r is the redrive of l, and rd and rp are delivery and progress for the redriven key.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from popserver.model.group import Mode
from popserver.model.states import SHOWN_AS, LetterState, State, shown_as
from popserver.model.topic import OFFSET_BITS, queue_of

OFFSET_MASK = (1 << OFFSET_BITS) - 1


def shown(stored: str) -> str:
    """SQL: the state that users see, from a column with the stored state."""
    cases = " ".join(f"WHEN '{hidden}' THEN '{seen}'" for hidden, seen in SHOWN_AS.items())
    return f"CASE {stored} {cases} ELSE {stored} END"


def is_shown_as(stored: str, state: State) -> str:
    """SQL: whether the stored state is shown as this state."""
    listed = ", ".join(f"'{each}'" for each in sorted(shown_as(state)))
    return f"{stored} IN ({listed})"


def count_of(stored: str, state: State) -> str:
    """SQL: how many rows of an aggregate are shown in this state."""
    return f"SUM(CASE WHEN {is_shown_as(stored, state)} THEN 1 ELSE 0 END)"


def is_ready_at(redriven_key: str, progress: str) -> str:
    """SQL: whether a redriven message without a delivery is READY at its new key.

    It is READY if the group reads the queue of that key and has not reached it. Otherwise it is COMMIT.
    """
    return (
        f"(g.mode = '{Mode.PULL}' OR {progress}.group_id IS NOT NULL)"
        f" AND ({redriven_key} & {OFFSET_MASK}) >= COALESCE({progress}.next_offset, 0)"
    )


def state(key: str, stored_state: str, redriven_state: str) -> str:
    """SQL: the state of the message with this key; NULL if the group has no progress in its queue.

    `stored_state` and `redriven_state` are the results for a delivery, such as `d.state`. Needs `joins`.
    """
    return f"""CASE WHEN l.group_id IS NOT NULL AND l.redrive_state IS NULL THEN '{State.DLQ}'
            WHEN d.group_id IS NOT NULL THEN {stored_state}
            WHEN rd.group_id IS NOT NULL THEN {redriven_state}
            WHEN {is_ready_at("r.redriven_key", "rp")} THEN '{State.READY}'
            WHEN p.group_id IS NULL THEN NULL
            WHEN ({key} & {OFFSET_MASK}) >= p.next_offset THEN '{State.READY}'
            WHEN b.next_offset <= ({key} & {OFFSET_MASK}) THEN '{State.READY}'
            ELSE '{State.COMMIT}' END"""


_IS_BACK = f"""\
ON {{r}}.plan_id = l.plan_id AND {{r}}.dead_letter_id = l.dead_letter_id AND l.origin_key = {{key}}
      AND l.redrive_state = '{LetterState.REDRIVEN}' AND {{r}}.target_topic_id IS NULL"""


def joins(key: str, first_key: str) -> str:
    """SQL: the joins that `state` needs, besides m, g and p; `first_key` is the message's first key."""
    return f"""LEFT JOIN delivery d ON d.group_id = g.group_id AND d.message_key = {key}
LEFT JOIN dead_letter l ON l.group_id = g.group_id AND l.origin_key = {first_key}
LEFT JOIN redrive r {_IS_BACK.format(r="r", key=key)}
LEFT JOIN delivery rd ON rd.group_id = g.group_id AND rd.message_key = r.redriven_key
LEFT JOIN progress rp ON rp.group_id = g.group_id AND rp.queue_id = (r.redriven_key >> {OFFSET_BITS})
LEFT JOIN message_group_progress b ON b.group_id = g.group_id AND b.queue_id = p.queue_id
      AND b.message_group = m.message_group AND m.copy_of IS NULL"""


def _first(table: str, column: str, name: str) -> str:
    """SQL: the row of the group `:for_group` with this value."""
    value = f"CAST({name} AS BIGINT)"
    return (
        f"SELECT * FROM {table} WHERE group_id = CAST(:for_group AS BIGINT)"  # noqa: S608
        f" AND {column} BETWEEN {value} AND {value} ORDER BY {column} DESC LIMIT 1"
    )


def state_of(conn: Connection, group_id: int, key: int, first_key: int | None = None) -> State | None:
    """The state of a message in a group, as it is stored; None if the group has no progress in its queue.

    `first_key` is the message's first key, if that differs from `key`.
    """
    names = {"for_group": group_id, "for_key": key, "for_queue": queue_of(key), "for_first": first_key or key}
    found: str | None = conn.execute(_STATE_OF, names).scalar()
    return None if found is None else State(found)


_KEY, _FIRST_KEY = "CAST(:for_key AS BIGINT)", "CAST(:for_first AS BIGINT)"
# Each ack that comes too late may run this query, so it must be fast. The order in each subquery leaves Postgres only
# the index with this order, which it reads from the newest version on (`database.newest`).
_PROGRESS = _first("progress", "queue_id", ":for_queue")
_MESSAGE_GROUP = f"(SELECT message_group FROM message WHERE message_key = {_KEY} AND copy_of IS NULL)"  # noqa: S608
_START = f"""COALESCE(
                 (SELECT start_offset FROM message_group_start
                  WHERE group_id = CAST(:for_group AS BIGINT) AND queue_id = CAST(:for_queue AS BIGINT)
                    AND message_group = {_MESSAGE_GROUP}),
                 (SELECT start_offset FROM ({_PROGRESS}) at_start), 0)"""  # noqa: S608
# `l` and `r` are CTEs before the others, so that Postgres has the redriven key when it searches for its delivery.
_STATE_OF = text(f"""
WITH l AS ({_first("dead_letter", "origin_key", ":for_first")}),
r AS (SELECT back.redriven_key FROM l JOIN redrive back {_IS_BACK.format(r="back", key=_KEY)})
SELECT {state(_KEY, "d.state", "rd.state")}
FROM consumer_group g
LEFT JOIN ({_PROGRESS}) p ON p.group_id = g.group_id
LEFT JOIN ({_first("delivery", "message_key", ":for_key")}) d ON d.group_id = g.group_id
LEFT JOIN l ON l.group_id = g.group_id
LEFT JOIN r ON TRUE
LEFT JOIN ({_first("delivery", "message_key", "(SELECT redriven_key FROM r)")}) rd ON rd.group_id = g.group_id
LEFT JOIN ({_first("progress", "queue_id", f"(SELECT redriven_key >> {OFFSET_BITS} FROM r)")}) rp
       ON rp.group_id = g.group_id
LEFT JOIN (SELECT * FROM message_group_progress
           WHERE group_id = CAST(:for_group AS BIGINT) AND queue_id = CAST(:for_queue AS BIGINT)
             AND message_group = {_MESSAGE_GROUP} AND next_offset >= {_START}
           ORDER BY next_offset DESC LIMIT 1) b ON b.group_id = g.group_id
WHERE g.group_id = CAST(:for_group AS BIGINT)""")  # noqa: S608
