"""The cores of lite consumers, which subscribe to lite topics of one topic by name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import ClassVar, Final, Literal

from popclient._push.core import PushConsumerCore
from popclient._session import convert
from popclient._session.repeating import LITE
from popclient._session.session import Session
from popclient._session.stream import call_back
from popclient._simple.core import SimpleConsumerCore, renewal_ended
from popclient._tasks import Tasks
from popclient._version import log
from popclient.errors import (
    BadRequest,
    ClientClosed,
    PopError,
    QuotaExceeded,
    ServerError,
    UnsupportedByServer,
    check,
)
from popclient.message import MessageView
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

SYNC_INTERVAL: Final = 30.0  # seconds; the server forgets a client after 90
RETRY_PAUSE: Final = LITE.first
# "min": from the oldest stored message on; "max": only later ones; "last": where the group is.
Begin = Literal["last", "min", "max"]
_BEGINNINGS: Final = {"last": pb.OffsetOption.LAST, "min": pb.OffsetOption.MIN, "max": pb.OffsetOption.MAX}
_SERVERS_WITH_THEM: Final = "connect to PopMQ, or to a proxy of RocketMQ 5.5 with lite topics, or use PushConsumer"


def beginning(begin: Begin | None) -> pb.OffsetOption | None:
    """Where a subscription begins, for the server. Raises ValueError for another word."""
    if begin is None:
        return None
    if begin not in _BEGINNINGS:
        raise ValueError(f"begin is {begin!r}; it must be 'min', 'max' or 'last'")
    return pb.OffsetOption(policy=_BEGINNINGS[begin])


class LiteSubscriptions:
    """The lite topics of one client."""

    def __init__(self, session: Session, group: str, topic: str) -> None:
        self._session = session
        self._group = convert.resource(group, session.config.namespace)
        self._topic = convert.resource(topic, session.config.namespace)
        self.lite_topics: set[str] = set()
        self.on_lost: Callable[[frozenset[str]], None] | None = None
        self.is_synced = False  # has the server taken the complete set once?
        self._tasks = Tasks()
        # One call after the other: a complete set that overtakes a subscription would end it.
        self._turn = asyncio.Lock()
        self._sync_again = asyncio.Event()
        # Subscribed to since the complete set was last told. A notice that one is lost may be older than that.
        self._new: set[str] = set()
        session.on_back = self._sync_again.set
        session.handlers["notify_unsubscribe_lite_command"] = self._lost

    async def start(self) -> None:
        """Tells the server the complete set, again each 30 s and after a lost session. Raises its refusal of the first;
        then the next call tells it."""
        async with self._turn:
            if not self.is_synced:
                self._check_quota(len(self.lite_topics))
                await self._sync(pb.COMPLETE_ADD, self.lite_topics)
                self.is_synced = True
                self._tasks.spawn(self._keep())

    async def subscribe(self, names: Collection[str], option: pb.OffsetOption | None) -> None:
        """Adds lite topics. Raises the server's refusal, and then adds none."""
        await self.start()
        async with self._turn:
            self._check_quota(len(self.lite_topics | set(names)))
            self._new |= set(names)
            with self._in_doubt():
                await self._sync(pb.PARTIAL_ADD, names, option)
            self.lite_topics |= set(names)

    async def unsubscribe(self, names: Collection[str]) -> None:
        """Removes lite topics."""
        async with self._turn:
            self.lite_topics -= set(names)
            if self.is_synced:
                with self._in_doubt():
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

    @contextmanager
    def _in_doubt(self) -> Iterator[None]:
        """A change without an answer may have been carried out: then the complete set follows soon."""
        try:
            yield
        except (PopError, asyncio.CancelledError) as failure:
            if not isinstance(failure, PopError) or failure.retryable:
                self._sync_again.set()
            raise

    async def _keep(self) -> None:
        pause = SYNC_INTERVAL
        while not self._session.closing:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._sync_again.wait(), pause)
            try:
                async with self._turn:
                    # Before the call: what comes while it is on its way needs another one.
                    self._sync_again.clear()
                    self._new.clear()
                    await self._sync(pb.COMPLETE_ADD, self.lite_topics)
                pause = SYNC_INTERVAL
            except ClientClosed:
                return
            except PopError as failure:
                pause = RETRY_PAUSE if failure.retryable else SYNC_INTERVAL
                if not self._session.give_up(failure):
                    log.info("the lite topics of %s were not sent; the next try follows: %s", self._group.name, failure)

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
        await self._ask(request)

    async def _ask(self, request: rpc.SyncLiteSubscriptionRequest) -> None:
        try:
            answer = await self._session.transport.unary(
                lambda link: link.messaging.SyncLiteSubscription, request, self._session.config.request_timeout
            )
            check(answer.status)
        except UnsupportedByServer as refusal:
            if refusal.code == pb.UNSUPPORTED:
                raise
            raise self._unsupported("lite topics", _SERVERS_WITH_THEM) from refusal

    async def explain(self, refusal: PopError, client_type: pb.ClientType.ValueType) -> None:
        """Raises an UnsupportedByServer if the session was refused because the server has no such clients.

        RocketMQ's proxies refuse a client type that they do not know by different codes.
        """
        if isinstance(refusal, ServerError | BadRequest):
            # Empty, so that a server with the call refuses it as invalid.
            try:
                await self._ask(rpc.SyncLiteSubscriptionRequest())
            except UnsupportedByServer:
                raise
            except PopError:
                pass
            name = pb.ClientType.Name(client_type)
            if refusal.code == pb.UNRECOGNIZED_CLIENT_TYPE or name in refusal.sentence:
                is_simple = client_type == pb.LITE_SIMPLE_CONSUMER
                way_out = "use LitePushConsumer" if is_simple else _SERVERS_WITH_THEM
                raise self._unsupported(f"the client type {name}", way_out) from refusal

    def _unsupported(self, what: str, way_out: str) -> UnsupportedByServer:
        return UnsupportedByServer(f"{what}: not offered by the server at {self._session.transport.where}; {way_out}")

    def _lost(self, notice: rpc.NotifyUnsubscribeLiteCommand) -> None:
        """Another client of the exclusive group has the lite topic. This client may never have had it: a complete set
        takes nothing from others.

        If this client has just subscribed to it, the notice may be older. PopMQ repeats a notice that is true when it
        is told the complete set; RocketMQ does not.
        """
        if notice.lite_topic in self._new and self._session.is_popmq:
            self._sync_again.set()
        elif notice.lite_topic in self.lite_topics:
            self.lite_topics.discard(notice.lite_topic)
            log.warning(
                "this client does not get lite topic %s, because another client of the exclusive group %s has it;"
                " subscribe_lite takes it",
                notice.lite_topic,
                self._group.name,
            )
            call_back(self.on_lost, frozenset({notice.lite_topic}))


