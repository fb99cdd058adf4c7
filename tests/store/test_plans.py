"""The plans of the hot statements: each finds its rows by the index made for it, and none reads a whole table.

What is explained is what is executed: every statement of a verb is caught on its way, with its own parameters, in a
store that holds enough else for a wrong plan to be dearer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from popserver.domain.delivery import State
from popserver.domain.filtering.tag import parse
from popserver.domain.group import Group
from popserver.domain.receipt import Receipt
from popserver.domain.retry import Holder
from popserver.domain.topic import Topic
from popserver.store import holds, messages
from popserver.store.schema import message
from tests.support.builders import messages_of
from tests.support.open_store import HOUR, MINUTE, SECOND, OpenStore

# How each database says that it uses an index.
SQLITE = {
    "message_pk": r"SEARCH message USING INTEGER PRIMARY KEY",
    "message_id": r"SEARCH message USING COVERING INDEX sqlite_autoindex_message_1 \(message_id=\?",
    "delivery_pk": r"SEARCH delivery USING PRIMARY KEY \(group_id=\? AND message_key=\?\)",
    "delivery_ready": r"SEARCH delivery USING INDEX delivery_ready \(group_id=\? AND topic_id=\?\)",
    "delivery_due": r"SEARCH delivery USING INDEX delivery_due \(visible_at_ms<\?\)",
    "delivery_client": r"SEARCH delivery USING INDEX delivery_client \(client_id=\?\)",
    "queue_number": r"SEARCH queue USING INDEX sqlite_autoindex_queue_1 \(topic_id=\?\)",
    "queue_pk": r"SEARCH queue USING INTEGER PRIMARY KEY",
    "progress_pk": r"SEARCH progress USING PRIMARY KEY \(group_id=\? AND queue_id=\?\)",
}
POSTGRES = {
    index: rf"(using|on) {name}\b"
    for index, name in {
        "message_pk": "message_pkey",
        "message_id": "message_id_once",
        "delivery_pk": "delivery_pk",
        "delivery_ready": "delivery_ready",
        "delivery_due": "delivery_due",
        "delivery_client": "delivery_client",
        "queue_number": "queue_number",
        "queue_pk": "queue_pkey",
        "progress_pk": "progress_pk",
    }.items()
}
# Rows handed over with the statement; reading those whole is the point of them.
GIVEN = re.compile(r"VIRTUAL TABLE|VALUES CLAUSE")
# Enough of everything that reading it whole would cost more than looking up.
OTHERS = 20_000


class Plans:
    """What the database says it will do for each statement of a verb."""

    def __init__(self, store: OpenStore) -> None:
        self._store = store
        self._statements: list[tuple[str, Any]] = []

    @contextmanager
    def caught(self) -> Iterator[None]:
        """The statements executed in this block."""
        conn = self._store.conn
        event.listen(conn, "before_cursor_execute", self._catch)
        try:
            yield
        finally:
            event.remove(conn, "before_cursor_execute", self._catch)

    def explained(self) -> dict[str, str]:
        """Each statement with its plan."""
        return {statement: self._explain(statement, parameters) for statement, parameters in self._statements}

    def _catch(self, _conn: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        parameters = parameters[0] if many else parameters
        if statement.lstrip().startswith(("SELECT", "INSERT", "UPDATE", "DELETE", "WITH")):
            self._statements.append((statement, parameters))

    def _explain(self, statement: str, parameters: Any) -> str:
        conn = self._store.conn
        if self._store.database.is_sqlite:
            rows = conn.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
            return "\n".join(str(row[3]) for row in rows)
        # A small table is rightly read whole; what counts is that it need not be.
        conn.exec_driver_sql("SET enable_seqscan = off")
        rows = conn.exec_driver_sql(f"EXPLAIN {statement}", parameters).all()
        conn.exec_driver_sql("RESET enable_seqscan")
        return "\n".join(str(row[0]) for row in rows)


Act = Callable[[OpenStore, Group, Topic], object]
ACTS: dict[str, tuple[Act, set[str]]] = {
    "send": (lambda store, _, topic: store.send(topic, 3), {"queue_pk"}),
    "send carefully": (
        lambda store, _, topic: store.do(messages.append, messages.Append(topic, messages_of(3), 0), careful=True),
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
        lambda store, group, _: store.one(holds.orphan, holds.Orphan(receipts=_held(store, group))),
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
            assert _whole_reads(plan) == [], f"{name}\n{statement}\n{plan}"
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


def _whole_reads(plan: str) -> list[str]:
    reads = re.findall(r"^\s*(?:->)?\s*(SCAN .+|Seq Scan on .+)$", plan, re.MULTILINE)
    # What a look found is read once more to be packed; the look itself stands in the plan as well.
    return [read for read in reads if not GIVEN.search(read) and not _is_of_a_subquery(read, plan)]


def _is_of_a_subquery(read: str, plan: str) -> bool:
    return f"CO-ROUTINE {read.removeprefix('SCAN ')}" in plan
