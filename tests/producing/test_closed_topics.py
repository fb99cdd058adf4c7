"""A topic that is closed for producers: refused sends, what was stored before, and strictness with several servers."""

from __future__ import annotations

import asyncio
import operator

import pytest

from popserver.catalog import topics
from popserver.catalog.closing import CloseQueues, close_queues
from popserver.messages.stored import Append, append
from popserver.model.errors import BadRequest, PopError, TopicClosed, TopicNotFound
from popserver.model.message import PROPERTY
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic, Topic, check_closed_because
from tests.support.builders import TOPIC, a_message
from tests.support.open_store import OpenStore
from tests.support.pending_store import a_delayed, a_half, commit, pend
from tests.support.running_broker import RunningBroker, until
from tests.support.several_brokers import SeveralBrokers

MOVED = "it has moved to 127.0.0.1:8081"
SAID = f"topic 'orders' is closed for producers: {MOVED}"


def close(store: OpenStore, topic: Topic, because: str = MOVED) -> Topic:
    changed = store.one(topics.update_topic, topics.UpdateTopic(topic.name, closed_because=because))
    store.one(close_queues, CloseQueues(topic.name, is_closed=bool(because)))
    return changed


def test_no_message_of_a_producer_is_stored(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    store.send(topic)
    closed = close(store, topic)
    assert (closed.closed_because, topics.find_topic(store.conn, topic.name)) == (MOVED, closed)
    # As a server sends that has not heard of it.
    with pytest.raises(TopicClosed, match=SAID):
        store.send(topic, 2)
    with pytest.raises(TopicClosed, match=SAID):
        pend(store, topic, a_delayed(store))
    assert store.one_value("SELECT COUNT(*) FROM message") == 1


@pytest.mark.parametrize("has_heard", [False, True])
def test_a_repeated_send_is_answered_as_the_first_one(store: OpenStore, has_heard: bool) -> None:
    topic = store.topic()
    first, keyed = a_message(), a_message(properties={PROPERTY: "k"})
    results = store.send(topic, [first, keyed])
    closed = close(store, topic)
    sender = closed if has_heard else topic
    assert store.send(sender, [first]) == results[:1]
    again = a_message(properties={PROPERTY: "k"})
    (answer,) = store.send(sender, [again])
    assert (answer.offset, answer.queue_number) == (results[1].offset, results[1].queue_number)
    with pytest.raises(TopicClosed):
        store.send(sender, [first, a_message()])


@pytest.mark.parametrize("has_heard", [False, True])
def test_a_refused_send_claims_no_key(store: OpenStore, has_heard: bool) -> None:
    topic = store.topic()
    closed = close(store, topic)
    keyed = a_message(properties={PROPERTY: "k"})
    with pytest.raises(TopicClosed):
        store.send(closed if has_heard else topic, [keyed])
    close(store, topic, "")
    (stored,) = store.send(topic, [keyed])
    assert stored.message_id == keyed.message_id
    assert store.one_value("SELECT COUNT(*) FROM message") == 1


def test_what_was_stored_before_arrives(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (half,) = pend(store, topic, a_half())
    close(store, topic)
    assert commit(store, topic, half) is True
    assert len(store.receive(group, topic)) == 2


def test_it_is_opened_with_queues_that_were_added_meanwhile(store: OpenStore) -> None:
    topic = store.topic()
    close(store, topic)
    grown = store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=3))
    for queue in range(3):
        with pytest.raises(TopicClosed):
            store.send(grown, 1, queue=queue)
    opened = close(store, grown, "")
    assert opened.closed_because is None
    for queue in range(3):
        store.send(opened, 1, queue=queue)
    assert store.one_value("SELECT COUNT(*) FROM message") == 3


def test_queues_that_are_added_while_it_is_opened_are_open(store: OpenStore) -> None:
    topic = store.topic()
    close(store, topic)
    store.one(close_queues, CloseQueues(topic.name, is_closed=False))
    grown = store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=2, closed_because=""))
    for queue in range(2):
        store.send(grown, 1, queue=queue)


