"""Decides in memory who may call and what they may do, from a copy of the users and policies.

Clients sign the time in seconds, so many calls have the same signature. A signature that was verified once is
remembered. A change through this server takes effect at once. A change through another server takes effect when this
server is notified (`reload_soon`), at the latest after `RELOAD_MS`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, NamedTuple

import structlog

from popserver.access import sql
from popserver.access.quotas import Quota
from popserver.access.rules import (
    Policies,
    Policy,
    User,
    Verdict,
    allowing,
    is_access_key,
    is_signed,
    read_authorization,
    why,
)
from popserver.access.sql import Acl
from popserver.engine.clock import Alarm, Clock
from popserver.engine.reader import Reader
from popserver.model.acl import Action, AnyOfRights, Effect, ResourceKind, Right
from popserver.model.errors import Forbidden, PopError, Unauthorized
from popserver.model.names import Resource
from popserver.model.retry import MINUTE_MS, SECOND_MS

RELOAD_MS = 5 * SECOND_MS
VERIFIED_MAX = 10_000  # header pairs

# Stands for an unknown user in the comparison, so that an unknown name takes as long to refuse as a wrong secret.
_UNKNOWN_USER = User("", "a secret that no user has")
_REFUSED = "the access key or the signature was refused; check the client's access key and its secret"
_COMPACT_DATE = re.compile(r"\d{8}T\d{6}Z")

log = structlog.get_logger("popserver.access")


class Rules(NamedTuple):
    """The options for access. Rates are per second, for each user or unsigned client; 0: no limit."""

    auth: bool = False
    max_age_ms: int = 0  # 0: signatures do not expire
    messages_per_s: int = 0
    requests_per_s: int = 0


class Access:
    """The users and policies in memory, and the decisions made from them."""

    def __init__(self, reader: Reader, clock: Clock, rules: Rules | None = None, *, is_shared: bool = False) -> None:
        """`is_shared`: other servers may change users and policies too."""
        self._rules = rules or Rules()
        self._reader = reader
        self._clock = clock
        self._is_shared = is_shared
        self._acl = Acl([], [])
        self._users: dict[str, User] = {}
        self._policies: dict[str, Policies] = {}
        self._rejected = RejectedCallers()
        self.rejected = 0  # calls whose signature was refused
        self._verified: dict[tuple[str, str], User] = {}
        self._listeners: list[Callable[[], None]] = []
        self._reloading = asyncio.Lock()
        self._is_stale = False
        self._alarm: Alarm | None = None
        self._task: asyncio.Task[None] | None = None
        self._closed = False
        self.messages = _quota(self._rules.messages_per_s, "messages")
        self.requests = _quota(self._rules.requests_per_s, "requests")

    @property
    def is_on(self) -> bool:
        """Whether callers must sign."""
        return self._rules.auth

    async def start(self) -> None:
        """Read users and policies. Raises `Unauthorized` if callers must sign but no enabled admin exists."""
        if not self.is_on:
            return
        await self.reload()
        if not any(user.is_admin for user in self._users.values()):
            raise Unauthorized(
                "callers must sign, but there is no admin who could create users; set POPMQ_ADMIN_ACCESS_KEY and"
                " POPMQ_ADMIN_SECRET, or run: popmq acl user add NAME --admin --database-url URL"
            )
        if self._is_shared:
            self._reload_later()

    async def close(self) -> None:
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def reload(self) -> None:
        """Read users and policies from the store. Raises `StoreUnavailable`; then the old ones stay in use."""
        # One reload at a time, so that an older read cannot replace a newer one.
        async with self._reloading:
            acl = await self._reader.read(sql.load)
            if acl == self._acl:
                return
            self._acl = acl
            self._users = {user.access_key: user for user in acl.users if user.disabled_at_ms is None}
            listed: dict[str, list[Policy]] = {user.access_key: [] for user in acl.users}
            for policy in acl.policies:
                listed.setdefault(policy.access_key, []).append(policy)
            self._policies = {access_key: Policies(policies) for access_key, policies in listed.items()}
            self._verified.clear()
        for callback in self._listeners:
            callback()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each change of users or policies."""
        self._listeners.append(callback)

    def authenticate(self, authorization: str, date_time: str) -> User:
        """The user who signed the call; the arguments are its headers, unchanged. Raises `Unauthorized`."""
        user = self._verified.get((authorization, date_time)) or self._verify(authorization, date_time)
        if self._rules.max_age_ms:
            self._check_age(date_time)
        return user

    def log_rejected(self, authorization: str, peer: str, refusal: Unauthorized) -> None:
        """Count and log a caller that could not be authenticated; `peer` is HOST:PORT."""
        self.rejected += 1
        beside = None if refusal.sentence == _REFUSED else refusal.sentence
        self._rejected.log_rejected(self._acl, authorization, peer, beside, self._clock.now_ms())

    def check_current(self, user: User) -> None:
        """Raise `Unauthorized` if the user was changed since it signed."""
        now = self._users.get(user.access_key)
        if now is not user and now != user:
            raise _refused()

    def check(self, user: User, needs: Iterable[AnyOfRights]) -> None:
        """Raise `Forbidden` unless the user has one right of each need. Admins have all rights."""
        if user.is_admin:
            return
        policies = self._policies[user.access_key]
        for need in needs:
            verdicts = [policies.verdict(right) for right in need]
            if not any(verdict.allowed for verdict in verdicts):
                raise Forbidden(_refusal(user.access_key, need, verdicts))

    def denies_reading(self, user: User) -> bool:
        """Whether any policy denies the user SUB; then `check_origins` must check each message's origin."""
        self.check_current(user)
        return not user.is_admin and self._policies[user.access_key].denies_reading

    def check_origins(self, user: User, topics: Iterable[Resource | None]) -> None:
        """Raise `Forbidden` if a policy denies the user one of the topics that messages come from.

        None stands for a topic that is no longer known.
        """
        if not self.denies_reading(user):
            return
        policies = self._policies[user.access_key]
        for topic in topics:
            if topic is None:
                raise Forbidden(
                    f"user '{user.access_key}' may not read the next message here: its original topic"
                    " is no longer stored, and this user is denied some topics; read it as a user without denials"
                )
            policy = policies.verdict(Right(Action.SUB, ResourceKind.TOPIC, topic)).policy
            if policy is not None and policy.effect is Effect.DENY:
                raise Forbidden(
                    f"user '{user.access_key}' may not read the next message here: it comes from topic '{topic}', and"
                    f" {policy} denies that; nothing was consumed; read it as another user, or remove the denial with:"
                    f" popmq acl policy remove {policy.policy_id}"
                )

    def explain(self, access_key: str, right: Right) -> tuple[bool, Verdict, str]:
        """Whether the user has the right, the verdict, and the reason in one sentence. Raises `NotFound`."""
        user = next((each for each in self._acl.users if each.access_key == access_key), None)
        if user is None:
            raise sql.user_not_found(access_key)
        verdict = self._policies[access_key].verdict(right)
        if user.disabled_at_ms is not None:
            remedy = f"enable it with: popmq acl user enable {access_key}"
            return False, verdict, f"user '{access_key}' may do nothing: it is disabled; {remedy}"
        if user.is_admin:
            return True, Verdict(True, None), f"user '{access_key}' may {right}: admins may do everything"
        return verdict.allowed, verdict, why(access_key, right, verdict)

    def _verify(self, authorization: str, date_time: str) -> User:
        claimed = read_authorization(authorization)
        if claimed is None or not date_time:
            raise Unauthorized(
                "this server requires signed calls, and this call is not signed; give the client an access key and its"
                " secret"
            )
        user = self._users.get(claimed.access_key, _UNKNOWN_USER)
        if not is_signed(user.secret, date_time, claimed.digest) or user is _UNKNOWN_USER:
            raise _refused()
        # Only verified signatures are remembered, so that guessing cannot fill the memory.
        if len(self._verified) >= VERIFIED_MAX:
            self._verified.clear()
        self._verified[authorization, date_time] = user
        return user

    def _check_age(self, date_time: str) -> None:
        signed_at_ms = _epoch_ms(date_time)
        if signed_at_ms is None:
            raise Unauthorized(
                f"the call's date '{date_time[:64]}' cannot be read, and this server checks how old signatures are;"
                " send x-mq-date-time like 20250101T000000Z"
            )
        age_ms, max_age_ms = self._clock.calendar_ms() - signed_at_ms, self._rules.max_age_ms
        # A date in the future is refused too: such a signature would stay valid for as long as its signer likes.
        if abs(age_ms) > max_age_ms:
            when = f"{age_ms} ms ago" if age_ms > 0 else f"{-age_ms} ms ahead of this server's time"
            raise Unauthorized(
                f"the call was signed {when}, at most {max_age_ms} ms are allowed; sign it again,"
                " and set the client's clock and time zone (the header x-mq-date-time is read as UTC)"
            )

    def _reload_later(self) -> None:
        self._alarm = self._clock.call_at(self._clock.now_ms() + RELOAD_MS, self._start_reload)

    def reload_soon(self) -> None:
        """Start reading what another server may have changed, without waiting for it."""
        self._is_stale = True
        if self._alarm is not None and not self._closed:
            self._alarm.cancel()
            self._start_reload()

    def _start_reload(self) -> None:
        self._alarm = None
        self._task = asyncio.get_running_loop().create_task(self._reload_and_schedule())

    async def _reload_and_schedule(self) -> None:
        self._is_stale = True
        while self._is_stale and not self._closed:
            # Cleared before the reload, which may miss a change that is announced while it runs.
            self._is_stale = False
            try:
                await self.reload()
            except PopError as error:
                log.warning("users and policies could not be reloaded", reason=error.sentence)
        if not self._closed:
            self._reload_later()


