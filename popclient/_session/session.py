"""A client's session with its server: routes, the handshake of settings, heartbeats, and reconnecting.

The Telemetry stream is the session. While it is up, the client is `healthy`. When it breaks, the session opens it again
after a pause that grows to one second, and sends the settings again; calls keep trying until their own deadlines.

A refusal is different: the server has rejected the settings. `start` raises a refusal of the first settings, and the
session tries again only when `start` is called again. A later refusal goes to `on_refused`, and the session asks again
every 10 s, because rights and groups may come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc

from popclient._session import convert
from popclient._session.routes import Routes
from popclient._session.stream import (
    Refused,
    StreamLeft,
    call_back,
    changed_notices,
    is_cancelled,
    may_break,
    no_trial,
    stack_traces,
)
from popclient._session.transport import NO_ANSWER, REFUSALS, Link, Transport, translated
from popclient._tasks import Tasks
from popclient._version import log, new_client_id
from popclient.config import ClientConfig
from popclient.errors import ClientClosed, PopError, Unreachable, error_of, for_caller
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

HEARTBEAT_INTERVAL: Final = 10.0  # servers forget a client after more than 30 s of silence
BEATS_PER_ROUTE_REFRESH: Final = 3  # 30 s (requirement N2)
BEATS_PER_SETTINGS: Final = 30  # 5 min, as the official clients do
HANDSHAKE_PATIENCE: Final = 3.0  # an old or busy server may never answer the settings; the client then goes on without
RECONNECT_PAUSE: Final = (0.05, 1.0)
REFUSED_PAUSE: Final = 10.0
ABOUT_THE_CLIENT: Final = (pb.CONSUMER_GROUP_NOT_FOUND, pb.UNAUTHORIZED, pb.FORBIDDEN)
# Clients must not reconnect in step. An own generator: the user may have seeded that of the module.
_CHANCE: Final = random.Random()  # noqa: S311


class Session:
    """One client's session. Belongs to one event loop; starts by itself at first use.

    pub_sub: returns what the client publishes or subscribes to; called whenever settings are sent.
    client_properties: further properties of the settings, for PopMQ servers.
    on_notice: called with the name of each of NOTICES whose value has changed.
    on_refused: called with a refusal that comes after the session was up.
    on_back: called when the session is up again.
    """

    def __init__(
        self,
        config: ClientConfig,
        client_type: pb.ClientType.ValueType,
        group: str | None,
        pub_sub: Callable[[], pb.Publishing | pb.Subscription],
    ) -> None:
        self.config = config
        self.group = group
        self.client_id = new_client_id()
        self.transport = Transport(config, self.client_id)
        self.transport.on_turn = self._leave_stream
        self.settings = pb.Settings()
        self.capabilities: frozenset[str] = frozenset()
        self.closing = False
        self.client_properties: dict[str, str] = {}
        self.on_notice: Callable[[str], None] = lambda _: None
        self.on_refused: Callable[[PopError], None] = lambda _: None
        self.on_back: Callable[[], None] = lambda: None
        self.handlers: dict[str, Callable[[Any], None]] = {}  # of further commands, by the name of their field
        self.on_trial: Callable[[pb.Message], Awaitable[pb.Status]] = no_trial
        self._client_type = client_type
        self._group_resource = None if group is None else convert.resource(group, config.namespace)
        self._pub_sub = pub_sub
        self.routes = Routes(config, self.transport)
        self._stream: grpc.aio.StreamStreamCall[rpc.TelemetryCommand, rpc.TelemetryCommand] | None = None
        self._told: pb.Publishing | pb.Subscription | None = None
        self._connected = False
        self._ever_connected = False
        self._answered = asyncio.Event()
        self._refusal: PopError | None = None  # raised by `start`
        self._told_refusal = ""
        self._is_refused = False  # the stream has last ended by a refusal
        self._failure: PopError | None = None  # of the server, when the stream was last opened
        self._judgement: asyncio.Future[None] | None = None  # on the settings that `agree` has sent
        self._waiting = 0  # callers of `start`
        self._started = False
        self._beating = False
        self._tasks = Tasks()

    # ---- Start ----

    @property
    def healthy(self) -> bool:
        """Is the stream up and the settings agreed?"""
        return self._connected and not self.closing

    async def start(self) -> None:
        """Opens the session if it is not open; waits a limited time for the server's settings.

        Raises the server's refusal, or its failure if that was its only answer to the settings.
        """
        if not self._started:
            self._started = True
            self._answered.clear()
            self._tasks.spawn(self._keep_stream())
            if not self._beating:
                self._beating = True
                self._tasks.spawn(self._keep_alive())
        if not self._answered.is_set():
            self._waiting += 1
            try:
                await asyncio.wait_for(self._answered.wait(), HANDSHAKE_PATIENCE)
            except TimeoutError:
                self._refusal = self._failure
            finally:
                self._waiting -= 1
            self._answered.set()  # no caller waits a second time
        if self._refusal is not None:
            raise self._refusal

    @property
    def settled(self) -> bool:
        """Is the handshake over, with or without an answer of the server?"""
        return self._answered.is_set() and self._refusal is None

    @property
    def is_popmq(self) -> bool:
        """Is this a PopMQ server?"""
        return bool(self.capabilities)

    @property
    def keeps_order(self) -> bool:
        """Must a push consumer take message groups in order?

        With PopMQ always; another server says so in its settings, and before they come the answer is yes.
        """
        return self.is_popmq or self.settings.subscription.fifo or not self.settings.HasField("subscription")

    def require_open(self) -> None:
        if self.closing:
            raise ClientClosed

    # ---- Routes ----

    def knows(self, topic: str) -> bool:
        return topic in self.routes.queues

    async def route(self, topic: str) -> Sequence[pb.MessageQueue]:
        """The topic's queues; queried once, then refreshed in the background."""
        self.require_open()
        if (known := self.routes.queues.get(topic)) is not None:
            return known
        found = await self.routes.query(topic)
        await self.start()
        if not self.knows(topic):
            self.routes.queues[topic] = found
            if self._pub_sub() != self._told:
                await self.tell_settings()
        return found

    # ---- The stream ----

    async def _keep_stream(self) -> None:
        pause, longest = RECONNECT_PAUSE
        while not self.closing:
            was_up = await self._live_on_stream()
            if self._is_refused and not self._ever_connected:
                self._started = False
                return
            pause = RECONNECT_PAUSE[0] if was_up else min(pause * 2, longest)
            await asyncio.sleep((REFUSED_PAUSE if self._is_refused else pause) * _CHANCE.uniform(0.5, 1.0))

    async def _live_on_stream(self) -> bool:
        """Opens the stream and reads it to its end. Was it ever up?"""
        reason: Exception = Unreachable("the server ended the session")
        was_up = False
        self._is_refused = False
        try:
            link = await self.transport.link()
            stream = self._stream = link.messaging.Telemetry(metadata=self.transport.headers())
            try:
                await self.tell_settings()
                while isinstance(command := await stream.read(), rpc.TelemetryCommand):
                    await self._obey(command)
                    was_up = was_up or self._connected
            except grpc.aio.AioRpcError as failure:
                reason = self._end_of(failure, link)
                if failure.code() is grpc.StatusCode.UNAVAILABLE:
                    self.transport.turn_from(link.endpoint)
            except Refused as told:
                reason = told.refusal
                self._refused(told.refusal, is_final=not told.refusal.retryable)
            except (asyncio.InvalidStateError, StreamLeft):
                pass
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
            finally:
                stream.cancel()
                self._stream = None  # a closed client keeps nothing of gRPC: see `forks`
        except (ClientClosed, Unreachable) as failure:
            reason = failure
        except Exception as defect:  # noqa: BLE001  no defect may end the session, and each is logged
            reason = for_caller(defect)
            self._refused(reason, is_final=False)
        self._lost(reason)
        return was_up

    def _end_of(self, failure: grpc.aio.AioRpcError, link: Link) -> PopError:
        """Why the stream has ended. RocketMQ's proxy refuses by a gRPC status alone."""
        code, details = failure.code(), failure.details() or ""
        if code in REFUSALS:
            refusal = translated(code, details)
            self._refused(refusal, is_final=True)
            return refusal
        self._failure = None if code in NO_ANSWER else translated(code, details)
        return Unreachable(f"the session with {link.endpoint} broke: {details}")

    def _leave_stream(self) -> None:
        """The transport now uses another endpoint: the session follows."""
        if self._stream is not None:
            self._stream.cancel()

    async def tell_settings(self) -> None:
        """Sends the settings again if there is a stream; a new stream begins with them anyway."""
        if self._stream is None:
            return
        self._told = self._pub_sub()
        settings = convert.settings(
            self._client_type,
            convert.endpoints(self.transport.endpoints),
            self.config.request_timeout,
            self._told,
            self.client_properties,
        )
        await self._say(rpc.TelemetryCommand(settings=settings))

    async def agree(self) -> None:
        """Sends the settings again if there is a stream, and waits for the server's answer; raises its refusal.

        After a refusal the caller must undo its change before the session is opened again.
        """
        if self._stream is None:
            return
        self._judgement = asyncio.get_running_loop().create_future()
        try:
            await self.tell_settings()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._judgement, HANDSHAKE_PATIENCE)
        finally:
            self._judgement = None

    async def doubt(self, refusal: PopError) -> None:
        """A call was refused. If that may concern the whole client, the server checks its settings again."""
        if refusal.code in ABOUT_THE_CLIENT:
            await self.tell_settings()

    async def _say(self, command: rpc.TelemetryCommand) -> None:
        if self._stream is not None:
            with may_break():
                await self._stream.write(command)

    async def _obey(self, command: rpc.TelemetryCommand) -> None:
        kind = command.WhichOneof("command")
        if command.HasField("status") and command.status.code != pb.OK:
            self._heed(error_of(command.status))
        elif kind == "settings":
            self._agreed(command.settings)
        elif kind in self.handlers:
            self.handlers[kind](getattr(command, kind))
        elif kind == "print_thread_stack_trace_command":
            await self._say(stack_traces(command.print_thread_stack_trace_command.nonce))
        elif kind == "verify_message_command":
            self._tasks.spawn(self._try_out(command.verify_message_command))
        elif kind == "reconnect_endpoints_command":
            raise StreamLeft

    async def _try_out(self, asked: rpc.VerifyMessageCommand) -> None:
        result = rpc.VerifyMessageResult(nonce=asked.nonce)
        await self._say(rpc.TelemetryCommand(status=await self.on_trial(asked.message), verify_message_result=result))

    def _heed(self, refusal: PopError) -> None:
        """Ends the stream, unless the failure passes and earlier settings are still in force."""
        if not (refusal.retryable and self._connected):
            raise Refused(refusal)
        log.warning("the settings of %s were not taken: %s", self.client_id, refusal)

    def _agreed(self, settings: pb.Settings) -> None:
        before, self.settings = self.settings, settings
        self._failure = None
        told = self._told
        if isinstance(told, pb.Subscription) and settings.subscription.subscriptions == told.subscriptions:
            self._judged(None)
        self.capabilities = convert.capabilities(settings)
        self._refusal = None
        self._told_refusal = ""
        self._answered.set()
        if not self._connected:
            self._connected = True
            self._tasks.spawn(self._heartbeat())
            if self._ever_connected:
                log.info("session of %s is back", self.client_id)
                self.on_back()
                call_back(self.config.on_reconnect)
        if self._ever_connected:
            for notice in changed_notices(before, settings):
                call_back(self.on_notice, notice)
        self._ever_connected = True

    def _refused(self, refusal: PopError, *, is_final: bool) -> None:
        """Hands the refusal to a caller that waits in `start` or `agree`; otherwise logs it, once."""
        if self._judged(refusal):
            return
        if not self._waiting and str(refusal) != self._told_refusal:
            log.warning("no session for %s: %s", self.client_id, refusal)
        self._told_refusal = str(refusal)
        self._refusal = None if self._ever_connected else refusal
        self._answered.set()
        self._is_refused = is_final
        if is_final and self._ever_connected:
            call_back(self.on_refused, refusal)

    def _judged(self, refusal: PopError | None) -> bool:
        """Hands the answer to a caller that waits in `agree`. Was there one?"""
        judgement = self._judgement
        if judgement is None or judgement.done():
            return False
        judgement.set_result(None) if refusal is None else judgement.set_exception(refusal)
        return True

    def _lost(self, reason: Exception) -> None:
        if self._connected:
            self._connected = False
            if not self.closing:
                log.info("session of %s lost: %s", self.client_id, reason)
                call_back(self.config.on_disconnect, reason)

    # ---- Heartbeats ----

    async def _keep_alive(self) -> None:
        for beat in range(1, sys.maxsize):
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            try:
                await self._beat(beat)
            except Exception:  # noqa: BLE001  one failed heartbeat must not end the others
                log.exception("a heartbeat of %s failed; the next one follows", self.client_id)

    async def _beat(self, beat: int) -> None:
        await self._heartbeat()
        if beat % BEATS_PER_ROUTE_REFRESH == 0:
            await self.routes.refresh_all()
        if beat % BEATS_PER_SETTINGS == 0:
            await self.tell_settings()

    async def _heartbeat(self) -> None:
        request = rpc.HeartbeatRequest(group=self._group_resource, client_type=self._client_type)
        limit = self.config.request_timeout
        try:
            answer = await self.transport.unary(lambda link: link.messaging.Heartbeat, request, limit)
        except PopError as failure:
            log.debug("heartbeat failed: %s", failure)
            return
        if answer.status.code == pb.UNRECOGNIZED_CLIENT_TYPE:  # the server has forgotten us
            await self.tell_settings()

    # ---- The end ----

    async def close(self, patience: float) -> None:
        """Says goodbye for at most `patience` seconds, and ends everything."""
        self.closing = True
        try:
            if self._ever_connected and patience > 0:
                await self._say_goodbye(patience)
        finally:
            self._tasks.cancel()
            await self._tasks.ended()
            await self.transport.close()

    async def _say_goodbye(self, patience: float) -> None:
        request = rpc.NotifyClientTerminationRequest(group=self._group_resource)
        patience = min(patience, self.config.request_timeout)
        with contextlib.suppress(PopError):
            await self.transport.unary(lambda link: link.messaging.NotifyClientTermination, request, patience)
        if self._stream is not None:
            # gRPC waits for the write without end, such as behind a connection that takes no more bytes.
            with may_break(), contextlib.suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._stream.done_writing()
