"""The selection of a group's dead letters, narrowed by facts and by a SQL filter (reads only).

A page reads at most 1,000 dead letters, however many match, so its cost does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from sqlalchemy import Connection

from popserver.catalog import facts as catalog_facts
from popserver.catalog import topics
from popserver.dead_letters.rules import LetterSelection, Selection
from popserver.delivery.retry_topic import properties_of
from popserver.engine.transaction import STEP_ROWS_MAX
from popserver.filters import SqlFilter
from popserver.filters import sql as filters_sql
from popserver.messages import by_key, dead_letters
from popserver.messages.by_key import HeadRow
from popserver.messages.dead_letters import DeadLetterRow
from popserver.messages.ranges import Work
from popserver.model.errors import MessagePropertyConflictWithType
from popserver.model.group import Group
from popserver.model.message import id_from_bytes
from popserver.model.names import Resource
from popserver.model.topic import MessageType, Topic


class LetterPage(NamedTuple):
    """Matching dead letters, and the id after which to continue (None: no more)."""

    rows: list[DeadLetterRow]
    next_after_id: int | None

    @property
    def ids(self) -> list[int]:
        return [each.dead_letter_id for each in self.rows]


def page_of_letters(conn: Connection, group: Group, selection: Selection, after_id: int, limit: int) -> LetterPage:
    """Up to `limit` matches, oldest first, among the next 1,000 after `after_id` (fewer with an expensive filter)."""
    if selection.ids:
        rows = dead_letters.named(conn, group.group_id, [each for each in selection.ids if each > after_id])
    else:
        rows = dead_letters.following(conn, group.group_id, after_id, STEP_ROWS_MAX)
    plausible = [row for row in rows if _may_fit(row, selection)]
    fitting, left_at = (
        _judged(conn, filters_sql.parse(selection.where), plausible) if selection.where else (plausible, None)
    )
    page = fitting[:limit]
    if len(fitting) > limit:
        return LetterPage(page, page[-1].dead_letter_id)
    if left_at is not None:
        return LetterPage(page, left_at)
    return LetterPage(page, rows[-1].dead_letter_id if len(rows) == STEP_ROWS_MAX else None)


class PlanStart(NamedTuple):
    group: Group
    selection: tuple[Selection, int]  # with the id of the newest dead letter that it covers
    target: Topic | None


def plan_start(conn: Connection, of: LetterSelection, target_name: Resource | None) -> PlanStart:
    """The facts for a plan that is made now."""
    group, selection = resolve(conn, of)
    return PlanStart(group, (selection, dead_letters.newest_id(conn, group.group_id)), find_target(conn, target_name))


def resolve(conn: Connection, of: LetterSelection) -> tuple[Group, Selection]:
    group = catalog_facts.group(conn, of.group)
    topic_id = None if of.topic is None else catalog_facts.topic(conn, of.topic).topic_id
    return group, of.only._replace(topic_id=topic_id)


def page_of(conn: Connection, of: LetterSelection, after_id: int, limit: int) -> tuple[Group, LetterPage]:
    group, selection = resolve(conn, of)
    return group, page_of_letters(conn, group, selection, after_id, limit)


def find_target(conn: Connection, name: Resource | None) -> Topic | None:
    if name is None:
        return None
    topic = catalog_facts.topic(conn, name)
    if MessageType.NORMAL not in topic.accepts:
        raise MessagePropertyConflictWithType(
            f"topic '{name}' takes {', '.join(topic.accepts)} messages; a message that is redriven to a topic is NORMAL"
        )
    return topic


def _may_fit(row: DeadLetterRow, selection: Selection) -> bool:
    return (
        (selection.redriven_too or row.redrive_state is None)
        and selection.topic_id in (None, row.origin_topic_id)
        and (selection.dead_from_ms is None or row.dead_at_ms >= selection.dead_from_ms)
        and (selection.dead_until_ms is None or row.dead_at_ms < selection.dead_until_ms)
    )


def _judged(
    conn: Connection, wanted: SqlFilter, rows: Sequence[DeadLetterRow]
) -> tuple[list[DeadLetterRow], int | None]:
    """The rows that the filter accepts, and the id after which it stopped if its work limit was reached (else None)."""
    names = topics.names_by_id(conn, {row.origin_topic_id for row in rows})
    work = Work()
    fitting: list[DeadLetterRow] = []
    left = iter(rows)
    while several := list(islice(left, work.messages(wanted))):
        copies = by_key.heads(conn, [row.copy_key for row in several])
        for row in several:
            copy = copies[row.copy_key]
            facts = _facts(row, copy, names.get(row.origin_topic_id))
            if wanted.matches(copy.tag, facts):
                fitting.append(row)
            work.spend(wanted.cost(copy.tag, facts))
            if work.is_done and row is not rows[-1]:
                return fitting, row.dead_letter_id
    return fitting, None


def _facts(row: DeadLetterRow, copy: HeadRow, topic: Resource | None) -> Mapping[str, str | None]:
    return {
        **properties_of(copy.properties),
        "REASON": row.reason,
        "ATTEMPT": str(row.attempt),
        "TOPIC": None if topic is None else topic.name,
        "MESSAGE_ID": id_from_bytes(copy.message_id),
        "MESSAGE_GROUP": copy.message_group,
    }
