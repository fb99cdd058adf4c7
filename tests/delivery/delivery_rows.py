"""A table `delivery` with a row of each kind, in a transaction that is rolled back; the messages do not exist."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from popserver.delivery import deliveries
from popserver.delivery.deliveries import NewDelivery
from popserver.engine.transaction import Transaction
from popserver.model.retry import Holder
from popserver.model.states import STORED, State
from tests.support.open_store import START_MS, OpenStore

MINE, ANOTHER = 7, 8  # groups
TOPIC, ELSEWHERE = 3, 4
HOLD, OLD_HOLD = 1 << 61, 5
LATER_MS = START_MS + 1_000


class Row(NamedTuple):
    """A row of the table."""

    group_id: int
    message_key: int
    topic_id: int
    state: str
    attempt: int
    hold_id: int
    visible_at_ms: int
    holder: str
    client_id: str
    message_group: str | None
    attempt_id: str | None
    uncounted: int

    @property
    def is_current(self) -> bool:
        """Held, by the hold that the requests name, which has not ended."""
        return self.state == State.INFLIGHT and self.hold_id == HOLD and self.visible_at_ms > START_MS


def every_kind() -> Iterator[Row]:
    """In each group the same keys."""
    for group_id, attempt in ((ANOTHER, 6), (MINE, 3)):
        key = 100
        for state in STORED:
            for hold_id in (HOLD, OLD_HOLD):
                for visible_at_ms in (START_MS - 1, START_MS, START_MS + 1, LATER_MS, LATER_MS + 1):
                    for holder, client_id in ((Holder.PUSH, "c1"), (Holder.ORPHAN, "c1"), (Holder.SIMPLE, "c2")):
                        for message_group in (None, "g"):
                            key += 1
                            topic_id = TOPIC if key % 4 < 2 else ELSEWHERE
                            yield Row(
                                group_id, key, topic_id, state, attempt, hold_id, visible_at_ms, holder, client_id,
                                message_group, "a1" if key % 3 else None, 2,
                            )  # fmt: skip


EVERY = sorted(every_kind())
KEYS = sorted({row.message_key for row in EVERY})
NAMED = [key for key in KEYS if key % 7]  # the requests name these of the group
HOLDS = [(MINE, key, HOLD) for key in NAMED]
IN = {row[:2]: row for row in EVERY}


@contextmanager
def every_row(store: OpenStore) -> Iterator[Transaction]:
    """A transaction with these rows, the last ones first: what needs an order has to ask for it."""
    with store.without_indexes() as found:
        deliveries.add(found, [NewDelivery(*row[:11]) for row in reversed(EVERY)])
        store.conn.exec_driver_sql("UPDATE delivery SET uncounted = 2")
        yield found


def now(tx: Transaction) -> list[Row]:
    columns = ", ".join(Row._fields)
    return [Row(*each) for each in tx.conn.exec_driver_sql(f"SELECT {columns} FROM delivery ORDER BY 1, 2")]
