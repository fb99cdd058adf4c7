"""The store's verbs for a test: each call one transaction, at a time that the test sets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar, cast

from sqlalchemy import select, text

from popserver.bulk import attempts
from popserver.catalog import groups, topics
from popserver.database import migrate, schema
from popserver.database.check import check_integrity
from popserver.database.database import Database
from popserver.database.notifications import CHECKS, DUE, PENDING, Invalidation
from popserver.engine.clock import Times
from popserver.engine.transaction import ANSWER_BYTES_MAX, STEP_ROWS_MAX, Outdated, Transaction, lock
from popserver.filters import SqlFilter, TagFilter
from popserver.maintenance import purge as maintenance_purge
from popserver.messages.ranges import JUDGED_UNITS, Work
from popserver.messages.stored import Append, append
from popserver.model import handles
from popserver.model.errors import PopError
from popserver.model.group import Group, Mode
from popserver.model.handles import Receipt
from popserver.model.message import Delivery, Message, SendResult, id_from_bytes
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.states import TIMED, State
from popserver.model.topic import MessageType, Topic
from popserver.receiving import receive as receiving_receive
from popserver.receiving.batch import NOTHING_JUDGED, Receive
from popserver.receiving.filter_fetch import FilterResults, fetch, judge
from popserver.settling import ack as settling_ack
from popserver.settling import change as settling_change
from popserver.settling import expire, release
from tests.support.builders import GROUP, TOPIC, a_new_group, a_new_topic, messages_of

START_MS = 1_735_689_600_000
SECOND = 1_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

R = TypeVar("R")
S = TypeVar("S")


class OpenStore:
    """One database, one connection, one moment; `rings` and `…_ms` are what the last transaction asked for."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.conn = database.connect_writer()
        self.now_ms = START_MS
        self.rings: set[int] = set()
        self.lite_rings: dict[int, set[str]] = {}
        self.rung: set[int] = set()  # by all transactions, until the test empties it
        self.answer_bytes = ANSWER_BYTES_MAX
        self.memory: dict[type[Any], Any] = {}
        self.before_commit: Callable[[], None] = lambda: None
        self.due_ms: int | None = None
        self.enters_ms: int | None = None
        self.check_ms: int | None = None
        self.words: set[str] = set()
        self.outdated: set[Invalidation] = set()

    def do(
        self, verb: Callable[[Transaction, Sequence[R]], Sequence[S]], *requests: R, careful: bool = False
    ) -> Sequence[S]:
        """All requests in one call and one transaction; a receive's SQL filter is asked before, as by the broker."""
        requests = tuple(self._judged(each) for each in requests)
        tx = Transaction.at(self.conn, self.now_ms, careful)
        tx.answer_bytes, tx.memory = self.answer_bytes, self.memory
        self.database.begin(self.conn)
        try:
            lock(tx, cast("Sequence[Any]", requests))
            results = verb(tx, requests)
            tx.finish()
        except BaseException as error:
            self.conn.exec_driver_sql("ROLLBACK")
            if isinstance(error, Outdated):
                return self.do(verb, *requests, careful=careful)
            raise
        self.before_commit()
        self.conn.exec_driver_sql("COMMIT")
        for each in tx.after_commit:
            each()
        self.rings, self.lite_rings, self.due_ms = tx.ready_topics, tx.ready_lite, tx.due.get(DUE)
        self.rung |= tx.ready_topics
        self.enters_ms, self.check_ms = tx.due.get(PENDING), tx.due.get(CHECKS)
        self.words, self.outdated = tx.signals, tx.invalidations
        return results

    def _judged(self, request: Any) -> Any:
        if isinstance(request, attempts.ReceiveAttempt):
            return attempts.ReceiveAttempt(self._judged(request.receive))
        if not isinstance(request, Receive) or not isinstance(request.wanted, SqlFilter):
            return request
        if request.judged is not NOTHING_JUDGED:
            return request
        # Enough for several that want the same.
        return replace(request, judged=self.survey(request, enough=8 * request.batch_size).judged)

    def survey(self, request: Receive, *, enough: int = 0, units: int = JUDGED_UNITS) -> FilterResults:
        """What the request's filter says ahead of it."""
        work = Work(units)
        with self.database.read() as conn:
            found = fetch(conn, request, request.judged, enough or request.batch_size, work)
        return judge(found, work)

    @contextmanager
    def rolled_back(self) -> Iterator[Transaction]:
        """A transaction that leaves nothing behind."""
        self.database.begin(self.conn)
        try:
            yield Transaction.at(self.conn, self.now_ms)
        finally:
            self.conn.exec_driver_sql("ROLLBACK")

    @contextmanager
    def without_indexes(self) -> Iterator[Transaction]:
        """The same. In it Postgres reads tables: these have the order of the last write, and only indexes have that of
        the key. So what needs an order has to ask for it."""
        with self.rolled_back() as tx:
            if not self.database.is_sqlite:
                self.conn.exec_driver_sql("SET LOCAL enable_seqscan = on")
                for kind in ("indexscan", "indexonlyscan", "bitmapscan"):
                    self.conn.exec_driver_sql(f"SET LOCAL enable_{kind} = off")
            yield tx

    def one(self, verb: Callable[[Transaction, Sequence[R]], Sequence[S | PopError]], request: R) -> S:
        """One request; a refusal is raised."""
        (result,) = self.do(verb, request)
        if isinstance(result, PopError):
            raise result
        return result

    @property
    def times(self) -> Times:
        return Times(self.now_ms, self.now_ms, self.now_ms)

    # Making what a test needs.

    def topic(self, name: str | Resource = TOPIC, **more: Any) -> Topic:
        return self.one(topics.create_topic, topics.CreateTopic(a_new_topic(name, **more)))

    def group(self, name: str | Resource = GROUP, *, meets: Sequence[Topic] = (), **more: Any) -> Group:
        group = self.one(groups.create_group, groups.CreateGroup(a_new_group(name, **more)))
        for topic in meets:
            self.meet(group, topic)
        return group

    def meet(self, group: Group, topic: Topic, mode: Mode = Mode.POP) -> None:
        self.one(groups.subscribe, groups.Subscribe(group, topic, mode))

    # Using it.

    def send(
        self, topic: Topic, batch: int | Sequence[Message] = 1, *, queue: int | None = 0, **more: Any
    ) -> list[SendResult]:
        """queue: the number of the one for messages that may go anywhere; None leaves the choice to the server."""
        listed = messages_of(batch, topic.name, **more) if isinstance(batch, int) else batch
        if (
            queue is not None
            and all(each.message_group is None for each in listed)
            and MessageType.PRIORITY not in topic.accepts
        ):
            topic = topic._replace(queues=(topic.queues[queue % len(topic.queues)],))
        return self.one(append, Append(topic, listed))

    def receive(self, group: Group, topic: Topic, batch_size: int = 32, **more: Any) -> list[Delivery]:
        return self.one(receiving_receive.receive, a_receive(group, topic, batch_size, **more)).deliveries

    def ack(self, group: Group, *given: Delivery | Receipt) -> list[PopError | None]:
        return self.one(settling_ack.ack, settling_ack.Ack(group, [receipt_of(each) for each in given]))

    def change(self, group: Group, held: Delivery | Receipt, duration_ms: int, *, give_back: bool = False) -> Receipt:
        request = settling_change.ChangeInvisible(group, receipt_of(held), duration_ms, give_back)
        return self.one(settling_change.change_invisible, request)

    def forward(self, group: Group, held: Delivery | Receipt) -> PopError | None:
        return self.do(settling_change.forward, settling_change.Forward(group, receipt_of(held)))[0]

    def orphan_client(self, client_id: str) -> None:
        self.one(release.abandon_holds, release.AbandonHolds(client_id=client_id))

    def adopt(self, client_id: str, until_ms: int) -> None:
        self.one(release.extend_client_holds, release.ExtendClientHolds(client_id, until_ms))

    def end_due(self, *, after_ms: int = 0) -> int:
        """Let time pass, then end what is due until nothing is; the number of moves."""
        self.now_ms += after_ms
        moves = 0
        while True:
            moves += min(self.due_now(), STEP_ROWS_MAX)
            ended = self.one(expire.end_due, expire.EndDue())
            if ended.next_due_ms is None or ended.next_due_ms > self.now_ms:
                return moves

    def due_now(self) -> int:
        """How many holds and intervals are over and not ended yet."""
        listed = ", ".join(f"'{each}'" for each in sorted(TIMED))
        query = f"SELECT COUNT(*) FROM delivery WHERE state IN ({listed}) AND visible_at_ms <= :now"
        return int(self.one_value(query, now=self.now_ms))

    def purge(self) -> int:
        """Remove what is deleted, step by step; the number of steps."""
        steps = 0
        while self.one(maintenance_purge.purge, maintenance_purge.PurgeDeleted()):
            steps += 1
        return steps

    # Looking.

    def rows(self, query: str, **parameters: Any) -> list[Any]:
        return list(self.conn.execute(text(query), parameters).all())

    def one_value(self, query: str, **parameters: Any) -> Any:
        return self.conn.execute(text(query), parameters).scalar()

    def states(self, group: Group) -> dict[str, State]:
        """Every message's state in the group, by the view `message_state`."""
        query = "SELECT message_id, state FROM message_state WHERE consumer_group = :group AND topic NOT LIKE '%DLQ%'"
        found = self.rows(query, group=group.name.name)
        return {_id(row.message_id): State(row.state) for row in found}

    def state(self, group: Group, message_id: str) -> State:
        return self.states(group)[message_id]

    def delivery_of(self, group: Group, key: int) -> Any:
        """The row of table `delivery`, None where there is none."""
        query = select(schema.delivery).where(
            schema.delivery.c.group_id == group.group_id, schema.delivery.c.message_key == key
        )
        return self.conn.execute(query).first()

    def lag(self, group: Group) -> Any:
        """The group's only row of the view `group_lag`."""
        (row,) = self.rows("SELECT * FROM group_lag WHERE group_id = :id", id=group.group_id)
        return row

    def history(self, group: Group) -> list[tuple[str, str, str, int]]:
        """(event, from, to, attempt), in order."""
        query = "SELECT event, from_state, to_state, attempt FROM history WHERE group_id = :id ORDER BY history_id"
        return [tuple(row) for row in self.rows(query, id=group.group_id)]

    def digest(self) -> str:
        """One text for everything stored: equal texts, nothing changed."""
        digest = hashlib.sha256()
        for table in schema.metadata.sorted_tables:
            digest.update(table.name.encode())
            for row in self.conn.execute(select(table).order_by(*table.primary_key)):
                digest.update(repr(tuple(row)).encode())
        return digest.hexdigest()

    def check(self) -> None:
        """Whatever a test does, it must leave a sound store. Not by the writer's connection, which joins by index."""
        with self.database.read() as conn:
            check_integrity(conn)


@contextmanager
def open_store(url: str) -> Iterator[OpenStore]:
    """A store on that database, its schema made; afterwards checked and closed."""
    database = Database(url, durability="relaxed", own_process=True)  # as served; nothing else opens the file
    try:
        migrate.upgrade(database)
        opened = OpenStore(database)
        yield opened
        opened.check()
        opened.conn.close()
    finally:
        database.close()


def a_receive(group: Group, topic: Topic, batch_size: int = 32, **more: Any) -> Receive:
    wish = {"wanted": TagFilter(), "invisible_ms": 30_000, "holder": Holder.SIMPLE, "client_id": "c1", "rotation": 0}
    return Receive(group=group, topic=topic, batch_size=batch_size, **(wish | more))  # type: ignore[arg-type]


def receipt_of(held: Delivery | Receipt) -> Receipt:
    return held if isinstance(held, Receipt) else handles.decode_receipt(held.receipt_handle)


def ids(deliveries: Sequence[Delivery]) -> list[str]:
    return [each.stored.message.message_id for each in deliveries]


def bodies(deliveries: Sequence[Delivery]) -> list[bytes]:
    return [each.stored.message.body for each in deliveries]


def _id(stored: bytes | memoryview) -> str:
    return id_from_bytes(bytes(stored))
