"""Administration of users and policies. Refusals are `PopError`s, and none shows a secret."""

from __future__ import annotations

from typing import TypeVar

from popserver.access import sql
from popserver.access.flow import Access
from popserver.access.rules import Policy, User, Verdict, check_access_key, check_policy, check_secret
from popserver.access.sql import Acl
from popserver.engine.reader import Reader
from popserver.engine.transaction import Request
from popserver.engine.writer import Writer
from popserver.model.acl import Action, Effect, ResourceKind, Right
from popserver.model.names import Resource

S = TypeVar("S")


class Users:
    """Changes users and policies through the writer. `access` uses a change before the call is answered."""

    def __init__(self, writer: Writer, reader: Reader, access: Access) -> None:
        self._writer = writer
        self._reader = reader
        self._access = access

    async def add(self, access_key: str, secret: str, *, is_admin: bool) -> User:
        """Create a user. Raises `AlreadyExists`."""
        check_access_key(access_key)
        check_secret(secret)
        return await self._change(sql.CreateUser(access_key, secret, is_admin))

    async def ensure_admin(self, access_key: str, secret: str) -> bool:
        """Create the admin unless the user exists. Returns whether the user has this secret."""
        check_access_key(access_key)
        check_secret(secret)
        request = sql.CreateUser(access_key, secret, is_admin=True, or_find=True)
        return (await self._writer.submit(request)).secret == secret

    async def rotate(self, access_key: str, secret: str) -> User:
        """Give the user a new secret. The old one is refused from now on, in open sessions too."""
        check_secret(secret)
        return await self._change(sql.ChangeUser(access_key, secret=secret))

    async def set_disabled(self, access_key: str, disabled: bool) -> User:
        """Disable or enable a user. Raises `BadRequest` for the last admin if callers must sign."""
        return await self._change(sql.ChangeUser(access_key, None, disabled, keep_admin=self._access.is_on))

    async def remove(self, access_key: str) -> None:
        """Remove a user with its policies. Raises `BadRequest` for the last admin if callers must sign."""
        await self._change(sql.DeleteUser(access_key, keep_admin=self._access.is_on))

    async def add_policy(
        self, access_key: str, effect: Effect, actions: tuple[Action, ...], kind: ResourceKind, resource: Resource
    ) -> Policy:
        """Add a policy. If a policy with the same user, effect and resource exists, it gets the actions."""
        check_policy(actions, kind, resource)
        return await self._change(sql.AddPolicy(access_key, effect, actions, kind, resource))

    async def remove_policy(self, policy_id: int) -> Policy:
        return await self._change(sql.RemovePolicy(policy_id))

    async def everything(self) -> Acl:
        """All users and policies that are stored now."""
        return await self._reader.read(sql.load)

    async def explain(self, access_key: str, right: Right) -> tuple[bool, Verdict, str]:
        """Whether the user has the right, the verdict and the reason, from the stored policies."""
        await self._access.reload()
        return self._access.explain(access_key, right)

    async def _change(self, request: Request[S]) -> S:
        changed = await self._writer.submit(request)
        await self._access.reload()
        return changed
