"""What an operator does to users and policies. Every refusal is a `PopError`; none shows a secret."""

from __future__ import annotations

from popserver.access import sql
from popserver.access.flow import Access
from popserver.access.rules import Policy, User, Verdict, check_access_key, check_policy, check_secret
from popserver.access.sql import Acl
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.model.acl import Action, Effect, ResourceKind, Right
from popserver.model.names import Resource


class Users:
    """Users and policies, changed through the writer; `access` knows of a change before it is answered."""

    def __init__(self, writer: Writer, reader: Reader, access: Access) -> None:
        self._writer = writer
        self._reader = reader
        self._access = access

    async def add(self, access_key: str, secret: str, *, is_admin: bool) -> User:
        """Make a user; raises `AlreadyExists`."""
        check_access_key(access_key)
        check_secret(secret)
        user = await self._writer.submit(sql.CreateUser(access_key, secret, is_admin))
        await self._access.reload()
        return user

    async def ensure_admin(self, access_key: str, secret: str) -> bool:
        """Make the admin unless there is a user of that name; whether the secret is that user's."""
        check_access_key(access_key)
        check_secret(secret)
        wish = sql.CreateUser(access_key, secret, is_admin=True, or_find=True)
        return (await self._writer.submit(wish)).secret == secret

    async def rotate(self, access_key: str, secret: str) -> User:
        """Give the user another secret: the old one counts no more, not even for a session that is open."""
        check_secret(secret)
        return await self._change(sql.ChangeUser(access_key, secret=secret))

    async def set_disabled(self, access_key: str, disabled: bool) -> User:
        """Shut a user out, or let it in again; raises `BadRequest` for the last admin while callers must sign."""
        return await self._change(sql.ChangeUser(access_key, None, disabled, keep_admin=self._access.is_on))

    async def remove(self, access_key: str) -> None:
        """Remove a user with its policies; raises `BadRequest` for the last admin while callers must sign."""
        await self._writer.submit(sql.DeleteUser(access_key, keep_admin=self._access.is_on))
        await self._access.reload()

    async def add_policy(
        self, access_key: str, effect: Effect, actions: tuple[Action, ...], kind: ResourceKind, resource: Resource
    ) -> Policy:
        """Say what a user may do; the actions join those of the policy that says the same of the same resource."""
        check_policy(actions, kind, resource)
        wish = sql.AddPolicy(access_key, effect, actions, kind, resource)
        policy = await self._writer.submit(wish)
        await self._access.reload()
        return policy

    async def remove_policy(self, policy_id: int) -> Policy:
        policy = await self._writer.submit(sql.RemovePolicy(policy_id))
        await self._access.reload()
        return policy

    async def everything(self) -> Acl:
        """Everybody and every policy, as stored now."""
        return await self._reader.read(sql.load)

    async def explain(self, access_key: str, right: Right) -> tuple[bool, Verdict, str]:
        """Whether the user may, what decides it, and why; as stored now."""
        await self._access.reload()
        return self._access.explain(access_key, right)

    async def _change(self, change: sql.ChangeUser) -> User:
        user = await self._writer.submit(change)
        await self._access.reload()
        return user
