"""Walk a space with the real statements of a store: every transition, from its world, gives what the law gives.

One transaction holds the whole walk. A savepoint goes before each transition, so that the store is in the world again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from popserver.catalog import groups
from popserver.database.check import check_integrity
from popserver.database.database import Database
from popserver.dead_letters.rules import RedriveItem
from popserver.engine.transaction import Outdated, Transaction, lock
from popserver.model.errors import PopError
from popserver.model.group import Group, NewGroup
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.names import Resource
from popserver.model.retry import Holder, RetryPolicy
from popserver.model.topic import message_key
from popserver.progress import skip as progress_skip
from popserver.progress.rules import Edge
from proof.worlds.law import HOLD, INTERVAL, Answer, Deed, Happening, Rules, World
from proof.worlds.space import Space, Step
from tests.support.builders import in_order, messages_of
from tests.support.open_store import OpenStore, receipt_of
from tests.support.progress import ORDERED, reset, skip
from tests.support.redrive import order

TICK_MS = 10_000
CHECK_EVERY = 500  # transitions between two looks at the integrity of the whole store

R = TypeVar("R")
S = TypeVar("S")
Handles = dict[tuple[int, int], tuple[Receipt | None, Receipt | None]]
Seen = tuple[tuple[str, ...], ...]


class Found(NamedTuple):
    """A transition that the store does differently."""

    way: tuple[Happening, ...]
    expected: str
    actual: str


class WalkedStore(OpenStore):
    """A store whose verbs are all in one transaction, each as after a restart: nothing is remembered."""

    def do(
        self, verb: Callable[[Transaction, Sequence[R]], Sequence[S]], *requests: R, careful: bool = False
    ) -> Sequence[S]:
        tx = Transaction.at(self.conn, self.now_ms, careful)
        tx.memory = {}
        self.execute("SAVEPOINT verb")
        try:
            lock(tx, requests)  # type: ignore[arg-type]
            results = verb(tx, requests)
            tx.finish()
        except Outdated:
            self.execute("ROLLBACK TO SAVEPOINT verb")
            return self.do(verb, *requests, careful=careful)
        self.execute("RELEASE SAVEPOINT verb")
        return results

    def execute(self, statement: str) -> None:
        self.conn.exec_driver_sql(statement)


@contextmanager
def walked(database: Database) -> Iterator[WalkedStore]:
    """A store in one transaction that is rolled back at the end."""
    store = WalkedStore(database)
    database.begin(store.conn)
    try:
        yield store
    finally:
        store.execute("ROLLBACK")
        store.conn.close()


class _Frame(NamedTuple):
    """What a savepoint does not restore."""

    now_ms: int
    handles: Handles
    sent: tuple[int, ...]


class Walk:
    """One walk of one space. `transitions` counts those that were tried."""

    def __init__(self, store: WalkedStore, rules: Rules, space: Space) -> None:
        self._store = store
        self._rules = rules
        self._space = space
        self._handles: Handles = {}
        self._keys: tuple[int, ...] = ()
        self._plans = 0
        self.transitions = 0
        self._topic = store.topic(accepts=ORDERED)
        policy = RetryPolicy(rules.max_attempts, (INTERVAL * TICK_MS,), INTERVAL * TICK_MS)
        self._groups = [self._a_group(f"group{number}", policy) for number in range(rules.groups)]

    def run(self, limit: int | None = None) -> Found | None:
        """The first transition that differs, None if all agree. It ends early after `limit` transitions."""
        return self._visit(self._space.start, (), limit)

    def _a_group(self, name: str, policy: RetryPolicy) -> Group:
        group = self._store.one(groups.create_group, groups.CreateGroup(NewGroup(Resource("", name), policy)))
        self._store.meet(group, self._topic)
        return group

    def _visit(self, world: World, way: tuple[Happening, ...], limit: int | None) -> Found | None:
        followed = {id(step) for step in self._space.tree.get(world, [])}
        here = f"at{len(way)}"
        for step in self._space.steps.get(world, []):
            if limit is not None and self.transitions >= limit:
                return None
            frame = _Frame(self._store.now_ms, dict(self._handles), self._keys)
            self._store.execute(f"SAVEPOINT {here}")
            found = self._try(step, way)
            if found is None and id(step) in followed:
                found = self._visit(step.after, (*way, step.what), limit)
            self._store.execute(f"ROLLBACK TO SAVEPOINT {here}")
            self._store.execute(f"RELEASE SAVEPOINT {here}")
            self._store.now_ms, self._handles, self._keys = frame
            if found is not None:
                return found
        return None

    def _try(self, step: Step, way: tuple[Happening, ...]) -> Found | None:
        self.transitions += 1
        expected = (step.answer, _shown(step.after))
        try:
            actual: object = (self._do(step.what), self._look())
            if self.transitions % CHECK_EVERY == 0:
                check_integrity(self._store.conn)
        except Exception as error:  # noqa: BLE001 - an error of the store is a difference too
            actual = repr(error)
        return None if actual == expected else Found((*way, step.what), str(expected), str(actual))

    def _do(self, what: Happening) -> Answer:
        store = self._store
        if what.deed is Deed.TICK:
            store.now_ms += TICK_MS
        elif what.deed is Deed.END_DUE:
            store.end_due()
        elif what.deed is Deed.SEND:
            some = in_order("m", 1) if self._rules.in_order else messages_of(1)
            (sent,) = store.send(self._topic, some)
            self._keys = (*self._keys, message_key(self._topic.queues[0].queue_id, sent.offset))
        else:
            return self._in_group(self._groups[what.group], what)
        return Answer(True)

    def _in_group(self, group: Group, what: Happening) -> Answer:
        store = self._store
        if what.deed is Deed.RECEIVE:
            return self._receive(group, what)
        if what.deed is Deed.RESET:
            reset(store, group, self._topic, Edge.BEGINNING)
            return Answer(True)
        if what.deed is Deed.SKIP:
            return Answer(skip(store, group, self._topic, what.message).is_done)
        if what.deed is Deed.FORCE:
            request = progress_skip.Skip(group, self._topic.topic_id, self._keys[what.message], force=True)
            return Answer(store.one(progress_skip.skip, request).is_done)
        if what.deed is Deed.REDRIVE:
            return Answer(self._redrive(group, self._keys[what.message]))
        newest, older = self._handles[what.group, what.message]
        receipt = older if what.old else newest
        assert receipt is not None
        if what.deed is Deed.ACK:
            return Answer(store.ack(group, receipt) == [None])
        if what.deed is Deed.FORWARD:
            return Answer(store.forward(group, receipt) is None)
        try:
            new = store.change(group, receipt, what.number * TICK_MS, give_back=what.deed is Deed.GIVE_BACK)
        except PopError:
            return Answer(False)
        if new != receipt and not what.old:
            self._handles[what.group, what.message] = (new, receipt)
        return Answer(True)

    def _receive(self, group: Group, what: Happening) -> Answer:
        holder = Holder.PUSH if self._rules.is_push else Holder.SIMPLE
        got = []
        held: Sequence[Delivery] = ()
        for rotation in (0, 1):  # a receive may first look where nothing is, as a broker's repeated call does
            held = held or self._store.receive(
                group, self._topic, what.number, holder=holder, invisible_ms=HOLD * TICK_MS, rotation=rotation
            )
        for each in held:
            number = self._keys.index(self._origin(group, receipt_of(each).message_key))
            self._handles[what.group, number] = (
                receipt_of(each),
                self._handles.get((what.group, number), (None, None))[0],
            )
            got.append((number, each.attempt))
        return Answer(True, tuple(sorted(got)))

    def _origin(self, group: Group, key: int) -> int:
        query = "SELECT origin_key FROM redrive WHERE redriven_key = :key AND group_id = :group_id"
        found = self._store.one_value(query, key=key, group_id=group.group_id)
        return key if found is None else int(found)

    def _redrive(self, group: Group, key: int) -> bool:
        query = "SELECT id FROM dead_letters WHERE consumer_group = :name ORDER BY id"
        letters = [row.id for row in self._store.rows(query, name=group.name.name)]
        mine = "SELECT origin_key FROM dead_letter WHERE dead_letter_id = :id"
        for letter in letters:
            if self._store.one_value(mine, id=letter) == key:
                self._plans += 1
                return order(self._store, group, [RedriveItem(letter)], f"plan{self._plans}").redriven == 1
        return False

    def _look(self) -> Seen:
        """The states of all messages in all groups."""
        rows = self._store.rows(
            "SELECT consumer_group, message_key, state FROM message_state WHERE topic = 'orders' ORDER BY message_key"
        )
        return tuple(
            tuple(row.state for row in rows if row.consumer_group == group.name.name) for group in self._groups
        )


def _shown(world: World) -> Seen:
    return tuple(tuple(each.stage.value for each in lives) for lives in world.groups)
