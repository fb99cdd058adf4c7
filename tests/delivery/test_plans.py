"""The plans of the hot statements: each finds its rows by the index made for it, and none reads a whole table.

They are explained in a store that holds enough else for a wrong plan to be dearer.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from popserver.database.schema import message
from popserver.filters.tags import parse
from popserver.messages import append
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import Topic
from popserver.settling import release
from tests.support.builders import messages_of
from tests.support.open_store import HOUR, MINUTE, SECOND, OpenStore
from tests.support.plans import POSTGRES, SQLITE, Plans, whole_reads

# Enough of everything that reading it whole would cost more than looking up.
OTHERS = 20_000

Act = Callable[[OpenStore, Group, Topic], object]
ACTS: dict[str, tuple[Act, set[str]]] = {
    "send": (lambda store, _, topic: store.send(topic, 3), {"queue_pk"}),
    "send carefully": (
        lambda store, _, topic: store.do(append.append, append.Append(topic, messages_of(3), 0), careful=True),
        {"message_id"},
    ),
    "receive": (
        lambda store, group, topic: store.receive(group, topic, 32),
        {"queue_number", "progress_pk", "delivery_ready", "delivery_pk", "message_pk"},
    ),
    "receive some tags": (
        lambda store, group, topic: store.receive(group, topic, 32, wanted=parse("A||B")),
        {"queue_number", "progress_pk", "delivery_ready", "delivery_pk", "message_pk"},
    ),
    "ack": (lambda store, group, _: store.ack(group, *_held(store, group)), {"delivery_pk"}),
    "ack in vain": (
        lambda store, group, _: store.ack(group, *[each._replace(hold_id=1) for each in _held(store, group)]),
        {"delivery_pk"},
    ),
    "change": (lambda store, group, _: store.change(group, _held(store, group)[0], SECOND), {"delivery_pk"}),
    "forward": (lambda store, group, _: store.forward(group, _held(store, group)[0]), {"delivery_pk", "message_pk"}),
    "end due": (lambda store, _group, _topic: store.end_due(after_ms=MINUTE), {"delivery_due", "delivery_pk"}),
    "orphan a client": (lambda store, _group, _topic: store.orphan_client("c1"), {"delivery_client"}),
    "adopt": (
        lambda store, _group, _topic: (store.orphan_client("c1"), store.adopt("c1", store.now_ms + HOUR)),
        {"delivery_client"},
    ),
    "orphan a grant": (
        lambda store, group, _: store.one(release.abandon_holds, release.AbandonHolds(receipts=_held(store, group))),
        {"delivery_pk"},
    ),
    "withdraw a grant": (
        lambda store, group, _: store.one(release.cancel_delivery, release.CancelDelivery(_held(store, group))),
        {"delivery_pk"},
    ),
}


@pytest.mark.row("M4")
def test_every_hot_statement_finds_its_rows_by_an_index(store: OpenStore) -> None:
    topic = store.topic(queues=4)
    group = store.group(meets=[topic])
    _fill(store, topic, group)
    names = SQLITE if store.database.is_sqlite else POSTGRES
    for name, (act, indexes) in ACTS.items():
        store.send(topic, 50, tag="A")
        store.receive(group, topic, 50, holder=Holder.PUSH, invisible_ms=MINUTE)
        store.receive(group, topic, 20, invisible_ms=SECOND)
        store.end_due(after_ms=SECOND)
        store.send(topic, 20, tag="A")
        plans = Plans(store)
        with plans.caught():
            act(store, group, topic)
        explained = plans.explained()
        assert explained, name
        for statement, plan in explained.items():
            assert whole_reads(plan) == [], f"{name}\n{statement}\n{plan}"
        everything = "\n".join(explained.values())
        for index in indexes:
            assert re.search(names[index], everything), f"{name} does not use {index}:\n{everything}"


def _held(store: OpenStore, group: Group) -> list[Receipt]:
    query = (
        "SELECT message_key, hold_id, visible_at_ms FROM delivery"
        " WHERE group_id = :id AND state = 'INFLIGHT' AND visible_at_ms < :far LIMIT 9"
    )
    return [Receipt(group.group_id, *row) for row in store.rows(query, id=group.group_id, far=store.now_ms + HOUR)]


def _fill(store: OpenStore, topic: Topic, group: Group) -> None:
    """Much that the statements are not after: messages, deliveries of this group and others, topics, progress."""
    busy = store.topic("busy")
    store.meet(group, busy)
    store.send(busy)
    for number in range(200):
        store.meet(group, store.topic(f"t{number}", queues=4))
    far_ms = store.now_ms + 99 * HOUR
    columns = ", ".join(column.name for column in message.columns)
    copied = columns.replace("message_key", "m.message_key + n").replace("message_id", f"{_an_id(store)}")
    store.conn.exec_driver_sql(
        f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {OTHERS})"
        f" INSERT INTO message ({columns}) SELECT {copied} FROM numbers, message m"
    )
    store.conn.exec_driver_sql(f"UPDATE queue SET next_offset = {OTHERS + 1} WHERE topic_id = {busy.topic_id}")
    other = store.group("other", meets=[busy])
    for group_id, state in ((group.group_id, State.INFLIGHT), (other.group_id, State.READY)):
        store.conn.exec_driver_sql(
            "INSERT INTO delivery"
            " (group_id, message_key, topic_id, state, attempt, hold_id, visible_at_ms, holder, client_id)"
            f" SELECT {group_id}, message_key, {busy.topic_id}, '{state}', 1, 1, {far_ms}, 'PUSH', 'other' FROM message"
        )
    store.conn.exec_driver_sql(
        f"UPDATE progress SET next_offset = {OTHERS + 1} WHERE queue_id = {busy.queues[0].queue_id}"
    )
    if not store.database.is_sqlite:
        store.conn.exec_driver_sql("ANALYZE")


def _an_id(store: OpenStore) -> str:
    return "CAST('x' || n AS BLOB)" if store.database.is_sqlite else "convert_to('x' || n, 'UTF8')"
