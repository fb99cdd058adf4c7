"""Group commit: together, in order, nothing answered before its commit, and only the guilty fails."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, event, text
from sqlalchemy.exc import OperationalError

from popserver.engine import writer
from popserver.engine.transaction import Read
from popserver.messages.stored import Append
from popserver.model.errors import Internal, PopError, StoreUnavailable
from tests.support.builders import GROUP, TOPIC, a_message, messages_of
from tests.support.open_store import a_receive
from tests.support.running_broker import RunningBroker, ids, running_broker, until, watched

pytestmark = pytest.mark.timeout(14)  # a writer that is broken answers nobody


class Count:
    """How often it was called."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


async def test_requests_that_wait_travel_together(either_broker: RunningBroker) -> None:
    await either_broker.topic()
    await either_broker.broker.catalog.topic(a_message().topic)
    commits = Count()
    with watched(either_broker.broker.engine.database, "COMMIT", commits):
        await asyncio.gather(*[either_broker.send() for _ in range(200)])
    assert commits.times == 1
    assert await either_broker.query("SELECT COUNT(*) FROM message") == [(200,)]
    assert len(await either_broker.query("SELECT DISTINCT stored_at_ms FROM message")) == 1


async def test_while_a_batch_is_written_the_next_one_fills(broker: RunningBroker) -> None:
    await broker.send()
    commits, gate = Count(), threading.Event()

    def slow_commit() -> None:
        commits()
        gate.wait(60)

    with watched(broker.broker.engine.database, "COMMIT", slow_commit):
        first = asyncio.create_task(broker.send())
        await until(lambda: commits.times == 1)
        others = [asyncio.create_task(broker.send()) for _ in range(50)]
        await until(lambda: broker.broker.engine.writer.waiting == 50)
        gate.set()
        await asyncio.gather(first, *others)
    assert commits.times == 2


async def test_nothing_is_answered_before_its_commit(either_broker: RunningBroker) -> None:
    await either_broker.send()
    held = await either_broker.receive()
    reached, gate = threading.Event(), threading.Event()

    def hold_the_commit() -> None:
        reached.set()
        gate.wait(60)

    poll = await either_broker.poll()
    with watched(either_broker.broker.engine.database, "COMMIT", hold_the_commit):
        calls = [asyncio.create_task(each) for each in (either_broker.send(), either_broker.ack(*held))]
        await until(reached.is_set)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not any(each.done() for each in (*calls, poll)), "neither answered nor rung"
        gate.set()
        await asyncio.gather(*calls, poll)


async def test_within_a_batch_the_house_order_rules(broker: RunningBroker) -> None:
    """A receive asked before a send of the same turn finds the message: queue counters come before progress."""
    await broker.receive()
    group, topic = await broker.broker.catalog.subscription(GROUP, TOPIC)
    sent = messages_of(1)
    received = broker.broker.engine.writer.submit(a_receive(group, topic))
    broker.broker.engine.writer.submit(Append(topic, sent))
    assert ids((await received).deliveries) == [sent[0].message_id]


