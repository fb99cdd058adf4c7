"""What a database says it will do for the statements of a verb.

What is explained is what is executed: every statement is caught on its way, with its own parameters.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from popserver.database.schema import message
from popserver.model.group import Group
from popserver.model.states import State
from popserver.model.topic import Topic
from tests.support.open_store import HOUR, OpenStore

# How each database says that it uses an index.
SQLITE = {
    "message_pk": r"SEARCH message USING INTEGER PRIMARY KEY",
    "message_id": r"SEARCH message USING (COVERING )?INDEX message_id_once \(message_id=\?",
    "delivery_pk": r"SEARCH delivery USING PRIMARY KEY \(group_id=\? AND message_key=\?\)",
    "delivery_ready": r"SEARCH delivery USING INDEX delivery_ready \(group_id=\? AND topic_id=\? AND visible_at_ms>",
    "delivery_due": r"SEARCH delivery USING INDEX delivery_due \(visible_at_ms<\?\)",
    "delivery_client": r"SEARCH delivery USING INDEX delivery_client \(client_id=\?\)",
    "delivery_of_group": r"USING COVERING INDEX delivery_of_group \(group_id=\? AND topic_id=\? AND message_group=\?",
    "message_of_group": r"SEARCH message USING INDEX message_of_group \(message_group=\? AND message_key>\?",
    "behind_open": r"message_group_progress USING (COVERING )?INDEX message_group_open \(group_id=\? AND topic_id=\?",
    "behind_pk": r"message_group_progress USING PRIMARY KEY \(group_id=\? AND queue_id=\? AND message_group=\?\)",
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
        "delivery_of_group": "delivery_of_group",
        "message_of_group": "message_of_group",
        "behind_open": "message_group_open",
        "behind_pk": "message_group_progress_pk",
        "queue_number": "queue_number",
        "queue_pk": "queue_pkey",
        "progress_pk": "progress_pk",
    }.items()
}
# Rows handed over with the statement; reading those whole is the point of them.
GIVEN = re.compile(r"VIRTUAL TABLE|VALUES CLAUSE|CONSTANT ROW")


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

    @property
    def count(self) -> int:
        """How many statements were executed."""
        return len(self._statements)

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
        # A recursive look shows what it reads at each step only when it has taken one.
        how = "EXPLAIN ANALYZE" if statement.startswith("WITH RECURSIVE") else "EXPLAIN"
        rows = conn.exec_driver_sql(f"{how} {statement}", parameters).all()
        conn.exec_driver_sql("RESET enable_seqscan")
        return "\n".join(str(row[0]) for row in rows)


def assert_found_by_index(store: OpenStore, name: str, act: Callable[[], object], indexes: Mapping[str, str]) -> None:
    """No statement of the act reads a whole table, and each of these indexes (its name, how a plan says it) is used."""
    plans = Plans(store)
    with plans.caught():
        act()
    explained = plans.explained()
    assert explained, name
    for statement, plan in explained.items():
        assert whole_reads(plan) == [], f"{name}\n{statement}\n{plan}"
    everything = "\n".join(explained.values())
    for index, words in indexes.items():
        assert re.search(words, everything), f"{name} does not use {index}:\n{everything}"


def whole_reads(plan: str) -> list[str]:
    reads = re.findall(r"^\s*(?:->)?\s*(SCAN .+|Seq Scan on .+)$", plan, re.MULTILINE)
    # What a look found is read once more to be packed; the look itself stands in the plan as well.
    return [read for read in reads if not GIVEN.search(read) and not _is_of_a_subquery(read, plan)]


def _is_of_a_subquery(read: str, plan: str) -> bool:
    named = read.removeprefix("SCAN ")
    return f"CO-ROUTINE {named}" in plan or f"MATERIALIZE {named}" in plan


# Enough of everything that reading it whole would cost more than looking up.
OTHERS = 20_000


def fill_with_others(store: OpenStore, topic: Topic, group: Group) -> None:
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


def blocks_read(store: OpenStore) -> int:
    """Blocks of tables and indexes that statements have read on Postgres until now."""
    store.conn.exec_driver_sql("SELECT pg_stat_force_next_flush()")
    counters = "heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read"
    return int(store.one_value(f"SELECT sum({counters}) FROM pg_statio_user_tables"))
