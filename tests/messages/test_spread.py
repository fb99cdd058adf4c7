"""Queues fill evenly, by whichever way messages come in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy.exc import IntegrityError

from popclient import Message, Producer
from popclient.admin import Admin
from popserver import embedded
from popserver.catalog import topics
from popserver.messages.spread import RUN
from popserver.messages.stored import Append, append
from popserver.model.topic import MessageType, Topic
from popserver.producing import half_messages
from popserver.producing.rules import Resolution
from tests.support.builders import a_message, messages_of
from tests.support.open_store import MINUTE, OpenStore
from tests.support.pending_store import a_delayed, a_half, commit, decision, enter_due, pend
from tests.support.redrive import die, redrive_all

QUEUES = 8


def lengths(store: OpenStore, topic: Topic) -> list[int]:
    """How many messages each queue has got."""
    found = store.rows("SELECT next_offset FROM queue WHERE topic_id = :id ORDER BY number", id=topic.topic_id)
    return [row.next_offset for row in found]


def are_even(found: list[int], total: int) -> bool:
    return sum(found) == total and max(found) - min(found) <= RUN


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(queues=QUEUES, accepts=tuple(MessageType)[:4])


def alone(store: OpenStore, topic: Topic) -> int:
    for _ in range(5 * QUEUES):
        store.send(topic, 1, queue=None)
    return 5 * QUEUES


def in_batches(store: OpenStore, topic: Topic) -> int:
    sizes = (128, 1_000, 1, 7, 128, 500, 33, 1, 1, 700, 16, 17)
    for size in sizes:
        store.send(topic, size, queue=None)
    return sum(sizes)


def several_together(store: OpenStore, topic: Topic) -> int:
    for count in (1, 9, 40):
        store.do(append, *(Append(topic, messages_of(32)) for _ in range(count)))
    return 50 * 32


def with_repeats(store: OpenStore, topic: Topic) -> int:
    """Each transaction runs twice, with care the second time; what was rolled back does not count."""
    first = a_message()
    store.send(topic, [first], queue=None)
    for _ in range(6 * QUEUES):
        batch = [a_message(), first]
        with pytest.raises(IntegrityError):
            store.send(topic, batch, queue=None)
        store.do(append, Append(topic, batch), careful=True)
    return 1 + 6 * QUEUES


def delayed(store: OpenStore, topic: Topic) -> int:
    for count in (1, 1, 700, 3, 90):
        pend(store, topic, *(a_delayed(store) for _ in range(count)))
        assert enter_due(store, after_ms=MINUTE) == count
    return 795


def half(store: OpenStore, topic: Topic) -> int:
    for each in pend(store, topic, *(a_half() for _ in range(3 * QUEUES))):
        assert commit(store, topic, each) is True
    many = pend(store, topic, *(a_half() for _ in range(200)))
    made = store.do(half_messages.end_transaction, *(decision(topic, each, Resolution.COMMIT) for each in many))
    assert all(isinstance(each, half_messages.Decision) and each.is_made for each in made)
    return 3 * QUEUES + 200


def redriven(store: OpenStore, topic: Topic) -> int:
    origin = store.topic("origin")
    group = store.group(meets=[origin])
    for number, count in enumerate((3, 400, 1, 1)):
        die(store, group, origin, count)
        assert redrive_all(store, group, f"p{number}", topic) == (count, 0)
    return 405


@pytest.mark.parametrize(
    "way_in",
    [alone, in_batches, several_together, with_repeats, delayed, half, redriven],
    ids=lambda each: each.__name__,
)
def test_queues_fill_evenly(store: OpenStore, topic: Topic, way_in: Callable[[OpenStore, Topic], int]) -> None:
    total = way_in(store, topic)
    assert are_even(lengths(store, topic), total)


def test_messages_of_groups_go_to_their_queue_and_the_others_fill_evenly(store: OpenStore, topic: Topic) -> None:
    bound, free = [0] * QUEUES, [0] * QUEUES
    for count in (200, 1, 30):
        mixed = [
            each
            for _ in range(count)
            for each in (a_message(), a_message(message_group="g", message_type=MessageType.FIFO))
        ]
        for place, sent in zip(store.send(topic, mixed, queue=None), mixed, strict=True):
            assert place.queue_number is not None
            (free if sent.message_group is None else bound)[place.queue_number] += 1
    assert sorted(bound) == [0] * (QUEUES - 1) + [231]
    assert are_even(free, 231)


def test_a_priority_is_a_queue(store: OpenStore) -> None:
    topic = store.topic(queues=4, accepts=(MessageType.NORMAL, MessageType.PRIORITY))
    store.send(topic, [a_message(priority=each) for each in (0, None, 2, 3, 9)])
    assert lengths(store, topic) == [2, 0, 1, 2]


def test_redriven_messages_have_no_priority(store: OpenStore) -> None:
    """Else they would come before urgent ones."""
    origin, target = store.topic("origin"), store.topic(queues=4, accepts=(MessageType.NORMAL, MessageType.PRIORITY))
    group = store.group(meets=[origin])
    die(store, group, origin, 100)
    assert redrive_all(store, group, target=target) == (100, 0)
    assert lengths(store, target) == [100, 0, 0, 0]


def test_few_messages_touch_one_queue(store: OpenStore, topic: Topic) -> None:
    """Each queue is a row and a page more to write."""
    for count in (1, RUN):
        before = lengths(store, topic)
        store.send(topic, count, queue=None)
        after = lengths(store, topic)
        assert sum(old != new for old, new in zip(before, after, strict=True)) == 1


def test_new_queues_get_as_many_as_the_others_from_then_on(store: OpenStore, topic: Topic) -> None:
    store.send(topic, 1_000, queue=None)
    before = [*lengths(store, topic), 0, 0]
    grown = store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=QUEUES + 2))
    for count in (300, 1, 1, 700):
        store.send(grown, count, queue=None)
    got = [new - old for old, new in zip(before, lengths(store, grown), strict=True)]
    assert are_even(got, 1_002)


def test_several_servers_fill_evenly_together(store: OpenStore, topic: Topic) -> None:
    """Each remembers what it has stored itself."""
    memories: list[dict[type, object]] = [{}, {}, {}]
    for count in (1, 128, 5, 400, 1):
        for store.memory in memories:
            store.send(topic, count, queue=None)
    found = lengths(store, topic)
    assert sum(found) == 3 * 535
    assert max(found) - min(found) <= 3 * RUN


def test_a_request_that_knows_fewer_queues_uses_those(store: OpenStore, topic: Topic) -> None:
    """Another server has just added some, and a request with them was first."""
    grown = store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=QUEUES + 4))
    store.send(grown, 1, queue=None)
    store.send(topic, 500, queue=None)
    assert lengths(store, grown)[QUEUES:] == [0] * 4


def test_what_a_producer_sends_in_its_own_calls() -> None:
    with embedded() as broker, Producer(broker.endpoint) as producer, Admin(broker.endpoint) as admin:
        sent = producer.send_many(Message("orders", b"%d" % number) for number in range(4_000))
        assert not any(isinstance(each, Exception) for each in sent)
        for number in range(20):
            producer.send(Message("orders", b"%d" % number))
        found = [queue.max_offset for queue in admin.get_topic("orders").queues]
    assert are_even(found, 4_020)