class TestAFailure:
    @pytest.mark.parametrize("failure", ["an exception", "a refused statement"])
    async def test_hits_its_request_alone(self, either_broker: RunningBroker, failure: str) -> None:
        def guilty(conn: Connection) -> None:
            if failure == "an exception":
                raise ZeroDivisionError
            conn.execute(text("SELECT nothing FROM nowhere"))

        await either_broker.send()
        submit = either_broker.broker.engine.writer.submit
        sends = [asyncio.create_task(either_broker.send()) for _ in range(10)]
        bad = submit(Read(guilty))
        more = [asyncio.create_task(either_broker.send()) for _ in range(10)]
        outcomes = await asyncio.gather(*sends, bad, *more, return_exceptions=True)
        assert [index for index, each in enumerate(outcomes) if isinstance(each, PopError)] == [10]
        assert isinstance(outcomes[10], Internal)
        assert await either_broker.query("SELECT COUNT(*) FROM message") == [(21,)]

    async def test_of_many_hits_each_of_them(self, broker: RunningBroker) -> None:
        def guilty(_: Connection) -> None:
            raise ZeroDivisionError

        await broker.send()
        submit = broker.broker.engine.writer.submit
        mixed = [broker.send() if n % 3 else submit(Read(guilty)) for n in range(30)]
        outcomes = await asyncio.gather(*mixed, return_exceptions=True)
        assert [isinstance(each, Internal) for each in outcomes] == [n % 3 == 0 for n in range(30)]
        assert await broker.query("SELECT COUNT(*) FROM message") == [(21,)]

    async def test_says_what_the_database_said_and_to_repeat_it(self, broker: RunningBroker) -> None:
        with pytest.raises(Internal, match=r"refused a statement \(no such table: nowhere\).*repeat"):
            await broker.broker.engine.writer.submit(Read(lambda conn: conn.execute(text("SELECT 1 FROM nowhere"))))

    async def test_a_repeated_id_costs_one_more_run_and_fails_nobody(self, either_broker: RunningBroker) -> None:
        sent = a_message()
        await either_broker.send([sent])
        commits, rollbacks = Count(), Count()
        database = either_broker.broker.engine.database
        with watched(database, "COMMIT", commits), watched(database, "ROLLBACK", rollbacks):
            await asyncio.gather(*[either_broker.send() for _ in range(5)], either_broker.send([sent]))
        assert (commits.times, rollbacks.times) == (1, 1)
        assert await either_broker.query("SELECT COUNT(*) FROM message") == [(6,)]


class TestAnUnknownCommit:
    async def test_is_not_run_again_and_its_repetition_meets_the_dedupe(self, sqlite_url: str) -> None:
        async with running_broker(sqlite_url) as broker:
            await broker.send()
            batch = messages_of(3)

            def fail() -> None:
                raise OperationalError("COMMIT", {}, Exception("disk I/O error"))

            begins = Count()
            database = broker.broker.engine.database
            with watched(database, "BEGIN", begins), watched(database, "COMMIT", fail):
                sends = [asyncio.create_task(broker.broker.send([each])) for each in batch]
                outcomes = await asyncio.gather(*sends, return_exceptions=True)
            assert all(isinstance(each, Internal) for each in outcomes)
            assert begins.times == 1
            assert len({(await broker.send([each]))[0].message_id for each in batch}) == 3
            assert await broker.query("SELECT COUNT(*) FROM message") == [(4,)]


async def test_a_transaction_that_cannot_begin_fails_at_once_for_all(sqlite_url: str) -> None:
    async with running_broker(sqlite_url) as broker:
        await broker.send()
        begins = Count()

        def fail() -> None:
            begins()
            raise OperationalError("BEGIN", {}, Exception("database is locked"))

        with watched(broker.broker.engine.database, "BEGIN", fail):
            sends = [broker.broker.send(messages_of(1)) for _ in range(64)]
            outcomes = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(each, StoreUnavailable) for each in outcomes)
        assert begins.times == 1, "not in halves: each would wait as long for the lock"
        assert len(await broker.send()) == 1


