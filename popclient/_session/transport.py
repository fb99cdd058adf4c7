"""Calls over gRPC: channels, headers, signature, deadlines, and the turn to another endpoint.

A client has one channel for each endpoint and uses one of them, the current one. If it cannot be reached, the next one
becomes current (requirement N1), and a call keeps trying until its own deadline: a restart of the server is no error
for the caller. Until a server has answered once, that is at least `wait_for_server`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import grpc

from popclient import _forks
from popclient._patched import require_real_threads
from popclient._session.proxy import about, proxy_for
from popclient._session.statuses import translated
from popclient._session.tls import Credentials, NoHandshake, credentials_for, hint
from popclient._version import VERSION
from popclient.config import ClientConfig, Endpoint, Tls, parse_endpoints
from popclient.errors import ClientClosed, PopError, Unreachable
from popproto.v1 import admin_pb2_grpc, bulk_pb2_grpc, legacy_pb2_grpc, receiving_pb2_grpc
from popproto.v2 import admin_pb2_grpc as rocketmq_admin_pb2_grpc
from popproto.v2 import service_pb2 as rpc
from popproto.v2 import service_pb2_grpc

Answer = TypeVar("Answer")
Metadata = tuple[tuple[str, str], ...]

FORGOTTEN_AFTER: Final = 30.0  # seconds of silence, after which a server forgets a client and ends its holds
_CHANNEL_OPTIONS: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # Retries are ours: they keep the message id and turn to another endpoint.
    ("grpc.enable_retries", 0),
    # gRPC's own pause between connection attempts grows to two minutes; a restarted server is back in a second.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Detects a peer that has vanished; servers accept one ping a minute.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)


class Headers:
    """The metadata of every call (protocol 2.1), signed when there are keys (protocol 2.2)."""

    def __init__(self, config: ClientConfig, client_id: str) -> None:
        self._config = config
        self._fixed: Metadata = (
            ("x-mq-client-id", client_id),
            ("x-mq-language", "PYTHON"),
            ("x-mq-protocol", "v2"),
            ("x-mq-client-version", VERSION),
            ("x-mq-namespace", config.namespace),
            *((("x-mq-session-token", config.session_token),) if config.session_token else ()),
        )
        self._second = 0
        self._of_second: Metadata = ()

    def __call__(self) -> Metadata:
        second = int(time.time())
        if second != self._second:
            self._of_second, self._second = self._timed(second), second
        return (*self._fixed, *self._of_second, ("x-mq-request-id", str(uuid.uuid4())))

    def _timed(self, second: int) -> Metadata:
        date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
        dated = ("x-mq-date-time", date_time)
        key, secret = self._config.access_key, self._config.access_secret
        return (dated, ("authorization", authorization(key, secret, date_time))) if key and secret else (dated,)


def authorization(access_key: str, access_secret: str, date_time: str) -> str:
    """The signature over the x-mq-date-time header; nothing else is signed."""
    digest = hmac.new(access_secret.encode(), date_time.encode(), hashlib.sha1).hexdigest().upper()
    return f"MQv2-HMAC-SHA1 Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={digest}"


# What gRPC says of an endpoint without a server, and what to do.
_ADVICE: Final = (
    ("Connection refused", "start a server with: popmq serve, or name another endpoint"),
    ("Failed parsing HTTP/2", "it speaks no gRPC there; name the port of the server for clients (8081)"),
)


class Link:
    """The channel to one endpoint, with its stubs."""

    def __init__(self, endpoint: Endpoint, channel: grpc.aio.Channel) -> None:
        self.endpoint = endpoint
        self.channel = channel
        self.hint = ""  # why it could not connect, as far as that was said; see `hint`
        self.proxy: str | None = None  # see `proxy_for`
        self.messaging = service_pb2_grpc.MessagingServiceStub(channel)
        self.admin = admin_pb2_grpc.AdminStub(channel)
        self.rocketmq_admin = rocketmq_admin_pb2_grpc.AdminStub(channel)
        self.legacy = legacy_pb2_grpc.LegacyStub(channel)
        self.receiving = receiving_pb2_grpc.ReceivingStub(channel)
        self.bulk = bulk_pb2_grpc.BulkStub(channel)
        # SendMessage with a request that is already serialised.
        self.send_message: grpc.aio.UnaryUnaryMultiCallable[bytes, rpc.SendMessageResponse] = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/SendMessage",
            request_serializer=None,
            response_deserializer=rpc.SendMessageResponse.FromString,
        )

    @property
    def connected(self) -> bool:
        return self.channel.get_state() is grpc.ChannelConnectivity.READY


class Transport:
    """Makes calls to the current endpoint. Belongs to one event loop."""

    def __init__(self, config: ClientConfig, client_id: str) -> None:
        self.endpoints = parse_endpoints(config.endpoints)
        self.headers = Headers(config, client_id)
        self.on_turn: Callable[[str], None] = lambda _why: None  # another endpoint is now the current one
        # Called when a server has been silent for so long that it has forgotten this client and ended its holds: when
        # a heartbeat notices that, and with the first answer afterwards.
        self.on_silence: Callable[[], None] = lambda: None
        self.reached = False  # has any server ever answered?
        self._answered_at: float | None = None  # when the newest call began that a server has answered
        self._wait_for_server = config.wait_for_server
        self._tls = Tls() if config.tls is True else config.tls or None
        self._links: dict[Endpoint, Link] = {}
        self._current = 0
        self._closed = False
        self.loop: asyncio.AbstractEventLoop | None = None
        _forks.require_grpc()
        require_real_threads()

    async def unary(
        self,
        pick: Callable[[Link], Callable[..., Awaitable[Answer]]],
        request: Any,
        timeout: float,
        more: Sequence[tuple[str, bytes]] = (),
    ) -> Answer:
        """One request, one answer, within `timeout` seconds; raises a PopError such as Unreachable.

        more: headers of this call alone, whose names end in "-bin".
        """

        async def attempt(link: Link, remaining: float) -> Answer:
            return await pick(link)(request, timeout=grpc_timeout(remaining), metadata=(*self.headers(), *more))

        return await self.call(attempt, timeout)

    async def call(self, attempt: Callable[[Link, float], Awaitable[Answer]], timeout: float) -> Answer:
        """Repeats `attempt(link, seconds left)` until a server answers or the time is over: `timeout` seconds, and
        before the first answer of a server at least `wait_for_server`."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + (timeout if self.reached else max(timeout, self._wait_for_server))
        for tries in itertools.count(1):
            failed: PopError
            try:
                link = await self.link()
                began = clock()
                answer = await attempt(link, self._share(link, min(deadline - began, timeout)))
            except grpc.aio.AioRpcError as failure:
                failed = self._judge(link, failure)
                if not isinstance(failed, Unreachable):
                    self._hears(began)
            except NoHandshake as failure:
                self.turn_from(failure.endpoint)
                failed = failure
            else:
                self.reached, link.hint = True, ""
                self._hears(began)
                return answer
            # gRPC's deadline may pass a moment before ours; the rest is too short for another attempt.
            if not isinstance(failed, Unreachable) or clock() >= deadline - 0.01:
                raise failed from None  # out of the block above: what gRPC has raised adds nothing
            if tries % len(self.endpoints) == 0:
                await asyncio.sleep(min(0.02 * 2 ** min(tries, 5), max(deadline - clock(), 0.0)))
        raise AssertionError("unreachable")

    @property
    def is_silent(self) -> bool:
        """Has no server answered for so long that it has forgotten this client?"""
        if self._answered_at is None:
            return False
        return asyncio.get_running_loop().time() - self._answered_at > FORGOTTEN_AFTER

    def _hears(self, began: float) -> None:
        """A server has answered a call that began then."""
        before = self._answered_at
        self._answered_at = began if before is None else max(before, began)
        if before is not None and began - before > FORGOTTEN_AFTER:
            self.on_silence()

    async def connects(self, timeout: float) -> bool:
        """Is there a connection to the current endpoint within so many seconds? False as soon as one attempt fails."""
        try:
            async with asyncio.timeout(timeout):
                return await _settled((await self.link()).channel) is grpc.ChannelConnectivity.READY
        except (TimeoutError, NoHandshake):
            return False

    def _share(self, link: Link, remaining: float) -> float:
        """The seconds for one attempt: with several endpoints, one that does not connect gets half of the time."""
        patience = remaining if link.connected else remaining / min(len(self.endpoints), 2)
        return max(patience, 0.001)

    def _judge(self, link: Link, failure: grpc.aio.AioRpcError) -> PopError:
        """What the failure means. Turns to the next endpoint if this one is gone."""
        details = failure.details() or ""
        failed = translated(failure.code(), details)
        if not isinstance(failed, Unreachable):
            return failed
        if failure.code() is not grpc.StatusCode.DEADLINE_EXCEEDED or not link.connected:
            self.turn_from(link.endpoint)
        if said := hint(details, self._tls) or (failed.sentence if failed.name.startswith("HTTP") else ""):
            link.hint = said
        # Time may have run out in the midst of another attempt, which says nothing of the reason.
        return self.unreached(link, link.hint or failed.sentence)

    def unreached(self, link: Link, why: str) -> Unreachable:
        """The error for a server that is not there, with the proxy on the way to it, and what to do about it."""
        if link.proxy is not None:
            return Unreachable(f"no answer from {self.where}, {about(link.proxy)}: {why}")
        advice = next((f"; {advice}" for mark, advice in _ADVICE if mark in why), "")
        return Unreachable(f"no answer from {self.where}: {why}{advice}")

    @property
    def where(self) -> str:
        return ";".join(map(str, self.endpoints))

    def turn_from(self, endpoint: Endpoint) -> None:
        """Makes the next endpoint the current one, if `endpoint` still is."""
        if endpoint == self.endpoints[self._current]:
            self.turn()

    def turn(self) -> None:
        """Makes the next endpoint the current one, if there are several."""
        if len(self.endpoints) > 1:
            self._current = (self._current + 1) % len(self.endpoints)
            self.on_turn(f"it does not answer; the next endpoint of {self.where} is tried")

    async def link(self) -> Link:
        """The link to the current endpoint; opened at first use."""
        running = asyncio.get_running_loop()
        if self.loop is not running:
            if self.loop is not None:
                raise RuntimeError("this client belongs to another event loop; make one client per loop")
            self.loop = running
        endpoint = self.endpoints[self._current]
        link = self._links.get(endpoint)
        if link is None:
            if self._closed:
                raise ClientClosed
            credentials = await credentials_for(self._tls, endpoint) if self._tls else None
            proxy = await proxy_for(endpoint.host)
            if self._closed:  # meanwhile: nothing would close the channel
                raise ClientClosed
            _forks.opens(self)
            link = self._links.setdefault(endpoint, Link(endpoint, _channel(endpoint, self._tls, credentials, proxy)))
            link.proxy = proxy
        return link

    async def close(self) -> None:
        self._closed = True
        links, self._links = list(self._links.values()), {}
        for link in links:
            await link.channel.close()
        del links
        _forks.has_closed(self)


