"""Keeper of the alerts that have begun: each until the webhook knows that it is over.

An alert is open once, whichever servers have found it. So the webhook is told once, and also after a restart. On
Postgres one server writes at a time, and others do not wait for it: it may be stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import Connection, bindparam, delete, func, insert, or_, select, text, update

from popserver.alerts.rules import Alert
from popserver.database.dialect import dialect_of
from popserver.database.rows import RowStatement, encode_column, rows_parameter
from popserver.database.schema import alert
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each

ALERTS_MAX = 1_000  # rows; no further alert begins while there are so many


class AlertRow(NamedTuple):
    """A stored alert."""

    alert_id: int
    kind: str
    namespace: str
    subject: str
    sentence: str
    next_step: str
    page: str
    began_at_ms: int
    ended_at_ms: int | None
    told: int
    failure: str

    @property
    def is_end(self) -> bool:
        """Whether the next thing to tell is its end."""
        return bool(self.told)


class Untold(NamedTuple):
    """How many events the webhook does not know yet, and why it does not know the first of them."""

    events: int
    failure: str


@dataclass(frozen=True, slots=True)
class RecordAlerts(Request[int]):
    """Alerts begin, and those with these keys are over."""

    phase: ClassVar = Phase.RECORD_ALERTS
    begun: Sequence[Alert]
    over: Sequence[str]


@dataclass(frozen=True, slots=True)
class RecordTold(Request[bool]):
    """The webhook has accepted an event, or (`failure`) has not."""

    phase: ClassVar = Phase.RECORD_TOLD
    event: AlertRow
    failure: str = ""


@carries_out_each(RecordAlerts)
def record(tx: Transaction, request: RecordAlerts) -> int:
    """Returns how many alerts have not begun, because too many are stored. Records nothing while another server does:
    the next look finds the same.
    """
    if not dialect_of(tx.conn).try_lock(tx.conn, _IF_FREE):
        return 0
    if request.over:
        tx.conn.execute(_END, {"keys": encode_column(request.over), "now_ms": tx.now_ms})
    if not request.begun:
        return 0
    known, stored = open_keys(tx.conn), tx.conn.execute(_COUNT).scalar_one()
    new = [each for each in request.begun if each.key not in known]
    for each in new[: max(0, ALERTS_MAX - stored)]:
        tx.conn.execute(
            _BEGIN,
            {
                "alert_key": each.key,
                "kind": each.kind.value,
                "namespace": each.namespace,
                "subject": each.subject,
                "sentence": each.sentence,
                "next_step": each.next_step,
                "page": each.path,
                "began_at_ms": tx.now_ms,
            },
        )
    return max(0, len(new) - max(0, ALERTS_MAX - stored))


@carries_out_each(RecordTold)
def record_told(tx: Transaction, request: RecordTold) -> bool:
    """False: another server is writing; nothing is recorded."""
    if not dialect_of(tx.conn).try_lock(tx.conn, _IF_FREE):
        return False
    event = request.event
    names = {"of_alert": event.alert_id, "was_told": event.told}
    if request.failure:
        tx.conn.execute(_FAIL, {**names, "why": request.failure})
    else:
        tx.conn.execute(_FORGET if event.is_end else _TELL, names)
    return True


def open_keys(conn: Connection) -> set[str]:
    """The keys of the alerts that have begun and are not over."""
    return set(conn.execute(_OPEN_KEYS).scalars())


def next_event(conn: Connection) -> AlertRow | None:
    """The first alert whose beginning or end the webhook does not know."""
    return _NEXT.first(conn, {})


def untold(conn: Connection) -> Untold:
    first = next_event(conn)
    return Untold(conn.execute(_COUNT_UNTOLD).scalar_one(), "" if first is None else first.failure)


# The number is arbitrary, but all servers must use the same.
_IF_FREE = text("SELECT pg_try_advisory_xact_lock(482851947)")
_KEYS = rows_parameter("keys", text=("key",))
_IS_OPEN = alert.c.ended_at_ms.is_(None)
_IS_UNTOLD = or_(alert.c.told == 0, alert.c.ended_at_ms.is_not(None))
_IS_THIS = (alert.c.alert_id == bindparam("of_alert"), alert.c.told == bindparam("was_told"))
_OPEN_KEYS = select(alert.c.alert_key).where(_IS_OPEN)
_COUNT = select(func.count()).select_from(alert)
_COUNT_UNTOLD = select(func.count()).select_from(alert).where(_IS_UNTOLD)
_BEGIN = insert(alert)
_END = update(alert).where(_IS_OPEN, alert.c.alert_key.in_(select(_KEYS.c.key))).values(ended_at_ms=bindparam("now_ms"))
_TELL = update(alert).where(*_IS_THIS).values(told=1, failure="")
_FAIL = update(alert).where(*_IS_THIS).values(failure=bindparam("why"))
_FORGET = delete(alert).where(*_IS_THIS)
_NEXT = RowStatement(
    AlertRow,
    select(*(alert.c[name] for name in AlertRow._fields))
    .where(_IS_UNTOLD)
    .order_by(func.coalesce(alert.c.ended_at_ms, alert.c.began_at_ms), alert.c.alert_id)
    .limit(1),
)
