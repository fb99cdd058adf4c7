"""The cores of lite consumers: they say by name which lite topics of one topic they get."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from datetime import timedelta
from typing import ClassVar, Final, Literal

from popclient._engine.push import PushConsumerCore
from popclient._engine.simple import SimpleConsumerCore
from popclient._session import convert
from popclient._session.session import Session
from popclient._tasks import Tasks
from popclient._version import log
from popclient.errors import PopError, QuotaExceeded, check
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

SYNC_INTERVAL: Final = 30.0  # seconds; the server forgets a client after 90
# "min": from the oldest stored message on; "max": only later ones; "last": where the group is.
Begin = Literal["last", "min", "max"]
_BEGINNINGS: Final = {"last": pb.OffsetOption.LAST, "min": pb.OffsetOption.MIN, "max": pb.OffsetOption.MAX}


class LiteSubscriptions:
    """The lite topics of one client."""

    def __init__(self, session: Session, group: str, topic: str) -> None:
        self._session = session
        self._group = convert.resource(group, session.config.namespace)
        self._topic = convert.resource(topic, session.config.namespace)
        self.lite_topics: set[str] = set()
        self.on_lost: Callable[[str], None] = lambda _: None
        self._tasks = Tasks()
        self._is_kept = False
        self._is_back = asyncio.Event()
        # One call after the other: a complete set that overtakes a subscription would end it.
        self._turn = asyncio.Lock()
        session.on_back = self._is_back.set
        session.handlers["notify_unsubscribe_lite_command"] = self._lost

    async def start(self) -> None:
        """Tells the server the whole set, again each 30 s and after a lost session. Raises its refusal of the first."""
        async with self._turn:
            await self._sync(pb.COMPLETE_ADD, self.lite_topics)
        if not self._is_kept:
            self._is_kept = True
            self._tasks.spawn(self._keep())

    async def subscribe(self, names: Collection[str], begin: Begin | None) -> None:
        """Adds lite topics. Raises the server's refusal, and then adds none."""
        option = None if begin is None else pb.OffsetOption(policy=_BEGINNINGS[begin])
        async with self._turn:
            self._check_quota(len(self.lite_topics | set(names)))
            await self._sync(pb.PARTIAL_ADD, names, option)
            self.lite_topics |= set(names)

    async def unsubscribe(self, names: Collection[str]) -> None:
        """Removes lite topics."""
        async with self._turn:
            self.lite_topics -= set(names)
            await self._sync(pb.PARTIAL_REMOVE, names)

    def end(self) -> None:
        """Tells the server no more; its goodbye ends the subscriptions."""
        self._tasks.cancel()

    def _check_quota(self, count: int) -> None:
        """RocketMQ tells its quota in the settings, and leaves it to the clients."""
        quota = self._session.settings.subscription.lite_subscription_quota
        if quota and count > quota:
            raise QuotaExceeded(
                f"this consumer would subscribe to {count} lite topics, at most {quota} are allowed; unsubscribe from"
                " some, or use more clients"
            )

    async def _keep(self) -> None:
        while True:
            self._is_back.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_back.wait(), SYNC_INTERVAL)
            try:
                async with self._turn:
                    await self._sync(pb.COMPLETE_ADD, self.lite_topics)
            except PopError as failure:
                log.info("the lite topics of %s were not told; the next try follows: %s", self._group.name, failure)

    async def _sync(
        self,
        action: pb.LiteSubscriptionAction.ValueType,
        names: Iterable[str],
        option: pb.OffsetOption | None = None,
    ) -> None:
        self._session.require_open()
        request = rpc.SyncLiteSubscriptionRequest(
            action=action, topic=self._topic, group=self._group, lite_topic_set=sorted(names), offset_option=option
        )
        answer = await self._session.transport.unary(
            lambda link: link.messaging.SyncLiteSubscription, request, self._session.config.request_timeout
        )
        check(answer.status)

    def _lost(self, notice: rpc.NotifyUnsubscribeLiteCommand) -> None:
        """Another client of the exclusive group has the lite topic now."""
        if notice.lite_topic in self.lite_topics:
            self.lite_topics.discard(notice.lite_topic)
            log.info("lite topic %s of %s has gone to another client", notice.lite_topic, self._group.name)


class LiteSimpleConsumerCore(SimpleConsumerCore):
    """A simple consumer of lite topics."""

    client_type: ClassVar = pb.LITE_SIMPLE_CONSUMER
    _lite: LiteSubscriptions | None = None

    @property
    def lite(self) -> LiteSubscriptions:
        if self._lite is None:
            self._lite = LiteSubscriptions(self.session, self.group, next(iter(self.topics)))
        return self._lite

    async def start(self) -> None:
        await super().start()
        await self.lite.start()

    async def subscribe(self, names: Collection[str], begin: Begin | None) -> None:
        """Adds lite topics; starts the consumer first."""
        if not self.session.settled:
            await self.start()
        await self.lite.subscribe(names, begin)

    async def suspend(self, view: MessageView, duration: timedelta) -> None:
        """Stops the lite topic of a message for so long; its attempt does not count."""
        await self._settling.change_invisible_duration(view, duration, suspend=True)

    async def close(self) -> None:
        self.lite.end()
        await super().close()


class LitePushConsumerCore(PushConsumerCore):
    """A push consumer of lite topics."""

    client_type: ClassVar = pb.LITE_PUSH_CONSUMER
    _lite: LiteSubscriptions | None = None

    @property
    def lite(self) -> LiteSubscriptions:
        if self._lite is None:
            self._lite = LiteSubscriptions(self.session, self.options.group, next(iter(self.options.topics)))
        return self._lite

    async def _start(self) -> None:
        await super()._start()
        await self.lite.start()

    async def _close(self, drain_timeout: float) -> None:
        self.lite.end()
        await super()._close(drain_timeout)
