"""Each query of the table `delivery` finds the rows that it names, and no other; in its order, as far as it has one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import literal, select

from popserver.database.rows import encode_rows
from popserver.delivery import delivered, deliveries, due, holds, ready
from popserver.delivery.delivered import FirstRow, LiteRow, MessageGroupOfTopic
from popserver.delivery.deliveries import DeliveryRow, NewDelivery
from popserver.delivery.holds import AttemptRow
from popserver.delivery.ready import ReadyRow, RedrivenRow
from popserver.engine.transaction import Transaction
from popserver.model.handles import Receipt
from popserver.model.retry import Holder
from popserver.model.states import STORED, TIMED, State
from tests.delivery.delivery_rows import (
    ANOTHER,
    ELSEWHERE,
    EVERY,
    HOLD,
    IN,
    KEYS,
    LATER_MS,
    MINE,
    NAMED,
    OLD_HOLD,
    TOPIC,
    Row,
    every_row,
)
from tests.support.open_store import START_MS, OpenStore

READY, HELD = State.READY, State.INFLIGHT
OF_GROUP = [row for row in EVERY if row.group_id == MINE]
FIRST, END = KEYS[5], KEYS[-5]
INSIDE = [row for row in OF_GROUP if FIRST <= row.message_key < END]
RECEIPTS = [Receipt(MINE, key, HOLD, 0) for key in NAMED]


@pytest.fixture
def tx(store: OpenStore) -> Iterator[Transaction]:
    with every_row(store) as opened:
        yield opened


def shown(rows: list[Row]) -> list[DeliveryRow]:
    return [DeliveryRow(*row[:10]) for row in rows]


def keys(rows: list[Row], which: Callable[[Row], object] = lambda _: True) -> list[int]:
    return [row.message_key for row in rows if which(row)]


def is_timed(row: Row) -> bool:
    return row.state in TIMED


def is_ready(row: Row) -> bool:
    return State(row.state).shown is READY


def of_topic(row: Row) -> bool:
    return row.topic_id == TOPIC


class TestHolds:
    def test_of_message(self, tx: Transaction) -> None:
        for row in EVERY[::13]:
            assert holds.of_message(tx.conn, row.group_id, row.message_key) == DeliveryRow(*row[:10])
        assert holds.of_message(tx.conn, MINE, KEYS[-1] + 1) is None
        assert holds.of_message(tx.conn, 99, KEYS[0]) is None

    def test_head_of_group(self, tx: Transaction) -> None:
        for topic_id in (TOPIC, ELSEWHERE):
            head = next(row for row in OF_GROUP if row.message_group == "g" and row.topic_id == topic_id)
            for by in (-1, 0, 1, 99):
                found = holds.head_of_group(tx.conn, MINE, topic_id, "g", head.message_key + by)
                assert found == (DeliveryRow(*head[:10]) if by >= 0 else None)
        assert holds.head_of_group(tx.conn, MINE, TOPIC, "h", KEYS[-1]) is None
        assert holds.head_of_group(tx.conn, 99, ELSEWHERE, "g", KEYS[-1]) is None

    @pytest.mark.parametrize("topic_id", [None, TOPIC, ELSEWHERE])
    @pytest.mark.parametrize("limit", [1, 7, 1_000])
    def test_last_to_end(self, tx: Transaction, topic_id: int | None, limit: int) -> None:
        found = [row for row in OF_GROUP if is_timed(row) and topic_id in (None, row.topic_id)]
        found.sort(key=lambda row: (-row.visible_at_ms, row.message_key))
        assert holds.last_to_end(tx.conn, MINE, topic_id, limit) == shown(found[:limit])

    def test_lock(self, tx: Transaction) -> None:
        for row in OF_GROUP:
            found = holds.lock(tx, Receipt(MINE, row.message_key, HOLD, 0))
            assert found == (DeliveryRow(*row[:10]) if row.is_current else None)

    def test_present(self, tx: Transaction) -> None:
        wanted = [*RECEIPTS, Receipt(MINE, KEYS[-1] + 1, HOLD, 0), Receipt(99, KEYS[0], HOLD, 0)]
        for query in (holds.present, holds.lock_present):
            assert query(tx.conn, wanted) == set(NAMED)
            assert query(tx.conn, iter(wanted[:1])) == {NAMED[0]}

    def test_lock_granted(self, tx: Transaction) -> None:
        named = [*RECEIPTS, *(each._replace(group_id=ANOTHER) for each in RECEIPTS)]
        wanted = {each[:2] for each in named}
        found = sorted((row for row in EVERY if row[:2] in wanted and row.is_current), key=lambda row: row[:2])
        assert {row.group_id for row in found} == {MINE, ANOTHER}
        assert holds.lock_granted(tx, named[::-1]) == shown(found)
        assert not holds.has_skipped_granted(tx, [Receipt(MINE, KEYS[0], OLD_HOLD + 1, 0)])

    @pytest.mark.parametrize("ids", [["a1"], ["a1", "a2"], ["a2"]])
    def test_by_attempts(self, tx: Transaction, ids: list[str]) -> None:
        tx.conn.exec_driver_sql("UPDATE delivery SET attempt_id = 'a2' WHERE attempt_id = 'a1' AND message_key > 170")
        expected = [
            (row, "a2" if row.message_key > 170 else "a1")
            for row in OF_GROUP
            if of_topic(row) and row.state == HELD and row.visible_at_ms > START_MS and row.attempt_id == "a1"
        ]
        assert holds.by_attempts(tx, MINE, TOPIC, ids) == [
            AttemptRow(row.message_key, 3, row.hold_id, row.visible_at_ms, row.client_id, row.message_group, attempt_id)
            for row, attempt_id in expected
            if attempt_id in ids
        ]

    @pytest.mark.parametrize("locks", [True, False])
    def test_by_bulk_attempt(self, tx: Transaction, locks: bool) -> None:
        found = holds.by_bulk_attempt(tx.conn, MINE, TOPIC, "a1", START_MS, locks=locks)
        assert [each.message_key for each in found] == keys(
            OF_GROUP,
            lambda row: (
                of_topic(row)
                and row.state == HELD
                and row.visible_at_ms > START_MS
                and row.attempt_id == "a1"
                and row.holder == Holder.SIMPLE
            ),
        )

    def test_unattended_push_clients(self, tx: Transaction) -> None:
        tx.conn.exec_driver_sql("UPDATE delivery SET client_id = 'c' || holder")
        assert holds.unattended_push_clients(tx.conn) == ["cPUSH"]


class TestBlockingHeads:
    """Of message groups `m9` to `m4`, each with a second message behind the first; their heads differ. In a later topic
    is one more, `a`."""

    STATES = (HELD, READY, State.WAITING_RETRY, State.ACKED_PROVISIONALLY, HELD, State.ACKED_IN_TRANSACTION)

    @pytest.fixture
    def rows(self, store: OpenStore) -> Iterator[Transaction]:
        hold = (HOLD, 5, "PUSH", "c1")
        made = [
            NewDelivery(group_id, first + 10 * at + place, TOPIC, (state, HELD)[place], attempt, *hold, f"m{9 - at}")
            for group_id, first in ((MINE, 100), (ANOTHER, 100), (ANOTHER, 0))
            for at, state in enumerate(self.STATES)
            for place, attempt in ((0, at // 2), (1, 9))
        ]
        made.append(NewDelivery(MINE, 500, TOPIC, HELD, 50, *hold, None))
        made.append(NewDelivery(MINE, 600, ELSEWHERE, HELD, 5, *hold, "a"))
        with store.without_indexes() as tx:
            deliveries.add(tx, made)
            yield tx

    @pytest.mark.parametrize(
        ("groups_max", "limit", "expected", "count"),
        [
            (9, 9, [600, 140, 150, 120, 100], 5),
            (9, 2, [600, 140], 5),
            (6, 9, [140, 150, 120, 100], 4),
            (3, 9, [140, 150], 2),
            (1, 9, [150], 1),
        ],
    )
    def test_those_with_the_most_attempts_first(
        self, rows: Transaction, groups_max: int, limit: int, expected: list[int], count: int
    ) -> None:
        heads, blocked = holds.blocking_heads(rows.conn, MINE, groups_max, limit)
        assert ([each.message_key for each in heads], blocked) == (expected, count)
        assert all(isinstance(each, DeliveryRow) and each.group_id == MINE for each in heads)

    def test_none(self, rows: Transaction) -> None:
        assert holds.blocking_heads(rows.conn, 99, 9, 9) == ([], 0)


class TestDue:
    @pytest.mark.parametrize("from_ms", [0, START_MS, START_MS + 1])
    @pytest.mark.parametrize("now_ms", [START_MS, LATER_MS, LATER_MS + 1])
    def test_search(self, tx: Transaction, from_ms: int, now_ms: int) -> None:
        seen = due.search(tx.conn, from_ms, now_ms, 10_000)
        now = [row for row in seen if row.visible_at_ms <= now_ms]
        assert sorted(now) == sorted(shown([row for row in EVERY if is_timed(row) and from_ms <= row[6] <= now_ms]))
        assert [row.visible_at_ms for row in now] == sorted(row.visible_at_ms for row in now)
        later = [row.visible_at_ms for row in EVERY if is_timed(row) and row.visible_at_ms > now_ms]
        assert [row.visible_at_ms for row in seen[len(now) :]] == ([min(later)] if later else [])

    def test_search_has_a_limit(self, tx: Transaction) -> None:
        seen = due.search(tx.conn, 0, START_MS, 5)
        assert [row.visible_at_ms for row in seen] == [*[START_MS - 1] * 5, START_MS + 1]

    def test_lock(self, tx: Transaction) -> None:
        asked = shown([row for row in EVERY if row.message_key % 3])
        found = due.lock(tx, iter(asked))
        if not tx.has_other_writers:
            assert found == asked, "nobody else can have changed them"
            return
        assert sorted(found) == sorted(row for row in asked if row.state in TIMED and row.visible_at_ms <= START_MS)
        assert due.lock(tx, []) == []

    def test_next_due(self, tx: Transaction) -> None:
        assert due.next_due_ms(tx.conn) == START_MS - 1
        found = [due.next_due_ms(tx.conn, LATER_MS + by) for by in (-999, -998, 0, 1, 2)]
        assert found == [START_MS + 1, LATER_MS, LATER_MS, LATER_MS + 1, None]
        tx.conn.exec_driver_sql(f"UPDATE delivery SET visible_at_ms = {LATER_MS + 9} WHERE state = '{HELD}'")
        tx.conn.exec_driver_sql(f"UPDATE delivery SET state = 'READY' WHERE state <> '{HELD}'")
        assert due.next_due_ms(tx.conn) == LATER_MS + 9, "what is READY is not due"

    def test_overdue(self, tx: Transaction) -> None:
        timed = [row.visible_at_ms for row in EVERY if is_timed(row)]
        for now_ms in (START_MS - 2, START_MS - 1, START_MS, LATER_MS):
            late = [each for each in timed if each <= now_ms]
            assert due.overdue(tx.conn, now_ms) == (len(late), min(late, default=None))

    @pytest.mark.parametrize("state", [State.ACKED_IN_TRANSACTION, State.ACKED_PROVISIONALLY, READY])
    @pytest.mark.parametrize("visible_at_ms", [0, 1])
    def test_is_acked_by_a_user(self, tx: Transaction, state: State, visible_at_ms: int) -> None:
        assert not due.is_acked_by_a_user(tx.conn)
        tx.conn.exec_driver_sql(f"UPDATE delivery SET visible_at_ms = {visible_at_ms} WHERE state = '{state}'")
        assert due.is_acked_by_a_user(tx.conn) is (state in TIMED and visible_at_ms == 0)
        assert due.next_due_ms(tx.conn) == (visible_at_ms if state in TIMED else START_MS - 1)


class TestDelivered:
    @pytest.mark.parametrize("rows_max", [3, 1_000])
    def test_pages(self, tx: Transaction, monkeypatch: pytest.MonkeyPatch, rows_max: int) -> None:
        monkeypatch.setattr(delivered, "STEP_ROWS_MAX", rows_max)
        pages = [list(each) for each in delivered.pages(tx.conn, MINE, FIRST, END)]
        assert [key for page in pages for key in page] == keys(INSIDE)
        assert all(len(page) <= rows_max for page in pages)

    @pytest.mark.parametrize("limit", [0, 1, 7, 1_000])
    def test_states(self, tx: Transaction, limit: int) -> None:
        assert delivered.states(tx.conn, MINE, FIRST, END, limit) == shown(INSIDE[:limit])

    def test_among_and_locks(self, tx: Transaction) -> None:
        asked = [*NAMED, KEYS[-1] + 1]
        assert delivered.among(tx.conn, MINE, iter(asked)) == set(NAMED)
        assert delivered.lock(tx, MINE, iter(asked)) == set(NAMED)
        named = [IN[MINE, key] for key in NAMED]
        assert delivered.lock_ready_among(tx, MINE, iter(asked)) == set(keys(named, is_ready))
        assert delivered.among(tx.conn, 99, asked) == set()

    @pytest.mark.parametrize("others", STORED)
    def test_first_needed(self, tx: Transaction, others: State) -> None:
        tx.conn.exec_driver_sql(f"UPDATE delivery SET state = '{others}' WHERE group_id = {ANOTHER}")
        of_ready = keys(OF_GROUP, is_ready)
        assert delivered.first_needed(tx, MINE, FIRST, END) == next(iter(keys(INSIDE, lambda row: not is_ready(row))))
        last = max(key for key in of_ready if key + 1 in of_ready)
        assert delivered.first_needed(tx, MINE, last, last + 2) is None
        held = keys(OF_GROUP, lambda row: row.state == HELD)
        assert delivered.first_needed(tx, MINE, held[0], held[0] + 1) == held[0]
        assert delivered.first_needed(tx, MINE, held[0], held[0]) is None

    def test_ready_in_order(self, tx: Transaction) -> None:
        name = "message_group || state || group_id || '-' || (message_key / 40)"
        tx.conn.exec_driver_sql(f"UPDATE delivery SET message_group = {name} WHERE message_group IS NOT NULL")
        names = {
            (row.topic_id, f"g{row.state}{MINE}-{row.message_key // 40}")
            for row in INSIDE
            if is_ready(row) and row.message_group is not None
        }
        found = delivered.ready_in_order(tx.conn, MINE, FIRST, END)
        assert sorted(found) == sorted(MessageGroupOfTopic(*each) for each in names)
        assert delivered.ready_in_order(tx.conn, MINE, KEYS[-1] + 1, KEYS[-1] + 9) == []

    @pytest.mark.parametrize(
        ("group_id", "first", "end", "expected"),
        [
            (MINE, 0, END, KEYS[0]),
            (MINE, FIRST, END, FIRST),
            (MINE, FIRST + 1, END, FIRST + 1),
            (MINE, FIRST, FIRST, None),
            (MINE, KEYS[-1] + 1, KEYS[-1] + 9, None),
            (99, FIRST, END, None),
        ],
    )
    def test_first_inside(self, tx: Transaction, group_id: int, first: int, end: int, expected: int | None) -> None:
        query = select(delivered.first_inside(literal(group_id)))
        assert tx.conn.execute(query, {"first": first, "end": end}).scalar_one() == expected

    def test_firsts(self, store: OpenStore, tx: Transaction) -> None:
        deliveries.add(
            tx,
            [
                NewDelivery(group_id, (queue_id << 40) + at, TOPIC, READY, 1, 0, 1, "PUSH", "c1")
                for group_id, queue_id, at in ((MINE, 5, 9), (MINE, 5, 4), (MINE, 6, 0), (ANOTHER, 5, 1))
            ],
        )
        found = sorted(delivered.firsts(tx.conn, MINE))
        assert found == [FirstRow(0, KEYS[0]), FirstRow(5, (5 << 40) + 4), FirstRow(6, 6 << 40)]
        assert delivered.redriven_firsts(tx.conn, MINE) == []
        assert store.now_ms == tx.now_ms

    @pytest.mark.parametrize("now_ms", [START_MS, LATER_MS, LATER_MS + 1])
    def test_held_in_topic(self, tx: Transaction, now_ms: int) -> None:
        found = delivered.held_in_topic(tx.conn, MINE, ELSEWHERE, now_ms)
        holding = [row for row in OF_GROUP if not of_topic(row) and row.state == HELD and row.visible_at_ms > now_ms]
        assert found in shown(holding) if holding else found is None
        tx.conn.exec_driver_sql(f"UPDATE delivery SET state = 'READY' WHERE topic_id = {ELSEWHERE}")
        assert delivered.held_in_topic(tx.conn, MINE, ELSEWHERE, now_ms) is None
        assert delivered.held_in_topic(tx.conn, 99, TOPIC, now_ms) is None

    @pytest.mark.parametrize("names", [["g"], ["h"], ["g", "h"], ["none"]])
    def test_lite_topics(self, tx: Transaction, names: list[str]) -> None:
        tx.conn.exec_driver_sql(
            "UPDATE delivery SET message_group = 'h' WHERE message_group = 'g' AND message_key > 200"
        )
        tx.conn.exec_driver_sql("UPDATE delivery SET state = 'READY' WHERE message_group = 'h'")
        expected = [
            LiteRow(row.message_key, name)
            for row in OF_GROUP
            if not of_topic(row) and row.message_group and (name := "h" if row.message_key > 200 else "g") in names
        ]
        rows = delivered.of_lite_topics(tx.conn, MINE, ELSEWHERE, names)
        assert sorted(rows) == sorted(expected)
        assert delivered.timed_lite_topics(tx.conn, MINE, rows) == {"g"} & {each.message_group for each in rows}
        assert delivered.of_lite_topics(tx.conn, 99, ELSEWHERE, names) == []


class TestReady:
    """Those without a message group that are READY since then, the earliest first."""

    @staticmethod
    def wanted(from_ms: int) -> list[Row]:
        found = [row for row in OF_GROUP if of_topic(row) and row.state == READY and row.message_group is None]
        return sorted((row for row in found if row.visible_at_ms >= from_ms), key=lambda row: row.visible_at_ms)

    @pytest.mark.parametrize("from_ms", [0, START_MS, START_MS + 1, LATER_MS + 2])
    @pytest.mark.parametrize("limit", [3, 1_000])
    def test_lock(self, tx: Transaction, from_ms: int, limit: int) -> None:
        names = {"group_id": MINE, "topic_id": TOPIC, "ready_from": from_ms, "limit": limit}
        expected, found = self.wanted(from_ms), ready.lock(tx.conn, names)
        assert [IN[MINE, row.message_key].visible_at_ms for row in found] == [
            row.visible_at_ms for row in expected[:limit]
        ]
        assert {row.message_key for row in found} <= set(keys(expected))
        first_ms = expected[0].visible_at_ms if tx.has_other_writers and expected else None
        assert found == [ReadyRow(row.message_key, 3, first_ms) for row in found]

    def test_lock_redriven(self, tx: Transaction) -> None:
        names = {"group_id": MINE, "topic_id": TOPIC, "ready_from": START_MS, "limit": 4}
        found = ready.lock_redriven(tx.conn, names, chooses=False)
        assert [IN[MINE, row.message_key].visible_at_ms for row in found] == [
            row.visible_at_ms for row in self.wanted(START_MS)[:4]
        ]
        assert found == [RedrivenRow(row.message_key, 3, "") for row in found]
        names_of_clients = names | {"subscribers": encode_rows([("c1",)])}
        assert ready.lock_redriven(tx.conn, names_of_clients, chooses=True) == [], "these messages do not exist"
