"""One transaction of the writer: what requests declare, what operations share, and what follows the commit.

A request names its phase, its locks and the operation that carries it out. The writer takes all locks first, then calls
each operation once with all its requests, in the order of the phases. Every server does so in the same order, so no two
servers on one database wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import ClassVar, Generic, NamedTuple, Protocol, TypeVar, cast

from sqlalchemy import Connection

from popserver.database.notifications import Outdated
from popserver.model.errors import PopError

# No statement touches more rows than this; longer work comes in steps with requests in between.
STEP_ROWS_MAX = 1_000
ANSWER_BYTES_MAX = 32 * 1024 * 1024

R = TypeVar("R")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)
F = TypeVar("F", bound="Finisher")


class Phase(IntEnum):
    """The order of the operations in a transaction.

    First the catalog, servers, clients and members, then queue counters, then what is pending, then progress, then
    deliveries. An operation that names messages comes before one that chooses them: a receive may take what an ack of
    the same transaction makes available. Operations that share a phase begin with one common lock.
    """

    CATALOG = auto()
    SUBSCRIBE = auto()
    HEARTBEAT = auto()
    ATTEND = auto()
    LEAVE = auto()
    WELCOME = auto()
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
    COMMIT_OFFSETS = auto()
    RESET = auto()
    CLONE = auto()
    SKIP = auto()
    SEND_BACK = auto()
    ADOPT = auto()
    CHANGE_INVISIBLE = auto()
    ACK = auto()
    RENEW_ATTEMPT = auto()
    ACK_ATTEMPT = auto()
    FORWARD = auto()
    ORPHAN = auto()
    WITHDRAW = auto()
    RECEIVE = auto()
    RECEIVE_ATTEMPT = auto()
    END_DUE = auto()
    RETAIN = auto()
    EXPIRE_KEYS = auto()
    PURGE = auto()
    CREATE_USER = auto()
    CHANGE_USER = auto()
    DELETE_USER = auto()
    ADD_POLICY = auto()
    REMOVE_POLICY = auto()
    MAKE_PLAN = auto()
    RECORD_PLAN = auto()
    CANCEL_PLAN = auto()
    RUN_PLAN = auto()
    REDRIVE = auto()
    PURGE_DEAD_LETTERS = auto()
    READ = auto()


class LockOrder(IntEnum):
    """The order in which the locks that requests name are taken. What exists is locked last: the operations that change
    it take that lock when the others are held."""

    PROGRESS = auto()
    QUEUE_LOCKS = auto()
    PLANS = auto()
    CATALOG = auto()


class Locks(NamedTuple):
    """Locks of one kind that a request names. `take` gets the keys of all requests at once, and waits for them."""

    order: LockOrder
    take: Callable[..., None]
    keys: Iterable[Hashable]


class Request(Generic[S_co]):
    """What a caller asks of the writer; `S_co` is the result.

    A subclass is a frozen dataclass that states its phase.
    """

    __slots__ = ()
    phase: ClassVar[Phase]
    operation: ClassVar[Callable[..., Sequence[object]]]  # set by `carries_out`
    place: ClassVar[tuple[Phase, str]]  # of the operation in a transaction: its phase, then its name

    def locks(self) -> Iterable[Locks]:
        """The locks that the transaction takes before it does anything else."""
        return ()


Operation = Callable[["Transaction", Sequence[R]], Sequence[S | PopError]]


def carries_out(*kinds: type[Request[S]]) -> Callable[[Operation[R, S]], Operation[R, S]]:
    """Make a function the operation of these kinds of requests, which have one phase."""

    def bind(operation: Operation[R, S]) -> Operation[R, S]:
        for kind in kinds:
            kind.operation = staticmethod(operation)
            kind.place = (kind.phase, operation.__name__)
        return operation

    return bind


class FinishOrder(IntEnum):
    """The order of what is left for the end of a transaction."""

    DEAD_LETTERS = auto()
    RETRIES = auto()
    IDEMPOTENCY_KEYS = auto()


# These remove messages, or lock dead letters and the server's own queues and wait for nothing more: what is to be made
# of messages is made before.
AFTER_RETRIES = frozenset(
    {Phase.RETAIN, Phase.PURGE, Phase.RUN_PLAN, Phase.REDRIVE, Phase.PURGE_DEAD_LETTERS},
)


class Finisher(Protocol):
    """Collects what operations leave for the end of their transaction, and writes it there.

    Every server writes in the same order, so none waits for another in a circle.
    """

    order: ClassVar[FinishOrder]

    def finish(self, tx: Transaction) -> None: ...


class RepeatedId(Exception):
    """An optimistic run met a message id that is stored already: run it again, carefully."""


@dataclass(slots=True)
class Transaction:
    """A connection inside a transaction, its moment in time, and its effects after COMMIT.

    `careful` is set when an optimistic run met a repeated message id: operations then look before they insert.
    """

    conn: Connection
    now_ms: int
    careful: bool = False
    # The time of day, for times that clients name, and the time by which age is judged; 0: as `now_ms`.
    calendar_ms: int = 0
    aged_ms: int = 0
    rings: set[int] = field(default_factory=set)
    due: dict[str, int] = field(default_factory=dict)  # the earliest moment for each word of `database.notifications`
    finishers: dict[type[Finisher], Finisher] = field(default_factory=dict)
    outdated: set[Outdated] = field(default_factory=set)
    words: set[str] = field(default_factory=set)
    # How many bytes of bodies may still be granted: they are all in memory until they are answered.
    answer_bytes: int = ANSWER_BYTES_MAX

    def __post_init__(self) -> None:
        self.calendar_ms = self.calendar_ms or self.now_ms
        self.aged_ms = self.aged_ms or self.now_ms

    def at_end(self, kind: type[F]) -> F:
        """This transaction's finisher of that kind, made when it is first asked for."""
        found = self.finishers.get(kind)
        if found is None:
            found = self.finishers[kind] = kind()
        return cast("F", found)

    def finish(self, last: FinishOrder = FinishOrder.IDEMPOTENCY_KEYS) -> None:
        """Have the finishers up to `last` write what they have collected."""
        while due := [kind for kind in self.finishers if kind.order <= last]:
            self.finishers.pop(min(due, key=lambda kind: kind.order)).finish(self)

    def ring(self, topic_id: int) -> None:
        """Once committed, something of this topic can be granted."""
        self.rings.add(topic_id)

    def expect(self, word: str, at_ms: int) -> None:
        """Once committed, something of the kind that `word` names falls due at `at_ms`."""
        self.due[word] = min(at_ms, self.due.get(word, at_ms))

    def outdate(self, what: Outdated) -> None:
        """Once committed, what servers remember of this topic or group is old."""
        self.outdated.add(what)

    def say(self, word: str) -> None:
        """Once committed, every other server hears this word (`database.notifications`)."""
        self.words.add(word)


def lock(tx: Transaction, requests: Iterable[Request[object]]) -> None:
    """Take every lock that the requests name, before anything else and in one order.

    A transaction that waits for such a lock holds only locks of this kind, taken in the same order; an operation that
    only chooses waits for none. So no two servers wait for each other in a circle.
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


# Reads inside the writer's transaction: for a database in memory, which has no second connection.

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Read(Request[T]):
    """A query to be run on the writer's connection."""

    phase: ClassVar = Phase.READ
    query: Callable[[Connection], T]


@carries_out(Read)
def read(tx: Transaction, requests: Sequence[Read[T]]) -> list[T | PopError]:
    """What each query finds; a query that raises a `PopError` is the only one to fail."""
    return [_read(tx.conn, request.query) for request in requests]


def _read(conn: Connection, query: Callable[[Connection], T]) -> T | PopError:
    try:
        return query(conn)
    except PopError as error:
        return error
