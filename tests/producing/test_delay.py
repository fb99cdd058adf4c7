"""Delayed messages: in no queue until they are due, once at most, and taken back before that."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, select, text

from popserver.catalog import topics
from popserver.database import schema
from popserver.engine.transaction import STEP_ROWS_MAX, RepeatedId, Transaction
from popserver.filters.tags import parse
from popserver.maintenance import retention
from popserver.messages.keyed import KeySearch, spans_of_all
from popserver.messages.pending_messages import PENDING_COLUMNS
from popserver.messages.stored import Append, append
from popserver.model.errors import MessageNotFound, MessagePropertyConflictWithType, TooLate, TopicNotFound
from popserver.model.message import PROPERTY, Message, id_to_bytes
from popserver.model.states import PendingKind, State
from popserver.model.topic import MessageType
from popserver.producing import enqueue, pending
from popserver.producing.pending_facts import After, pending_with_key, scheduled
from popserver.producing.rules import CheckPolicy
from tests.support.builders import TOPIC, a_message, messages_of
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore, ids
from tests.support.pending_store import a_delayed, a_half, commit, enter_due, ids_in, pend, recall


def test_nobody_sees_it_before_its_time(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    late = a_delayed(store, tag="A", keys=("k1", "k2"), properties={"p": "ü"}, trace_context="t", born_host="h")
    (result,) = pend(store, topic, late)
    assert (result.message_id, result.deliver_at_ms) == (late.message_id, START_MS + MINUTE)
    assert store.enters_ms == START_MS + MINUTE
    assert enter_due(store, after_ms=MINUTE - 1) == 0
    assert store.receive(group, topic) == []
    assert enter_due(store, after_ms=1) == 1
    assert store.rings == {topic.topic_id}
    (received,) = store.receive(group, topic)
    assert received.stored.message == late
    assert received.stored.stored_at_ms == START_MS + MINUTE
    assert ids_in(store, "pending") == []


def test_one_that_a_user_stored_after_its_time_enters_when_the_server_is_told(store: OpenStore) -> None:
    topic = store.topic()
    enter_due(store)
    enter_due(store, after_ms=MINUTE)
    pend(store, topic, a_delayed(store, after_ms=-4 * SECOND))
    if not store.database.is_sqlite:
        assert enter_due(store) == 0, "other steps begin where one did a moment ago"
    assert store.one(enqueue.enqueue_due, enqueue.EnqueueDue(looks_back=True)).entered == 1


def test_it_is_found_by_its_keys(store: OpenStore) -> None:
    topic = store.topic()
    sent = [a_delayed(store, keys=keys) for keys in (("k", "l"), (), ("k",))]
    pend(store, topic, *sent)
    enter_due(store, after_ms=MINUTE)
    search = KeySearch("k", spans_of_all(store.conn), None)
    found = store.rows("SELECT message_key FROM message ORDER BY message_key DESC")
    assert [each.message_key for each in search.step(store.conn, 9)] == [found[0].message_key, found[2].message_key]


def test_its_key_does_not_wait_as_long(store: OpenStore) -> None:
    """Once the key's window has ended, another message may have the key; both enter."""
    topic = store.topic()
    sent = [a_delayed(store, after_ms, properties={PROPERTY: "order-42"}) for after_ms in (MINUTE, HOUR)]
    for each in sent:
        wish = pending.StorePending(topic, [each], "p1", CheckPolicy(), key_window_ms=SECOND)
        store.one(pending.store_pending, wish)
        store.now_ms += SECOND
    assert enter_due(store, after_ms=HOUR) == 2
    assert ids_in(store, "message") == [each.message_id for each in sent]


