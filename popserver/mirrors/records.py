"""Keeper of the records of mirrors.

One statement takes or renews the lease and writes the facts. It compares owner and time, so two processes never have
the same lease, whichever servers they ask. A transaction changes its mirrors in the order of their ids, so servers do
not deadlock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    exists,
    func,
    literal_column,
    or_,
    select,
)

from popserver.database.dialect import Dialect, PerDialect
from popserver.database.schema import mirror
from popserver.engine.transaction import Phase, Request, Transaction, carries_out
from popserver.mirrors.rules import (
    ENDED,
    LEASE_AHEAD_MS_MAX,
    MIRRORS_MAX,
    MirrorFacts,
    MirrorRow,
    refusal,
    refusal_to_forget,
)
from popserver.model.errors import NotFound, PopError
from popserver.model.states import MirrorState


@dataclass(frozen=True, slots=True)
class ReportMirror(Request[MirrorRow]):
    """Take or renew the lease of a mirror, and write its facts. `claim`: of a recorded mirror only take the lease."""

    phase: ClassVar = Phase.MIRRORS
    facts: MirrorFacts
    lease_ms: int
    claim: bool

    @property
    def mirror_id(self) -> str:
        return self.facts.mirror_id


@dataclass(frozen=True, slots=True)
class ForgetMirror(Request[MirrorRow]):
    """Remove the record of a mirror whose lease is over."""

    phase: ClassVar = Phase.MIRRORS
    mirror_id: str


@carries_out(ReportMirror, ForgetMirror)
def write(tx: Transaction, requests: Sequence[ReportMirror | ForgetMirror]) -> list[MirrorRow | PopError]:
    """The records after the reports, and those that were removed."""
    results: dict[int, MirrorRow | PopError] = {}
    for index, request in sorted(enumerate(requests), key=lambda each: (each[1].mirror_id, each[0])):
        results[index] = _report(tx, request) if isinstance(request, ReportMirror) else _forget(tx, request)
    return [results[index] for index in range(len(requests))]


def find(conn: Connection, mirror_id: str) -> MirrorRow | None:
    row = conn.execute(_FIND, {"of_mirror": mirror_id}).one_or_none()
    return None if row is None else MirrorRow._make(row)


def listed(conn: Connection) -> list[MirrorRow]:
    """All records by id, with empty positions: a thousand of them may be large."""
    return [MirrorRow._make(row) for row in conn.execute(_LISTED)]


def _report(tx: Transaction, request: ReportMirror) -> MirrorRow | PopError:
    facts, now_ms = request.facts, tx.now_ms
    if request.claim:
        facts = facts._replace(state=MirrorState.RUNNING, sentence="")
    until_ms = now_ms if facts.state in ENDED else now_ms + request.lease_ms
    given = {**facts._asdict(), "lease_until_ms": until_ms, "started_at_ms": now_ms, "updated_at_ms": now_ms}
    names = {f"new_{name}": given[name] for name in MirrorRow._fields}
    statement = (_CLAIM if request.claim else _REPORT).of(tx.conn)
    row = tx.conn.execute(statement, names | _times(now_ms) if request.claim else names).one_or_none()
    if row is not None:
        return MirrorRow._make(row)
    return refusal(find(tx.conn, facts.mirror_id), facts, now_ms, claim=request.claim)


def _forget(tx: Transaction, request: ForgetMirror) -> MirrorRow | PopError:
    found = find(tx.conn, request.mirror_id)
    if found is None:
        return NotFound(f"no mirror '{request.mirror_id}' is recorded; popmq mirrors list shows them")
    removed = tx.conn.execute(_FORGET, {"of_mirror": request.mirror_id, **_times(tx.now_ms)}).rowcount
    return found if removed else refusal_to_forget(found, tx.now_ms)


def _times(now_ms: int) -> dict[str, int]:
    return {"now_ms": now_ms, "last_ms": now_ms + LEASE_AHEAD_MS_MAX}


def _write(dialect: Dialect, changes: Sequence[str], claim: bool) -> Any:
    """An INSERT of the new values, unless there are too many records, that changes these columns of a record."""
    values = (bindparam(f"new_{name}", type_=mirror.c[name].type) for name in MirrorRow._fields)
    is_stored = exists().where(mirror.c.mirror_id == bindparam("new_mirror_id", type_=mirror.c.mirror_id.type))
    count = select(func.count()).select_from(mirror).scalar_subquery()
    new = dialect.upsert(mirror).from_select(
        list(MirrorRow._fields), select(*values).where(or_(count < MIRRORS_MAX, is_stored))
    )
    is_own = mirror.c.owner == new.excluded.owner
    changed: dict[str, Any] = {name: new.excluded[name] for name in changes}
    if claim:
        changed["started_at_ms"] = case((is_own, mirror.c.started_at_ms), else_=new.excluded.started_at_ms)
    is_same = (mirror.c[name] == new.excluded[name] for name in _SUBJECT)
    return new.on_conflict_do_update(
        index_elements=["mirror_id"], set_=changed, where=and_(*is_same, or_(is_own, _IS_OVER) if claim else is_own)
    ).returning(*(mirror.c[name] for name in MirrorRow._fields))


_IS_OVER: ColumnElement[bool] = or_(
    mirror.c.lease_until_ms <= bindparam("now_ms", type_=BigInteger),
    mirror.c.lease_until_ms > bindparam("last_ms", type_=BigInteger),
)
_SUBJECT = ("namespace", "topic", "consumer_group")
_OF_LEASE = ("owner", "host", "lease_until_ms", "state", "sentence", "updated_at_ms")
_REPORTED = tuple(name for name in MirrorRow._fields if name not in {*_SUBJECT, "mirror_id", "owner", "started_at_ms"})
_CLAIM = PerDialect(lambda dialect: _write(dialect, _OF_LEASE, claim=True))
_REPORT = PerDialect(lambda dialect: _write(dialect, _REPORTED, claim=False))
_IS_MIRROR = mirror.c.mirror_id == bindparam("of_mirror")
_FIND = select(*(mirror.c[name] for name in MirrorRow._fields)).where(_IS_MIRROR)
_FORGET = delete(mirror).where(_IS_MIRROR, _IS_OVER)
_LISTED = select(
    *(literal_column("''").label(name) if name == "position" else mirror.c[name] for name in MirrorRow._fields)
).order_by(mirror.c.mirror_id)
