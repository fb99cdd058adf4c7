"""Statements for users and policies. There are few rows: they are read all at once and changed one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from sqlalchemy import Connection, Row, delete, func, insert, select, update

from popserver.access.rules import POLICIES_OF_USER_MAX, USERS_MAX, Policy, User
from popserver.database.notifications import USERS
from popserver.database.schema import acl_policy, acl_user
from popserver.engine.transaction import Phase, Request, Transaction, carries_out_each
from popserver.model.acl import Action, Effect, ResourceKind
from popserver.model.errors import AlreadyExists, BadRequest, NotFound, PopError
from popserver.model.names import Resource


@dataclass(frozen=True, slots=True)
class CreateUser(Request[User]):
    """`or_find`: if the user exists, return it unchanged."""

    phase: ClassVar = Phase.CREATE_USER
    access_key: str
    secret: str
    is_admin: bool
    or_find: bool = False

    def __repr__(self) -> str:
        return f"CreateUser({self.access_key!r})"


@dataclass(frozen=True, slots=True)
class ChangeUser(Request[User]):
    """None leaves a value unchanged. `keep_admin`: refuse to disable the last enabled admin."""

    phase: ClassVar = Phase.CHANGE_USER
    access_key: str
    secret: str | None = None
    disabled: bool | None = None
    keep_admin: bool = False

    def __repr__(self) -> str:
        return f"ChangeUser({self.access_key!r})"


@dataclass(frozen=True, slots=True)
class DeleteUser(Request[None]):
    phase: ClassVar = Phase.DELETE_USER
    access_key: str
    keep_admin: bool = False


@dataclass(frozen=True, slots=True)
class AddPolicy(Request[Policy]):
    phase: ClassVar = Phase.ADD_POLICY
    access_key: str
    effect: Effect
    actions: tuple[Action, ...]
    kind: ResourceKind
    resource: Resource  # its name is the pattern


@dataclass(frozen=True, slots=True)
class RemovePolicy(Request[Policy]):
    phase: ClassVar = Phase.REMOVE_POLICY
    policy_id: int


class Acl(NamedTuple):
    """All users, sorted by name, and all policies, sorted by number."""

    users: list[User]
    policies: list[Policy]


def load(conn: Connection) -> Acl:
    users = conn.execute(select(acl_user).order_by(acl_user.c.access_key))
    policies = conn.execute(select(acl_policy).order_by(acl_policy.c.policy_id))
    return Acl([_user(row) for row in users], [_policy(row) for row in policies])


def find_user(conn: Connection, access_key: str) -> User | None:
    row = conn.execute(select(acl_user).where(acl_user.c.access_key == access_key)).first()
    return None if row is None else _user(row)


def user_not_found(access_key: str) -> NotFound:
    return NotFound(f"user '{access_key}' does not exist; create it with: popmq acl user add {access_key}")


@carries_out_each(CreateUser)
def create_user(tx: Transaction, request: CreateUser) -> User | PopError:
    tx.signal(USERS)
    found = find_user(tx.conn, request.access_key)
    if found is not None:
        return found if request.or_find else _exists(found)
    count = tx.conn.execute(select(func.count()).select_from(acl_user)).scalar_one()
    if count >= USERS_MAX:
        return BadRequest(f"there are {count} users, at most {USERS_MAX} are allowed; remove some first")
    user = User(request.access_key, request.secret, request.is_admin, None, tx.now_ms)
    row = {"access_key": user.access_key, "secret": user.secret, "is_admin": int(user.is_admin)}
    tx.conn.execute(insert(acl_user), row | {"created_at_ms": tx.now_ms})
    return user


@carries_out_each(ChangeUser)
def change_user(tx: Transaction, request: ChangeUser) -> User | PopError:
    tx.signal(USERS)
    found = find_user(tx.conn, request.access_key)
    if found is None:
        return user_not_found(request.access_key)
    if request.disabled and request.keep_admin and _is_last_admin(tx.conn, found):
        return _last_admin(found)
    values: dict[str, object] = {}
    if request.secret is not None:
        values["secret"] = request.secret
    if request.disabled is not None and request.disabled != (found.disabled_at_ms is not None):
        values["disabled_at_ms"] = tx.now_ms if request.disabled else None
    if values:
        tx.conn.execute(update(acl_user).where(acl_user.c.access_key == found.access_key).values(values))
    return find_user(tx.conn, found.access_key) or user_not_found(found.access_key)


@carries_out_each(DeleteUser)
def delete_user(tx: Transaction, request: DeleteUser) -> PopError | None:
    """Remove users with their policies."""
    tx.signal(USERS)
    found = find_user(tx.conn, request.access_key)
    if found is None:
        return user_not_found(request.access_key)
    if request.keep_admin and _is_last_admin(tx.conn, found):
        return _last_admin(found)
    tx.conn.execute(delete(acl_policy).where(acl_policy.c.access_key == found.access_key))
    tx.conn.execute(delete(acl_user).where(acl_user.c.access_key == found.access_key))
    return None


@carries_out_each(AddPolicy)
def add_policy(tx: Transaction, request: AddPolicy) -> Policy | PopError:
    """Add policies. If a policy with the same user, effect and resource exists, it gets the actions."""
    tx.signal(USERS)
    if find_user(tx.conn, request.access_key) is None:
        return user_not_found(request.access_key)
    same = (
        acl_policy.c.access_key == request.access_key,
        acl_policy.c.effect == request.effect,
        acl_policy.c.resource_kind == request.kind,
        acl_policy.c.namespace == request.resource.namespace,
        acl_policy.c.pattern == request.resource.name,
    )
    row = tx.conn.execute(select(acl_policy).where(*same)).first()
    if row is not None:
        return _widen(tx, _policy(row), request.actions)
    of_user = acl_policy.c.access_key == request.access_key
    count = tx.conn.execute(select(func.count()).select_from(acl_policy).where(of_user)).scalar_one()
    if count >= POLICIES_OF_USER_MAX:
        return BadRequest(
            f"user '{request.access_key}' has {count} policies, at most {POLICIES_OF_USER_MAX} are allowed;"
            " use prefixes, such as orders*"
        )
    new = {
        "access_key": request.access_key,
        "effect": request.effect,
        "actions": _written(request.actions),
        "resource_kind": request.kind,
        "namespace": request.resource.namespace,
        "pattern": request.resource.name,
        "created_at_ms": tx.now_ms,
    }
    return _policy(tx.conn.execute(insert(acl_policy).returning(acl_policy), new).one())


def _widen(tx: Transaction, policy: Policy, actions: Sequence[Action]) -> Policy:
    widened = policy._replace(actions=tuple(sorted({*policy.actions, *actions})))
    if widened != policy:
        of_id = acl_policy.c.policy_id == policy.policy_id
        tx.conn.execute(update(acl_policy).where(of_id).values(actions=_written(widened.actions)))
    return widened


@carries_out_each(RemovePolicy)
def remove_policy(tx: Transaction, request: RemovePolicy) -> Policy | PopError:
    tx.signal(USERS)
    gone = delete(acl_policy).where(acl_policy.c.policy_id == request.policy_id).returning(acl_policy)
    row = tx.conn.execute(gone).first()
    if row is None:
        return NotFound(f"policy {request.policy_id} does not exist; list them with: popmq acl policy list")
    return _policy(row)


def _is_last_admin(conn: Connection, user: User) -> bool:
    if not user.is_admin or user.disabled_at_ms is not None:
        return False
    others = select(func.count()).select_from(acl_user)
    others = others.where(acl_user.c.is_admin == 1, acl_user.c.disabled_at_ms.is_(None))
    return not conn.execute(others.where(acl_user.c.access_key != user.access_key)).scalar_one()


def _last_admin(user: User) -> BadRequest:
    return BadRequest(
        f"user '{user.access_key}' is the last admin, and this server needs one; create another first with:"
        " popmq acl user add NAME --admin"
    )


def _exists(user: User) -> AlreadyExists:
    return AlreadyExists(
        f"user '{user.access_key}' exists already; give it a new secret with: popmq acl user rotate {user.access_key}"
    )


def _user(row: Row[Any]) -> User:
    return User(row.access_key, row.secret, bool(row.is_admin), row.disabled_at_ms, row.created_at_ms)


def _policy(row: Row[Any]) -> Policy:
    return Policy(
        row.policy_id,
        row.access_key,
        Effect(row.effect),
        tuple(map(Action, row.actions.split(","))),
        ResourceKind(row.resource_kind),
        row.namespace,
        row.pattern,
        row.created_at_ms,
    )


def _written(actions: Sequence[Action]) -> str:
    return ",".join(sorted(set(actions)))