def test_it_takes_part_in_a_tag_filter(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    pend(store, topic, a_delayed(store, tag="A"), a_delayed(store, tag="B"))
    enter_due(store, after_ms=MINUTE)
    assert [each.stored.message.tag for each in store.receive(group, topic, wanted=parse("B"))] == ["B"]


def test_what_is_due_first_enters_first(store: OpenStore) -> None:
    topic = store.topic()
    sent = [a_delayed(store, after) for after in (3 * SECOND, SECOND, 2 * SECOND)]
    pend(store, topic, *sent)
    assert enter_due(store, after_ms=HOUR) == 3
    assert ids_in(store, "message") == [sent[1].message_id, sent[2].message_id, sent[0].message_id]


def test_many_enter_in_steps(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    pend(store, topic, *(a_delayed(store) for _ in range(STEP_ROWS_MAX + 5)))
    store.now_ms += HOUR
    first = store.one(enqueue.enqueue_due, enqueue.EnqueueDue())
    assert first[:3] == (STEP_ROWS_MAX, store.now_ms, None)
    assert len(first.placed) == STEP_ROWS_MAX
    assert store.one(enqueue.enqueue_due, enqueue.EnqueueDue())[:3] == (5, None, None)
    rows = store.rows("SELECT min_offset, next_offset FROM queue ORDER BY next_offset")
    assert [tuple(row) for row in rows] == [(0, STEP_ROWS_MAX // 2), (0, STEP_ROWS_MAX // 2 + 5)]


def test_a_step_carries_so_many_bytes(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue, "STEP_BYTES_MAX", 25)
    topic = store.topic()
    pend(store, topic, *(a_delayed(store, body=bytes(10)) for _ in range(4)), a_delayed(store, HOUR))
    assert enter_due(store, after_ms=MINUTE) == 2
    assert enter_due(store) == 2
    pend(store, topic, a_delayed(store, body=bytes(30)))
    assert enter_due(store, after_ms=MINUTE) == 1


def test_a_repeated_id_gets_the_first_result(store: OpenStore) -> None:
    topic = store.topic()
    late = a_delayed(store)
    first = pend(store, topic, late)
    again = pend(store, topic, late, late._replace(deliver_at_ms=START_MS + HOUR), late)
    assert again == first * 3
    enter_due(store, after_ms=MINUTE)
    # A repetition long after: it is in its queue by now.
    (known,) = pend(store, topic, late)
    assert (known.offset, known.deliver_at_ms) == (0, late.deliver_at_ms)
    assert (ids_in(store, "pending"), ids_in(store, "message")) == ([], [late.message_id])


def test_an_id_is_once_in_either_table(store: OpenStore) -> None:
    topic = store.topic()
    stored, late = a_message(), a_delayed(store)
    store.send(topic, [stored])
    (result,) = pend(store, topic, stored._replace(message_type=MessageType.DELAY, deliver_at_ms=START_MS + HOUR))
    assert result == (stored.message_id, 0, 0, "", None)
    pend(store, topic, late)
    again, other = late._replace(message_type=MessageType.NORMAL), a_message()
    with pytest.raises(RepeatedId):
        store.send(topic, [again, other])
    ((known, _),) = store.do(append, Append(topic, [again, other]), careful=True)
    assert known.deliver_at_ms == late.deliver_at_ms
    assert ids_in(store, "message") == [stored.message_id, other.message_id]


def test_one_that_was_stored_meanwhile_does_not_enter(store: OpenStore) -> None:
    """Two servers may take a message and its repetition at the same moment."""
    topic = store.topic()
    late, other = a_delayed(store), a_delayed(store)
    pend(store, topic, late, other)
    _sneak_in(store)
    store.now_ms += MINUTE
    store.do(enqueue.enqueue_due, enqueue.EnqueueDue(), careful=True)
    assert sorted(ids_in(store, "message")) == sorted([late.message_id, other.message_id])
    assert ids_in(store, "pending") == []


def test_the_same_id_may_be_in_two_topics(store: OpenStore) -> None:
    topic, other = store.topic(), store.topic("other")
    late = a_delayed(store)
    pend(store, topic, late)
    pend(store, other, late)
    assert enter_due(store, after_ms=MINUTE) == 2


def test_a_topic_that_was_deleted_takes_none(store: OpenStore) -> None:
    topic = store.topic()
    pend(store, topic, *(a_delayed(store) for _ in range(3)))
    store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
    with pytest.raises(TopicNotFound, match="was deleted"):
        pend(store, topic, a_delayed(store))
    assert enter_due(store, after_ms=MINUTE) == 3  # nothing is left waiting
    assert ids_in(store, "message") == ids_in(store, "pending") == []


def test_deleting_a_topic_removes_its_pending_messages(store: OpenStore) -> None:
    topic, other = store.topic(), store.topic("other")
    kept = a_delayed(store)
    pend(store, topic, a_delayed(store), a_half())
    pend(store, other, kept)
    store.one(topics.delete_topic, topics.DeleteTopic(TOPIC))
    store.purge()
    assert ids_in(store, "pending") == [kept.message_id]


def test_recall(store: OpenStore) -> None:
    topic = store.topic()
    taken_back, kept = a_delayed(store), a_delayed(store)
    pend(store, topic, taken_back, kept)
    assert recall(store, topic, taken_back) is None
    assert ids_in(store, "pending") == [kept.message_id]
    refusals = [recall(store, topic, taken_back), recall(store, topic, kept._replace(deliver_at_ms=1))]
    assert [type(each) for each in refusals] == [MessageNotFound, MessageNotFound]
    # Once it was taken back its id is free.
    assert pend(store, topic, taken_back)[0].deliver_at_ms == taken_back.deliver_at_ms


@pytest.mark.parametrize("is_enqueued", [False, True])
def test_recall_comes_too_late(store: OpenStore, is_enqueued: bool) -> None:
    """`is_enqueued`: a user's own transaction has stored the same id meanwhile, for later."""
    topic = store.topic()
    late = a_delayed(store)
    pend(store, topic, late)
    if is_enqueued:
        enqueued_too(store, late)
        store.conn.execute(
            text("UPDATE pending SET due_at_ms = :at, deliver_at_ms = :at WHERE enqueued = 1"), {"at": START_MS + HOUR}
        )
    assert enter_due(store, after_ms=MINUTE) == 1
    before = store.digest()
    refusal = recall(store, topic, late)
    assert isinstance(refusal, TooLate)
    assert "was due 0 ms ago and entered its queue 0 ms ago; only" in refusal.sentence
    assert store.digest() == before


def test_only_a_delayed_message_can_be_recalled(store: OpenStore) -> None:
    topic = store.topic()
    half, plain = a_half(deliver_at_ms=1), a_message(deliver_at_ms=1)
    pend(store, topic, half)
    store.send(topic, [plain._replace(deliver_at_ms=None)])
    before = store.digest()
    for each in (half, plain):
        assert isinstance(recall(store, topic, each), MessagePropertyConflictWithType)
    assert store.digest() == before


def test_cancel_takes_any_kind(store: OpenStore) -> None:
    topic = store.topic()
    late, half, kept = a_delayed(store), a_half(), a_delayed(store)
    pend(store, topic, late, half, kept)
    wish = pending.CancelPending(topic, [half.message_id, "unknown", late.message_id, half.message_id])
    assert store.one(pending.cancel_pending, wish) == [half.message_id, late.message_id]
    assert ids_in(store, "pending") == [kept.message_id]


def test_the_schedule_comes_in_pages(store: OpenStore) -> None:
    topic = store.topic()
    sent = [a_delayed(store, number // 2 * SECOND, keys=(f"k{number}",), tag="A") for number in range(7)]
    pend(store, topic, *sent)
    pend(store, store.topic("other"), a_delayed(store))
    found: list[str] = []
    after = After(0, 0)
    while page := scheduled(store.conn, TOPIC, after, 3):
        found += [each.stored.message.message_id for each in page]
        after = After(page[-1].due_at_ms, page[-1].pending_id)
        assert {each.kind for each in page} == {PendingKind.DELAY}
    assert found == [each.message_id for each in sent]
    assert scheduled(store.conn, TOPIC, After(0, 0), 1)[0].stored.message == sent[0]


def test_keys_are_found_whatever_they_hold(store: OpenStore) -> None:
    topic = store.topic()
    odd = ['a"b', "a%b", "a_b", "a/b", "a\\b", "ä", "A"]
    sent = {key: a_delayed(store, keys=("other", key)) for key in odd}
    pend(store, topic, *sent.values(), a_delayed(store))
    for key in odd:
        assert pending_with_key(store.conn, TOPIC, key) == [sent[key].message_id]
    assert pending_with_key(store.conn, TOPIC, "a") == []
    assert len(pending_with_key(store.conn, TOPIC, "other")) == len(odd)


def test_retention_leaves_it_alone(store: OpenStore) -> None:
    topic = store.topic()
    pend(store, topic, a_delayed(store, HOUR))
    store.one(retention.retain, retention.Retain(store.now_ms + 10 * HOUR))
    assert len(ids_in(store, "pending")) == 1


def test_bodies_stay_in_the_database(store: OpenStore) -> None:
    topic = store.topic()
    pend(store, topic, *(a_delayed(store, body=b"secret body") for _ in range(20)))
    seen: list[object] = []
    event.listen(store.conn, "before_cursor_execute", lambda *given: seen.append(given[3]))
    enter_due(store, after_ms=MINUTE)
    assert b"secret body" not in repr(seen).encode()
    assert len(seen) <= 10, "a few statements, however many rows"


def test_messages_of_a_group_keep_their_order(store: OpenStore) -> None:
    """They come from a user's own transaction (`popmq_enqueue`): due at once, and in a message group."""
    topic = store.topic(queues=4)
    group = store.group(meets=[topic])
    sent = messages_of(30, message_group="g", message_type=MessageType.FIFO, deliver_at_ms=0)
    assert enter_due(store) == 0  # other steps begin where one did a moment ago
    pend(store, topic, *sent)
    assert enter_due(store) == 30
    assert ids(store.receive(group, topic)) == [each.message_id for each in sent]
    assert set(store.states(group).values()) == {State.INFLIGHT}


def _sneak_in(store: OpenStore) -> None:
    """The message as another server would have stored it, without a look at what is pending."""
    store.conn.execute(
        text(
            "INSERT INTO message (message_key, topic_id, message_id, stored_at_ms, born_at_ms, tag_hash,"
            " message_type, body_encoding, born_host, body)"
            " SELECT (SELECT queue_id << 40 FROM queue), topic_id, message_id, stored_at_ms, born_at_ms, 0,"
            " 'NORMAL', body_encoding, born_host, body FROM pending ORDER BY pending_id LIMIT 1"
        )
    )
    store.conn.execute(text("UPDATE queue SET next_offset = 1"))


def enqueued_too(store: OpenStore, sent: Message) -> None:
    """The same id, by a user's own transaction: a second pending row."""
    columns = [each.name for each in schema.pending.columns if each.name not in {"pending_id", "enqueued", "kind"}]
    listed = ", ".join(columns)
    again = f"SELECT {listed}, 'DELAY', 1 FROM pending WHERE message_id = :id"
    statement = f"INSERT INTO pending ({listed}, kind, enqueued) {again}"
    store.conn.execute(text(statement), {"id": id_to_bytes(sent.message_id)})


def test_recall_and_cancel_take_all_of_an_id(store: OpenStore) -> None:
    topic = store.topic()
    recalled, cancelled = a_delayed(store, HOUR), a_delayed(store, HOUR)
    pend(store, topic, recalled, cancelled)
    for each in (recalled, cancelled):
        enqueued_too(store, each)
    assert recall(store, topic, recalled) is None
    assert store.one(pending.cancel_pending, pending.CancelPending(topic, [cancelled.message_id])) == [
        cancelled.message_id
    ]
    assert store.one_value("SELECT COUNT(*) FROM pending") == 0


@pytest.mark.parametrize("is_first", [True, False])
def test_a_half_is_decided_though_its_id_is_enqueued(store: OpenStore, is_first: bool) -> None:
    """`is_first`: it was sent before the user's own transaction stored the id."""
    topic = store.topic()
    sent = a_half()
    (half,) = pend(store, topic, sent)
    enqueued_too(store, sent)
    if not is_first:
        store.conn.execute(text("UPDATE pending SET pending_id = pending_id + 9 WHERE enqueued = 0"))
    assert commit(store, topic, half) is True
    assert store.one_value("SELECT COUNT(*) FROM message") == 1


def test_behind_a_missing_message_of_its_group_none_enters(store: OpenStore) -> None:
    """Another server has the third in its hands; of two servers in turn, the first of a step is no longer the proof."""
    topic = store.topic()
    batch = [a_delayed(store, message_group=name) for name in ("g", "other", "g", "g", "other")]
    pend(store, topic, *batch)
    store.now_ms += MINUTE
    rows = store.conn.execute(select(*PENDING_COLUMNS).order_by(schema.pending.c.pending_id)).all()
    step: list[Any] = [row for index, row in enumerate(rows) if index != 2]
    found = enqueue._in_order(Transaction.at(store.conn, store.now_ms), step)
    assert [row.pending_id for row in found] == [rows[index].pending_id for index in (0, 1, 4)]