def _quota(per_second: int, what: str) -> Quota | None:
    return Quota(per_second, what) if per_second else None


def _refused() -> Unauthorized:
    """The same sentence for an unknown user, a disabled user and a wrong secret, so that callers cannot guess names."""
    return Unauthorized(_REFUSED)


_DOES: Final = {Action.PUB: "send", Action.SUB: "receive"}


def _refusal(access_key: str, need: AnyOfRights, verdicts: list[Verdict]) -> str:
    if len(need) == 1:
        return why(access_key, need[0], verdicts[0])
    wanted = " or ".join(map(str, need))
    denied = next((verdict.policy for verdict in verdicts if verdict.policy is not None), None)
    if denied is not None:
        remedy = f"{denied} denies it; remove it with: popmq acl policy remove {denied.policy_id}"
    else:
        # The server does not know which of them the client is about to do.
        ways = ", or ".join(f"to {_DOES[each.action]} with: {allowing(access_key, each)}" for each in need)
        remedy = f"no policy allows it; allow it {ways}"
    return f"user '{access_key}' may not {wanted}: {remedy}"


@lru_cache(maxsize=64)
def _epoch_ms(date_time: str) -> int | None:
    """The signed date in epoch ms; UTC unless it has a time zone. None if it is not a date (protocol 2.1)."""
    try:
        if _COMPACT_DATE.fullmatch(date_time):
            moment = datetime.strptime(date_time, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        else:
            moment = datetime.fromisoformat(date_time)
    except ValueError:
        return None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000)


