"""One transaction of the writer: requests, the state that operations share, and the effects after the commit.

A request has a phase, locks, and an operation that carries it out. The writer takes all locks first, then calls each
operation once with all its requests, in the order of the phases. All servers use the same order, so servers on one
database do not deadlock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from functools import wraps
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeAlias, TypeVar, cast

from sqlalchemy import Connection

from popserver.database.dialect import dialect_of
from popserver.database.notifications import Invalidation
from popserver.engine.searches import Search, SearchedFrom
from popserver.model.errors import PopError

# No statement changes more rows than this. Longer work is divided into steps, so that other requests run in between.
STEP_ROWS_MAX = 1_000
ANSWER_BYTES_MAX = 32 * 1024 * 1024

R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
F = TypeVar("F", bound="Finisher")


def in_steps(rows: Sequence[S]) -> Iterator[Sequence[S]]:
    """The rows in steps of at most `STEP_ROWS_MAX`."""
    return (rows[start : start + STEP_ROWS_MAX] for start in range(0, len(rows), STEP_ROWS_MAX))


class Phase(IntEnum):
    """The order of the operations in a transaction.

    First the catalog, servers, clients and members, then queue counters, pending messages, progress, and deliveries.
    Operations that name messages come before operations that choose messages, so a receive can return a message that
    an ack in the same transaction made available. Operations that share a phase begin with the same lock.
    """

    CATALOG = auto()
    SUBSCRIBE = auto()
    HEARTBEAT = auto()
    ATTACH_CLIENTS = auto()
    LEAVE = auto()
    ADOPT_CLIENTS = auto()
    ANNOUNCE_WANTS = auto()
    NOTIFY_LATE = auto()
    CLOCK = auto()
    GROUP_MEMBERS = auto()
    CLEAR_MEMBERS = auto()
    UNLOCK_QUEUES = auto()
    LOCK_QUEUES = auto()
    APPEND = auto()
    STORE_PENDING = auto()
    RECALL = auto()
    CANCEL_PENDING = auto()
    END_TRANSACTION = auto()
    CLAIM_CHECKS = auto()
    RETURN_CHECKS = auto()
    ENQUEUE_DUE = auto()
    IMPORT_DEAD = auto()
    COMMIT_OFFSETS = auto()
    RESET = auto()
    SYNC_LITE = auto()
    TOUCH_LITE = auto()
    LEAVE_LITE = auto()
    PAUSE = auto()
    CLONE = auto()
    SKIP = auto()
    SEND_BACK = auto()
    EXTEND_CLIENT_HOLDS = auto()
    CHANGE_INVISIBLE = auto()
    ACK = auto()
    RENEW_ATTEMPT = auto()
    ACK_ATTEMPT = auto()
    FORWARD = auto()
    ABANDON_HOLDS = auto()
    CANCEL_DELIVERY = auto()
    RECEIVE = auto()
    RECEIVE_ATTEMPT = auto()
    END_DUE = auto()
    EXPIRE_LITE = auto()
    RETAIN = auto()
    EXPIRE_KEYS = auto()
    PURGE = auto()
    REPAIR = auto()
    CREATE_USER = auto()
    CHANGE_USER = auto()
    DELETE_USER = auto()
    ADD_POLICY = auto()
    REMOVE_POLICY = auto()
    CREATE_PLAN = auto()
    RECORD_STEP = auto()
    CANCEL_PLAN = auto()
    RUN_PLAN = auto()
    REDRIVE = auto()
    IMPORT = auto()
    CLOSE_QUEUES = auto()
    PURGE_DEAD_LETTERS = auto()
    RECORD_ALERTS = auto()
    RECORD_TOLD = auto()
    WRITE_POINTS = auto()
    MIRRORS = auto()
    READ = auto()


# Requests of these phases search for work. If they change nothing, their answer confirms nothing. If any other request
# changes nothing, its answer confirms that an earlier transaction has made the change.
POLLING_PHASES = frozenset(
    {
        Phase.CLAIM_CHECKS, Phase.ENQUEUE_DUE, Phase.RECEIVE, Phase.END_DUE, Phase.EXPIRE_LITE, Phase.RETAIN,
        Phase.EXPIRE_KEYS, Phase.PURGE, Phase.READ,
    }
)  # fmt: skip


class LockOrder(IntEnum):
    """The order in which the transaction takes the locks that requests name.

    CATALOG is last, because operations that change the catalog take it while they hold the others.
    """

    PROGRESS = auto()
    QUEUE_LOCKS = auto()
    PLANS = auto()
    CATALOG = auto()


class Locks(NamedTuple):
    """Locks of one kind that a request names. `take` gets the keys of all requests and waits until it has them all."""

    order: LockOrder
    take: Callable[..., None]
    keys: Iterable[Hashable]


class Request(Generic[S_co]):
    """A request to the writer; `S_co` is the type of its result.

    Each subclass is a frozen dataclass with a phase.
    """

    __slots__ = ()
    phase: ClassVar[Phase]
    operation: ClassVar[Callable[..., Sequence[object]]]  # set by `carries_out`
    sort_key: ClassVar[tuple[Phase, str]]  # sorts the operations of a transaction: phase, then name
    names_locks: ClassVar[bool]  # whether its requests name locks

    def locks(self) -> Iterable[Locks]:
        """The locks that the transaction must take before its first operation."""
        return ()


Operation: TypeAlias = Callable[["Transaction", Sequence[R]], Sequence[S | PopError]]


def carries_out(*kinds: type[Request[S]]) -> Callable[[Operation[R, S]], Operation[R, S]]:
    """Make a function the operation of these kinds of requests. All of them have the same phase."""

    def bind(operation: Operation[R, S]) -> Operation[R, S]:
        for kind in kinds:
            kind.operation = staticmethod(operation)
            kind.sort_key = (kind.phase, operation.__name__)
            kind.names_locks = kind.locks is not Request.locks
        return operation

    return bind


def carries_out_each(
    *kinds: type[Request[S]],
) -> Callable[[Callable[[Transaction, R], S | PopError]], Operation[R, S]]:
    """Make a function the operation of these kinds. It carries out one request; the operation calls it for each."""

    def bind(carry_out: Callable[[Transaction, R], S | PopError]) -> Operation[R, S]:
        @carries_out(*kinds)
        @wraps(carry_out)
        def operation(tx: Transaction, requests: Sequence[R]) -> list[S | PopError]:
            return [carry_out(tx, request) for request in requests]

        return operation

    return bind


class FinishOrder(IntEnum):
    """The order of the finishers at the end of a transaction."""

    DEAD_LETTERS = auto()
    RETRIES = auto()
    IDEMPOTENCY_KEYS = auto()
    KEYED_MESSAGES = auto()


# Before these phases the transaction writes its dead letters and retries, which are copies of messages: these phases
# remove messages, or lock dead letters and the server's own queues.
AFTER_RETRIES = frozenset(
    {Phase.RETAIN, Phase.PURGE, Phase.RUN_PLAN, Phase.REDRIVE, Phase.IMPORT, Phase.PURGE_DEAD_LETTERS},
)


class Finisher(Protocol):
    """Collects rows from operations and writes them at the end of the transaction.

    All servers write in the same order, so they do not deadlock.
    """

    order: ClassVar[FinishOrder]

    def finish(self, tx: Transaction) -> None: ...


class RepeatedId(Exception):
    """A run without checks found a message id that is stored already. The batch must run again with `careful`."""


class Outdated(Exception):
    """Another server has changed what the run has read, before the run had locked it. The batch must run again."""


@dataclass(slots=True)
class Transaction:
    """A connection inside a transaction, its time in epoch ms, and its effects after COMMIT.

    If `careful` is set, operations search for stored message ids before they insert. The first run skips that.
    """

    conn: Connection
    now_ms: int
    calendar_ms: int  # the time of day, for times from clients
    aged_ms: int  # the time by which old data is removed (`engine.clock`)
    careful: bool
    has_other_writers: bool  # other servers, or users' transactions, may lock rows
    has_written: bool = False  # rows have certainly changed; False: perhaps none has
    # The ids of topics with messages to deliver: after the commit, their polls are woken.
    ready_topics: set[int] = field(default_factory=set)
    # Lite topics with messages to deliver, by the id of their topic, which need not be in `ready_topics` too.
    ready_lite: dict[int, set[str]] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)  # the earliest time for each word of `database.notifications`
    finishers: dict[type[Finisher], Finisher] = field(default_factory=dict)
    invalidations: set[Invalidation] = field(default_factory=set)
    signals: set[str] = field(default_factory=set)
    # Values that operations keep from one committed transaction to the next, by their type. They are dropped with the
    # writer's connection: after a failover the new database may lack transactions.
    memory: dict[type[Any], Any] = field(default_factory=dict)
    after_commit: list[Callable[[], None]] = field(default_factory=list)  # called in the writer's thread
    # How many bytes of bodies operations may still read: they stay in memory until they are answered.
    answer_bytes: int = ANSWER_BYTES_MAX

    @classmethod
    def at(cls, conn: Connection, now_ms: int, careful: bool = False) -> Transaction:
        """A transaction for which all three times are the same."""
        return cls(conn, now_ms, now_ms, now_ms, careful, dialect_of(conn).has_other_writers)

    def at_end(self, kind: type[F]) -> F:
        """This transaction's finisher of that kind; the first call makes it."""
        found = self.finishers.get(kind)
        if found is None:
            found = self.finishers[kind] = kind()
        return cast("F", found)

    def remembered(self, kind: type[S]) -> S:
        """The object of that type in `memory`; the first call makes it."""
        found = self.memory.get(kind)
        if found is None:
            found = self.memory[kind] = kind()
        return cast("S", found)

    def search_from(self, kind: type[SearchedFrom[Search]], search: Search, now_ms: int) -> int:
        """The lower time bound of a search; 0 on SQLite, whose indexes have no entries of changed rows."""
        return self.remembered(kind).of(search, now_ms) if self.has_other_writers else 0

    def finish(self, last: FinishOrder = FinishOrder.KEYED_MESSAGES) -> None:
        """Let the finishers up to `last` write their rows."""
        while due := [kind for kind in self.finishers if kind.order <= last]:
            self.finishers.pop(min(due, key=lambda kind: kind.order)).finish(self)

    def expect(self, kind: str, at_ms: int) -> None:
        """After the commit, set the timer of this kind to `at_ms`, if that is earlier."""
        self.due[kind] = min(at_ms, self.due.get(kind, at_ms))

    def make_ready(self, topic_id: int, lite_topics: Iterable[str]) -> None:
        """After the commit, wake the clients of these lite topics, and the consumers of the whole topic."""
        self.ready_lite.setdefault(topic_id, set()).update(lite_topics)

    def invalidate(self, what: Invalidation) -> None:
        """After the commit, make all servers drop their cached values of this topic or group."""
        self.invalidations.add(what)

    def signal(self, kind: str) -> None:
        """After the commit, send this signal to every other server (`database.notifications`)."""
        self.signals.add(kind)


def lock(tx: Transaction, requests: Iterable[Request[object]]) -> None:
    """Take all locks that the requests name, in one order, before the first operation.

    A transaction that waits for such a lock holds only locks that come earlier in this order. Operations that choose
    rows skip locked ones and never wait. So servers do not deadlock.
    """
    takers: dict[LockOrder, Callable[..., None]] = {}
    wanted: dict[LockOrder, set[Hashable]] = {}
    for request in requests:
        for order, take, keys in request.locks():
            takers[order] = take
            wanted.setdefault(order, set()).update(keys)
    for order in sorted(wanted):
        if wanted[order]:
            takers[order](tx, wanted[order])


# Queries inside the writer's transaction, for an in-memory database, which has no second connection.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(Request[T]):
    """A query for the writer's connection."""

    phase: ClassVar = Phase.READ
    query: Callable[[Connection], T]


@carries_out_each(Read)
def read(tx: Transaction, request: Read[T]) -> T | PopError:
    """The result of the query. A `PopError` that it raises is its result; the others still run."""
    try:
        return request.query(tx.conn)
    except PopError as error:
        return error
