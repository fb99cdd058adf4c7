"""Who is looking: sessions, kept in the console's memory, found by a random token in a cookie.

Nothing is kept of those who only see the form for signing in, so that nobody can fill the memory or end the sessions of
others without a secret.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from popclient.aio import Admin, ClientConfig
from popclient.errors import UnsupportedByServer
from popconsole.settings import Settings

SESSIONS_MAX: Final = 1_000  # of those who have signed in, and as many of those who need not
TRIES_MAX: Final = 10  # failed sign-ins from one address
TRIES_S: Final = 60.0
CHECK_S: Final = 5.0  # a user who is disabled or deleted sees pages for so long


@dataclass(slots=True, eq=False)
class Session:
    """One visitor.

    admin: its way to the server. config: for further clients in its name. ends_at,
    idle_at: on the clock of `Sessions`, as is checked_at, when the server last accepted the user.
    """

    token: str
    admin: Admin
    config: ClientConfig
    access_key: str
    read_only: bool
    ends_at: float
    idle_at: float
    checked_at: float
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    notice: str = ""  # shown once, on the next page

    def is_csrf(self, given: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), given.encode())


@dataclass(frozen=True, slots=True)
class Stranger:
    """One who has not signed in. token: of its cookie. csrf: what its form has to repeat."""

    token: str
    csrf: str

    def is_csrf(self, given: str) -> bool:
        return hmac.compare_digest(self.csrf.encode(), given.encode())


class Sessions:
    """All sessions of a console.

    now: seconds on a clock that never goes back.
    """

    def __init__(self, settings: Settings, now: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._now = now
        self._signed: dict[str, Session] = {}
        self._unsigned: dict[str, Session] = {}
        self._secret = secrets.token_bytes(32)
        self._closing: list[Admin] = []
        self._failures: deque[tuple[float, str]] = deque(maxlen=10_000)

    def find(self, token: str | None) -> Session | None:
        """The session of the cookie; None if there is none, or if it is over."""
        session = self._signed.get(token or "") or self._unsigned.get(token or "")
        if session is None:
            return None
        now = self._now()
        if now >= min(session.ends_at, session.idle_at):
            self.end(session)
            return None
        session.idle_at = now + self._settings.idle_s
        return session

    def stranger(self, token: str | None = None) -> Stranger:
        """The one with this cookie; a new one without it."""
        token = token or secrets.token_urlsafe(32)
        return Stranger(token, hmac.new(self._secret, token.encode(), "sha256").hexdigest())

    def begin(
        self,
        admin: Admin,
        access_key: str = "",
        *,
        config: ClientConfig | None = None,
        read_only: bool = False,
    ) -> Session:
        """A new session, under a new token."""
        now = self._now()
        like_it = self._signed if access_key else self._unsigned
        if len(like_it) >= SESSIONS_MAX:
            self.end(min(like_it.values(), key=lambda each: each.idle_at))
        session = Session(
            secrets.token_urlsafe(32),
            admin,
            config or self._settings.config_of(),
            access_key,
            read_only or self._settings.read_only,
            now + self._settings.session_s,
            now + self._settings.idle_s,
            now,
        )
        like_it[session.token] = session
        return session

    async def check(self, session: Session) -> None:
        """Ask the server every few seconds whether the user may still look; pages may come from what others asked for.

        Raises Unauthorized, Forbidden or another PopError.
        """
        now = self._now()
        if not session.access_key or now - session.checked_at < CHECK_S:
            return
        try:
            # Any question that only admins may ask, and that costs little.
            await session.admin.explain_access(session.access_key, "PUB", "TOPIC", "any")
        except UnsupportedByServer:
            await session.admin.status()
        session.checked_at = now

    def end(self, session: Session) -> None:
        self._unsigned.pop(session.token, None)
        # The way of those who do not sign is shared.
        if self._signed.pop(session.token, None) is not None:
            self._closing.append(session.admin)

    async def close_ended(self) -> None:
        """Close the connections of sessions that are over."""
        while self._closing:
            await self._closing.pop().close()

    async def close(self) -> None:
        for session in list(self._signed.values()):
            self.end(session)
        await self.close_ended()

    def may_try(self, address: str) -> bool:
        """May somebody at the address try to sign in? Guessing secrets is slow: ten failures a minute."""
        since = self._now() - TRIES_S
        while self._failures and self._failures[0][0] <= since:
            self._failures.popleft()
        return sum(each == address for _, each in self._failures) < TRIES_MAX

    def failed(self, address: str) -> None:
        self._failures.append((self._now(), address))