# Log lines about refused callers, for operators.
#
# The caller must not learn whether the name or the secret was wrong, but the log may show it. A line has no signature,
# and no name that could be a secret. The number of lines is limited, so that callers cannot fill the log.

AGAIN_MS = MINUTE_MS
LOGGED_MAX = 1_000  # pairs of name and address in a minute; further ones are not logged
_NAME_LENGTH_MAX = 256


class RejectedCallers:
    """Logs refused callers: each pair of name and address at most once a minute."""

    def __init__(self) -> None:
        # When each pair was logged, the oldest first.
        self._logged_ms: dict[tuple[str, str], int] = {}

    def log_rejected(self, acl: Acl, authorization: str, peer: str, refusal: str | None, now_ms: int) -> None:
        """Log a caller, from its header and its HOST:PORT. `refusal` is None for a wrong name or secret."""
        claimed = read_authorization(authorization)
        name = "" if claimed is None else claimed.access_key[:_NAME_LENGTH_MAX]
        address = peer.rpartition(":")[0]
        if self._is_due(name, address, now_ms):
            log.warning(
                "caller refused",
                user=_shown(acl, name),
                address=address,
                reason="the call is not signed" if claimed is None else refusal or _reason(acl, name),
            )

    def _is_due(self, name: str, address: str, now_ms: int) -> bool:
        while self._logged_ms and next(iter(self._logged_ms.values())) <= now_ms - AGAIN_MS:
            del self._logged_ms[next(iter(self._logged_ms))]
        if (name, address) in self._logged_ms or len(self._logged_ms) >= LOGGED_MAX:
            return False
        self._logged_ms[name, address] = now_ms
        return True


def _reason(acl: Acl, name: str) -> str:
    user = next((each for each in acl.users if each.access_key == name), None)
    if user is None:
        return "there is no user of this name"
    if user.disabled_at_ms is not None:
        return "this user is disabled"
    return "the signature was not made with this user's secret"


def _shown(acl: Acl, name: str) -> str:
    if any(each.access_key == name for each in acl.users):
        return name
    may_be_secret = not is_access_key(name) or any(each.secret == name for each in acl.users)
    return "(not shown)" if name and may_be_secret else name
