"""Who is looking: sessions, kept in the console's memory, found by a random token in a cookie.

Nothing is kept of those who only see the form for signing in, so that nobody can fill the memory or end the sessions of
others without a secret.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

from popclient.aio import Admin, ClientConfig
from popclient.errors import UnsupportedByServer
from popconsole.settings import Settings
from popport.addresses import network_of

SESSIONS_MAX: Final = 1_000  # of those who have signed in, and as many of those who need not
TRIES_S: Final = 60.0  # in which failed attempts to sign in are counted
TRIES_MAX: Final = 10  # from one address with one access key
TRIES_OF_ADDRESS_MAX: Final = 100  # with any key; behind a proxy, all visitors have one address
TRIES_OF_KEY_MAX: Final = 100  # from all addresses where nobody has signed in with the key
KNOWN_MAX: Final = 10_000
CHECK_S: Final = 5.0  # a user who is disabled or deleted sees pages for so long


@dataclass(frozen=True, slots=True, eq=False)
class Try:
    """An attempt to sign in. at: on the clock of `Sessions`."""

    at: float
    address: str
    access_key: str


@dataclass(slots=True, eq=False)
class Session:
    """One visitor.

    admin: its way to the server. config: for further clients in its name. ends_at,
    idle_at: on the clock of `Sessions`, as is checked_at, when the server last accepted the user. address: where it
    began; of IPv6 a network. has_returned: the visitor has shown its cookie.
    """

    token: str
    admin: Admin
    config: ClientConfig
    access_key: str
    read_only: bool
    ends_at: float
    idle_at: float
    checked_at: float
    address: str
    has_returned: bool = False
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
        self._tries: list[Try] = []
        self._known: dict[tuple[str, str], None] = {}  # addresses where somebody has signed in, and the access keys

    def find(self, token: str | None, *, renew: bool = False) -> Session | None:
        """The session of the cookie; None if there is none, or if it is over. renew: a person has asked for a page."""
        session = self._signed.get(token or "") or self._unsigned.get(token or "")
        if session is None:
            return None
        now = self._now()
        if now >= min(session.ends_at, session.idle_at):
            self.end(session)
            return None
        session.has_returned = True
        if renew:
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
        address: str = "",
        config: ClientConfig | None = None,
        read_only: bool = False,
    ) -> Session:
        """A new session, under a new token. address: of the visitor."""
        now = self._now()
        like_it = self._signed if access_key else self._unsigned
        if len(like_it) >= SESSIONS_MAX:
            self._end_one_of(like_it.values())
        session = Session(
            secrets.token_urlsafe(32),
            admin,
            config or self._settings.config_of(),
            access_key,
            read_only or self._settings.read_only,
            now + self._settings.session_s,
            now + self._settings.idle_s,
            now,
            network_of(address),
        )
        like_it[session.token] = session
        return session

    def _end_one_of(self, sessions: Collection[Session]) -> None:
        """Make room. Visitors who keep no cookie get a session with each request, and must not end those of others."""
        of_address = Counter(each.address for each in sessions)
        self.end(min(sessions, key=lambda each: (each.has_returned, -of_address[each.address], each.idle_at)))

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

    def try_key(self, address: str, access_key: str) -> Try | None:
        """Somebody at the address may try a secret of the access key; None if too many attempts failed.

        Guessing secrets has to be slow, and wrong guesses of others must not keep out who has the secret. An attempt
        counts from its start, so that many at one time are no way around the limit.
        """
        now, address = self._now(), network_of(address)
        self._tries = [each for each in self._tries if each.at > now - TRIES_S]
        here = [each for each in self._tries if each.address == address]
        of_key = [each for each in self._tries if each.access_key == access_key]
        if (
            sum(each.access_key == access_key for each in here) >= TRIES_MAX
            or len(here) >= TRIES_OF_ADDRESS_MAX
            or (len(of_key) >= TRIES_OF_KEY_MAX and (address, access_key) not in self._known)
        ):
            return None
        attempt = Try(now, address, access_key)
        self._tries.append(attempt)
        return attempt

    def no_guess(self, attempt: Try) -> None:
        """The attempt did not fail because of a wrong secret."""
        if attempt in self._tries:
            self._tries.remove(attempt)

    def signed_in(self, attempt: Try) -> None:
        """The attempt had the right secret."""
        self.no_guess(attempt)
        if len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[attempt.address, attempt.access_key] = None
