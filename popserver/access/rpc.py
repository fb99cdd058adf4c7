"""The methods for users and policies in popmq.v1.Admin. No answer has a secret."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Never, TypeVar

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights, users
from popserver.access.rules import Policy, User
from popserver.model.acl import Action, Effect, ResourceKind, Right
from popserver.model.errors import AlreadyExists, BadRequest
from popserver.transport import convert, status
from popserver.transport.calls import Caller, Method

PAGE_MAX = 1_000

Row = TypeVar("Row")


class UserMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, users: users.Users) -> None:
        self._users = users

    @property
    def methods(self) -> dict[str, Method[Never]]:
        return {
            "CreateUser": Method(self.create_user, rights.admin),
            "UpdateUser": Method(self.update_user, rights.admin),
            "DeleteUser": Method(self.delete_user, rights.admin),
            "ListUsers": Method(self.list_users, rights.admin),
            "AddPolicy": Method(self.add_policy, rights.admin),
            "RemovePolicy": Method(self.remove_policy, rights.admin),
            "ListPolicies": Method(self.list_policies, rights.admin),
            "ExplainAccess": Method(self.explain_access, rights.admin),
        }

    async def create_user(self, request: wire.CreateUserRequest, _caller: Caller) -> wire.CreateUserResponse:
        try:
            user = await self._users.add(request.access_key, request.secret, is_admin=request.is_admin)
        except AlreadyExists as refusal:
            raise BadRequest(refusal.sentence) from None
        return wire.CreateUserResponse(status=status.OK, user=_user(user))

    async def update_user(self, request: wire.UpdateUserRequest, _caller: Caller) -> wire.UpdateUserResponse:
        """Set a new secret, or disable or enable the user: one change per call, so that no call succeeds by half."""
        if request.HasField("secret") == request.HasField("disabled"):
            raise BadRequest(f"to change user '{request.access_key[:64]}', give either secret or disabled, not both")
        if request.HasField("secret"):
            user = await self._users.rotate(request.access_key, request.secret)
        else:
            user = await self._users.set_disabled(request.access_key, request.disabled)
        return wire.UpdateUserResponse(status=status.OK, user=_user(user))

    async def delete_user(self, request: wire.DeleteUserRequest, _caller: Caller) -> wire.DeleteUserResponse:
        await self._users.remove(request.access_key)
        return wire.DeleteUserResponse(status=status.OK)

    async def list_users(self, _request: wire.ListUsersRequest, _caller: Caller) -> wire.ListUsersResponse:
        """The first thousand by name."""
        users = (await self._users.everything()).users
        return wire.ListUsersResponse(status=_listed(users, "users"), users=map(_user, users[:PAGE_MAX]))

    async def add_policy(self, request: wire.AddPolicyRequest, caller: Caller) -> wire.AddPolicyResponse:
        policy = await self._users.add_policy(
            request.access_key,
            convert.choice("effect", request.effect, Effect),
            tuple(convert.choice("action", each, Action) for each in request.actions),
            convert.choice("resource kind", request.resource_kind, ResourceKind),
            caller.resource(request.pattern),
        )
        return wire.AddPolicyResponse(status=status.OK, policy=_policy(policy))

    async def remove_policy(self, request: wire.RemovePolicyRequest, _caller: Caller) -> wire.RemovePolicyResponse:
        return wire.RemovePolicyResponse(status=status.OK, policy=_policy(await self._users.remove_policy(request.id)))

    async def list_policies(self, request: wire.ListPoliciesRequest, _caller: Caller) -> wire.ListPoliciesResponse:
        """The first thousand by number."""
        acl = await self._users.everything()
        policies = [each for each in acl.policies if request.access_key in {"", each.access_key}]
        shown = map(_policy, policies[:PAGE_MAX])
        return wire.ListPoliciesResponse(status=_listed(policies, "policies"), policies=shown)

    async def explain_access(self, request: wire.ExplainAccessRequest, caller: Caller) -> wire.ExplainAccessResponse:
        right = Right(
            convert.choice("action", request.action, Action),
            convert.choice("resource kind", request.resource_kind, ResourceKind),
            caller.resource(request.resource),
        )
        allowed, verdict, reason = await self._users.explain(request.access_key, right)
        policy = None if verdict.policy is None else _policy(verdict.policy)
        return wire.ExplainAccessResponse(status=status.OK, allowed=allowed, policy=policy, reason=reason)


def _listed(rows: Sequence[Row], what: str) -> pb.Status:
    if len(rows) <= PAGE_MAX:
        return status.OK
    return pb.Status(code=pb.OK, message=f"the first {PAGE_MAX} of {len(rows)} {what}")


def _user(user: User) -> wire.User:
    return wire.User(
        access_key=user.access_key,
        is_admin=user.is_admin,
        created_at=convert.timestamp(user.created_at_ms),
        disabled_at=convert.timestamp(user.disabled_at_ms),
    )


def _policy(policy: Policy) -> wire.Policy:
    return wire.Policy(
        id=policy.policy_id,
        access_key=policy.access_key,
        effect=policy.effect,
        actions=policy.actions,
        resource_kind=policy.kind,
        pattern=pb.Resource(resource_namespace=policy.namespace, name=policy.pattern),
        created_at=convert.timestamp(policy.created_at_ms),
    )