async def _settled(channel: grpc.aio.Channel) -> grpc.ChannelConnectivity:
    state = channel.get_state(try_to_connect=True)
    while state in (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING):
        await channel.wait_for_state_change(state)
        state = channel.get_state(try_to_connect=True)
    return state


# Linux has a second clock of the same time, which tests that stop the first one leave alone.
_REAL_TIME: Final = 5 if sys.platform == "linux" else time.CLOCK_REALTIME  # 5: CLOCK_REALTIME_COARSE


def grpc_timeout(seconds: float) -> float:
    """What to give gRPC, which adds it to `time.time()`, so that it is so many seconds also while that stands still."""
    ahead = time.clock_gettime(_REAL_TIME) - time.time()
    return seconds if abs(ahead) < 1 else seconds + ahead


def _channel(
    endpoint: Endpoint, tls: Tls | None, credentials: Credentials | None, proxy: str | None
) -> grpc.aio.Channel:
    options = (*_CHANNEL_OPTIONS, ("grpc.enable_http_proxy", int(proxy is not None)))
    if tls is None or credentials is None:
        return grpc.aio.insecure_channel(str(endpoint), options=options)
    name = tls.server_name or credentials.name
    override = (("grpc.ssl_target_name_override", name),) if name else ()
    return grpc.aio.secure_channel(str(endpoint), credentials.channel, options=(*options, *override))
