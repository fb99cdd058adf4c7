"""The stored members of groups that own whole queues, for all servers (requirements J1, J2).

A member is written when it joins, when its subscriptions change, and when it leaves; heartbeats write nothing. Its row
belongs to the server that it joined last, and only that server removes it. If another server still has the member, it
writes the row again. The members of a server that is gone are removed by the other servers (`cluster.sql`).
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, delete, func, insert, literal_column, select, tuple_, update

from popserver.catalog import progress
from popserver.catalog.groups import find_group, groups_by_id, modes
from popserver.catalog.lookup import group_not_found
from popserver.database.notifications import MEMBERS, RESETS, Invalidation
from popserver.database.rows import RowStatement, encode_column, encode_rows, rows_parameter
from popserver.database.schema import member
from popserver.engine.transaction import STEP_ROWS_MAX, Phase, Request, Transaction, carries_out
from popserver.engine.upkeep import remove_step
from popserver.filters.subscription import TopicFilter
from popserver.members.rules import GroupView, Member
from popserver.model.errors import PopError, TooManyRequests
from popserver.model.group import Group, Model
from popserver.model.names import Resource

# The most characters that the members of a group may have together, because each list of members has all of them.
MEMBERS_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class JoinGroup(Request[None]):
    """A member joined at this server, or sent its subscriptions again."""

    phase: ClassVar = Phase.GROUP_MEMBERS
    group: Group
    client_id: str
    server_id: str
    model: Model
    filters: tuple[TopicFilter, ...]


@dataclass(frozen=True, slots=True)
class LeaveGroup(Request[None]):
    """A member left this server. It stays a member if it has joined at another server meanwhile."""

    phase: ClassVar = Phase.GROUP_MEMBERS
    group: Group
    client_id: str
    server_id: str


@dataclass(frozen=True, slots=True)
class ClearMembers(Request[None]):
    """Remove all members: the only server of this database starts."""

    phase: ClassVar = Phase.CLEAR_MEMBERS


class _StoredMember(NamedTuple):
    server_id: str
    model: str
    subscription: str


class _MemberRow(NamedTuple):
    client_id: str
    model: str
    subscription: str
    joined_at_ms: int


_MemberKey = tuple[int, str]  # group id, client id


def notify_reset(tx: Transaction, group: Resource) -> None:
    """After the commit, notify the group's members at all servers that an operator has moved its progress."""
    tx.invalidate(Invalidation(RESETS, *group))


@carries_out(JoinGroup, LeaveGroup)
def attend(tx: Transaction, requests: Sequence[JoinGroup | LeaveGroup]) -> list[PopError | None]:
    """Carry out joins and leaves in order. All rows are locked first, in one order."""
    keys = sorted({_key(each) for each in requests})
    there = modes(tx.conn, {each.group.group_id for each in requests})
    before = _rows(tx.conn, keys)
    after = dict(before)
    others = _bytes_of_others(tx.conn, there, keys)
    answers = [_carry_out(each, after, others) for each in requests]
    _write(tx, before, after)
    # A move to another server makes no difference for the other members.
    seen_anew = {key for key in keys if before.get(key, ())[1:] != after.get(key, ())[1:]}
    for name in {each.group.name for each in requests if _key(each) in seen_anew}:
        tx.invalidate(Invalidation(MEMBERS, *name))
    return answers


def forget_group(conn: Connection, group_id: int) -> int:
    """Remove a step of the members of a deleted group; returns how many."""
    return remove_step(conn, member.c.client_id, member.c.group_id == group_id)


@carries_out(ClearMembers)
def clear_members(tx: Transaction, requests: Sequence[ClearMembers]) -> list[PopError | None]:
    tx.conn.execute(delete(member))
    return [None] * len(requests)


def forget_unseen(tx: Transaction, seen: Select[tuple[str]]) -> None:
    """Remove members whose server is not among those `seen` (a query of their ids), at most `STEP_ROWS_MAX`."""
    # One statement: a server that has started a moment ago must be among those seen when its members are.
    unseen = _STEP.where(member.c.server_id.not_in(seen)).with_for_update(skip_locked=True).correlate(None)
    ended = delete(member).where(tuple_(member.c.group_id, member.c.client_id).in_(unseen))
    gone = set(tx.conn.execute(ended.returning(member.c.group_id)).scalars())
    if gone:
        for each in groups_by_id(tx.conn, gone).values():
            tx.invalidate(Invalidation(MEMBERS, *each.group.name))


def members_of(conn: Connection, name: Resource) -> list[Member]:
    """The group's members, sorted by client id. Raises `ConsumerGroupNotFound`."""
    found = find_group(conn, name)
    if found is None:
        raise group_not_found(name)
    # Sorted here, because databases sort text differently.
    return sorted(map(_member, _MEMBERS.rows(conn, {"of_group": found.group_id})))


def listed(conn: Connection, name: Resource) -> tuple[Group, set[str]] | None:
    """The group and its members' client ids; None if the group does not exist."""
    found = find_group(conn, name)
    return None if found is None else (found, set(conn.execute(_LISTED, {"of_group": found.group_id}).scalars()))


def group_view_of(conn: Connection, name: Resource) -> GroupView | None:
    """The numbers by which members notice changes of the group; None if the group does not exist."""
    found = find_group(conn, name)
    if found is None:
        return None
    seen = sorted(
        (row.client_id, row.model, row.subscription) for row in _MEMBERS.rows(conn, {"of_group": found.group_id})
    )
    resets = progress.all_resets(conn, found.group_id)
    return GroupView(zlib.crc32(json.dumps([found.group_id, seen]).encode()), resets)