class LiteSimpleConsumerCore(SimpleConsumerCore):
    """A simple consumer of lite topics."""

    client_type: ClassVar = pb.LITE_SIMPLE_CONSUMER
    _lite: LiteSubscriptions | None = None

    @property
    def lite(self) -> LiteSubscriptions:
        if self._lite is None:
            self._lite = LiteSubscriptions(self.session, self.group, next(iter(self.topics)))
        return self._lite

    @property
    def _is_started(self) -> bool:
        return super()._is_started and self.lite.is_synced

    async def start(self) -> None:
        try:
            await super().start()
        except PopError as refusal:
            await self.lite.explain(refusal, self.client_type)
            raise
        await self.lite.start()

    async def subscribe(self, names: Collection[str], option: pb.OffsetOption | None) -> None:
        """Adds lite topics; starts the consumer first."""
        if not self._is_started:
            await self.start()
        await self.lite.subscribe(names, option)

    async def suspend(self, view: MessageView, duration: timedelta) -> None:
        """Stops the lite topic of a message for so long; its attempt does not count."""
        await renewal_ended(view)
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
        try:
            await super()._start()
        except PopError as refusal:
            await self.lite.explain(refusal, self.client_type)
            raise

    async def _subscribe(self) -> None:
        await self.lite.start()

    async def _close(self, drain_timeout: float) -> None:
        self.lite.end()
        await super()._close(drain_timeout)
