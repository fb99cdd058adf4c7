"""Idempotency keys: one message per key, topic and window, whoever sends it and however often."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from popserver.catalog import topics
from popserver.engine.transaction import STEP_ROWS_MAX, RepeatedId
from popserver.messages import repeats
from popserver.messages.repeats import Expire, Expired
from popserver.messages.stored import Append, append
from popserver.model.message import PROPERTY, WINDOW_MS, Message, SendResult
from popserver.model.topic import Topic
from tests.support.builders import a_message
from tests.support.open_store import MINUTE, START_MS, OpenStore
from tests.support.pending_store import a_delayed, a_half, commit, enter_due, pend, recall, roll_back


def keyed(key: str, topic: Topic, **more: Any) -> Message:
    return a_message(topic.name, properties={PROPERTY: key, "other": "x"}, **more)


def sent(store: OpenStore, topic: Topic, *batch: Message) -> list[SendResult]:
    """As the writer sends: first without a look, and carefully when that meets something."""
    try:
        (results,) = store.do(append, Append(topic, batch))
    except (RepeatedId, IntegrityError):
        (results,) = store.do(append, Append(topic, batch), careful=True)
    assert isinstance(results, list)
    return results


@pytest.mark.user("U18")
def test_a_repeat_under_another_id_gets_the_first_result_and_stores_nothing(store: OpenStore) -> None:
    topic = store.topic()
    first = keyed("order-42", topic)
    (result,) = sent(store, topic, first)
    assert result == SendResult(first.message_id, 0, 0)
    before = store.digest()
    store.now_ms += WINDOW_MS - 1
    with pytest.raises(RepeatedId):
        store.do(append, Append(topic, [keyed("order-42", topic)]))
    assert sent(store, topic, keyed("order-42", topic), keyed("order-42", topic)) == [result, result]
    assert sent(store, topic, first._replace(body=b"again")) == [result]
    assert store.digest() == before


def test_what_comes_with_a_repeat_is_stored(store: OpenStore) -> None:
    topic = store.topic()
    (one,) = sent(store, topic, keyed("one", topic))
    new, plain = keyed("new", topic), a_message()
    assert sent(store, topic, keyed("one", topic), new, plain, keyed("new", topic)) == [
        one,
        SendResult(new.message_id, 0, 1),
        SendResult(plain.message_id, 0, 2),
        SendResult(new.message_id, 0, 1),
    ]
    assert store.one_value("SELECT COUNT(*) FROM idempotency") == 2


def test_requests_of_one_transaction_share_their_keys(store: OpenStore) -> None:
    topic, other = store.topic("one"), store.topic("other")
    batches = [[keyed("k", topic)], [keyed("k", topic)], [keyed("k", other)]]
    wishes = [Append(of, batch) for of, batch in zip((topic, topic, other), batches, strict=True)]
    with pytest.raises(RepeatedId):
        store.do(append, *wishes)
    one, two, three = store.do(append, *wishes, careful=True)
    place = SendResult(batches[0][0].message_id, 0, 0)
    assert (one, two, three) == ([place], [place], [SendResult(batches[2][0].message_id, 0, 0)])


def test_an_id_and_a_key_of_different_messages(store: OpenStore) -> None:
    """The id comes first: it is the same message, whatever it says this time."""
    topic = store.topic()
    by_id, by_key = keyed("a", topic), keyed("b", topic)
    results = sent(store, topic, by_id, by_key)
    assert sent(store, topic, keyed("b", topic, message_id=by_id.message_id)) == [results[0]]


def test_after_the_window_a_key_is_free_again(store: OpenStore) -> None:
    topic = store.topic()
    sent(store, topic, keyed("k", topic))
    store.now_ms += WINDOW_MS
    again = keyed("k", topic)
    assert sent(store, topic, again) == [SendResult(again.message_id, 0, 1)]
    assert sent(store, topic, keyed("k", topic)) == [SendResult(again.message_id, 0, 1)]
    assert store.one_value("SELECT expires_at_ms FROM idempotency") == store.now_ms + WINDOW_MS


def test_without_a_window_keys_are_not_heeded(store: OpenStore) -> None:
    topic = store.topic()
    for _ in range(2):
        store.do(append, Append(topic, [keyed("k", topic)], key_window_ms=0))
    assert store.one_value("SELECT COUNT(*) FROM message") == 2
    assert store.one_value("SELECT COUNT(*) FROM idempotency") == 0


def test_a_key_whose_message_was_taken_back_is_free(store: OpenStore) -> None:
    topic = store.topic()
    sent(store, topic, keyed("k", topic))
    store.conn.exec_driver_sql("DELETE FROM message")
    again = keyed("k", topic)
    assert sent(store, topic, again) == [SendResult(again.message_id, 0, 1)]
    assert sent(store, topic, keyed("k", topic)) == [SendResult(again.message_id, 0, 1)]


def test_a_delayed_message_keeps_its_key_where_it_is(store: OpenStore) -> None:
    topic = store.topic()
    delayed = a_delayed(store, properties={PROPERTY: "k"})
    first = SendResult(delayed.message_id, None, 0, "", delayed.deliver_at_ms)
    repeats = [a_delayed(store, properties={PROPERTY: "k"}), a_half(properties={PROPERTY: "k"})]
    assert pend(store, topic, delayed, repeats[0]) == [first, first]
    assert pend(store, topic, *repeats) == [first, first]
    assert sent(store, topic, keyed("k", topic)) == [first]
    assert enter_due(store, after_ms=MINUTE) == 1
    assert sent(store, topic, keyed("k", topic)) == [first._replace(queue_number=0)]  # where it is now
    assert store.one_value("SELECT COUNT(*) FROM message") == 1


def test_what_is_taken_back_frees_its_key(store: OpenStore) -> None:
    topic = store.topic()
    delayed = a_delayed(store, properties={PROPERTY: "delayed"})
    pend(store, topic, delayed)
    (half,) = pend(store, topic, a_half(properties={PROPERTY: "half"}))
    assert recall(store, topic, delayed) is None
    assert roll_back(store, topic, half) is True
    for key in ("delayed", "half"):
        (again,) = pend(store, topic, another := a_half(properties={PROPERTY: key}))
        assert again.message_id == another.message_id
        assert commit(store, topic, again) is True
        (repeated,) = pend(store, topic, a_half(properties={PROPERTY: key}))
        assert (repeated.message_id, bool(repeated.transaction_id)) == (another.message_id, True)
    assert store.one_value("SELECT COUNT(*) FROM message") == 2


def test_a_deleted_topic_takes_its_keys_along(store: OpenStore) -> None:
    topic = store.topic()
    sent(store, topic, keyed("k", topic))
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.purge()
    assert store.one_value("SELECT COUNT(*) FROM idempotency") == 0


def test_any_text_is_a_key_of_its_own(store: OpenStore) -> None:
    topic = store.topic()
    keys = ["k", "K", "k ", "é", "e\u0301", "'; --", '"', "\\", "%", "x" * 255]
    sent(store, topic, *(keyed(key, topic) for key in keys))
    assert store.one_value("SELECT COUNT(*) FROM message") == len(keys)
    sent(store, topic, *(keyed(key, topic) for key in keys))
    assert store.one_value("SELECT COUNT(*) FROM message") == len(keys)


def test_what_is_over_goes_in_steps(store: OpenStore) -> None:
    topic = store.topic()
    assert store.one(repeats.expire, Expire()) == Expired(0, None)
    sent(store, topic, *(keyed(str(number), topic) for number in range(STEP_ROWS_MAX + 1)))
    store.now_ms += 1
    sent(store, topic, keyed("later", topic))
    over_ms = START_MS + WINDOW_MS
    assert store.one(repeats.expire, Expire()) == Expired(0, over_ms)
    store.now_ms = over_ms
    assert store.one(repeats.expire, Expire()) == Expired(STEP_ROWS_MAX, over_ms)
    assert store.one(repeats.expire, Expire()) == Expired(1, over_ms + 1)
    assert store.one_value("SELECT idempotency_key FROM idempotency") == "later"
