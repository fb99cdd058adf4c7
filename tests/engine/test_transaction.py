"""One transaction: its finishers, its locks, and what it announces after the commit."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from popserver.database.notifications import Invalidation
from popserver.engine.searches import Search, SearchedFrom
from popserver.engine.transaction import (
    Finisher,
    FinishOrder,
    LockOrder,
    Locks,
    Phase,
    Request,
    Transaction,
    carries_out,
    carries_out_each,
    in_steps,
    lock,
)
from tests.support.open_store import START_MS, OpenStore

NO_CONNECTION: Any = None


@pytest.fixture
def tx() -> Transaction:
    return Transaction(NO_CONNECTION, START_MS, START_MS, START_MS, careful=False, has_other_writers=True)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(0, []), (1, [1]), (1_000, [1_000]), (2 * 1_000 + 1, [1_000, 1_000, 1])],
)
def test_rows_are_divided_into_steps(rows: int, sizes: list[int]) -> None:
    steps = [*in_steps(range(rows))]
    assert [len(each) for each in steps] == sizes
    assert [row for step in steps for row in step] == [*range(rows)]


class Finishers:
    """A kind of finisher of each order; all note that they have finished."""

    def __init__(self) -> None:
        self.finished: list[FinishOrder] = []
        self.kinds = {each: self._kind(each) for each in FinishOrder}

    def _kind(self, its_order: FinishOrder) -> type[Finisher]:
        finished = self.finished

        class Noting:
            order: ClassVar = its_order

            def finish(self, _tx: Transaction) -> None:
                finished.append(its_order)

        return Noting


class TestFinishers:
    def test_write_in_their_order_and_once(self, tx: Transaction) -> None:
        of = Finishers()
        for each in reversed(FinishOrder):
            assert tx.at_end(of.kinds[each]) is tx.at_end(of.kinds[each])
        tx.finish()
        tx.finish()
        assert of.finished == [*FinishOrder]
        assert tx.finishers == {}

    @pytest.mark.parametrize("last", FinishOrder)
    def test_write_up_to_an_order(self, tx: Transaction, last: FinishOrder) -> None:
        of = Finishers()
        for each in reversed(FinishOrder):
            tx.at_end(of.kinds[each])
        tx.finish(last)
        assert of.finished == [each for each in FinishOrder if each <= last]
        tx.finish()
        assert of.finished == [*FinishOrder]

    def test_that_another_one_makes_write_too(self, tx: Transaction) -> None:
        made: list[str] = []

        class Second:
            order: ClassVar = FinishOrder.RETRIES

            def finish(self, _tx: Transaction) -> None:
                made.append("second")

        class First:
            order: ClassVar = FinishOrder.DEAD_LETTERS

            def finish(self, tx: Transaction) -> None:
                made.append("first")
                tx.at_end(Second)

        tx.at_end(First)
        tx.finish()
        assert made == ["first", "second"]


class TestWhatItAnnounces:
    def test_the_earliest_time_of_each_kind(self, tx: Transaction) -> None:
        for kind, at_ms in (("due", 5), ("due", 3), ("due", 4), ("checks", 9)):
            tx.expect(kind, at_ms)
        assert tx.due == {"due": 3, "checks": 9}

    def test_all_lite_topics_that_became_ready(self, tx: Transaction) -> None:
        tx.make_ready(1, ["a", "b"])
        tx.make_ready(1, ["b", "c"])
        tx.make_ready(2, ["d"])
        assert tx.ready_lite == {1: {"a", "b", "c"}, 2: {"d"}}
        assert tx.ready_topics == set()

    def test_signals_and_what_has_changed(self, tx: Transaction) -> None:
        tx.signal("due")
        tx.signal("checks")
        tx.invalidate(Invalidation("topic", "", "orders"))
        tx.invalidate(Invalidation("group", "", "billing"))
        assert tx.signals == {"due", "checks"}
        assert tx.invalidations == {Invalidation("topic", "", "orders"), Invalidation("group", "", "billing")}


def test_what_is_remembered_stays_from_one_transaction_to_the_next() -> None:
    memory: dict[type[Any], Any] = {}
    first, second = (Transaction(NO_CONNECTION, 1, 1, 1, False, False, memory=memory) for _ in range(2))
    first.remembered(list).append("note")
    assert second.remembered(list) == ["note"]
    assert second.remembered(dict) == {}


def test_a_search_has_a_lower_bound_only_beside_other_writers(tx: Transaction) -> None:
    @dataclass(frozen=True)
    class Wanted:
        name: str

    class Searched:
        def of(self, search: Search, now_ms: int) -> int:
            return now_ms - len(search.name)  # type: ignore[attr-defined]

    kind: type[SearchedFrom[Any]] = Searched  # type: ignore[assignment]
    assert tx.search_from(kind, Wanted("abc"), 1_000) == 997
    tx.has_other_writers = False
    assert tx.search_from(kind, Wanted("abc"), 1_000) == 0


def test_all_times_of_a_test_s_transaction_are_the_same(store: OpenStore) -> None:
    assert not Transaction.at(store.conn, 123).careful
    for careful in (False, True):
        tx = Transaction.at(store.conn, 123, careful)
        assert (tx.conn, tx.now_ms, tx.calendar_ms, tx.aged_ms, tx.careful) == (store.conn, 123, 123, 123, careful)
        assert tx.has_other_writers is (not store.database.is_sqlite)


@dataclass(frozen=True)
class Naming(Request[None]):
    """A request that names locks."""

    phase: ClassVar = Phase.READ
    named: Sequence[tuple[LockOrder, Iterable[Hashable]]]
    took: list[tuple[LockOrder, set[Hashable]]] = field(default_factory=list)

    def locks(self) -> Iterable[Locks]:
        return [Locks(order, self._take(order), keys) for order, keys in self.named]

    def _take(self, order: LockOrder) -> Callable[..., None]:
        def take(tx: Transaction, keys: set[Hashable]) -> None:
            assert isinstance(tx, Transaction)
            self.took.append((order, keys))

        return take


@dataclass(frozen=True)
class Plain(Request[int]):
    """A request without locks."""

    phase: ClassVar = Phase.READ
    number: int = 0


class TestLocks:
    def test_are_taken_in_one_order_with_the_keys_of_all_requests(self, tx: Transaction) -> None:
        took: list[tuple[LockOrder, set[Hashable]]] = []
        requests = [
            Naming([(LockOrder.CATALOG, [1]), (LockOrder.PROGRESS, [2, 3])], took),
            Naming([(LockOrder.PROGRESS, [3, 4]), (LockOrder.PLANS, [5])], took),
        ]
        lock(tx, [*requests, Plain()])
        assert took == [(LockOrder.PROGRESS, {2, 3, 4}), (LockOrder.PLANS, {5}), (LockOrder.CATALOG, {1})]

    def test_without_keys_are_not_taken(self, tx: Transaction) -> None:
        took: list[tuple[LockOrder, set[Hashable]]] = []
        lock(tx, [Naming([(LockOrder.PROGRESS, []), (LockOrder.CATALOG, [1])], took)])
        assert took == [(LockOrder.CATALOG, {1})]


class TestCarryingOut:
    def test_an_operation_of_all_requests_is_bound_to_its_kinds(self) -> None:
        @carries_out(Plain, Naming)
        def counted(_tx: Transaction, requests: Sequence[Any]) -> list[Any]:
            return [len(requests)] * len(requests)

        assert Plain.operation is counted
        assert Naming.operation is counted
        assert (Plain.sort_key, Naming.sort_key) == ((Phase.READ, "counted"), (Phase.READ, "counted"))
        assert (Plain.names_locks, Naming.names_locks) == (False, True)
        assert [*Plain().locks()] == []

    def test_an_operation_of_one_request_is_called_for_each(self, tx: Transaction) -> None:
        @carries_out_each(Plain)
        def doubled(given: Transaction, request: Plain) -> int:
            assert given is tx
            return 2 * request.number

        assert Plain.operation is doubled
        assert Plain.sort_key == (Phase.READ, "doubled")
        assert doubled(tx, [Plain(1), Plain(2)]) == [2, 4]