def _key(request: JoinGroup | LeaveGroup) -> _MemberKey:
    return request.group.group_id, request.client_id


def _rows(conn: Connection, keys: Sequence[_MemberKey]) -> dict[_MemberKey, _StoredMember]:
    found = conn.execute(_LOCK, {"places": encode_rows(keys)})
    return {(row.group_id, row.client_id): _StoredMember(row.server_id, row.model, row.subscription) for row in found}


def _bytes_of_others(conn: Connection, there: Collection[int], keys: Sequence[_MemberKey]) -> dict[int, int]:
    """How many characters the members of each existing group have, without those with these `keys`."""
    names = {"groups": encode_column(sorted(there)), "places": encode_rows(keys)}
    return dict.fromkeys(there, 0) | {row.group_id: int(row.size) for row in conn.execute(_BYTES, names)}


def _carry_out(
    request: JoinGroup | LeaveGroup, rows: dict[_MemberKey, _StoredMember], others: Mapping[int, int]
) -> PopError | None:
    """`others`: for each existing group, how many characters its members outside of `rows` have."""
    key = _key(request)
    if isinstance(request, JoinGroup):
        if request.group.group_id not in others:
            return group_not_found(request.group.name)
        new = _StoredMember(request.server_id, request.model.value, _packed(request.filters))
        among = {each: row for each, row in rows.items() if each[0] == key[0]} | {key: new}
        size = others[key[0]] + sum(len(each[1]) + len(row.subscription) for each, row in among.items())
        if size > MEMBERS_BYTES_MAX:
            return TooManyRequests(
                f"with client '{request.client_id}' the subscriptions of group '{request.group.name}' have {size}"
                f" characters, at most {MEMBERS_BYTES_MAX} are allowed; use shorter filters, or fewer consumers"
            )
        rows[key] = new
    elif key in rows and rows[key].server_id == request.server_id:
        del rows[key]
    return None


def _write(tx: Transaction, before: dict[_MemberKey, _StoredMember], after: dict[_MemberKey, _StoredMember]) -> None:
    if ended := sorted(before.keys() - after.keys()):
        tx.conn.execute(_REMOVE, {"places": encode_rows(ended)})
    if changed := sorted((*key, *after[key]) for key in before.keys() & after.keys() if before[key] != after[key]):
        tx.conn.execute(_CHANGE, {"rows": encode_rows(changed)})
    if begun := sorted((*key, *after[key]) for key in after.keys() - before.keys()):
        tx.conn.execute(_INSERT, {"rows": encode_rows(begun), "now_ms": tx.now_ms})


def _packed(filters: Iterable[TopicFilter]) -> str:
    return json.dumps(
        [[*topic_filter.topic, topic_filter.kind, topic_filter.expression] for topic_filter in filters],
        separators=(",", ":"),
    )


def _member(row: _MemberRow) -> Member:
    filters = tuple(
        TopicFilter(Resource(namespace, name), kind, expression)
        for namespace, name, kind, expression in json.loads(row.subscription)
    )
    return Member(row.client_id, Model(row.model), filters, row.joined_at_ms)


_GROUPS = rows_parameter("groups", "group_id")
_PLACES = rows_parameter("places", "group_id", text=("client_id",))
_ROWS = rows_parameter("rows", "group_id", text=("client_id", "server_id", "model", "subscription"))
# In the order of the keys, as in all statements that lock members: so servers do not deadlock.
_LOCK = (
    select(member)
    .select_from(_PLACES)
    .join(member, and_(member.c.group_id == _PLACES.c.group_id, member.c.client_id == _PLACES.c.client_id))
    .order_by(member.c.group_id, member.c.client_id)
    .with_for_update(of=member)
)
_REMOVE = delete(member).where(
    tuple_(member.c.group_id, member.c.client_id).in_(select(_PLACES.c.group_id, _PLACES.c.client_id))
)
_CHANGE = (
    update(member)
    .where(member.c.group_id == _ROWS.c.group_id, member.c.client_id == _ROWS.c.client_id)
    .values(server_id=_ROWS.c.server_id, model=_ROWS.c.model, subscription=_ROWS.c.subscription)
)
_INSERT = insert(member).from_select(
    ["group_id", "client_id", "server_id", "model", "subscription", "joined_at_ms"],
    select(
        _ROWS.c.group_id,
        _ROWS.c.client_id,
        _ROWS.c.server_id,
        _ROWS.c.model,
        _ROWS.c.subscription,
        bindparam("now_ms", type_=member.c.joined_at_ms.type),
    ),
)
_SIZE = func.length(member.c.client_id) + func.length(member.c.subscription)
_BYTES = (
    select(member.c.group_id, func.sum(_SIZE).label("size"))
    .where(
        member.c.group_id.in_(select(_GROUPS.c.group_id)),
        tuple_(member.c.group_id, member.c.client_id).not_in(select(_PLACES.c.group_id, _PLACES.c.client_id)),
    )
    .group_by(member.c.group_id)
)
_STEP = select(member.c.group_id, member.c.client_id).limit(literal_column(str(STEP_ROWS_MAX)))
_MEMBERS = RowStatement(
    _MemberRow,
    select(*(member.c[name] for name in _MemberRow._fields)).where(member.c.group_id == bindparam("of_group")),
)
_LISTED = select(member.c.client_id).where(member.c.group_id == bindparam("of_group"))
