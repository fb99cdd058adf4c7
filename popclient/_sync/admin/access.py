# Made by scripts/unasync.py from popclient/aio/admin/access.py. Do not edit.
"""Users and policies: who may do what."""

from __future__ import annotations

from collections.abc import Iterable

from popclient._sync.admin.calls import Calls
from popclient.admin.answers import explanation_of, policy_of, user_of
from popclient.admin.facts import Explanation, NewUser, Policy, User
from popclient.admin.requests import new_secret
from popproto.v1 import admin_pb2 as wire


class Access(Calls):
    """The calls about users and their policies."""

    def create_user(self, access_key: str, secret: str | None = None, *, is_admin: bool = False) -> NewUser:
        """Without a secret it gets a random one; the answer is the only place that ever shows it."""
        secret = new_secret() if secret is None else secret
        request = wire.CreateUserRequest(access_key=access_key, secret=secret, is_admin=is_admin)
        answer = self._call(lambda link: link.admin.CreateUser, request)
        return NewUser(user_of(answer.user), secret)

    def rotate_secret(self, access_key: str, secret: str | None = None) -> NewUser:
        """Another secret for the user, a random one where none is given. The old one counts no more at once."""
        secret = new_secret() if secret is None else secret
        request = wire.UpdateUserRequest(access_key=access_key, secret=secret)
        answer = self._call(lambda link: link.admin.UpdateUser, request)
        return NewUser(user_of(answer.user), secret)

    def disable_user(self, access_key: str) -> User:
        """Shut a user out, its open sessions included; what it may do is remembered."""
        return self._set_disabled(access_key, disabled=True)

    def enable_user(self, access_key: str) -> User:
        return self._set_disabled(access_key, disabled=False)

    def delete_user(self, access_key: str) -> None:
        """With its policies."""
        self._call(lambda link: link.admin.DeleteUser, wire.DeleteUserRequest(access_key=access_key))

    def list_users(self) -> list[User]:
        """By name. Servers bound the list."""
        answer = self._call(lambda link: link.admin.ListUsers, wire.ListUsersRequest())
        return [user_of(each) for each in answer.users]

    def add_policy(
        self, access_key: str, effect: str, actions: Iterable[str], resource_kind: str, pattern: str
    ) -> Policy:
        """Say what a user may do (`effect` ALLOW) or may not (DENY); see `Policy` for the words.

        The pattern is one of the config's namespace. The actions join those of the policy that says the same of it.
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
        """The policy that is gone."""
        answer = self._call(lambda link: link.admin.RemovePolicy, wire.RemovePolicyRequest(id=policy_id))
        return policy_of(answer.policy)

    def list_policies(self, access_key: str = "") -> list[Policy]:
        """One user's, or everybody's. Servers bound the list."""
        answer = self._call(lambda link: link.admin.ListPolicies, wire.ListPoliciesRequest(access_key=access_key))
        return [policy_of(each) for each in answer.policies]

    def explain_access(self, access_key: str, action: str, resource_kind: str, name: str) -> Explanation:
        """Whether the user may PUB or SUB the topic or group, and why."""
        request = wire.ExplainAccessRequest(
            access_key=access_key, action=action, resource_kind=resource_kind, resource=self._named(name)
        )
        answer = self._call(lambda link: link.admin.ExplainAccess, request)
        return explanation_of(answer)

    def _set_disabled(self, access_key: str, *, disabled: bool) -> User:
        request = wire.UpdateUserRequest(access_key=access_key, disabled=disabled)
        answer = self._call(lambda link: link.admin.UpdateUser, request)
        return user_of(answer.user)
