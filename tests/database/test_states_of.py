"""Every reader says the same of every message: the views, `why`, what a refusal looks up, and the lag of both kinds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from popserver.administration import message_facts
from popserver.database import states_of
from popserver.engine.transaction import Transaction
from popserver.filters import TagFilter
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import Delivery, id_from_bytes
from popserver.model.retry import Holder
from popserver.model.states import STORED, State
from popserver.model.topic import MessageType, Topic, message_key
from popserver.progress import lag
from popserver.settling import refusals
from tests.support.builders import in_order, messages_of
from tests.support.open_store import HOUR, SECOND, OpenStore
from tests.support.progress import commit, pull_group, reset, skip
from tests.support.redrive import die, redrive_all
from tests.support.send_back import hand_back

HOLD_MS = 30 * SECOND
Life = Callable[[OpenStore, Topic, Group], None]


def ordinary(store: OpenStore, topic: Topic) -> None:
    store.send(topic, messages_of(2, topic.name, tag="A"))


def ordered(store: OpenStore, topic: Topic) -> None:
    store.send(topic, in_order("g", 2, topic.name))


def first(store: OpenStore, topic: Topic, group: Group, holder: Holder = Holder.SIMPLE) -> Delivery:
    (held,) = store.receive(group, topic, 1, holder=holder, invisible_ms=HOLD_MS)
    return held


def _given_back(store: OpenStore, topic: Topic, group: Group) -> None:
    store.change(group, first(store, topic, group), 0, give_back=True)


def _released(store: OpenStore, topic: Topic, group: Group) -> None:
    first(store, topic, group)
    store.end_due(after_ms=HOUR)


def _waiting(store: OpenStore, topic: Topic, group: Group) -> None:
    store.change(group, first(store, topic, group, Holder.PUSH), HOLD_MS)


def _acked(store: OpenStore, topic: Topic, group: Group) -> None:
    assert store.ack(group, first(store, topic, group)) == [None]


def _refused(store: OpenStore, topic: Topic, group: Group) -> None:
    assert store.receive(group, topic, wanted=TagFilter(("B",))) == []


def _skipped(store: OpenStore, topic: Topic, group: Group) -> None:
    assert skip(store, group, topic, 0).is_done


def _dead(store: OpenStore, topic: Topic, group: Group) -> None:
    assert store.forward(group, first(store, topic, group)) is None


def _redriven(store: OpenStore, topic: Topic, group: Group) -> None:
    _dead(store, topic, group)
    redrive_all(store, group)


def _redriven_and_held(store: OpenStore, topic: Topic, group: Group) -> None:
    _redriven(store, topic, group)
    first(store, topic, group)


def _redriven_and_acked(store: OpenStore, topic: Topic, group: Group) -> None:
    _redriven(store, topic, group)
    assert store.ack(group, first(store, topic, group)) == [None]


def _redriven_and_dead(store: OpenStore, topic: Topic, group: Group) -> None:
    _redriven(store, topic, group)
    _dead(store, topic, group)


def _redriven_and_reset(store: OpenStore, topic: Topic, group: Group) -> None:
    _redriven(store, topic, group)
    reset(store, group, topic, 0)


def _reset_after_death(store: OpenStore, topic: Topic, group: Group) -> None:
    _dead(store, topic, group)
    reset(store, group, topic, 0)


def _both_held(store: OpenStore, topic: Topic, group: Group) -> list[Delivery]:
    held = store.receive(group, topic, invisible_ms=HOLD_MS)
    assert len(held) == 2
    return held


def _head_held(store: OpenStore, topic: Topic, group: Group) -> None:
    first(store, topic, group)
    assert store.receive(group, topic) == [], "the second is left behind"


def _second_acked(store: OpenStore, topic: Topic, group: Group) -> None:
    assert store.ack(group, _both_held(store, topic, group)[1]) == [None]


def _second_acked_before_reset(store: OpenStore, topic: Topic, group: Group) -> None:
    _second_acked(store, topic, group)
    reset(store, group, topic, 1)


def _head_acked_in_transaction(store: OpenStore, topic: Topic, group: Group) -> None:
    head, _second = _both_held(store, topic, group)
    if store.database.is_sqlite:
        # What `popmq_ack` does on Postgres.
        store.conn.exec_driver_sql(
            f"UPDATE delivery SET state = '{State.ACKED_IN_TRANSACTION}', visible_at_ms = 0"
            " WHERE message_key = (SELECT MIN(message_key) FROM delivery)"
        )
    else:
        store.rows("SELECT popmq_ack(:handle)", handle=head.receipt_handle)
        store.conn.exec_driver_sql("COMMIT")


def _settled(store: OpenStore, topic: Topic, group: Group) -> None:
    _second_acked(store, topic, group)
    store.end_due(after_ms=HOUR)
    assert store.ack(group, first(store, topic, group)) == [None]


def _nothing(_store: OpenStore, _topic: Topic, _group: Group) -> None:
    pass


def _dead_and_committed(store: OpenStore, topic: Topic, group: Group) -> None:
    hand_back(store, group, topic, 0, -1)
    commit(store, group, topic, 1)  # until then the lag counts it as READY, too


# Messages 0 and 1 of a queue, what happens to them, and their states after it.
LIVES: list[tuple[Callable[[OpenStore, Topic], None], Life, tuple[State, State]]] = [
    (ordinary, _nothing, (State.READY, State.READY)),
    (ordinary, _given_back, (State.READY, State.READY)),
    (ordinary, _released, (State.READY, State.READY)),
    (ordinary, lambda *args: first(*args) and None, (State.INFLIGHT, State.READY)),
    (ordinary, _waiting, (State.WAITING_RETRY, State.READY)),
    (ordinary, _acked, (State.COMMIT, State.READY)),
    (ordinary, _refused, (State.COMMIT, State.COMMIT)),
    (ordinary, _skipped, (State.COMMIT, State.READY)),
    (ordinary, _dead, (State.DLQ, State.READY)),
    (ordinary, _redriven, (State.READY, State.READY)),
    (ordinary, _redriven_and_held, (State.INFLIGHT, State.READY)),
    (ordinary, _redriven_and_acked, (State.COMMIT, State.READY)),
    (ordinary, _redriven_and_dead, (State.DLQ, State.READY)),
    (ordinary, _redriven_and_reset, (State.READY, State.READY)),
    (ordinary, _reset_after_death, (State.READY, State.READY)),
    (ordered, _head_held, (State.INFLIGHT, State.READY)),
    (ordered, _second_acked, (State.INFLIGHT, State.ACKED_PROVISIONALLY)),
    (ordered, _second_acked_before_reset, (State.COMMIT, State.READY)),
    (ordered, _head_acked_in_transaction, (State.ACKED_IN_TRANSACTION, State.INFLIGHT)),
    (ordered, _settled, (State.COMMIT, State.COMMIT)),
]


@pytest.mark.row("L1")
@pytest.mark.row("O1")
@pytest.mark.parametrize(("send", "live", "states"), LIVES, ids=[live.__name__ for _, live, _ in LIVES])
def test_every_reader_agrees(
    store: OpenStore, send: Callable[[OpenStore, Topic], None], live: Life, states: tuple[State, State]
) -> None:
    topic = store.topic(accepts=(MessageType.NORMAL, MessageType.FIFO))
    group = store.group(meets=[topic])
    send(store, topic)
    live(store, topic, group)
    before = store.digest()
    _check(store, topic, group, states)
    assert store.digest() == before, "to look changes nothing"
    store.end_due(after_ms=HOUR)


def test_the_lives_pass_through_every_state() -> None:
    assert {state for *_, states in LIVES for state in states} == set(State) >= set(STORED)


@pytest.mark.parametrize(
    ("live", "states"),
    [
        (_nothing, (State.READY, State.READY)),
        (lambda store, topic, group: commit(store, group, topic, 1), (State.COMMIT, State.READY)),
        (lambda store, topic, group: hand_back(store, group, topic), (State.WAITING_RETRY, State.READY)),
        (_dead_and_committed, (State.DLQ, State.READY)),
    ],
)
def test_of_a_group_that_owns_whole_queues(store: OpenStore, live: Life, states: tuple[State, State]) -> None:
    topic = store.topic()
    group = pull_group(store)
    commit(store, group, topic, 0)
    ordinary(store, topic)
    live(store, topic, group)
    _check(store, topic, group, states)


def test_a_group_that_has_not_met_the_topic_has_no_state(store: OpenStore) -> None:
    topic, group = store.topic(), store.group()
    ordinary(store, topic)
    key = message_key(topic.queues[0].queue_id, 0)
    assert states_of.state_of(store.conn, group.group_id, key) is None
    assert store.states(group) == {}
    assert message_facts.of_stored(store.conn, group, key).state is None


def test_a_dead_letter_is_known_by_its_first_place(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    die(store, group, topic)
    key = message_key(topic.queues[0].queue_id, 0)
    assert states_of.state_of(store.conn, group.group_id, key + 1, key) is State.DLQ
    assert states_of.state_of(store.conn, group.group_id, key + 1) is State.READY


def _check(store: OpenStore, topic: Topic, group: Group, states: tuple[State, State]) -> None:
    keys = [message_key(topic.queues[0].queue_id, offset) for offset in (0, 1)]
    rows = store.rows(
        "SELECT message_key, state FROM message_state WHERE consumer_group = :name AND topic = :topic",
        name=group.name.name,
        topic=topic.name.name,
    )
    shown = tuple(each.shown for each in states)
    assert {row.message_key: row.state for row in rows} == dict(zip(keys, shown, strict=True)), "the view"
    assert tuple(_asked(store, group, key) for key in keys) == states, "the one derivation"
    assert tuple(_explained(store, topic, group)) == states, "why"
    assert tuple(_refused_with(store, group, key) for key in keys) == states, "a refusal"
    expected = Counter(shown)
    (lagging,) = store.rows(
        "SELECT * FROM group_lag WHERE group_id = :group AND topic_id = :topic",
        group=group.group_id,
        topic=topic.topic_id,
    )
    counts = (lagging.ready, lagging.inflight, lagging.waiting_retry, lagging.dead_letters)
    wanted = tuple(expected[each] for each in (State.READY, State.INFLIGHT, State.WAITING_RETRY, State.DLQ))
    assert counts == wanted, "the view of the lag"
    (of_queue,), _ = lag.queue_lag(store.conn, group, topic.topic_id, store.now_ms, 10)
    assert (of_queue.ready, of_queue.inflight, of_queue.waiting_retry) == wanted[:3], "the lag of a queue"


def _asked(store: OpenStore, group: Group, key: int) -> State | None:
    return states_of.state_of(store.conn, group.group_id, key)


def _explained(store: OpenStore, topic: Topic, group: Group) -> list[State | None]:
    rows = store.rows("SELECT message_id FROM message WHERE topic_id = :id ORDER BY message_key", id=topic.topic_id)
    ids = [id_from_bytes(bytes(row.message_id)) for row in rows]
    return [message_facts.message_facts(store.conn, group.name, topic.name, each, store.times)[0].state for each in ids]


def _refused_with(store: OpenStore, group: Group, key: int) -> State:
    made_up = Receipt(group.group_id, key, 4711, store.now_ms + HOUR)
    return refusals.state_of(Transaction.at(store.conn, store.now_ms, False), made_up)
