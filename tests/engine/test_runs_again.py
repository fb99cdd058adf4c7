"""A transaction that fails: what runs again, and how; what is refused; and what is told of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest
from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError

from popserver.database.notifications import Invalidation
from popserver.engine.timers import DueTimer
from popserver.engine.transaction import FinishOrder, LockOrder, Locks, Outdated, RepeatedId, Request, Transaction
from popserver.engine.writer import Writer
from popserver.model.errors import CommitUnknown, Internal, PopError, StoreUnavailable
from popserver.model.names import Resource
from tests.engine.acting_writer import Act, Change, Locking, Look, Remove, acting_writer

pytestmark = pytest.mark.timeout(14)  # a writer that is broken answers nobody


@pytest.fixture
async def writer(sqlite_url: str) -> AsyncIterator[Writer]:
    async with acting_writer(sqlite_url) as running:
        yield running


@pytest.fixture
async def either_writer(database_url: str) -> AsyncIterator[Writer]:
    async with acting_writer(database_url) as running:
        yield running


class _Taken(Exception):
    """The driver's error of a transaction that Postgres ended in favour of another."""

    sqlstate = "40001"


def serialization_failure() -> DBAPIError:
    return OperationalError("UPDATE", {}, _Taken())


def repeated_row() -> DBAPIError:
    return IntegrityError("INSERT", {}, Exception("UNIQUE constraint failed"))


def refused_statement() -> DBAPIError:
    return OperationalError("SELECT", {}, Exception("no such table"))


def lost_connection() -> DBAPIError:
    return OperationalError("SELECT", {}, Exception("connection lost"), connection_invalidated=True)


class Failing:
    """An act that raises these errors, one in each run, then succeeds; `careful` says how the runs were."""

    def __init__(self, *errors: BaseException) -> None:
        self.careful: list[bool] = []
        self._errors = [*errors]

    def __call__(self, tx: Transaction) -> str:
        self.careful.append(tx.careful)
        if self._errors:
            raise self._errors.pop(0)
        return "done"


def always(error: Callable[[], BaseException]) -> Failing:
    return Failing(*[error() for _ in range(50)])


async def outcomes(writer: Writer, *acts: Act) -> list[Any]:
    """Of requests that run together: "done", or the type of the refusal."""
    answers = await asyncio.gather(*[writer.submit(Change(each)) for each in acts], return_exceptions=True)
    return [type(each) if isinstance(each, BaseException) else each for each in answers]


@pytest.mark.parametrize(
    ("errors", "careful", "outcome"),
    [
        ([RepeatedId], [False, True], "done"),
        ([repeated_row], [False, True], "done"),
        ([repeated_row, repeated_row], [False, True], Internal),
        ([RepeatedId, Outdated], [False, True, True], "done"),
        ([Outdated], [False, False], "done"),
        ([Outdated] * 5, [False] * 6, "done"),
        ([serialization_failure], [False, False], "done"),
        ([serialization_failure] * 2, [False] * 3, "done"),
        ([serialization_failure] * 3, [False] * 3, Internal),
        ([RepeatedId, serialization_failure], [False, True, True], "done"),
        ([serialization_failure, Outdated, serialization_failure, serialization_failure], [False] * 4, Internal),
        ([ZeroDivisionError], [False], Internal),
        ([refused_statement], [False], Internal),
        ([lost_connection], [False], StoreUnavailable),
    ],
)
async def test_an_error_decides_what_runs_again(
    writer: Writer, errors: list[Callable[[], BaseException]], careful: list[bool], outcome: object
) -> None:
    failing = Failing(*[each() for each in errors])
    assert await outcomes(writer, failing) == [outcome]
    assert failing.careful == careful
    assert await outcomes(writer, Failing()) == ["done"]


@pytest.mark.parametrize("error", [ZeroDivisionError, refused_statement, serialization_failure, repeated_row])
async def test_of_several_requests_only_the_failing_one_is_refused(
    either_writer: Writer, error: Callable[[], BaseException]
) -> None:
    others = [Failing() for _ in range(5)]
    expected = ["done", "done", Internal, "done", "done", "done"]
    assert await outcomes(either_writer, *others[:2], always(error), *others[2:]) == expected


