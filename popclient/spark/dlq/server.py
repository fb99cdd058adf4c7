"""Redrives and purges dead letters from Spark, through the server.

The server redrives a dead letter at most once for a plan, in one transaction with the record of it. So a repeated task,
a job that is run again with its plan id, and a replayed micro-batch send nothing twice. For an unrepaired dead letter
only its id is sent; its body stays on the server.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from popclient.admin import Admin, DeadLetterSelection, Redrive, RedriveOrder, Repair
from popclient.admin.pace import STEP_MAX, Pace
from popclient.config import ClientConfig
from popclient.errors import PopError
from popclient.spark.bodies import in_parts
from popclient.spark.dlq.repairing import reason_of, repair_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

Answer = TypeVar("Answer")

REQUEST_TIMEOUT_S: Final = 30.0
PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.5


def patient(endpoints: str | ClientConfig) -> ClientConfig:
    """The configuration; for an address: a request timeout of 30 s, and access keys of the driver's environment."""
    if isinstance(endpoints, ClientConfig):
        return endpoints
    return replace(ClientConfig(endpoints), request_timeout=REQUEST_TIMEOUT_S, tracing="off")


@contextmanager
def server(config: ClientConfig) -> Iterator[Admin]:
    """A client for one worker, because a connection cannot be used after a fork."""
    admin = Admin(config, connect_timeout=config.request_timeout)
    try:
        yield admin
    finally:
        admin.close()


def of_group(group: str, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows; raises `ValueError` for a row of another group, which the server would ignore."""
    for row in rows:
        if row.consumer_group != group:
            raise ValueError(
                f"dead letter {row.id} is of group '{row.consumer_group}', not of '{group}'; a plan or a purge is for"
                " one group: filter the frame by consumer_group"
            )
        yield row


def with_retries(
    call: Callable[[], Answer],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Answer:
    """Repeats a call for up to a minute, while the server restarts."""
    end = now() + PATIENCE_S
    while True:
        try:
            return call()
        except PopError as failure:
            if not failure.retryable or now() >= end:
                raise
        sleep(_PAUSE_S)


def purge(dead: DataFrame, endpoints: str | ClientConfig, *, group: str) -> int:
    """Deletes these dead letters of `group` with their copies, permanently; returns how many there were.

    May be run again after a failure. Keeps dead letters that are redriven and not consumed yet. Raises `ValueError` for
    a dead letter of another group, as an error of Spark.
    """
    purged: int = (
        dead.select("id", "consumer_group").rdd.mapPartitions(partial(_purge, patient(endpoints), group)).sum()
    )
    return purged


def _purge(config: ClientConfig, group: str, rows: Iterator[Row]) -> Iterator[int]:
    ids = (row.id for row in of_group(group, rows))
    with server(config) as admin:
        while step := tuple(islice(ids, STEP_MAX)):
            selection = DeadLetterSelection(group, ids=step, redriven_too=True)
            yield with_retries(partial(admin.purge_dead_letters, selection))


REPAIRS_BYTES_MAX: Final = 1024 * 1024  # of one call; less than the server's limit for a request


@dataclass(frozen=True)
class Redriven:
    """The result of a redrive. skipped: messages that were no longer dead letters; `notes` counts the reasons."""

    plan_id: str
    redriven: int = 0
    repaired: int = 0
    skipped: int = 0
    notes: dict[str, int] = field(default_factory=dict)


class _Sent(NamedTuple):
    """The number of messages of a partition with the same result."""

    state: str
    change: str
    note: str
    messages: int


class _Order(NamedTuple):
    """The arguments of a redrive, for the workers."""

    config: ClientConfig
    plan_id: str
    group: str
    target: str | None
    reason: str
    rate: float | None


def redrive(
    dead: DataFrame,
    endpoints: str | ClientConfig,
    *,
    group: str,
    plan_id: str,
    target: str | None = None,
    reason: str | Column = "",
    rate: float | None = None,
) -> Redriven:
    """Redrives these dead letters of `group`, repaired by the frame's column `repair` if it has one.

    plan_id: the name of this redrive. After a failure, run it again with the same name: nothing is sent twice.
    Without rows the plan is stored too, and is DONE.
    target: a topic, for all its groups; None sends back to the group alone. reason: a text or a column; by default the
    class of a classified frame. rate: messages per second, over all partitions.
    Raises `ValueError` for a dead letter of another group, and a `PopError` for a refusal of the server, both as errors
    of Spark.
    """
    if not plan_id.strip():
        raise ValueError("plan_id is blank; give the redrive a name, with which it can be run again")
    plan_reason = reason if isinstance(reason, str) else ""
    order = _Order(patient(endpoints), plan_id, group, target, plan_reason, rate)
    Pace(rate)  # raises for a wrong rate here, not in a worker
    rows = dead.select("id", "consumer_group", repair_of(dead), reason_of(dead, reason).alias("why"))
    if rate is not None:
        rows = rows.repartition(1)  # one worker keeps the rate
    # Not mapInArrow, which needs pandas.
    sent = rows.rdd.mapPartitions(partial(_send, order)).collect()
    if not sent:
        with server(order.config) as admin:  # so that `lineage` knows the plan
            with_retries(partial(_call, admin, order, []))
    return _summed_up(plan_id, sent)


def _summed_up(plan_id: str, sent: Iterable[_Sent]) -> Redriven:
    notes: dict[str, int] = {}
    for state, _, note, messages in sent:
        if state == "SKIPPED":
            notes[note] = notes.get(note, 0) + messages
    redriven = [(change, messages) for state, change, _, messages in sent if state == "REDRIVEN"]
    return Redriven(
        plan_id,
        redriven=sum(messages for _, messages in redriven),
        repaired=sum(messages for change, messages in redriven if change == "REPAIR"),
        skipped=sum(notes.values()),
        notes=notes,
    )


def _send(order: _Order, rows: Iterator[Row]) -> Iterator[_Sent]:
    """Runs in a worker: sends a partition's rows, and counts the results."""
    results: Counter[tuple[str, str, str]] = Counter()
    pace = Pace(order.rate)
    with server(order.config) as admin:
        for orders in in_parts(_orders(order, rows), _size, REPAIRS_BYTES_MAX, pace.step):
            pace.await_turn()
            redrives = with_retries(partial(_call, admin, order, orders))
            results.update((each.state, each.change, each.note) for each in redrives)
            pace.spent(len(orders))
    return (_Sent(*key, messages) for key, messages in results.items())


def _call(admin: Admin, order: _Order, orders: Sequence[RedriveOrder]) -> list[Redrive]:
    return admin.redrive_dead_letters(order.plan_id, order.group, orders, target=order.target, reason=order.reason)


def _orders(order: _Order, rows: Iterator[Row]) -> Iterator[RedriveOrder]:
    for row in of_group(order.group, rows):
        yield RedriveOrder(row.id, _repair(row.repair), row.why or "")


def _repair(given: Row | None) -> Repair | None:
    if given is None or all(value is None for value in given):
        return None
    body = None if given.body is None else bytes(given.body)
    return Repair(body, given.tag, given["keys"], given.properties)


def _size(order: RedriveOrder) -> int:
    repair = order.repair
    if repair is None:
        return 0
    properties = sum(len(name) + len(value) for name, value in (repair.properties or {}).items())
    return len(repair.body or b"") + properties + sum(map(len, repair.keys or ()))
