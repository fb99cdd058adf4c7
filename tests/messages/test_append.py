"""Appending: places, durability of everything a message carries, and one copy per id."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.exc import IntegrityError

from popserver.catalog import topics
from popserver.filters import tag_hash
from popserver.messages.seek import newest_stored_at_ms
from popserver.messages.stored import Append, append
from popserver.model.errors import TopicNotFound
from popserver.model.message import BodyEncoding, SendResult
from popserver.model.topic import message_key
from tests.support.builders import a_message, an_id, messages_of
from tests.support.open_store import START_MS, OpenStore


@pytest.mark.row("H12")
def test_a_result_names_the_id_the_queue_and_a_dense_offset(store: OpenStore) -> None:
    topic = store.topic(queues=3)
    batch = messages_of(3)
    assert store.send(topic, batch, queue=4) == [
        SendResult(each.message_id, 1, offset) for offset, each in enumerate(batch)
    ]
    (later,) = store.send(topic, 1, queue=7)
    assert (later.queue_number, later.offset) == (1, 3)


def test_a_message_comes_back_as_it_was(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    sent = a_message(
        message_id="not of the v1 layout ✓",
        body=bytes(range(256)),
        tag="订单",
        keys=("k1", "key with blanks", "é"),
        properties={"origin": "JFK", "quote": '"\\', "empty": ""},
        body_encoding=BodyEncoding.GZIP,
        born_at_ms=123,
        born_host="host",
        trace_context="00-trace",
    )
    store.now_ms += 7
    store.send(topic, [sent])
    ((stored, _, attempt, _),) = store.receive(group, topic)
    assert stored.message == sent
    assert (stored.queue_number, stored.offset, stored.stored_at_ms) == (0, 0, START_MS + 7)
    assert (attempt, stored.dead_letter_of) == (1, None)


def test_a_bare_message_comes_back_bare(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    sent = a_message(body=b"\x00")
    store.send(topic, [sent])
    assert store.receive(group, topic)[0].stored.message == sent


def test_many_messages_in_one_request_keep_their_order(store: OpenStore) -> None:
    topic = store.topic()
    batch = messages_of(1_000)
    results = store.send(topic, batch)
    assert [each.offset for each in results] == list(range(1_000))
    assert [each.message_id for each in results] == [each.message_id for each in batch]
    assert store.one_value("SELECT next_offset FROM queue") == 1_000


def test_requests_of_several_topics_in_one_call(store: OpenStore) -> None:
    one, other = store.topic("one"), store.topic("other")
    wishes = [Append(topic, messages_of(2, topic.name)) for topic in (other, one, other)]
    results = store.do(append, *wishes)
    assert [[each.offset for each in result] for result in results if isinstance(result, list)] == [
        [0, 1],
        [0, 1],
        [2, 3],
    ]
    assert store.rings == {one.topic_id, other.topic_id}
    assert store.one_value("SELECT COUNT(*) FROM message WHERE topic_id = :id", id=other.topic_id) == 4


@pytest.mark.row("M4")
def test_the_tags_hash_is_stored_beside_it(store: OpenStore) -> None:
    store.send(store.topic(), [a_message(tag="TagA"), a_message()])
    assert store.rows("SELECT tag, tag_hash FROM message ORDER BY message_key") == [
        ("TagA", tag_hash("TagA")),
        (None, 0),
    ]


def test_an_optimistic_run_meets_a_repeated_id_as_an_integrity_error(store: OpenStore) -> None:
    topic = store.topic()
    sent = messages_of(1)
    store.send(topic, sent)
    with pytest.raises(IntegrityError):
        store.send(topic, sent)
    assert store.one_value("SELECT next_offset FROM queue") == 1


def test_a_repeated_id_gets_the_first_result_and_stores_nothing(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    sent = a_message(body=b"first")
    first = store.send(topic, [sent])
    before = store.digest()
    again = Append(topic, [sent._replace(body=b"second", tag="other")])
    assert list(store.do(append, again, careful=True)) == [first]
    assert store.digest() == before
    assert store.rings == set()


@pytest.mark.parametrize("message_id", [an_id(), "a v0 id"])
def test_an_id_repeated_within_a_batch_and_across_requests_is_stored_once(store: OpenStore, message_id: str) -> None:
    topic = store.topic()
    twice = [a_message(message_id=message_id, body=body) for body in (b"1", b"2")]
    other = a_message()
    one, two = store.do(
        append,
        Append(topic, [twice[0], other, twice[1]]),
        Append(topic, [twice[1]]),
        careful=True,
    )
    place = SendResult(message_id, 0, 0)
    assert one == [place, SendResult(other.message_id, 0, 1), place]
    assert two == [place]
    assert [bytes(row.body) for row in store.rows("SELECT body FROM message ORDER BY message_key")] == [b"1", b"body"]


def test_ids_are_a_topics_own(store: OpenStore) -> None:
    one, other = store.topic("one"), store.topic("other")
    sent = a_message()
    store.send(one, [sent])
    assert store.send(other, [sent._replace(topic=other.name)]) == [SendResult(sent.message_id, 0, 0)]


def test_sending_to_a_topic_that_is_gone(store: OpenStore) -> None:
    topic = store.topic()
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.purge()
    with pytest.raises(TopicNotFound, match="'orders' was deleted; create it with: popmq topic create orders"):
        store.send(topic)
    assert store.one_value("SELECT COUNT(*) FROM message") == 0


def test_the_newest_time_of_storing_is_what_a_clock_may_not_start_behind(store: OpenStore) -> None:
    assert newest_stored_at_ms(store.conn) == 0
    topic = store.topic(queues=2)
    store.send(topic, 2, queue=1)
    store.now_ms += 5
    store.send(topic, 1, queue=0)
    assert newest_stored_at_ms(store.conn) == START_MS + 5


def test_a_message_key_is_its_place(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    store.send(topic, 2, queue=1)
    keys = [row.message_key for row in store.rows("SELECT message_key FROM message ORDER BY message_key")]
    assert keys == [message_key(topic.queues[1].queue_id, offset) for offset in (0, 1)]


def test_repeated_ids_are_looked_up_in_steps(store: OpenStore) -> None:
    """A database takes only so many parameters in one statement."""
    topic = store.topic()
    batch = messages_of(2_500)
    (first,) = store.do(append, Append(topic, batch))
    sizes: list[int] = []

    def count(_conn: object, _cursor: object, statement: str, parameters: Any, *_: object) -> None:
        if statement.startswith("SELECT") and "message_id IN" in statement:
            sizes.append(len(parameters))

    event.listen(store.conn, "before_cursor_execute", count)
    (again,) = store.do(append, Append(topic, batch), careful=True)
    event.remove(store.conn, "before_cursor_execute", count)
    assert again == first
    assert len(sizes) == 6  # three steps in each of the two tables
    assert max(sizes) <= 1_010
