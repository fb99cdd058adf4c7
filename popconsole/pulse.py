"""The server's counts over the last minutes, for the live plots and the lists.

One task asks the server every few seconds while somebody looks at a page, for all pages and visitors together. If its
answers take long it waits a hundred times as long, so it takes no more than one per cent of the server's time. One slow
answer does not count, such as the first one of a server: the quickest of the last three does.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from popclient.admin import GroupLag, Health, Histogram, Status
from popclient.aio import Admin
from popclient.errors import ClientClosed, Forbidden, PopError, Unauthorized, UnsupportedByServer
from popconsole.mirror_looks import MirrorLooks

KEPT_S: Final = 16 * 60.0  # what is older is in the charts of the server
SHARE: Final = 100  # an answer's time, so many times, is the least pause
ANSWERS: Final = 3  # of so many the quickest says how long an answer takes; before there are so many, none does
PAUSE_S_MAX: Final = 60.0
HEALTH_S: Final = 1.0  # all open pages of all visitors ask the server once in this time
WATCHED_S: Final = 20 * 60.0  # how long it goes on after the last look


@dataclass(frozen=True, slots=True)
class Backlog:
    """A group in numbers, over all its topics. oldest: epoch seconds of the oldest ready message.

    left: how many messages were ever stored, less those that the group is not done with; its growth is what the group
    gets done.
    """

    ready: int = 0
    inflight: int = 0
    waiting: int = 0
    dead: int = 0
    stored: int = 0
    left: int = 0
    oldest: float | None = None
    topics: int = 0

    @property
    def done(self) -> int:
        """Those that are stored and done."""
        return max(0, self.stored - self.ready - self.inflight - self.waiting - self.dead)

    @property
    def of_states(self) -> dict[str, int]:
        """In the order of a message's life."""
        return {
            "READY": self.ready,
            "INFLIGHT": self.inflight,
            "WAITING_RETRY": self.waiting,
            "COMMIT": self.done,
            "DLQ": self.dead,
        }


@dataclass(frozen=True, slots=True)
class Sample:
    """The counts at one moment, in epoch seconds of the server. commits: of one server, since its start."""

    at: float
    appended: int
    groups: dict[str, Backlog]
    commits: Histogram | None = None

    def total(self, of: Callable[[Backlog], int]) -> int:
        return sum(map(of, self.groups.values()))


def backlog_of(lag: Iterable[GroupLag]) -> Backlog:
    """The sum of a group's lags in its topics."""
    lags = list(lag)
    oldest = [each.oldest_ready.timestamp() for each in lags if each.oldest_ready and each.ready]
    left = sum(each.appended - each.ready - each.inflight - each.waiting_retry - each.dead_letters for each in lags)
    return Backlog(
        ready=sum(each.ready for each in lags),
        inflight=sum(each.inflight for each in lags),
        waiting=sum(each.waiting_retry for each in lags),
        dead=sum(each.dead_letters for each in lags),
        stored=sum(each.stored for each in lags),
        left=left,
        oldest=min(oldest, default=None),
        topics=len(lags),
    )


def sample_of(status: Status, namespace: str) -> Sample:
    """The groups of the namespace; of all namespaces if it is empty."""
    by_group: dict[str, list[GroupLag]] = {}
    for each in status.lag:
        if each.namespace == namespace or not namespace:
            by_group.setdefault(each.group, []).append(each)
    groups = {name: backlog_of(lags) for name, lags in by_group.items()}
    return Sample(status.now.timestamp(), status.appended, groups, status.commit_times)


class Pulse:
    """Looks at the server in the background; `now` also looks at once if the last look is too old."""

    def __init__(self, namespace: str, least_pause_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._namespace = namespace
        self._pause_s = self._least_pause_s = least_pause_s
        self._monotonic = monotonic
        self._took_s: deque[float] = deque(maxlen=ANSWERS)
        self._ring: list[Sample] = []
        self._status: Status | None = None
        self._asked_at = float("-inf")
        self._looked_at: dict[Admin, float] = {}  # the visitors' ways to the server; who looked last is the last
        self._task: asyncio.Task[None] | None = None
        self._asking = asyncio.Lock()
        self._health: Health | None = None
        self._health_at = float("-inf")
        self._asking_health = asyncio.Lock()
        self.mirrors = MirrorLooks()

    @property
    def ring(self) -> list[Sample]:
        """Oldest first."""
        return list(self._ring)

    @property
    def pause_s(self) -> float:
        return self._pause_s

    @property
    def time(self) -> datetime:
        """The server's time now; this machine's before the first answer."""
        if self._status is None:
            return datetime.now(UTC)
        return self._status.now + timedelta(seconds=self._monotonic() - self._asked_at)

    async def now(self, admin: Admin) -> Status:
        """The server's status, at most a pause old. Raises a PopError."""
        self._watching().pop(admin, None)
        self._looked_at[admin] = self._monotonic()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._go_on())
        async with self._asking:
            if self._status is None or self._monotonic() - self._asked_at > 1.5 * self._pause_s:
                return await self._ask(admin)
            return self._status

    async def fresh(self, admin: Admin) -> Status:
        """The server's status now, such as after something was changed."""
        async with self._asking:
            return await self._ask(admin)

    async def health(self, admin: Admin) -> Health:
        """The server's health, at most `HEALTH_S` old. Raises a PopError if it does not answer."""
        async with self._asking_health:
            if self._health is None or self._monotonic() - self._health_at > HEALTH_S:
                self._health = None
                try:
                    self._health = await admin.health()
                except UnsupportedByServer:  # an older one, which answers
                    self._health = Health(live=True, ready=True, checks=(), warnings=())
                self._health_at = self._monotonic()
            return self._health

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(self._pause_s)
            async with self._asking:
                if self._monotonic() - self._asked_at < 0.5 * self._pause_s:
                    continue
                try:
                    if not await self._ask_for_somebody():
                        return
                except PopError:
                    # The next page that asks says why.
                    return

    async def _ask_for_somebody(self) -> bool:
        """Ask in the name of who looked last, and whom the server accepts; False if nobody looks."""
        while self._watching():
            admin = next(reversed(self._looked_at))
            try:
                await self._ask(admin)
                return True
            except (Unauthorized, Forbidden, ClientClosed):
                self._looked_at.pop(admin, None)
        return False

    def _watching(self) -> dict[Admin, float]:
        """Those whose last look is not long ago."""
        since = self._monotonic() - WATCHED_S
        while self._looked_at and next(iter(self._looked_at.values())) < since:
            del self._looked_at[next(iter(self._looked_at))]
        return self._looked_at

    async def _ask(self, admin: Admin) -> Status:
        began = self._monotonic()
        self._status = None
        status = await admin.status()
        self._asked_at = self._monotonic()
        self._took_s.append(self._asked_at - began)
        if len(self._took_s) == ANSWERS:
            self._pause_s = min(PAUSE_S_MAX, max(self._least_pause_s, SHARE * min(self._took_s)))
        self._status = status
        sample = sample_of(status, self._namespace)
        if self._ring and sample.at < self._ring[-1].at:
            self._ring.clear()  # another server, or its clock was set back
        if not self._ring or sample.at > self._ring[-1].at:
            self._ring = [each for each in self._ring if sample.at - each.at <= KEPT_S] + [sample]
        return status
