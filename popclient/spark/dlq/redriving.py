"""Sends dead letters back from Spark, through the server, under the name of a plan.

The server sends a dead letter back at most once for a plan, in one transaction with the record of it. So a task that is
tried again, a job that is killed and run again with its plan id, and a micro-batch that is replayed send nothing twice.
What is unchanged goes as a number alone; its body never leaves the server.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from popclient.admin import Admin, Redrive, RedriveOrder, Repair
from popclient.admin.pace import STEP_MAX, Pace
from popclient.config import ClientConfig
from popclient.spark.dlq.asking import of_group, patient, server, tried_again
from popclient.spark.dlq.repairing import reason_of, repair_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

REPAIRS_BYTES_MAX: Final = 1024 * 1024  # of one call: below what a server takes in a request


@dataclass(frozen=True)
class Redriven:
    """What a redrive did. skipped: they were no dead letters any more; `notes` counts why."""

    plan_id: str
    redriven: int = 0
    repaired: int = 0
    skipped: int = 0
    notes: dict[str, int] = field(default_factory=dict)


class _Sent(NamedTuple):
    """How many messages of a partition came to the same."""

    state: str
    change: str
    note: str
    messages: int


class _Order(NamedTuple):
    """What a plan's messages have in common."""

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
    """Send these dead letters of `group` back, repaired where the frame has a column `repair`; returns when it is done.

    plan_id: the name of this redrive. After a failure run it again under the same name, and it goes on: what went back
    is not sent twice. target: a topic for all its groups; None is back to the group alone. reason: why, for all, or a
    column; nothing is the class of a classified frame. rate: messages a second, over all partitions.
    Raises `ValueError` for a dead letter of another group, and what the server refuses as a `PopError`, in Spark's
    words.
    """
    if not plan_id.strip():
        raise ValueError("plan_id is blank; name the redrive, so that it can be run again and sends nothing twice")
    plan_reason = reason if isinstance(reason, str) else ""
    order = _Order(patient(endpoints), plan_id, group, target, plan_reason, rate)
    Pace(rate)  # refuses a wrong rate here, in plain words
    rows = dead.select("id", "consumer_group", repair_of(dead), reason_of(dead, reason).alias("why"))
    if rate is not None:
        rows = rows.repartition(1)  # one pace needs one hand
    # Not mapInArrow, which asks for pandas.
    return _summed_up(plan_id, rows.rdd.mapPartitions(partial(_send, order)).collect())


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
    """Runs in a worker: sends a partition's rows, and tells how many came to what."""
    told: Counter[tuple[str, str, str]] = Counter()
    pace = Pace(order.rate)
    with server(order.config) as admin:
        for orders in _steps(_orders(order, rows), pace.step):
            pace.await_turn()
            redrives = tried_again(partial(_call, admin, order, orders))
            told.update((each.state, each.change, each.note) for each in redrives)
            pace.spent(len(orders))
    return (_Sent(*key, messages) for key, messages in told.items())


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


def _steps(orders: Iterator[RedriveOrder], most: int) -> Iterator[list[RedriveOrder]]:
    """As many as go in one call, by number and by size."""
    step: list[RedriveOrder] = []
    size = 0
    for each in orders:
        own = _size(each)
        if step and (len(step) == min(most, STEP_MAX) or size + own > REPAIRS_BYTES_MAX):
            yield step
            step, size = [], 0
        step.append(each)
        size += own
    if step:
        yield step


def _size(order: RedriveOrder) -> int:
    repair = order.repair
    if repair is None:
        return 0
    properties = sum(len(name) + len(value) for name, value in (repair.properties or {}).items())
    return len(repair.body or b"") + properties + sum(map(len, repair.keys or ()))
