"""A pull consumer that shares its topics' queues with the other members of its group.

It uses the same view and the same allocation as QueuePushConsumer (requirement J16), but a change has other effects. No
queue is locked (requirement F9): only `poll` hands out messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from popclient._queues.allocation import Sharing
from popclient._session.repeating import level_of
from popclient._session.session import Session
from popclient._version import log
from popclient.errors import NotFound, PopError, Unreachable
from popclient.message import FilterExpression, MessageQueue

PERIOD: Final = 20.0  # seconds between two looks without a notice (requirement J6)
PAUSE: Final = 1.0  # until the next look when a share is not known, or has just changed
FIRST_PAUSE: Final = 0.02  # while the server makes a member of us

SetShare = Callable[[set[MessageQueue]], Awaitable[None]]
LearnGeneration = Callable[[MessageQueue], Awaitable[None]]


class Subscribing:
    """Belongs to one event loop.

    set_share: assigns these queues. learn_generation: called with a queue of a topic of which this member has no queue.
    missing: called with a topic that does not exist yet.
    """

    def __init__(
        self,
        session: Session,
        sharing: Sharing,
        set_share: SetShare,
        learn_generation: LearnGeneration,
        missing: Callable[[str], object],
    ) -> None:
        self.topics: Mapping[str, FilterExpression] = {}
        self._session = session
        self._sharing = sharing
        self._set_share = set_share
        self._learn_generation = learn_generation
        self._missing = missing
        self._shares: dict[str, list[MessageQueue]] = {}
        self._changed_at = 0.0
        self._logged_failure = ""
        self._noticed = asyncio.Event()

    async def subscribe(self, topics: Mapping[str, FilterExpression]) -> None:
        """Becomes a member for these topics instead of the earlier ones, and takes its share."""
        for topic in topics:
            await self._session.look_up(topic)
            if topic in self._session.routes.missing:
                self._missing(topic)
        before, shares = self.topics, self._shares
        try:
            self._want(topics)
            await self._session.agree()
            async with asyncio.timeout(self._session.config.request_timeout):
                while not await self._update_shares():  # noqa: ASYNC110  the server makes a member of us without a word
                    await asyncio.sleep(FIRST_PAUSE)
                await self._take()
            self.notice()
        except BaseException as failure:
            self._want(before)
            await self._session.send_settings()
            self._shares = shares
            if isinstance(failure, TimeoutError):
                who = self._session.client_id
                raise Unreachable(f"the server has not made {who} a member of its group in time") from None
            raise

    async def leave(self) -> None:
        """Leaves the group; the other members take the queues over."""
        if self.topics:
            self._want({})
            await self._session.send_settings()

    def _want(self, topics: Mapping[str, FilterExpression]) -> None:
        self.topics = dict(topics)
        self._shares = {topic: share for topic, share in self._shares.items() if topic in topics}

    def notice(self) -> None:
        """The members have changed."""
        self._noticed.set()

    async def keep_balancing(self, turn: asyncio.Lock) -> None:
        """Looks again after each notice and every 20 s, until cancelled. turn: held while queues are changed."""
        settled = True
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PERIOD if settled else PAUSE):
                    await self._noticed.wait()
            self._noticed.clear()
            async with turn:
                settled = await self.try_to_balance()

    async def try_to_balance(self) -> bool:
        """Takes its share of each topic; keeps what it has if the share is unknown. False if it must look again soon.

        If a member joins and leaves again at once, the server may announce no change. So after a change this looks
        again, when the server has sent its notices.
        """
        if not self.topics:
            return True
        began = asyncio.get_running_loop().time()
        try:
            known = await self._update_shares()
            await self._take()
        except Exception as failure:  # noqa: BLE001  a strategy of the user's may raise anything
            if not (isinstance(failure, PopError) and self._session.give_up(failure)):
                # Once as a warning: it is tried again every second.
                level = logging.DEBUG if str(failure) == self._logged_failure else level_of(failure)
                log.log(level, "the queues of group %s stay as they are: %s", self._session.group, failure)
            self._logged_failure = str(failure)
            return False
        self._logged_failure = ""
        return known and not self._session.routes.missing and began - self._changed_at >= PAUSE

    async def _update_shares(self) -> bool:
        """Looks up its share of each topic that exists. Returns whether all of them are known."""
        members = await self._sharing.members()
        known = True
        for topic in self.topics:
            was_missing = topic in self._session.routes.missing
            try:
                queues = await self._sharing.queues(topic)
                if was_missing:  # the server does not count a member of a topic that was none
                    await self._session.send_settings()
            except NotFound as failure:
                if not self._session.routes.awaits(topic, failure):
                    raise
                self._missing(topic)
                continue
            share = await self._sharing.share(topic, queues, members)
            if queues and not share:
                await self._learn_generation(queues[0])
            known = known and share is not None
            if share is not None and share != self._shares.get(topic):
                self._shares[topic] = share
                self._changed_at = asyncio.get_running_loop().time()
        return known

    async def _take(self) -> None:
        await self._set_share({mq for share in self._shares.values() for mq in share})
