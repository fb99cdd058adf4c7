"""Sends dead letters back from Spark, through the server, under the name of a plan.

The server sends a dead letter back at most once for a plan, in one transaction with the record of it. So a task that is
tried again, a job that is killed and run again with its plan id, and a micro-batch that is replayed send nothing twice.
What is unchanged goes as a number alone; its body never leaves the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from popclient.admin import Admin, RedriveOrder, Repair
from popclient.admin.pace import STEP_MAX, Pace
from popclient.config import ClientConfig
from popclient.spark.dlq.asking import patient, server, tried_again
from popclient.spark.dlq.repairing import reason_of, repair_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REPAIRS_BYTES_MAX: Final = 1024 * 1024  # of one call: below what a server takes in a request
_SENT: Final = "state string, change string, note string, messages long"


@dataclass(frozen=True)
class Redriven:
    """What a redrive did. skipped: they were no dead letters any more; `notes` counts why."""

    plan_id: str
    redriven: int = 0
    repaired: int = 0
    skipped: int = 0
    notes: dict[str, int] = field(default_factory=dict)


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
    sent = rows.mapInArrow(partial(_send, order), _SENT).collect()
    return _summed_up(plan_id, [tuple(row) for row in sent])


def _summed_up(plan_id: str, sent: Sequence[tuple[Any, ...]]) -> Redriven:
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


def _send(order: _Order, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a worker: sends a partition's rows, and tells how many came to what."""
    told: dict[tuple[str, str, str], int] = {}
    pace = Pace(order.rate)
    with server(order.config) as admin:
        for orders in _steps(_orders(order, batches), pace.step):
            pace.await_turn()
            for redrive in tried_again(partial(_call, admin, order, orders)):
                key = (redrive.state, redrive.change, redrive.note)
                told[key] = told.get(key, 0) + 1
            pace.spent(len(orders))
    rows = [(*key, messages) for key, messages in told.items()]
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    types = (pa.string(), pa.string(), pa.string(), pa.int64())
    arrays = [pa.array(column, kind) for column, kind in zip(columns, types, strict=True)]
    yield pa.RecordBatch.from_arrays(arrays, names=["state", "change", "note", "messages"])


def _call(admin: Admin, order: _Order, orders: Sequence[RedriveOrder]) -> list[Any]:
    return list(
        admin.redrive_dead_letters(order.plan_id, order.group, orders, target=order.target, reason=order.reason)
    )


def _orders(order: _Order, batches: Iterator[pa.RecordBatch]) -> Iterator[RedriveOrder]:
    for batch in batches:
        for row in batch.to_pylist():
            if row["consumer_group"] != order.group:
                raise ValueError(
                    f"dead letter {row['id']} is of group '{row['consumer_group']}', not of '{order.group}'; a plan is"
                    " of one group: narrow the frame to it"
                )
            yield RedriveOrder(row["id"], _repair(row["repair"]), row["why"] or "")


def _repair(given: dict[str, Any] | None) -> Repair | None:
    if given is None or all(value is None for value in given.values()):
        return None
    properties = given["properties"]
    return Repair(given["body"], given["tag"], given["keys"], None if properties is None else dict(properties))


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
