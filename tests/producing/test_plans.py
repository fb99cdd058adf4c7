"""The plans of what deals with pending messages: none reads the whole table, however many wait."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from popserver.messages.pending_messages import topics_of_sender
from popserver.model.topic import Topic
from popserver.producing import pending
from popserver.producing.pending_facts import After, scheduled
from tests.support.builders import TOPIC
from tests.support.open_store import HOUR, MINUTE, SECOND, OpenStore
from tests.support.pending_store import (
    a_delayed,
    a_half,
    commit,
    enter_due,
    pend,
    recall,
    roll_back,
    take_checks,
)
from tests.support.plans import assert_found_by_index

OTHERS = 20_000
SQLITE = {
    "id": r"SEARCH pending USING .*INDEX sqlite_autoindex_pending_1 \(message_id=\?",
    "pk": r"SEARCH pending USING INTEGER PRIMARY KEY",
    "due": r"SEARCH pending USING .*INDEX pending_due \(due_at_ms",
    "check": r"SEARCH pending USING .*INDEX pending_check \(topic_id=\? AND due_at_ms<\?\)",
    "client": r"SEARCH pending USING .*INDEX pending_of_client \(client_id=\?\)",
    "topic": r"SEARCH pending USING .*INDEX pending_of_topic \(topic_id=\?",
}
POSTGRES = {
    index: rf"(using|on) {name}\b"
    for index, name in {
        "id": "pending_id_once",
        "pk": "pending_pkey",
        "due": "pending_due",
        "check": "pending_check",
        "client": "pending_of_client",
        "topic": "pending_of_topic",
    }.items()
}


def _recall(store: OpenStore, topic: Topic) -> None:
    late = a_delayed(store, HOUR)
    pend(store, topic, late)
    assert recall(store, topic, late) is None


def _cancel(store: OpenStore, topic: Topic) -> None:
    (late,) = pend(store, topic, a_delayed(store, HOUR))
    assert store.one(pending.cancel_pending, pending.CancelPending(topic, [late.message_id]))


ACTS: dict[str, tuple[Callable[[OpenStore, Topic], object], set[str]]] = {
    "pend": (lambda store, topic: pend(store, topic, a_delayed(store, HOUR), a_half()), {"id"}),
    "enter what is due": (lambda store, _: enter_due(store, after_ms=MINUTE), {"due", "pk"}),
    "commit": (lambda store, topic: commit(store, topic, pend(store, topic, a_half())[0]), {"id", "pk"}),
    "roll back": (lambda store, topic: roll_back(store, topic, pend(store, topic, a_half())[0]), {"id", "pk"}),
    "recall": (_recall, {"id", "pk"}),
    "cancel": (_cancel, {"id", "pk"}),
    "take checks": (lambda store, topic: take_checks(store, topic, after_ms=MINUTE), {"check", "pk"}),
    "who sent it": (lambda store, _: topics_of_sender(store.conn, "p1"), {"client"}),
    "the schedule": (lambda store, _: scheduled(store.conn, TOPIC, After(0, 0), 10), {"topic"}),
}


@pytest.mark.row("M4")
def test_every_statement_finds_its_rows_by_an_index(store: OpenStore) -> None:
    topic, busy = store.topic(queues=4), store.topic("busy")
    _fill(store, topic, busy)
    names = SQLITE if store.database.is_sqlite else POSTGRES
    for name, (act, indexes) in ACTS.items():
        pend(store, topic, *(a_delayed(store, SECOND) for _ in range(20)), *(a_half() for _ in range(20)))
        assert_found_by_index(store, name, partial(act, store, topic), {index: names[index] for index in indexes})


def _fill(store: OpenStore, topic: Topic, busy: Topic) -> None:
    """Much that waits: delayed messages far from due, and another topic's half messages that are overdue for ever."""
    pend(store, topic, a_delayed(store, 99 * HOUR), client_id="other")
    pend(store, busy, a_half(), client_id="other")
    columns = [row.name for row in store.rows(_COLUMNS[store.database.is_sqlite])]
    an_id = "CAST('x' || n || p.kind AS BLOB)"
    if not store.database.is_sqlite:
        an_id = "convert_to('x' || n || p.kind, 'UTF8')"
    copied = {"pending_id": "p.pending_id + 2 * n", "message_id": an_id}
    selected = ", ".join(copied.get(each, f"p.{each}") for each in columns)
    store.conn.exec_driver_sql(
        f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {OTHERS})"
        f" INSERT INTO pending ({', '.join(columns)}) SELECT {selected} FROM numbers, pending p"
    )
    if not store.database.is_sqlite:
        store.conn.exec_driver_sql("SELECT setval(pg_get_serial_sequence('pending', 'pending_id'), 1000000)")
        store.conn.exec_driver_sql("ANALYZE")


_COLUMNS = {
    True: "SELECT name FROM pragma_table_info('pending')",
    False: "SELECT column_name AS name FROM information_schema.columns"
    " WHERE table_name = 'pending' AND table_schema = current_schema()",
}
