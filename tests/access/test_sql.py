"""Users and policies in the database, on both."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.access import sql as access_sql
from popserver.access.rules import Policy
from popserver.model.acl import Action, Effect, ResourceKind
from popserver.model.errors import AlreadyExists, BadRequest, NotFound
from popserver.model.names import Resource
from tests.support.open_store import START_MS, OpenStore

SECRET = "correct-horse"


def add(store: OpenStore, access_key: str = "alice", *, is_admin: bool = False, **more: Any) -> Any:
    return store.one(access_sql.create_user, access_sql.CreateUser(access_key, SECRET, is_admin, **more))


def allow(store: OpenStore, *actions: Action, pattern: str = "orders", effect: Effect = Effect.ALLOW) -> Policy:
    wish = access_sql.AddPolicy("alice", effect, actions, ResourceKind.TOPIC, Resource("", pattern))
    return store.one(access_sql.add_policy, wish)


def test_a_user_is_kept(store: OpenStore) -> None:
    made = add(store)
    assert (made.access_key, made.secret, made.is_admin, made.disabled_at_ms) == ("alice", SECRET, False, None)
    assert made.created_at_ms == START_MS
    assert access_sql.load(store.conn).users == [made]
    assert access_sql.find_user(store.conn, "alice") == made
    assert access_sql.find_user(store.conn, "bob") is None


def test_a_user_is_made_once(store: OpenStore) -> None:
    add(store, is_admin=True)
    with pytest.raises(AlreadyExists, match="popmq acl user rotate alice"):
        add(store)
    found = store.one(access_sql.create_user, access_sql.CreateUser("alice", "another-secret", False, or_find=True))
    assert (found.secret, found.is_admin) == (SECRET, True)


def test_two_of_one_name_in_one_transaction(store: OpenStore) -> None:
    first, second = store.do(
        access_sql.create_user,
        access_sql.CreateUser("alice", SECRET, False),
        access_sql.CreateUser("alice", SECRET, False),
    )
    assert not isinstance(first, AlreadyExists)
    assert isinstance(second, AlreadyExists)


def test_a_user_is_shut_out_and_let_in(store: OpenStore) -> None:
    add(store)
    store.now_ms += 5
    assert (
        store.one(access_sql.change_user, access_sql.ChangeUser("alice", disabled=True)).disabled_at_ms == START_MS + 5
    )
    store.now_ms += 5
    again = store.one(access_sql.change_user, access_sql.ChangeUser("alice", disabled=True))
    assert again.disabled_at_ms == START_MS + 5, "it is out since then"
    assert store.one(access_sql.change_user, access_sql.ChangeUser("alice", disabled=False)).disabled_at_ms is None


def test_a_user_gets_another_secret(store: OpenStore) -> None:
    add(store, is_admin=True)
    changed = store.one(access_sql.change_user, access_sql.ChangeUser("alice", "another-secret"))
    assert (changed.secret, changed.is_admin, changed.disabled_at_ms) == ("another-secret", True, None)


def test_the_last_admin_stays_where_one_must(store: OpenStore) -> None:
    add(store, "root", is_admin=True)
    add(store, "bob")
    for verb, wish in (
        (access_sql.change_user, access_sql.ChangeUser("root", disabled=True, keep_admin=True)),
        (access_sql.delete_user, access_sql.DeleteUser("root", keep_admin=True)),
    ):
        with pytest.raises(BadRequest, match="last admin"):
            store.one(verb, wish)  # type: ignore[arg-type]
    add(store, "root2", is_admin=True)
    store.one(access_sql.change_user, access_sql.ChangeUser("root", disabled=True, keep_admin=True))
    with pytest.raises(BadRequest, match="last admin"):
        store.one(access_sql.delete_user, access_sql.DeleteUser("root2", keep_admin=True))
    store.one(access_sql.delete_user, access_sql.DeleteUser("root", keep_admin=True))
    store.one(access_sql.delete_user, access_sql.DeleteUser("root2"))
    assert [user.access_key for user in access_sql.load(store.conn).users] == ["bob"]


def test_a_policy_is_kept(store: OpenStore) -> None:
    add(store)
    made = allow(store, Action.PUB, pattern="orders*")
    assert access_sql.load(store.conn).policies == [made]
    assert (made.effect, made.actions, made.pattern) == (Effect.ALLOW, (Action.PUB,), "orders*")


def test_the_same_said_again_is_one_policy(store: OpenStore) -> None:
    add(store)
    first = allow(store, Action.PUB)
    assert allow(store, Action.PUB) == first
    assert allow(store, Action.SUB) == first._replace(actions=(Action.PUB, Action.SUB))
    denied = allow(store, Action.SUB, effect=Effect.DENY)
    assert denied.policy_id != first.policy_id
    assert len(access_sql.load(store.conn).policies) == 2


def test_policies_go_with_their_user(store: OpenStore) -> None:
    add(store)
    allow(store, Action.PUB)
    store.one(access_sql.delete_user, access_sql.DeleteUser("alice"))
    assert access_sql.load(store.conn) == access_sql.Acl([], [])
    add(store)
    assert access_sql.load(store.conn).policies == [], "another of that name inherits nothing"


def test_a_policys_number_is_never_another_ones(store: OpenStore) -> None:
    add(store)
    first = allow(store, Action.PUB)
    assert store.one(access_sql.remove_policy, access_sql.RemovePolicy(first.policy_id)) == first
    assert allow(store, Action.PUB).policy_id > first.policy_id


def test_what_is_not_there(store: OpenStore) -> None:
    for verb, wish in (
        (access_sql.change_user, access_sql.ChangeUser("nobody", disabled=True)),
        (access_sql.delete_user, access_sql.DeleteUser("nobody")),
        (
            access_sql.add_policy,
            access_sql.AddPolicy("nobody", Effect.ALLOW, (Action.SUB,), ResourceKind.GROUP, Resource("", "billing")),
        ),
        (access_sql.remove_policy, access_sql.RemovePolicy(17)),
    ):
        with pytest.raises(NotFound, match="does not exist"):
            store.one(verb, wish)  # type: ignore[arg-type]
    assert access_sql.load(store.conn) == access_sql.Acl([], [])


def test_users_and_policies_are_bounded(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_sql, "USERS_MAX", 2)
    monkeypatch.setattr(access_sql, "POLICIES_OF_USER_MAX", 2)
    add(store, "alice")
    add(store, "bob")
    with pytest.raises(BadRequest, match="at most 2"):
        add(store, "carol")
    allow(store, Action.PUB, pattern="a")
    allow(store, Action.PUB, pattern="b")
    with pytest.raises(BadRequest, match="at most 2"):
        allow(store, Action.PUB, pattern="c")
    assert allow(store, Action.SUB, pattern="b").actions == (Action.PUB, Action.SUB)


def test_no_text_of_a_wish_holds_the_secret() -> None:
    assert SECRET not in f"{access_sql.CreateUser('alice', SECRET, False)} {access_sql.ChangeUser('alice', SECRET)!r}"
