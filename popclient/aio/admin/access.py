"""Users and policies: who may do what."""

from __future__ import annotations

from collections.abc import Iterable

from popclient.admin.answers import facts_of, policy_of
from popclient.admin.requests import new_secret
from popclient.admin.user_facts import Explanation, NewUser, Policy, User
from popclient.aio.admin.calls import Calls
from popproto.v1 import admin_pb2 as wire


class Access(Calls):
    """The calls about users and their policies."""

    async def create_user(self, access_key: str, secret: str | None = None, *, is_admin: bool = False) -> NewUser:
        """Creates a user, with a random secret unless one is given. Only this answer shows the secret."""
        secret = new_secret() if secret is None else secret
        request = wire.CreateUserRequest(access_key=access_key, secret=secret, is_admin=is_admin)
        answer = await self._call(lambda link: link.admin.CreateUser, request)
        return NewUser(facts_of(User, answer.user), secret)

    async def rotate_secret(self, access_key: str, secret: str | None = None) -> NewUser:
        """Replaces the user's secret, by a random one unless one is given. The old one is invalid at once."""
        secret = new_secret() if secret is None else secret
        request = wire.UpdateUserRequest(access_key=access_key, secret=secret)
        answer = await self._call(lambda link: link.admin.UpdateUser, request)
        return NewUser(facts_of(User, answer.user), secret)

    async def disable_user(self, access_key: str) -> User:
        """Refuses the user from now on, and ends its sessions; keeps its policies."""
        return await self._set_disabled(access_key, disabled=True)

    async def enable_user(self, access_key: str) -> User:
        """Ends what `disable_user` began."""
        return await self._set_disabled(access_key, disabled=False)

    async def delete_user(self, access_key: str) -> None:
        """Deletes the user and its policies."""
        await self._call(lambda link: link.admin.DeleteUser, wire.DeleteUserRequest(access_key=access_key))

    async def list_users(self) -> list[User]:
        """All users, by name. Servers limit the list."""
        answer = await self._call(lambda link: link.admin.ListUsers, wire.ListUsersRequest())
        return [facts_of(User, each) for each in answer.users]

    async def add_policy(
        self, access_key: str, effect: str, actions: Iterable[str], resource_kind: str, pattern: str
    ) -> Policy:
        """Allows (`effect` ALLOW) or forbids (DENY) a user to do something; see `Policy` for the values.

        The pattern belongs to the config's namespace. If there is a policy with this pattern and effect, it gets the
        actions.
        """
        request = wire.AddPolicyRequest(
            access_key=access_key,
            effect=effect.upper(),
            actions=actions,
            resource_kind=resource_kind,
            pattern=self._named(pattern),
        )
        answer = await self._call(lambda link: link.admin.AddPolicy, request)
        return policy_of(answer.policy)

    async def remove_policy(self, policy_id: int) -> Policy:
        """Removes a policy; returns it."""
        answer = await self._call(lambda link: link.admin.RemovePolicy, wire.RemovePolicyRequest(id=policy_id))
        return policy_of(answer.policy)

    async def list_policies(self, access_key: str = "") -> list[Policy]:
        """The policies of one user, or of all. Servers limit the list."""
        answer = await self._call(lambda link: link.admin.ListPolicies, wire.ListPoliciesRequest(access_key=access_key))
        return [policy_of(each) for each in answer.policies]

    async def explain_access(self, access_key: str, action: str, resource_kind: str, name: str) -> Explanation:
        """Says whether the user may PUB or SUB the topic or group, and why."""
        request = wire.ExplainAccessRequest(
            access_key=access_key, action=action, resource_kind=resource_kind, resource=self._named(name)
        )
        answer = await self._call(lambda link: link.admin.ExplainAccess, request)
        return facts_of(Explanation, answer)

    async def _set_disabled(self, access_key: str, *, disabled: bool) -> User:
        request = wire.UpdateUserRequest(access_key=access_key, disabled=disabled)
        answer = await self._call(lambda link: link.admin.UpdateUser, request)
        return facts_of(User, answer.user)
