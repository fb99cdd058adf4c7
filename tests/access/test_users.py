"""Users and policies through the administration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named, opened
from tests.support.signing import signed

SECRET = "correct-horse"
ROOT = {"admin_access_key": "root", "admin_secret": "root-has-a-secret"}
AS_ROOT = tuple(signed("root", ROOT["admin_secret"]).items())
AS_ALICE = tuple(signed("alice", SECRET).items())
METHODS = [method.name for method in wire.DESCRIPTOR.services_by_name["Admin"].methods]


@pytest.fixture
def admin_server() -> Iterator[AdminServer]:
    """Nobody need sign: users may be made before that is asked for."""
    with opened() as found:
        yield found


@pytest.fixture
def guarded() -> Iterator[AdminServer]:
    with opened(auth=True, **ROOT) as found:
        answer = found.admin.CreateUser(wire.CreateUserRequest(access_key="alice", secret=SECRET), metadata=AS_ROOT)
        assert answer.status.code == pb.OK
        yield found


def test_a_user_comes_changes_and_goes(admin_server: AdminServer) -> None:
    made = admin_server.call("CreateUser", access_key="alice", secret=SECRET)
    assert made.status.code == pb.OK
    assert (made.user.access_key, made.user.is_admin, made.user.HasField("disabled_at")) == ("alice", False, False)
    assert made.user.created_at.seconds * 1_000 == admin_server.server.clock.now_ms()
    assert admin_server.call("CreateUser", access_key="root", secret=SECRET, is_admin=True).user.is_admin
    assert [user.access_key for user in admin_server.call("ListUsers").users] == ["alice", "root"]
    assert admin_server.call("UpdateUser", access_key="alice", disabled=True).user.HasField("disabled_at")
    assert not admin_server.call("UpdateUser", access_key="alice", disabled=False).user.HasField("disabled_at")
    assert admin_server.call("UpdateUser", access_key="alice", secret="another-secret").status.code == pb.OK
    assert admin_server.call("DeleteUser", access_key="alice").status.code == pb.OK
    assert [user.access_key for user in admin_server.call("ListUsers").users] == ["root"]


def policy(admin_server: AdminServer, effect: str, actions: list[str], kind: str, pattern: str, **more: Any) -> Any:
    fields: dict[str, Any] = {"access_key": "alice", "effect": effect, "actions": actions, "resource_kind": kind}
    return admin_server.call("AddPolicy", **fields, pattern=named(pattern), **more)


def test_policies_come_are_explained_and_go(admin_server: AdminServer) -> None:
    admin_server.call("CreateUser", access_key="alice", secret=SECRET)
    made = policy(admin_server, "ALLOW", ["PUB"], "TOPIC", "eu/orders*").policy
    assert (made.access_key, made.effect, list(made.actions), made.resource_kind) == (
        "alice",
        "ALLOW",
        ["PUB"],
        "TOPIC",
    )
    assert made.pattern == named("eu/orders*")
    assert policy(admin_server, "ALLOW", ["SUB", "PUB"], "TOPIC", "orders*", namespace="eu").policy.id == made.id
    asked = {"access_key": "alice", "action": "PUB", "resource_kind": "TOPIC"}
    told = admin_server.call("ExplainAccess", **asked, resource=named("eu/orders7"))
    assert (told.allowed, told.policy.id) == (True, made.id)
    assert told.reason == (
        "user 'alice' may PUB topic 'eu/orders7': policy 1 (ALLOW PUB,SUB topic:orders* in namespace 'eu') allows it"
    )
    told = admin_server.call("ExplainAccess", **asked, resource=named("orders7"))
    assert (told.allowed, told.HasField("policy")) == (False, False)
    assert [each.id for each in admin_server.call("ListPolicies").policies] == [made.id]
    assert not admin_server.call("ListPolicies", access_key="bob").policies
    assert admin_server.call("RemovePolicy", id=made.id).policy.id == made.id
    assert not admin_server.call("ListPolicies", access_key="alice").policies


def test_a_list_says_when_it_is_not_all(admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popserver.access.rpc.PAGE_MAX", 2)
    for name in ("a", "b", "c"):
        admin_server.call("CreateUser", access_key=name, secret=SECRET)
    listed = admin_server.call("ListUsers")
    assert [user.access_key for user in listed.users] == ["a", "b"]
    assert listed.status.message == "the first 2 of 3 users"


ALICE = {"access_key": "alice"}
POLICY = {**ALICE, "effect": "ALLOW", "actions": ["SUB"], "resource_kind": "GROUP", "pattern": named("billing")}
EXPLAIN = {**ALICE, "action": "SUB", "resource_kind": "GROUP", "resource": named("billing")}
REFUSALS: list[tuple[str, dict[str, Any], int, str]] = [
    ("CreateUser", {"secret": SECRET}, pb.BAD_REQUEST, "access key ''"),
    ("CreateUser", {"access_key": "a b", "secret": SECRET}, pb.BAD_REQUEST, "access key 'a b'"),
    ("CreateUser", {"access_key": "a/b", "secret": SECRET}, pb.BAD_REQUEST, "out of A-Z a-z 0-9"),
    ("CreateUser", {"access_key": "x" * 65, "secret": SECRET}, pb.BAD_REQUEST, "1 to 64 characters"),
    ("CreateUser", {"access_key": "bob"}, pb.BAD_REQUEST, "the secret has 0 characters; use 8 to 256"),
    ("CreateUser", {"access_key": "bob", "secret": "short"}, pb.BAD_REQUEST, "the secret has 5 characters"),
    ("CreateUser", {"access_key": "bob", "secret": "a secret with blanks"}, pb.BAD_REQUEST, "the secret has a blank"),
    ("CreateUser", {**ALICE, "secret": SECRET}, pb.BAD_REQUEST, "exists already"),
    ("UpdateUser", {"access_key": "nobody", "disabled": True}, pb.NOT_FOUND, "popmq acl user add nobody"),
    ("UpdateUser", {"access_key": "nobody", "secret": SECRET}, pb.NOT_FOUND, "popmq acl user add nobody"),
    ("UpdateUser", ALICE, pb.BAD_REQUEST, "either secret or disabled"),
    ("UpdateUser", {**ALICE, "secret": SECRET, "disabled": True}, pb.BAD_REQUEST, "either secret or disabled"),
    ("UpdateUser", {**ALICE, "secret": "short"}, pb.BAD_REQUEST, "the secret has 5 characters"),
    ("DeleteUser", {"access_key": "nobody"}, pb.NOT_FOUND, "popmq acl user add nobody"),
    ("AddPolicy", {**POLICY, "access_key": "nobody"}, pb.NOT_FOUND, "popmq acl user add nobody"),
    ("AddPolicy", {**POLICY, "effect": ""}, pb.BAD_REQUEST, "effect is ''; choose one of ALLOW, DENY"),
    ("AddPolicy", {**POLICY, "effect": "allowed"}, pb.BAD_REQUEST, "effect is 'allowed'"),
    ("AddPolicy", {**POLICY, "actions": []}, pb.BAD_REQUEST, "names no action"),
    ("AddPolicy", {**POLICY, "actions": ["READ"]}, pb.BAD_REQUEST, "action is 'READ'; choose one of PUB, SUB"),
    ("AddPolicy", {**POLICY, "actions": ["PUB"]}, pb.BAD_REQUEST, "PUB is for topics"),
    ("AddPolicy", {**POLICY, "resource_kind": "CLUSTER"}, pb.BAD_REQUEST, "choose one of TOPIC, GROUP"),
    ("AddPolicy", {**POLICY, "pattern": named("")}, pb.BAD_REQUEST, "pattern '' is not allowed"),
    ("AddPolicy", {**POLICY, "pattern": named("a*b")}, pb.BAD_REQUEST, "use a name, prefix* or *, with at most 255"),
    ("AddPolicy", {**POLICY, "pattern": named("a b/billing")}, pb.BAD_REQUEST, "namespace 'a b'"),
    ("RemovePolicy", {"id": 17}, pb.NOT_FOUND, "policy 17 does not exist"),
    ("RemovePolicy", {}, pb.NOT_FOUND, "policy 0 does not exist"),
    ("ExplainAccess", {**EXPLAIN, "access_key": "nobody"}, pb.NOT_FOUND, "popmq acl user add nobody"),
    ("ExplainAccess", {**EXPLAIN, "action": "ADMIN"}, pb.BAD_REQUEST, "action is 'ADMIN'"),
    ("ExplainAccess", {**EXPLAIN, "resource_kind": ""}, pb.BAD_REQUEST, "resource kind is ''"),
]


@pytest.mark.parametrize(("method", "fields", "code", "says"), REFUSALS)
def test_a_refusal_is_precise_and_changes_nothing(
    admin_server: AdminServer, method: str, fields: dict[str, Any], code: pb.Code.ValueType, says: str
) -> None:
    admin_server.call("CreateUser", access_key="alice", secret=SECRET)
    before = admin_server.digest()
    status = admin_server.call(method, **fields).status
    assert (pb.Code.Name(status.code), says in status.message) == (pb.Code.Name(code), True), status
    assert "short" not in status.message
    assert admin_server.digest() == before


@pytest.mark.parametrize("method", METHODS)
def test_the_administration_is_for_admins(guarded: AdminServer, method: str) -> None:
    request = getattr(wire, f"{method}Request")()
    before = guarded.digest()
    call = getattr(guarded.admin, method)
    assert call(request).status.code == pb.UNAUTHORIZED
    assert call(request, metadata=tuple(signed("root", "wrong-secret").items())).status.code == pb.UNAUTHORIZED
    refused = call(request, metadata=AS_ALICE).status
    assert refused.code == pb.FORBIDDEN
    assert refused.message.startswith(f"user 'alice' may not call {method}: it is for admins")
    assert guarded.digest() == before
    assert call(request, metadata=AS_ROOT).status.code not in {pb.UNAUTHORIZED, pb.FORBIDDEN}


def test_an_admin_who_is_shut_out_is_one_no_more(guarded: AdminServer) -> None:
    guarded.admin.CreateUser(
        wire.CreateUserRequest(access_key="second", secret=SECRET, is_admin=True), metadata=AS_ROOT
    )
    as_second = tuple(signed("second", SECRET).items())
    assert guarded.admin.ListUsers(wire.ListUsersRequest(), metadata=as_second).status.code == pb.OK
    shut_out = wire.UpdateUserRequest(access_key="second", disabled=True)
    assert guarded.admin.UpdateUser(shut_out, metadata=AS_ROOT).status.code == pb.OK
    assert guarded.admin.ListUsers(wire.ListUsersRequest(), metadata=as_second).status.code == pb.UNAUTHORIZED


def test_the_last_admin_can_neither_go_nor_be_shut_out(guarded: AdminServer) -> None:
    before = guarded.digest()
    for request in (
        guarded.admin.DeleteUser(wire.DeleteUserRequest(access_key="root"), metadata=AS_ROOT),
        guarded.admin.UpdateUser(wire.UpdateUserRequest(access_key="root", disabled=True), metadata=AS_ROOT),
    ):
        assert request.status.code == pb.BAD_REQUEST
        assert "popmq acl user add NAME --admin" in request.status.message
    assert guarded.digest() == before


def test_no_answer_holds_a_secret(guarded: AdminServer) -> None:
    for method in METHODS:
        answer = getattr(guarded.admin, method)(getattr(wire, f"{method}Request")(), metadata=AS_ROOT)
        assert SECRET not in str(answer)
        assert ROOT["admin_secret"] not in str(answer)