def test_it_is_closed_only_with_all_queues_together(store: OpenStore) -> None:
    topic = store.topic()
    store.one(topics.update_topic, topics.UpdateTopic(topic.name, closed_because=MOVED))
    store.send(topic)  # of a server that has not heard of it: the operator has no answer yet
    store.one(close_queues, CloseQueues(topic.name, is_closed=True))
    outcomes = store.do(append, Append(topic, [a_message()]), Append(topic, [a_message()]))
    assert [str(each) for each in outcomes] == [SAID] * 2
    with pytest.raises(TopicNotFound):
        store.one(close_queues, CloseQueues(Resource("", "nowhere"), is_closed=True))


async def test_a_server_that_has_not_heard_of_it_stores_nothing(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    await servers.b.send()
    known = servers.b.broker.catalog._topics[TOPIC]
    await servers.a.broker.catalog.update_topic(TOPIC, closed_because=MOVED)
    await until(lambda: TOPIC not in servers.b.broker.catalog._topics)
    servers.b.broker.catalog._topics[TOPIC] = known
    with pytest.raises(TopicClosed, match=SAID):
        await servers.b.send()
    assert TOPIC not in servers.b.broker.catalog._topics, "it reads the topic anew"
    await servers.b.broker.catalog.update_topic(TOPIC, closed_because="")
    await until(lambda: TOPIC not in servers.a.broker.catalog._topics)
    await servers.a.send()


@pytest.mark.parametrize("after_ms", [0, 60_000], ids=["at once", "delayed"])
async def test_a_server_reads_a_topic_anew_unless_it_knows_that_it_is_closed(
    broker: RunningBroker, after_ms: int
) -> None:
    catalog, topics_known = broker.broker.catalog, broker.broker.catalog._topics
    at_ms = broker.clock.now_ms() + after_ms
    batch = [a_message(message_type=MessageType.DELAY, deliver_at_ms=at_ms)]
    await catalog.create_topic(NewTopic(TOPIC, 1, (MessageType.DELAY,)))
    outdated = await catalog.topic(TOPIC)
    await catalog.update_topic(TOPIC, closed_because=MOVED)
    newest = await catalog.topic(TOPIC)
    for known in (outdated, newest):
        topics_known[TOPIC] = known
        with pytest.raises(TopicClosed, match=SAID):
            await broker.broker.send(batch)
        assert (TOPIC in topics_known) is (known is newest)


async def test_nothing_comes_in_after_it_was_closed_under_load(servers: SeveralBrokers) -> None:
    await servers.a.topic()
    sent: list[str] = []
    refused = [0] * 8
    is_over = False

    async def send_on(number: int) -> None:
        while not is_over:
            try:
                sent.extend(each.message_id for each in await (servers.a, servers.b)[number % 2].send())
            except TopicClosed:
                refused[number] += 1
                await asyncio.sleep(0)  # others have their turn

    sending = [asyncio.ensure_future(send_on(number)) for number in range(len(refused))]
    for _ in range(3):
        enough = len(sent) + 20
        await until(lambda enough=enough: len(sent) >= enough)
        await closed(servers, MOVED)
        at_once = await stored(servers)
        # Whatever was on its way has been answered when each sender has been refused twice more.
        twice = [count + 2 for count in refused]
        await until(lambda twice=twice: all(map(operator.ge, refused, twice)))
        assert await stored(servers) == at_once
        await closed(servers, "")
    is_over = True
    await asyncio.gather(*sending)
    assert len(sent) == await stored(servers)


async def closed(servers: SeveralBrokers, because: str) -> None:
    """As often as producers have locked its queues."""
    while True:
        try:
            await servers.a.broker.catalog.update_topic(TOPIC, closed_because=because)
        except PopError:
            continue
        return


async def stored(servers: SeveralBrokers) -> int:
    (row,) = await servers.a.query("SELECT COUNT(*) AS n FROM message")
    return int(row.n)


@pytest.mark.parametrize("bad", ["x" * 501, "two\nlines"])
def test_a_sentence_is_checked(bad: str) -> None:
    with pytest.raises(BadRequest, match="the sentence that closes topic 'orders' has "):
        check_closed_because(TOPIC, bad)
