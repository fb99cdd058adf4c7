"""Beside a transaction that stays open, Postgres keeps every version of every row: no call may read them all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median

import pytest

from popserver.catalog.queue_offsets import ends_of_topic
from popserver.database.database import Database
from popserver.delivery import due
from popserver.fifo.moving_starts import ADVANCE_INTERVAL_MS
from popserver.model.topic import MessageType
from popserver.producing import half_messages
from popserver.producing.rules import Resolution
from popserver.pulling import commit
from popserver.pulling.read import ends_of
from popserver.pulling.rules import QueueOffset
from popserver.settling import expire, release
from tests.support.builders import in_order
from tests.support.emptied_database import a_database
from tests.support.open_store import HOUR, SECOND, OpenStore, receipt_of
from tests.support.pending_store import a_delayed, a_half, decision, enter_due, pend
from tests.support.plans import blocks_read
from tests.support.postgres import PostgresServer
from tests.support.progress import pull_group
from tests.support.pulls import look

BATCH = 32
WARM, ROUNDS = 50, 250  # until then the indexes get their levels
SOME = 20  # rounds, of which few look at everything (`engine.searches`)


@pytest.fixture(scope="module")
def postgres_database(postgres: PostgresServer) -> Iterator[Database]:
    """Of this module alone: Postgres keeps what it knows of the rows of other tests, and plans by it."""
    with a_database(postgres) as database:
        yield database


@pytest.fixture
def held(store: OpenStore) -> Iterator[None]:
    """Another transaction, which sees the store as it is now and stays open."""
    if store.database.is_sqlite:
        pytest.skip("SQLite keeps old versions in its log, where no statement reads them")
    with store.database.read() as conn:
        conn.exec_driver_sql("SELECT count(*) FROM message")
        yield


def stays_level(store: OpenStore, once: Callable[[int], None], *, within: float = 1.15) -> None:
    """The last rounds read about as much as those after the first `WARM`."""

    def cost(number: int) -> int:
        before = blocks_read(store)
        once(number)
        return blocks_read(store) - before

    costs = []
    for number in range(ROUNDS):
        if number in {WARM, ROUNDS - SOME}:
            store.conn.exec_driver_sql("ANALYZE")  # as autovacuum does; the first plans are made for empty tables
        costs.append(cost(number))
    assert median(costs[-SOME:]) < within * median(costs[WARM : WARM + SOME]), costs[:: ROUNDS // 10]


@pytest.mark.parametrize("queues", [1, 4])
@pytest.mark.usefixtures("held")
def test_a_receive_and_its_acks(store: OpenStore, queues: int) -> None:
    topic = store.topic(queues=queues, accepts=(MessageType.NORMAL,))
    group = store.group(meets=[topic])

    def once(number: int) -> None:
        store.send(topic, BATCH, queue=number)
        held = store.receive(group, topic, BATCH, rotation=number)
        assert store.ack(group, *held) == [None] * BATCH

    stays_level(store, once)


@pytest.mark.usefixtures("held")
def test_holds_that_end_and_retries(store: OpenStore) -> None:
    topic = store.topic(queues=1, accepts=(MessageType.NORMAL,))
    group = store.group(meets=[topic], intervals_ms=(SECOND,))

    def once(number: int) -> None:
        store.send(topic, BATCH, queue=number)
        assert len(store.receive(group, topic, BATCH, invisible_ms=SECOND)) == BATCH
        for _ in ("the holds end", "the intervals end"):
            store.now_ms += SECOND + 1
            store.one(expire.end_due, expire.EndDue())
        again = store.receive(group, topic, BATCH)
        assert store.ack(group, *again) == [None] * BATCH

    stays_level(store, once)


@pytest.mark.usefixtures("held")
def test_delayed_messages_that_become_due(store: OpenStore) -> None:
    topic = store.topic(queues=1, accepts=(MessageType.DELAY,))

    def once(_number: int) -> None:
        pend(store, topic, *(a_delayed(store, SECOND) for _ in range(BATCH)))
        assert enter_due(store, after_ms=SECOND) == BATCH

    stays_level(store, once)


@pytest.mark.usefixtures("held")
def test_messages_that_are_given_back_again_and_again(store: OpenStore) -> None:
    """By consumers that end soon after they have begun: some say so, and answers to others cannot be sent."""
    topic = store.topic(queues=1, accepts=(MessageType.NORMAL,))
    group = store.group(meets=[topic])
    store.send(topic, BATCH)

    def once(_number: int) -> None:
        held = store.receive(group, topic, BATCH)
        assert [each.attempt for each in held] == [1] * BATCH
        for each in held[::2]:
            store.change(group, each, 0, give_back=True)
        store.one(release.cancel_delivery, release.CancelDelivery([receipt_of(each) for each in held[1::2]]))
        store.now_ms += SECOND // 10

    stays_level(store, once)


@pytest.mark.usefixtures("held")
def test_half_messages_that_are_committed_together(store: OpenStore) -> None:
    topic = store.topic(queues=1, accepts=(MessageType.TRANSACTION,))

    def once(_number: int) -> None:
        halves = pend(store, topic, *(a_half() for _ in range(BATCH)))
        made = store.do(half_messages.end_transaction, *(decision(topic, each, Resolution.COMMIT) for each in halves))
        assert [each.is_made for each in made if isinstance(each, half_messages.Decision)] == [True] * BATCH

    stays_level(store, once)


@pytest.mark.parametrize("names", [[*"abcd"], [60 * each for each in "abcd"]], ids=["short", "long"])
@pytest.mark.usefixtures("held")
def test_message_groups_with_retries(store: OpenStore, names: list[str]) -> None:
    """The index of message groups gets more levels than others if their names are long: Postgres prefers others then,
    whose rows it would sort."""
    topic = store.topic(queues=1, accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])

    def once(_number: int) -> None:
        for _ in range(2):
            store.send(topic, [each for name in names for each in in_order(name, BATCH // 8)])
        store.now_ms += ADVANCE_INTERVAL_MS
        done = 0
        while done < BATCH:
            first, *held = store.receive(group, topic, BATCH // 2)
            store.change(group, first, 0, give_back=True)
            assert store.ack(group, *held) == [None] * len(held)
            (again, *more) = store.receive(group, topic, BATCH)
            assert store.ack(group, again, *more) == [None] * (1 + len(more))
            done += len(held) + 1 + len(more)
        assert store.receive(group, topic, BATCH) == []

    # An index of long names still gets new levels in the last rounds.
    stays_level(store, once, within=1.5 if len(names[0]) > 1 else 1.15)


@pytest.mark.usefixtures("held")
def test_message_groups_beside_some_that_wait_long(store: OpenStore) -> None:
    topic = store.topic(queues=1, accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])
    store.send(topic, [each for name in ("slow", "slower") for each in in_order(name, 4)])
    assert len(store.receive(group, topic, invisible_ms=HOUR)) == 8

    def once(_number: int) -> None:
        store.send(topic, [each for name in "abcd" for each in in_order(name, BATCH // 4)])
        store.now_ms += ADVANCE_INTERVAL_MS
        held = store.receive(group, topic, BATCH)
        assert store.ack(group, *held) == [None] * BATCH
        assert store.receive(group, topic, BATCH) == []

    stays_level(store, once)


@pytest.mark.usefixtures("held")
def test_pulls_and_commits(store: OpenStore) -> None:
    topic, group = store.topic(queues=2), pull_group(store)

    def once(number: int) -> None:
        offset = number * BATCH
        for rotation in range(2):
            store.send(topic, BATCH, queue=rotation)
        for queue in topic.queues:
            pulled = look(store, topic, offset, queue=queue.number)
            assert len(pulled.messages) == BATCH
            store.one(commit.commit, commit.Commit(group, [QueueOffset(topic, queue, pulled.next_offset)]))
        with store.database.read(by_index=True) as conn:
            for _ in range(BATCH):
                assert [each.offset for each in commit.fetch(conn, group, topic.queues)] == [offset + BATCH] * 2
                assert [each.end_offset for each in ends_of_topic(conn, topic.topic_id)] == [offset + BATCH] * 2
                assert ends_of(conn, topic, topic.queues[0]).end_offset == offset + BATCH
            conn.exec_driver_sql("SELECT pg_stat_force_next_flush()")

    stays_level(store, once)


@pytest.mark.usefixtures("held")
def test_when_the_next_hold_ends(store: OpenStore) -> None:
    topic = store.topic(queues=1, accepts=(MessageType.NORMAL,))
    group = store.group(meets=[topic])
    store.send(topic)
    store.receive(group, topic, invisible_ms=SECOND)

    def once(number: int) -> None:
        store.send(topic, BATCH, queue=number)
        held = store.receive(group, topic, BATCH)
        assert store.ack(group, *held) == [None] * BATCH
        for _ in range(BATCH):  # as a server does after most of its transactions
            assert due.next_due_ms(store.conn, store.now_ms) == store.now_ms + SECOND

    stays_level(store, once)


@pytest.mark.parametrize("kind", ["holds", "delays"])
def test_each_of_many_reads_no_more_than_each_of_few(store: OpenStore, kind: str) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite finds rows by their keys")
    topic = store.topic(queues=1, accepts=(MessageType.NORMAL, MessageType.DELAY))
    group = store.group(meets=[topic])

    def each(count: int) -> float:
        if kind == "holds":
            store.send(topic, count)
            for _ in range(count // BATCH):
                store.receive(group, topic, BATCH, invisible_ms=SECOND)
        else:
            pend(store, topic, *(a_delayed(store, SECOND) for _ in range(count)))
        store.now_ms += SECOND + 1
        before = blocks_read(store)
        if kind == "holds":
            store.one(expire.end_due, expire.EndDue())
        else:
            assert enter_due(store) == count
        return (blocks_read(store) - before) / count

    few = each(2 * BATCH)
    assert each(30 * BATCH) < 2 * few