async def test_halves_stay_careful(writer: Writer) -> None:
    repeats, other = Failing(RepeatedId()), Failing()
    assert await outcomes(writer, repeats, always(ZeroDivisionError), other) == ["done", Internal, "done"]
    assert repeats.careful == [False, True, True]
    assert set(other.careful) == {True}


async def test_halves_of_what_the_database_takes_back_stay_careful(writer: Writer) -> None:
    first = Failing(RepeatedId())
    assert await outcomes(writer, first, always(serialization_failure)) == ["done", Internal]
    assert first.careful == [False, True, True, True, True]


async def test_a_lost_connection_refuses_all_that_ran_on_it(either_writer: Writer) -> None:
    before, after = Failing(), Failing()
    assert await outcomes(either_writer, before, always(lost_connection), after) == [StoreUnavailable] * 3
    assert (before.careful, after.careful) == ([False], [])


async def test_what_is_no_error_of_a_request_refuses_all_and_the_thread_lives(writer: Writer) -> None:
    assert await outcomes(writer, Failing(SystemExit()), Failing()) == [Internal, Internal]
    assert writer.is_alive
    assert await outcomes(writer, Failing()) == ["done"]


class TestALostBegin:
    @staticmethod
    @contextmanager
    def losing(writer: Writer, *begins: int) -> Iterator[list[int]]:
        """These of the next transactions lose their connection as they begin."""
        seen: list[int] = []

        def lose(conn: Connection, _cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("BEGIN"):
                seen.append(len(seen))
                if seen[-1] in begins:
                    conn.invalidate()
                    raise OperationalError("BEGIN", {}, Exception("connection lost"), connection_invalidated=True)

        event.listen(writer._database.writing, "before_cursor_execute", lose)
        yield seen
        event.remove(writer._database.writing, "before_cursor_execute", lose)

    @pytest.mark.parametrize(
        ("lost", "outcome"), [((), "done"), ((0,), "done"), ((0, 1), "done"), ((0, 1, 2), StoreUnavailable)]
    )
    async def test_is_tried_twice_more(self, either_writer: Writer, lost: tuple[int, ...], outcome: object) -> None:
        await outcomes(either_writer, Failing())
        with self.losing(either_writer, *lost) as seen:
            assert await outcomes(either_writer, Failing()) == [outcome]
        assert len(seen) == min(len(lost) + 1, 3)
        assert await outcomes(either_writer, Failing()) == ["done"]

    async def test_stays_careful(self, writer: Writer) -> None:
        failing = Failing(RepeatedId())
        with self.losing(writer, 1):
            assert await outcomes(writer, failing) == ["done"]
        assert failing.careful == [False, True]

    async def test_leaves_the_tries_of_the_batch(self, writer: Writer) -> None:
        failing = Failing(serialization_failure(), serialization_failure())
        with self.losing(writer, 1):
            assert await outcomes(writer, failing) == [Internal]
        assert len(failing.careful) == 2


async def test_without_a_connection_all_are_refused_with_its_reason(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone() -> Connection:
        raise StoreUnavailable("the database is away")

    with monkeypatch.context() as without_store:
        without_store.setattr(writer._database, "connect_writer", gone)
        answers = await asyncio.gather(*[writer.submit(Change(Failing())) for _ in range(2)], return_exceptions=True)
    assert [str(each) for each in answers] == ["the database is away"] * 2
    assert await outcomes(writer, Failing()) == ["done"]


@pytest.mark.parametrize("by_itself", [False, True])
async def test_a_roll_back_that_fails_costs_the_connection_unless_the_database_rolled_back_by_itself(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, by_itself: bool
) -> None:
    def refuse(conn: Connection, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("ROLLBACK"):
            conn.connection.dbapi_connection.rollback()  # type: ignore[union-attr]
            raise OperationalError("ROLLBACK", {}, Exception("no transaction is active"))

    await writer.submit(Look(lambda tx: tx.remembered(list).append("note")))
    monkeypatch.setattr(writer._database, "has_rolled_back", lambda _conn: by_itself)
    event.listen(writer._database.writing, "before_cursor_execute", refuse)
    assert await outcomes(writer, always(refused_statement)) == [Internal]
    event.remove(writer._database.writing, "before_cursor_execute", refuse)
    kept = await writer.submit(Look(lambda tx: list(tx.remembered(list))))
    assert kept == (["note"] if by_itself else []), "what is remembered goes with the connection"


class Subscriber:
    """What the writer announced after commits."""

    def __init__(self, writer: Writer) -> None:
        self.ready: list[int] = []
        self.lite: list[tuple[int, Any]] = []
        self.changed: list[Resource] = []
        self.timer = DueTimer(writer._clock, self._work)
        writer.effects.on_ready(self.ready.append)
        writer.effects.on_ready_lite(lambda topic_id, hashes: self.lite.append((topic_id, hashes)), among={7, 8})
        writer.effects.on_invalidated("topic", self.changed.append)
        writer.effects.on_due("due", self.timer)

    async def _work(self) -> None:
        return None


class TestEffects:
    @staticmethod
    def with_effects(number: int) -> Act:
        def act(tx: Transaction) -> str:
            tx.ready_topics.add(number)
            tx.make_ready(7, [f"lite-{number}"])
            tx.invalidate(Invalidation("topic", "", f"t{number}"))
            tx.expect("due", tx.now_ms + 1_000 * number)
            return "done"

        return act

    async def test_of_all_transactions_of_a_batch_are_announced(self, writer: Writer) -> None:
        heard = Subscriber(writer)
        acts = [self.with_effects(2), self.with_effects(1), self.with_effects(3)]
        assert await outcomes(writer, *acts, always(ZeroDivisionError)) == ["done", "done", "done", Internal]
        assert sorted(heard.ready) == [1, 2, 3, 7]
        ((topic_id, hashes),) = heard.lite
        assert (topic_id, len(hashes)) == (7, 3)
        assert sorted(each.name for each in heard.changed) == ["t1", "t2", "t3"]
        assert heard.timer.due_ms == writer._clock.now_ms() + 1_000
        await heard.timer.close()

    @pytest.mark.parametrize(
        ("act", "expected"),
        [
            (lambda tx: tx.ready_topics.add(8), ([8], [8], 0, False)),
            (lambda tx: tx.make_ready(7, ["x"]), ([7], [7], 0, False)),
            (lambda tx: tx.invalidate(Invalidation("topic", "", "t")), ([], [], 1, False)),
            (lambda tx: tx.expect("due", tx.now_ms + 5), ([], [], 0, True)),
            (lambda tx: tx.signal("due"), ([], [], 0, False)),
        ],
    )
    async def test_of_each_kind_are_announced_alone(
        self, writer: Writer, act: Act, expected: tuple[list[int], list[int], int, bool]
    ) -> None:
        heard = Subscriber(writer)
        await outcomes(writer, act)
        topics = [topic_id for topic_id, _ in heard.lite]
        assert (heard.ready, topics, len(heard.changed), heard.timer.due_ms is not None) == expected
        await heard.timer.close()

    async def test_of_a_failed_transaction_are_not(self, writer: Writer) -> None:
        heard = Subscriber(writer)

        def fail(tx: Transaction) -> object:
            self.with_effects(1)(tx)
            raise ZeroDivisionError

        after: list[str] = []
        assert await outcomes(writer, fail, lambda tx: tx.after_commit.append(lambda: after.append("once"))) == [
            Internal,
            None,
        ]
        assert (heard.ready, heard.lite, heard.changed, heard.timer.due_ms) == ([], [], [], None)
        assert after == ["once"]


class TestTheCommit:
    @pytest.mark.parametrize(
        ("requests", "waits"),
        [
            ([Look(lambda _tx: None)], False),
            ([Change(lambda _tx: None)], True),
            ([Look(lambda _tx: None), Change(lambda _tx: None)], True),
            ([Change(lambda tx: setattr(tx, "has_written", True))], False),
        ],
    )
    async def test_tells_other_servers_and_waits_for_the_standby_if_it_only_confirms(
        self, writer: Writer, monkeypatch: pytest.MonkeyPatch, requests: list[Request[object]], waits: bool
    ) -> None:
        told: list[tuple[bool, str, bool]] = []
        commit = writer._database.commit

        def noting(conn: Connection, notification: str = "", *, waits: bool = False) -> None:
            told.append((conn is writer._conn, notification, waits))
            commit(conn)

        monkeypatch.setattr(writer._database, "commit", noting)
        writer.announcement = lambda tx: f"at {tx.now_ms}"
        await asyncio.gather(*[writer.submit(each) for each in requests])
        assert told == [(True, f"at {writer._clock.now_ms()}", waits)]

    async def test_of_unknown_outcome_is_told_with_the_results_and_announced(
        self, either_writer: Writer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        heard = Subscriber(either_writer)

        def fail(*_: object, **__: object) -> None:
            raise lost_connection()

        memory = await either_writer.submit(Look(lambda tx: tx.remembered(list)))
        assert isinstance(memory, list)
        memory.append("kept")
        monkeypatch.setattr(either_writer._database, "commit", fail)
        either_writer.announcement = lambda _tx: ""
        answers = await asyncio.gather(
            either_writer.submit(Change(TestEffects.with_effects(1))),
            either_writer.submit(Look(lambda _tx: "seen")),
            return_exceptions=True,
        )
        assert [type(each) for each in answers] == [CommitUnknown, CommitUnknown]
        assert [each.outcome for each in answers if isinstance(each, CommitUnknown)] == ["done", "seen"]
        assert (heard.ready, len(heard.changed)) == ([1, 7], 1)
        either_writer.announcement = None
        assert await either_writer.submit(Look(lambda tx: list(tx.remembered(list)))) == [], "of another connection"
        await heard.timer.close()


async def test_what_is_remembered_stays_while_the_connection_lasts(either_writer: Writer) -> None:
    await either_writer.submit(Look(lambda tx: tx.remembered(list).append("note")))
    assert await outcomes(either_writer, always(ZeroDivisionError)) == [Internal]
    assert await either_writer.submit(Look(lambda tx: list(tx.remembered(list)))) == ["note"]
    await outcomes(either_writer, always(lost_connection))
    assert await either_writer.submit(Look(lambda tx: list(tx.remembered(list)))) == []


async def test_a_transaction_has_the_times_of_the_clock_and_knows_of_other_writers(either_writer: Writer) -> None:
    is_shared = either_writer._database.is_shared
    times = await either_writer.submit(Look(lambda tx: (tx.now_ms, tx.calendar_ms, tx.aged_ms, tx.has_other_writers)))
    assert times == (*either_writer._clock.times(), is_shared)


async def test_operations_run_in_their_order_and_dead_letters_are_written_before_messages_are_removed(
    writer: Writer,
) -> None:
    order: list[str] = []

    class Early:
        order: ClassVar = FinishOrder.RETRIES

        def finish(self, _tx: Transaction) -> None:
            order.append("retries")

    class Late:
        order: ClassVar = FinishOrder.IDEMPOTENCY_KEYS

        def finish(self, _tx: Transaction) -> None:
            order.append("keys")

    def change(tx: Transaction) -> None:
        tx.at_end(Late)
        tx.at_end(Early)
        order.append("change")

    requests = [
        Look(lambda _tx: order.append("look")),
        Remove(lambda _tx: order.append("remove")),
        Change(change),
    ]
    await asyncio.gather(*[writer.submit(each) for each in requests])
    assert order == ["change", "retries", "remove", "look", "keys"]


async def test_the_locks_of_all_requests_are_taken_before_the_first_operation(writer: Writer) -> None:
    taken: list[object] = []

    def act(tx: Transaction) -> Transaction:
        taken.append("an operation")
        return tx

    def take(tx: Transaction, keys: set[Hashable]) -> None:
        taken.append((tx, keys))

    one, other, plain = (
        Locking((Locks(LockOrder.CATALOG, take, ["c"]), Locks(LockOrder.PROGRESS, take, [1])), act),
        Locking((Locks(LockOrder.PROGRESS, take, [2]), Locks(LockOrder.PLANS, take, ())), act),
        Change(act),
    )
    tx, *same = await asyncio.gather(*[writer.submit(each) for each in (one, other, plain)])
    assert same == [tx, tx]
    assert taken == [(tx, {1, 2}), (tx, {"c"}), *["an operation"] * 3]


async def test_a_refusal_is_told_to_its_request_alone(writer: Writer) -> None:
    def refuse(_tx: Transaction) -> PopError:
        return Internal("it is broken")

    assert await outcomes(writer, refuse, Failing()) == [Internal, "done"]
