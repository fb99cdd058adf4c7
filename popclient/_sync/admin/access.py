# Made by scripts/unasync.py from popclient/aio/admin/access.py. Do not edit.
"""Users and policies: who may do what."""

from __future__ import annotations

from collections.abc import Iterable

from popclient._sync.admin.calls import Calls
from popclient.admin.answers import facts_of, policy_of
from popclient.admin.requests import new_secret
from popclient.admin.user_facts import Explanation, NewUser, Policy, User
from popproto.v1 import admin_pb2 as wire


class Access(Calls):
    """The calls about users and their policies."""

    def create_user(self, access_key: str, secret: str | None = None, *, is_admin: bool = False) -> NewUser:
        """Creates a user, with a random secret unless one is given. Only this answer shows the secret."""
        secret = new_secret() if secret is None else secret
        request = wire.CreateUserRequest(access_key=access_key, secret=secret, is_admin=is_admin)
        answer = self._call(lambda link: link.admin.CreateUser, request)
        return NewUser(facts_of(User, answer.user), secret)

    def rotate_secret(self, access_key: str, secret: str | None = None) -> NewUser:
        """Replaces the user's secret, by a random one unless one is given. The old one is invalid at once."""
        secret = new_secret() if secret is None else secret
        request = wire.UpdateUserRequest(access_key=access_key, secret=secret)
        answer = self._call(lambda link: link.admin.UpdateUser, request)
        return NewUser(facts_of(User, answer.user), secret)

    def disable_user(self, access_key: str) -> User:
        """Refuses the user from now on, and ends its sessions; keeps its policies."""
        return self._set_disabled(access_key, disabled=True)

    def enable_user(self, access_key: str) -> User:
        """Ends what `disable_user` began."""
        return self._set_disabled(access_key, disabled=False)

    def delete_user(self, access_key: str) -> None:
        """Deletes the user and its policies."""
        self._call(lambda link: link.admin.DeleteUser, wire.DeleteUserRequest(access_key=access_key))

    def list_users(self) -> list[User]:
        """All users, by name. Servers limit the list."""
        answer = self._call(lambda link: link.admin.ListUsers, wire.ListUsersRequest())
        return [facts_of(User, each) for each in answer.users]

    def add_policy(
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
        answer = self._call(lambda link: link.admin.AddPolicy, request)
        return policy_of(answer.policy)

    def remove_policy(self, policy_id: int) -> Policy:
        """Removes a policy; returns it."""
        answer = self._call(lambda link: link.admin.RemovePolicy, wire.RemovePolicyRequest(id=policy_id))
        return policy_of(answer.policy)

    def list_policies(self, access_key: str = "") -> list[Policy]:
        """The policies of one user, or of all. Servers limit the list."""
        answer = self._call(lambda link: link.admin.ListPolicies, wire.ListPoliciesRequest(access_key=access_key))
        return [policy_of(each) for each in answer.policies]

    def explain_access(self, access_key: str, action: str, resource_kind: str, name: str) -> Explanation:
        """Says whether the user may PUB or SUB the topic or group, and why."""
        request = wire.ExplainAccessRequest(
            access_key=access_key, action=action, resource_kind=resource_kind, resource=self._named(name)
        )
        answer = self._call(lambda link: link.admin.ExplainAccess, request)
        return facts_of(Explanation, answer)

    def _set_disabled(self, access_key: str, *, disabled: bool) -> User:
        request = wire.UpdateUserRequest(access_key=access_key, disabled=disabled)
        answer = self._call(lambda link: link.admin.UpdateUser, request)
        return facts_of(User, answer.user)
