"""Dead letters: INFLIGHT → DLQ.

The dead message becomes an ordinary message of topic `%DLQ%<group>`, which any client, pull or Spark reads with no
extra code, and one narrow row of facts. Both are written, and the delivery's row removed, in the caller's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import bindparam, delete, insert, select

from popserver.domain.delivery import Event, State, sources
from popserver.domain.group import Group
from popserver.domain.names import dead_letter_topic
from popserver.domain.topic import NewTopic, message_key
from popserver.store import catalog
from popserver.store.given import as_given, given
from popserver.store.history import Moved, record
from popserver.store.messages import take_offsets
from popserver.store.schema import dead_letter, delivery, in_states, message
from popserver.store.transaction import Transaction

QUEUES = 1


class Dying(NamedTuple):
    """A delivery about to become a dead letter."""

    message_key: int
    topic_id: int
    attempt: int
    client_id: str


def bury(tx: Transaction, group: Group, dying: Sequence[Dying], event: Event, reason: str) -> None:
    """Make dead letters of deliveries whose rows the caller has locked (at most one step of them)."""
    copies = _copy_messages(tx, group, dying)
    facts = [
        {
            "group_id": group.group_id,
            "origin_key": each.message_key,
            "origin_topic_id": each.topic_id,
            "copy_key": copy_key,
            "attempt": each.attempt,
            "reason": reason,
            "dead_at_ms": tx.now_ms,
        }
        for each, copy_key in zip(dying, copies, strict=True)
    ]
    tx.conn.execute(insert(dead_letter), facts)
    tx.conn.execute(_END, {"for_group": group.group_id, "dying": as_given((each.message_key,) for each in dying)})
    moved = (Moved(each.message_key, State.INFLIGHT, each.attempt, each.client_id) for each in dying)
    record(tx, group, event, moved, reason)


def _copy_messages(tx: Transaction, group: Group, dying: Sequence[Dying]) -> list[int]:
    """Append copies to the group's dead-letter topic; their keys, in the order of `dying`."""
    topic = catalog.ensure_topic(tx, NewTopic(dead_letter_topic(group.name), QUEUES))
    place = topic.queues[0]
    first = take_offsets(tx, place, len(dying))
    assert first is not None, "the topic was found or made in this transaction"
    copies = [message_key(place.queue_id, first + index) for index in range(len(dying))]
    pairs = as_given((each.message_key, copy) for each, copy in zip(dying, copies, strict=True))
    tx.conn.execute(_COPY, {"pairs": pairs, "dlq_topic_id": topic.topic_id, "now_ms": tx.now_ms})
    tx.ring(topic.topic_id)
    return copies


_DYING = given("dying", "message_key")
_PAIRS = given("pairs", "origin_key", "copy_key")
# Everything but its place is the origin's own: id, body, properties, birth.
_PLACE = {
    "message_key": _PAIRS.c.copy_key,
    "topic_id": bindparam("dlq_topic_id", type_=message.c.topic_id.type),
    "origin_key": _PAIRS.c.origin_key,
    "stored_at_ms": bindparam("now_ms", type_=message.c.stored_at_ms.type),
}
_COPY = insert(message).from_select(
    [column.name for column in message.columns],
    select(*[_PLACE.get(column.name, column) for column in message.columns])
    .select_from(_PAIRS)
    .join(message, message.c.message_key == _PAIRS.c.origin_key),
)
_END = delete(delivery).where(
    delivery.c.group_id == bindparam("for_group"),
    delivery.c.message_key.in_(select(_DYING.c.message_key)),
    in_states(delivery.c.state, *(sources(Event.EXHAUST) & sources(Event.FORWARD_TO_DLQ))),
)
