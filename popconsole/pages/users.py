"""Users and policies: who may do what, as a matrix, and why."""

from __future__ import annotations

from typing import Final, NamedTuple

from starlette.responses import Response

from popclient.admin import Policy, User
from popconsole.paging import page_of
from popconsole.visits import Refused, Visit

COLUMNS_MAX: Final = 50


class Cell(NamedTuple):
    """What a user may do with one resource, as its policies say."""

    allowed: str
    denied: str


NOTHING: Final = Cell("", "")


class UserRow(NamedTuple):
    user: User
    cells: list[Cell]


async def users(visit: Visit) -> Response:
    """The matrix of users and the patterns of their policies."""
    await visit.pulse.now(visit.admin)
    listed = await visit.attempt(visit.admin.list_users())
    policies = await visit.attempt(visit.admin.list_policies())
    of_policies: list[Policy] = policies.value or []
    found: list[User] = listed.value or []
    columns = sorted({(each.resource_kind, each.pattern) for each in of_policies})
    shown, cells = columns[:COLUMNS_MAX], cells_of(of_policies)
    rows = [UserRow(user, [cells.get((user.access_key, *each), NOTHING) for each in shown]) for user in found]
    return visit.show(
        "users.html",
        now=visit.pulse.time,
        rows=page_of(visit, rows),
        columns=shown,
        columns_left_out=len(columns) - len(shown),
        policies=of_policies,
        failure=listed.failure or policies.failure,
        explained=await _explained(visit),
        made=None,
    )


def cells_of(policies: list[Policy]) -> dict[tuple[str, str, str], Cell]:
    """By access key, kind and pattern."""
    own: dict[tuple[str, str, str], list[Policy]] = {}
    for each in policies:
        own.setdefault((each.access_key, each.resource_kind, each.pattern), []).append(each)

    def actions(of: list[Policy], effect: str) -> str:
        return ", ".join(action for each in of if each.effect == effect for action in each.actions)

    return {place: Cell(actions(of, "ALLOW"), actions(of, "DENY")) for place, of in own.items()}


async def _explained(visit: Visit) -> tuple[str, str] | None:
    """The answer to "may this user do that?", if it was asked: (yes or no, the reason)."""
    who, action, kind, name = (visit.asked(each) for each in ("who", "action", "kind", "name"))
    if not (who and name):
        return None
    outcome = await visit.attempt(visit.admin.explain_access(who, action or "PUB", kind or "TOPIC", name))
    if outcome.failure:
        return "?", outcome.failure
    return ("yes" if outcome.value.allowed else "no"), outcome.value.reason


async def create(visit: Visit) -> Response:
    """Create a user; its secret is shown once."""
    key, secret = visit.given("access_key").strip(), visit.given("secret")
    if not key:
        raise Refused("a user needs an access key")
    made = await visit.admin.create_user(key, secret or None, is_admin=bool(visit.given("is_admin")))
    return visit.show("new_user.html", made=made, shown="" if secret else made.secret)


async def change(visit: Visit) -> Response:
    """Disable, enable or delete a user, or give it a new secret."""
    name, what = visit.named("user"), visit.given("what")
    if what == "disable":
        await visit.admin.disable_user(name)
    elif what == "enable":
        await visit.admin.enable_user(name)
    elif what == "rotate":
        return visit.show("new_user.html", made=(made := await visit.admin.rotate_secret(name)), shown=made.secret)
    elif what == "delete":
        visit.require_name(name)
        await visit.admin.delete_user(name)
    else:
        raise Refused(f"'{what}' is nothing that can be done with a user")
    return visit.go(visit.path("users"), f"User {name}: {what}d." if what != "delete" else f"User {name} is deleted.")


async def user(visit: Visit) -> Response:
    """One user: its policies, and what can be done with it."""
    name = visit.named("user")
    await visit.pulse.now(visit.admin)
    found = [each for each in await visit.admin.list_users() if each.access_key == name]
    if not found:
        raise Refused(f"user '{name}' does not exist", 404)
    return visit.show(
        "user.html",
        now=visit.pulse.time,
        user=found[0],
        policies=page_of(visit, await visit.admin.list_policies(name)),
        failure="",
    )


async def add_policy(visit: Visit) -> Response:
    name = visit.named("user")
    await visit.admin.add_policy(
        name, visit.given("effect"), visit.form.get("action", []), visit.given("kind"), visit.given("pattern")
    )
    return visit.go(visit.path("users", name), "The policy is added.")


async def remove_policy(visit: Visit) -> Response:
    removed = await visit.admin.remove_policy(_number(visit.given("policy")))
    return visit.go(visit.path("users", removed.access_key), "The policy is removed.")


def _number(written: str) -> int:
    if not written.isdecimal():
        raise Refused(f"'{written}' is no number")
    return int(written)
