"""Every event in every state: legal ones move the delivery as the law says, the others change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from popserver.database import states_of
from popserver.model.errors import InvalidReceiptHandle, PopError
from popserver.model.group import Group, HistoryLevel
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.states import TRANSITIONS, Event, State, sources, target
from popserver.model.topic import MessageType, Topic, offset_of
from tests.support.builders import an_id, in_order, messages_of
from tests.support.open_store import HOUR, SECOND, OpenStore, receipt_of
from tests.support.progress import reset, skip
from tests.support.redrive import redrive_all

OPERATOR = {Event.REDRIVE, Event.RESET, Event.SKIP}
# These happen only in a message group, to a message behind another.
IN_ORDER = {Event.PROVISIONAL_ACK, Event.SETTLE}
BY_TIME = {Event.RELEASE, Event.RETRY, Event.EXHAUST, Event.BACKOFF_ELAPSED}
# Repeating these is no mistake: the first answer may have been lost.
FORGIVEN = {
    (State.READY, Event.GIVE_BACK),
    (State.COMMIT, Event.ACK),
    (State.COMMIT, Event.PROVISIONAL_ACK),
    (State.COMMIT, Event.FORWARD_TO_DLQ),
    (State.DLQ, Event.FORWARD_TO_DLQ),
    (State.ACKED_PROVISIONALLY, Event.ACK),
    (State.ACKED_PROVISIONALLY, Event.PROVISIONAL_ACK),
}
HOLD_MS = 30 * SECOND


class Case(NamedTuple):
    """One message in one group, in the state a cell of the grid starts from; `head` stands before it in its message
    group."""

    store: OpenStore
    group: Group
    topic: Topic
    message_id: str
    receipt: Receipt
    head: Receipt | None = None


@pytest.mark.row("L1")
@pytest.mark.row("L3")
@pytest.mark.row("O1")
@pytest.mark.parametrize("event", Event)
def test_one_event_in_every_state(store: OpenStore, event: Event) -> None:
    for state in State:
        case = _in_state(store, state, event)
        assert _state(case) is state
        assert store.state(case.group, case.message_id) is state.shown
        if (state, event) in TRANSITIONS:
            _check_legal(case, state, event)
        else:
            _check_illegal(case, state, event)
        store.end_due(after_ms=2 * HOUR)  # nothing of this cell may fall due in the next


def test_a_message_never_looked_at_gives_nothing_to_a_made_up_receipt(store: OpenStore) -> None:
    case = _new_case(store)
    before = store.digest()
    for event in (Event.ACK, Event.CHANGE_INVISIBLE, Event.GIVE_BACK, Event.FORWARD_TO_DLQ):
        with pytest.raises(InvalidReceiptHandle, match="the message is READY in group"):
            _FIRE[event](case)
    assert store.digest() == before


def test_a_stale_receipt_moves_nothing_while_another_holds(store: OpenStore) -> None:
    case = _in_state(store, State.INFLIGHT, Event.ACK)
    stale = case._replace(receipt=case.receipt._replace(hold_id=case.receipt.hold_id ^ 1))
    before = store.digest()
    for event in (Event.ACK, Event.CHANGE_INVISIBLE, Event.GIVE_BACK, Event.FORWARD_TO_DLQ):
        with pytest.raises(InvalidReceiptHandle, match="a newer hold of attempt 1 has replaced it"):
            _FIRE[event](stale)
    assert store.digest() == before


def _check_legal(case: Case, state: State, event: Event) -> None:
    _let_time_come(case, event)
    if state is State.ACKED_IN_TRANSACTION and event not in OPERATOR:
        case.store.end_due()  # the server sees it
    elif (state, event) == (State.ACKED_PROVISIONALLY, Event.RECEIVE):
        case.store.change(case.group, _head_of(case), 0, give_back=True)  # what is before it comes again first
        _FIRE[event](case)
    else:
        _FIRE[event](case)
    assert _state(case) is target(event), (state, event)
    assert case.store.state(case.group, case.message_id) is target(event).shown, (state, event)
    if event is not Event.ACK_IN_TRANSACTION:  # its history is written with what the server makes of it
        assert _steps(case)[-1] == (event, state.shown, target(event).shown)


def _check_illegal(case: Case, state: State, event: Event) -> None:
    if state in {State.READY, State.COMMIT, State.DLQ}:
        case.store.now_ms += HOUR if event in BY_TIME else 0
    if event in OPERATOR:
        steps = _steps(case)
        _FIRE[event](case)
        assert _steps(case) == steps, (state, event)
        assert _state(case) is state, (state, event)
        return
    if state is State.ACKED_IN_TRANSACTION and (event in BY_TIME or event is Event.SETTLE):
        _FIRE[event](case)
        assert _steps(case)[-1] in {("ACK", "INFLIGHT", "COMMIT"), ("PROVISIONAL_ACK", "INFLIGHT", "READY")}
        return
    if event is Event.SETTLE:
        # The message before it ends; that is all that does.
        row = case.store.delivery_of(case.group, case.receipt.message_key)
        _FIRE[event](case)
        assert case.store.delivery_of(case.group, case.receipt.message_key) == row, (state, event)
        assert case.store.state(case.group, case.message_id) is state, (state, event)
        return
    before = case.store.digest()
    if event in BY_TIME:
        assert case.store.end_due() == 0, (state, event)
    elif event is Event.RECEIVE:
        assert case.store.receive(case.group, case.topic) == [], (state, event)
    elif (state, event) in FORGIVEN:
        _FIRE[event](case)
    elif event is Event.ACK_IN_TRANSACTION:
        with pytest.raises(AssertionError, match="no longer valid"):
            _FIRE[event](case)
    else:
        with pytest.raises(InvalidReceiptHandle):
            _FIRE[event](case)
    assert case.store.digest() == before, (state, event)


def _let_time_come(case: Case, event: Event) -> None:
    if event in BY_TIME:
        case.store.now_ms += HOLD_MS


def _new_case(store: OpenStore, *, ordered: bool = False, exhausted: bool = False) -> Case:
    """A group, `exhausted` by one attempt, and a message that no receive has reached; `ordered`, behind another one."""
    number = an_id()
    topic = store.topic(f"t{number}", accepts=(MessageType.NORMAL, MessageType.FIFO))
    group = store.group(
        f"g{number}",
        meets=[topic],
        max_attempts=1 if exhausted else 3,
        intervals_ms=[HOLD_MS],
        history=HistoryLevel.ALL,
    )
    sent = in_order("g", 2, topic.name) if ordered else messages_of(1, topic.name)
    store.send(topic, sent)
    made_up = Receipt(group.group_id, topic.queues[0].queue_id << 40, 4711, store.now_ms + HOUR)
    return Case(store, group, topic, sent[-1].message_id, made_up)


def _in_state(store: OpenStore, state: State, event: Event) -> Case:
    ordered = event in IN_ORDER | {Event.ACK_IN_TRANSACTION} or state.shown is not state
    case = _new_case(store, ordered=ordered, exhausted=event is Event.EXHAUST and state is State.INFLIGHT)
    *before, held = _hold(case, Holder.PUSH if state is State.WAITING_RETRY or event is Event.RETRY else Holder.SIMPLE)
    case = case._replace(receipt=receipt_of(held), head=receipt_of(before[0]) if before else None)
    if event in {Event.ACK, Event.ACK_IN_TRANSACTION} and before:
        if state is not State.ACKED_PROVISIONALLY:
            assert store.ack(case.group, _head_of(case)) == [None]  # nothing is before it
    elif event in IN_ORDER and state is State.COMMIT:
        return _settled(case)
    return _REACH[state](case)


def _hold(case: Case, holder: Holder) -> list[Delivery]:
    return case.store.receive(case.group, case.topic, holder=holder, invisible_ms=HOLD_MS)


def _given_back(case: Case) -> Case:
    case.store.change(case.group, case.receipt, 0, give_back=True)
    return case


def _held(case: Case) -> Case:
    return case


def _waiting(case: Case) -> Case:
    # The newest receipt there is: even that one holds nothing while the message waits.
    return case._replace(receipt=case.store.change(case.group, case.receipt, HOLD_MS))


def _acked(case: Case) -> Case:
    assert case.store.ack(case.group, case.receipt) == [None]
    return case


def _acked_in_transaction(case: Case) -> Case:
    """As `popmq_ack` does it; the grid asks for more than its guards let happen."""
    case.store.conn.exec_driver_sql(
        f"UPDATE delivery SET state = '{State.ACKED_IN_TRANSACTION}', visible_at_ms = 0"
        f" WHERE group_id = {case.group.group_id} AND message_key = {case.receipt.message_key}"
    )
    return case


def _ack_in_transaction(case: Case) -> None:
    sources_listed = ", ".join(f"'{each}'" for each in sources(Event.ACK_IN_TRANSACTION))
    found = case.store.rows(
        f"SELECT 1 FROM delivery WHERE group_id = :group AND message_key = :key AND state IN ({sources_listed})",
        group=case.group.group_id,
        key=case.receipt.message_key,
    )
    assert found, "the receipt handle is no longer valid"
    _acked_in_transaction(case)


def _state(case: Case) -> State | None:
    return states_of.state_of(case.store.conn, case.group.group_id, case.receipt.message_key)


def _steps(case: Case) -> list[tuple[str, ...]]:
    rows = case.store.rows(
        "SELECT event, from_state, to_state FROM history WHERE group_id = :group AND message_key = :key"
        " ORDER BY history_id",
        group=case.group.group_id,
        key=case.receipt.message_key,
    )
    return [tuple(row) for row in rows]


def _settled(case: Case) -> Case:
    assert case.store.ack(case.group, case.receipt, _head_of(case)) == [None, None]
    return case


def _forwarded(case: Case) -> Case:
    assert case.store.forward(case.group, case.receipt) is None
    return case


def _head_of(case: Case) -> Receipt:
    assert case.head is not None
    return case.head


def _raise(refusal: PopError | None) -> None:
    if refusal is not None:
        raise refusal


_REACH: dict[State, Callable[[Case], Case]] = {
    State.READY: _given_back,
    State.INFLIGHT: _held,
    State.WAITING_RETRY: _waiting,
    State.COMMIT: _acked,
    State.DLQ: _forwarded,
    State.ACKED_PROVISIONALLY: _acked,
    State.ACKED_IN_TRANSACTION: _acked_in_transaction,
}
_FIRE: dict[Event, Callable[[Case], object]] = {
    Event.RECEIVE: lambda case: case.store.receive(case.group, case.topic),
    Event.ACK: lambda case: _raise(case.store.ack(case.group, case.receipt)[0]),
    Event.PROVISIONAL_ACK: lambda case: _raise(case.store.ack(case.group, case.receipt)[0]),
    Event.SETTLE: lambda case: _raise(case.store.ack(case.group, _head_of(case))[0]),
    Event.CHANGE_INVISIBLE: lambda case: case.store.change(case.group, case.receipt, HOLD_MS),
    Event.GIVE_BACK: lambda case: case.store.change(case.group, case.receipt, 0, give_back=True),
    Event.FORWARD_TO_DLQ: lambda case: _raise(case.store.forward(case.group, case.receipt)),
    Event.RELEASE: lambda case: case.store.end_due(),
    Event.RETRY: lambda case: case.store.end_due(),
    Event.EXHAUST: lambda case: case.store.end_due(),
    Event.BACKOFF_ELAPSED: lambda case: case.store.end_due(),
    Event.ACK_IN_TRANSACTION: _ack_in_transaction,
    Event.REDRIVE: lambda case: redrive_all(case.store, case.group, case.message_id),
    Event.RESET: lambda case: reset(case.store, case.group, case.topic, 0),
    Event.SKIP: lambda case: skip(case.store, case.group, case.topic, offset_of(case.receipt.message_key)),
}