async def test_a_connection_that_is_lost_at_every_begin_is_replaced_later(either_broker: RunningBroker) -> None:
    await either_broker.send()

    def lose(conn: Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("BEGIN"):
            conn.invalidate()
            raise OperationalError("BEGIN", {}, Exception("connection lost"), connection_invalidated=True)

    database = either_broker.broker.engine.database
    event.listen(database.writing, "before_cursor_execute", lose)
    with pytest.raises(StoreUnavailable):
        await either_broker.send()
    event.remove(database.writing, "before_cursor_execute", lose)
    assert len(await either_broker.send()) == 1


async def test_a_failing_subscriber_stops_neither_the_answers_nor_the_writer(broker: RunningBroker) -> None:
    def fail(_topic_id: int) -> None:
        raise ZeroDivisionError

    broker.broker.engine.writer.effects.on_ready(fail)
    assert len(await broker.send()) == 1
    assert len(await broker.send()) == 1


async def test_a_batch_is_bounded_in_requests_and_bytes(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    await broker.send()
    monkeypatch.setattr(writer, "BATCH_REQUESTS_MAX", 10)
    monkeypatch.setattr(writer, "BATCH_BYTES_MAX", 1_000)
    for each, commits_expected in (([1] * 25, 3), ([400] * 5, 3), ([5_000] * 2, 2)):
        commits = Count()
        with watched(broker.broker.engine.database, "COMMIT", commits):
            await asyncio.gather(*[broker.send([a_message(body=bytes(size))]) for size in each])
        assert commits.times == commits_expected


async def test_a_small_send_does_not_wait_for_several_large_ones(
    broker: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.send()
    monkeypatch.setattr(writer, "BATCH_BYTES_MAX", 1_000)
    sizes = (900, 900, 900, 1)
    await asyncio.gather(*[broker.send([a_message(body=bytes(size))]) for size in sizes])
    stored = await broker.query(
        "SELECT size FROM (SELECT rowid AS place, LENGTH(body) AS size FROM message) ORDER BY place"
    )
    assert sorted(row[0] for row in stored[1:3]) == [1, 900]


@contextmanager
def held_commit(broker: RunningBroker) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The next commit waits. The first event says that it does, the second one lets it go on."""
    reached, gate = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        gate.wait(60)

    with watched(broker.broker.engine.database, "COMMIT", hold):
        yield reached, gate


async def test_a_caller_that_leaves_leaves_its_request_to_be_done(broker: RunningBroker) -> None:
    await broker.send()
    with held_commit(broker) as (reached, gate):
        sending = asyncio.create_task(broker.send())
        await until(reached.is_set)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        gate.set()
        await broker.broker.engine.writer.idle()
    assert await broker.query("SELECT COUNT(*) FROM message") == [(2,)]


async def test_a_caller_that_leaves_keeps_no_answer_from_the_others(broker: RunningBroker) -> None:
    await broker.send()
    with held_commit(broker) as (reached, gate):
        first = asyncio.create_task(broker.send())
        await until(reached.is_set)
        leaving, staying = asyncio.create_task(broker.send()), asyncio.create_task(broker.send())
        await until(lambda: len(broker.broker.engine.writer._waiting) == 2)  # they travel together
        leaving.cancel()
        gate.set()
        await first
        async with asyncio.timeout(5):
            assert len(await staying) == 1
    assert await broker.query("SELECT COUNT(*) FROM message") == [(4,)]


async def test_closing_does_what_waits_and_refuses_what_comes_later(sqlite_url: str) -> None:
    async with running_broker(sqlite_url) as broker:
        await broker.send()
        waiting = [asyncio.create_task(broker.send()) for _ in range(10)]
        await asyncio.sleep(0)
        await broker.broker.engine.writer.close()
        assert [len(each) for each in await asyncio.gather(*waiting)] == [1] * 10
        with pytest.raises(Internal, match="stopping"):
            await broker.send()
        broker.broker.engine.writer.close = _nothing  # type: ignore[method-assign]


async def test_closing_does_what_was_asked_on_the_answer_to_the_last(sqlite_url: str) -> None:
    async with running_broker(sqlite_url) as broker:
        await broker.send()
        writer, later = broker.broker.engine.writer, []
        group, topic = await broker.broker.catalog.subscription(GROUP, TOPIC)
        last = writer.submit(Append(topic, messages_of(1)))
        last.add_done_callback(lambda _: later.append(writer.submit(a_receive(group, topic))))
        await writer.close()
        assert [len(each.result().deliveries) for each in later] == [2]
        broker.broker.engine.writer.close = _nothing  # type: ignore[method-assign]


async def _nothing() -> None:
    return
