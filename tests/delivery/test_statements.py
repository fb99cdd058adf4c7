"""Each statement on the table `delivery` changes the rows that it names, in the states that it may change; no other.

The table has a row for each kind of row: state, whose hold, when it ends, which holder, in a message group or not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from popserver.database.rows import encode_rows
from popserver.delivery import deliveries
from popserver.delivery.deliveries import DeliveryRow, Ending, NewDelivery
from popserver.engine.transaction import Transaction
from popserver.model.handles import NO_HOLD
from popserver.model.retry import Holder
from popserver.model.states import STORED, Event, State, sources, target
from tests.delivery.delivery_rows import (
    ANOTHER,
    EVERY,
    HOLD,
    HOLDS,
    IN,
    KEYS,
    LATER_MS,
    MINE,
    NAMED,
    OLD_HOLD,
    TOPIC,
    Row,
    every_row,
    now,
)
from tests.support.open_store import START_MS, OpenStore

pytestmark = pytest.mark.timeout(14)  # what is removed in steps may have no end

READY, HELD = State.READY, State.INFLIGHT


@pytest.fixture
def tx(store: OpenStore) -> Iterator[Transaction]:
    with every_row(store) as opened:
        yield opened


Change = Callable[[Row], Row | None]


def changed(which: Callable[[Row], bool], change: Change) -> list[Row]:
    """All rows, as they are after the change of those named ones."""
    found = ((row, row.group_id == MINE and row.message_key in NAMED and which(row)) for row in EVERY)
    return [new for row, is_named in found if (new := change(row) if is_named else row) is not None]


def gone(_: Row) -> None:
    return None


def is_in(*states: State) -> Callable[[Row], bool]:
    return lambda row: row.state in states


def test_the_rows_are_there(tx: Transaction) -> None:
    assert now(tx) == EVERY


def test_a_new_row_is_in_no_message_group_and_of_no_attempt(tx: Transaction) -> None:
    """Unless these are named; an empty name would be a message group."""
    deliveries.add(tx, [NewDelivery(*EVERY[0]._replace(group_id=99)[:9])])
    (row,) = (row for row in now(tx) if row.group_id == 99)
    assert (row.message_group, row.attempt_id) == (None, None)


def test_grant_again(tx: Transaction) -> None:
    grants = [(MINE, key, HOLD + key, LATER_MS + key, "PUSH", f"c{key}", "g", f"a{key}") for key in NAMED]
    deliveries.grant_again(tx, encode_rows(grants))
    assert now(tx) == changed(
        is_in(*sources(Event.RECEIVE)),
        lambda row: row._replace(
            state="INFLIGHT",
            attempt=4,
            hold_id=HOLD + row.message_key,
            visible_at_ms=LATER_MS + row.message_key,
            holder="PUSH",
            client_id=f"c{row.message_key}",
            attempt_id=f"a{row.message_key}",
        ),
    )


def test_take_back(tx: Transaction) -> None:
    tx.conn.exec_driver_sql("UPDATE delivery SET client_id = '' WHERE holder = 'SIMPLE' AND topic_id = 3")
    rows = now(tx)

    def is_free(row: Row) -> bool:
        is_named = row.group_id == MINE and row.message_key in NAMED and row.hold_id == HOLD
        is_free = row.holder == Holder.ORPHAN or row.client_id == ""
        return is_named and is_free and row.state == HELD and row.visible_at_ms < LATER_MS

    taken = deliveries.take_back(tx, iter(HOLDS), Holder.SIMPLE, "c9", LATER_MS)
    assert taken == {row.message_key for row in rows if is_free(row)}
    assert any(row.holder == Holder.SIMPLE for row in rows if is_free(row))
    assert now(tx) == [
        row._replace(holder="SIMPLE", client_id="c9", visible_at_ms=LATER_MS) if is_free(row) else row for row in rows
    ]


def test_renew(tx: Transaction) -> None:
    deliveries.renew(tx, ((*hold, hold[1] * 10) for hold in HOLDS), LATER_MS + 9)
    assert now(tx) == changed(
        lambda row: row.state == HELD and row.hold_id == HOLD,
        lambda row: row._replace(state="INFLIGHT", hold_id=row.message_key * 10, visible_at_ms=LATER_MS + 9),
    )


def test_change(tx: Transaction) -> None:
    for hold in HOLDS:
        deliveries.change(
            tx, hold, state=State.WAITING_RETRY, attempt=9, uncounted=1, successor=hold[1] * 10, until_ms=LATER_MS + 9
        )
    assert now(tx) == changed(
        lambda row: row.is_current,
        lambda row: row._replace(
            state="WAITING_RETRY",
            attempt=9,
            uncounted=3,
            hold_id=row.message_key * 10,
            visible_at_ms=LATER_MS + 9,
        ),
    )


def is_plain_and_current(row: Row) -> bool:
    is_acked = row.state in sources(Event.ACK) and row.hold_id == HOLD
    return is_acked and row.visible_at_ms > START_MS and row.message_group is None


def test_commit(tx: Transaction) -> None:
    named = [(key, HOLD) for key in NAMED]
    assert deliveries.commit(tx, MINE, named) == len(EVERY) - len(changed(is_plain_and_current, gone)) > 1
    assert now(tx) == changed(is_plain_and_current, gone)


def test_commit_returning(tx: Transaction) -> None:
    rows = deliveries.commit_returning(tx, MINE, [(key, HOLD) for key in NAMED])
    after = changed(is_plain_and_current, gone)
    assert now(tx) == after
    assert sorted(rows) == sorted(DeliveryRow(*row[:10]) for row in {*EVERY} - {*after})


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_commit_says_whether_it_has_changed_anything(tx: Transaction, count: int) -> None:
    keys = [row.message_key for row in EVERY if row.group_id == MINE and is_plain_and_current(row)]
    assert deliveries.commit(tx, MINE, [(key, HOLD) for key in keys[:count]]) == count
    assert tx.has_written is (count > 0)
    assert deliveries.commit(tx, MINE, [(key, HOLD) for key in keys[:count]]) == 0
    assert tx.has_written is (count > 0), "what was committed before stays so"


class TestWholeRuns:
    """Of MINE; in another group, messages of the same keys are in message groups with the same names."""

    @pytest.fixture
    def empty(self, store: OpenStore) -> Iterator[Transaction]:
        with store.without_indexes() as opened:
            yield opened

    def held(self, tx: Transaction, *rows: Row) -> list[tuple[int, int, int, int]]:
        """The rows are stored; their holds."""
        for group_id in (ANOTHER, MINE):
            deliveries.add(tx, [NewDelivery(*row._replace(group_id=group_id)[:11]) for row in rows])
        return [(MINE, row.message_key, HOLD, 0) for row in rows]

    @pytest.mark.parametrize(
        ("state", "by_ms", "hold_id", "message_group"),
        [
            *((state, 1, HOLD, "g") for state in STORED),
            (HELD, 0, HOLD, "g"),
            (HELD, 1, OLD_HOLD, "g"),
            (HELD, 1, HOLD, None),
        ],
    )
    def test_of_current_holds(
        self, empty: Transaction, state: State, by_ms: int, hold_id: int, message_group: str | None
    ) -> None:
        first = Row(MINE, 1, TOPIC, HELD, 1, HOLD, LATER_MS, "PUSH", "c1", "g", None, 0)
        second = first._replace(message_key=2, state=state, hold_id=hold_id, visible_at_ms=START_MS + by_ms)
        done = deliveries.commit_whole_runs(
            empty, self.held(empty, first, second._replace(message_group=message_group))
        )
        is_held = state in sources(Event.ACK) and by_ms > 0 and hold_id == HOLD and message_group is not None
        assert (done.held, done.topics, done.first_topic, done.last_topic) == (1 + is_held, 1, TOPIC, TOPIC)
        assert done.ended == (2 if is_held else 0)
        assert [row[:2] for row in now(empty)] == ([] if is_held else [(MINE, 1), (MINE, 2)]) + [
            (ANOTHER, 1),
            (ANOTHER, 2),
        ]

    @pytest.mark.parametrize("count", [1, 2, 3])
    def test_in_as_many_topics_as_an_answer_names(self, empty: Transaction, count: int) -> None:
        row = Row(MINE, 1, TOPIC, HELD, 1, HOLD, LATER_MS, "PUSH", "c1", "g", None, 0)
        rows = [row._replace(message_key=1 + at, topic_id=TOPIC + at) for at in range(count)]
        done = deliveries.commit_whole_runs(empty, self.held(empty, *rows))
        assert done[:2] == (count, count)
        assert done[3:6] == (count, TOPIC, TOPIC + count - 1)
        assert done.ended == (count if count <= 2 else 0)
        assert len(now(empty)) == 2 * count - done.ended

    def test_of_messages_that_have_no_rows(self, empty: Transaction) -> None:
        done = deliveries.commit_whole_runs(empty, [(MINE, 1, HOLD, 0)])
        assert (done.held, done.topics, done.ended) == (0, 0, 0)


def test_mark_acked(tx: Transaction) -> None:
    deliveries.mark_acked(tx, ((MINE, key) for key in NAMED))
    assert now(tx) == changed(
        is_in(*sources(Event.PROVISIONAL_ACK)), lambda row: row._replace(state=State.ACKED_PROVISIONALLY.value)
    )


@pytest.mark.parametrize("client_id", ["c1", "c2"])
def test_abandon_client(tx: Transaction, client_id: str) -> None:
    assert deliveries.abandon_client(tx.conn, client_id, LATER_MS)

    def is_of_client(row: Row) -> bool:
        is_held = row.state == HELD and row.visible_at_ms > LATER_MS
        return is_held and row.holder == Holder.PUSH and row.client_id == client_id

    assert now(tx) == [
        row._replace(holder="ORPHAN", visible_at_ms=LATER_MS) if is_of_client(row) else row for row in EVERY
    ]


def test_abandon(tx: Transaction) -> None:
    assert deliveries.abandon(tx.conn, iter(HOLDS), LATER_MS)
    assert now(tx) == changed(
        lambda row: row.state == HELD and row.hold_id == HOLD and row.visible_at_ms > LATER_MS,
        lambda row: row._replace(
            holder="SIMPLE" if row.holder == Holder.SIMPLE else "ORPHAN", client_id="", visible_at_ms=LATER_MS
        ),
    )


def test_extend_client(tx: Transaction) -> None:
    deliveries.extend_client(tx, "c1", LATER_MS + 9)

    def is_abandoned(row: Row) -> bool:
        is_held = row.state == HELD and row.visible_at_ms > START_MS
        return is_held and row.holder == Holder.ORPHAN and row.client_id == "c1"

    assert now(tx) == [
        row._replace(holder="PUSH", visible_at_ms=LATER_MS + 9) if is_abandoned(row) else row for row in EVERY
    ]


def test_give_back_unused(tx: Transaction) -> None:
    deliveries.give_back_unused(tx, iter(HOLDS))
    assert now(tx) == changed(
        lambda row: row.is_current,
        lambda row: row._replace(state="READY", attempt=2, uncounted=3, hold_id=NO_HOLD, visible_at_ms=START_MS),
    )


@pytest.mark.parametrize("event", [Event.RELEASE, Event.RETRY, Event.BACKOFF_ELAPSED])
def test_end_time(tx: Transaction, event: Event) -> None:
    deliveries.end_time(tx, event, ((MINE, key, START_MS + key) for key in NAMED))
    assert now(tx) == changed(
        is_in(*sources(event)),
        lambda row: row._replace(state=target(event).value, visible_at_ms=START_MS + row.message_key),
    )


@pytest.mark.parametrize("ending", Ending)
def test_end(tx: Transaction, ending: Ending) -> None:
    deliveries.end(tx, ending, ((MINE, key) for key in NAMED))
    assert now(tx) == changed(is_in(*ending.value), gone)


def test_the_states_in_which_a_row_ends() -> None:
    held_or_acked = {State.INFLIGHT, State.ACKED_PROVISIONALLY, State.ACKED_IN_TRANSACTION}
    assert {each: set(each.value) for each in Ending} == {
        Ending.COMMIT: held_or_acked,
        Ending.DEAD_LETTER: {State.INFLIGHT},
        Ending.RETRY_TOPIC: {State.WAITING_RETRY},
    }


def test_remove(tx: Transaction) -> None:
    deliveries.remove(tx.conn, [])
    assert now(tx) == EVERY
    deliveries.remove(tx.conn, [(MINE, key) for key in NAMED])
    assert now(tx) == changed(lambda _: True, gone)


def test_skip_and_end_hold(tx: Transaction) -> None:
    skipped = {key: deliveries.skip(tx.conn, (MINE, key)) for key in NAMED}
    ended = {key: deliveries.end_hold(tx, (MINE, key)) for key in NAMED}
    may_skip, is_held = is_in(*sources(Event.SKIP)), is_in(HELD)
    for key in NAMED:
        row = IN[MINE, key]
        assert skipped[key] == (DeliveryRow(*row[:10]) if may_skip(row) else None)
        assert ended[key] == (DeliveryRow(*row[:10]) if is_held(row) else None)
    assert now(tx) == changed(lambda row: may_skip(row) or is_held(row), gone)


def test_remove_ready(tx: Transaction) -> None:
    first, end = KEYS[2], KEYS[-2]
    deliveries.remove_ready(tx.conn, MINE, first, end)
    assert now(tx) == [
        row
        for row in EVERY
        if not (row.group_id == MINE and first <= row.message_key < end and State(row.state).shown is READY)
    ]
    rest = next(row.message_key for row in EVERY if row.group_id == MINE and row.state == READY)
    deliveries.remove_ready(tx.conn, MINE, rest, rest)
    assert (MINE, rest) in {row[:2] for row in now(tx)}, "the end is not in it"
    deliveries.remove_ready(tx.conn, MINE, rest, rest + 1)
    assert (MINE, rest) not in {row[:2] for row in now(tx)}


@pytest.mark.parametrize("by_ms", [1, 900])
def test_turn_back(tx: Transaction, by_ms: int) -> None:
    deliveries.turn_back(tx.conn, START_MS, by_ms)

    def turned(row: Row) -> int:
        if row.visible_at_ms <= START_MS:
            return row.visible_at_ms
        return START_MS if State(row.state).shown is READY else max(START_MS, row.visible_at_ms - by_ms)

    assert now(tx) == [row._replace(visible_at_ms=turned(row)) for row in EVERY]


@pytest.mark.parametrize("kind", ["group", "topic", "messages"])
@pytest.mark.parametrize("rows_max", [40, 1_000])
def test_forget_in_steps(tx: Transaction, monkeypatch: pytest.MonkeyPatch, kind: str, rows_max: int) -> None:
    monkeypatch.setattr(deliveries, "STEP_ROWS_MAX", rows_max)
    first, end = KEYS[3], KEYS[-3]
    forget = {
        "group": lambda: deliveries.forget_group(tx.conn, MINE),
        "topic": lambda: deliveries.forget_topic(tx.conn, TOPIC),
        "messages": lambda: deliveries.forget_messages(tx.conn, first, end),
    }[kind]
    is_gone: Callable[[Row], bool] = {
        "group": lambda row: row.group_id == MINE,
        "topic": lambda row: row.topic_id == TOPIC,
        "messages": lambda row: first <= row.message_key < end,
    }[kind]
    counts: list[int | None] = []
    while (count := forget()) and len(counts) < 20:
        counts.append(count)
    assert count == 0
    left = [row for row in EVERY if not is_gone(row)]
    assert now(tx) == left
    whole, rest = divmod(len(EVERY) - len(left), rows_max)
    assert counts == [*[rows_max] * whole, *([rest] if rest else [])]
