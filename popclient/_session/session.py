"""A client's session with its server: routes, the handshake of settings, heartbeats, and reconnecting.

The Telemetry stream is the session. While it is up, the client is `healthy`. When it breaks, the session opens it again
after a pause that grows to one second, and sends the settings again; calls keep trying until their own deadlines.

A refusal is different: the server, or a proxy, has rejected the settings. `start` raises a refusal of the first
settings, and the session tries again only when `start` is called again. A later refusal goes to `on_refused`, and the
session asks again every 10 s, because rights and groups may come back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import grpc

from popclient._session import convert
from popclient._session.heartbeats import Heartbeats, say_goodbye
from popclient._session.repeating import is_final
from popclient._session.routes import Routes
from popclient._session.stream import (
    MayBreak,
    Refused,
    StreamLeft,
    call_back,
    changed_notices,
    is_cancelled,
    named,
    no_trial,
    stack_traces,
)
from popclient._session.transport import Link, Transport
from popclient._tasks import Tasks
from popclient._version import log, new_client_id
from popclient.config import ClientConfig
from popclient.errors import ClientClosed, NotFound, PopError, Unreachable, UnsupportedByServer, error_of, for_caller
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

HANDSHAKE_PATIENCE: Final = 3.0  # an old or busy server may never answer the settings; the client then goes on without
RECONNECT_PAUSE: Final = (0.05, 1.0)
REFUSED_PAUSE: Final = 10.0
# Clients must not reconnect in step. An own generator: the user may have seeded that of the module.
_CHANCE: Final = random.Random()  # noqa: S311


class Session:
    """One client's session. Belongs to one event loop; starts by itself at first use.

    pub_sub: returns what the client publishes or subscribes to; called whenever settings are sent.
    client_properties: further properties of the settings, for PopMQ servers.
    on_notice: called with the name of each of NOTICES whose value has changed.
    on_refused: called with a refusal that comes after the session was up: of the settings, or see `give_up`.
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
        self._who = named(client_type, group, self.client_id)
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
        self.routes = Routes(config, self.transport, self._who)
        beat = rpc.HeartbeatRequest(group=self._group_resource, client_type=client_type)
        callbacks = self.send_settings, self._leave_stream
        self.heartbeats = Heartbeats(self.transport, self.routes, beat, config.request_timeout, *callbacks)
        self._stream: grpc.aio.StreamStreamCall[rpc.TelemetryCommand, rpc.TelemetryCommand] | None = None
        self._sent: pb.Publishing | pb.Subscription | None = None
        self._connected = False
        self._ever_connected = False
        self._answered = asyncio.Event()
        self._refusal: PopError | None = None  # raised by `start`
        self._logged_refusal = ""  # in the log
        self._is_refused = False  # the stream has last ended by a refusal
        self._failure: PopError | None = None  # of the server, when the stream was last opened
        self._unreached = "no connection yet"  # why the stream was last not opened
        self._agreement: asyncio.Future[None] | None = None  # on the settings that `agree` has sent
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
        """Opens the session if it is not open; waits a limited time for the server, and for its settings.

        Raises the server's refusal, its failure if that was its only answer to the settings, or Unreachable.
        """
        if not self._started:
            self._started = True
            self._answered.clear()
            self._tasks.spawn(self._keep_stream())
            if not self._beating:
                self._beating = True
                self._tasks.spawn(self.heartbeats.keep(self._who))
        if not self._answered.is_set():
            self._waiting += 1
            try:
                await self._await_answer()
            except TimeoutError:
                self._refusal = self._failure
            finally:
                self._waiting -= 1
            self._answered.set()  # no caller waits a second time
        if self._refusal is not None:
            raise self._refusal

    async def _await_answer(self) -> None:
        """Raises Unreachable if there was no server within `wait_for_server`, TimeoutError if one does not answer."""
        clock = asyncio.get_running_loop().time
        until = clock() + self.config.wait_for_server
        while True:
            try:
                await asyncio.wait_for(self._answered.wait(), HANDSHAKE_PATIENCE)
            except TimeoutError:
                link = await self.transport.link()
                if self.transport.reached or link.connected:
                    raise
            else:
                return
            if clock() >= until:
                raise self.transport.unreached(link, self._unreached)

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

    def has_topic(self, topic: str) -> bool:
        return topic in self.routes.queues

    async def look_up(self, topic: str) -> None:
        """As `route`, for a topic that may be made later if the config says so."""
        try:
            await self.route(topic)
        except NotFound as failure:
            if not self.routes.awaits(topic, failure):
                raise

    async def route(self, topic: str) -> Sequence[pb.MessageQueue]:
        """The topic's queues; queried once, then refreshed in the background."""
        self.require_open()
        if (known := self.routes.queues.get(topic)) is not None:
            return known
        found = await self.routes.query(topic)
        await self.start()
        if not self.has_topic(topic):
            self.routes.queues[topic] = found
            if self._pub_sub() != self._sent:
                await self.send_settings()
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
                await self.send_settings()
                while isinstance(command := await stream.read(), rpc.TelemetryCommand):
                    await self._handle_command(command)
                    was_up = was_up or self._connected
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # the latter if it has ended before the settings
                code, details = await stream.code(), await stream.details()
                reason = self._end_of(await self.heartbeats.reason_of(code, details or ""), link)
                if code is grpc.StatusCode.UNAVAILABLE:
                    self.transport.turn_from(link.endpoint)
            except Refused as sent:
                reason = sent.refusal
                self._refused(sent.refusal, is_final=not sent.refusal.retryable)
            except asyncio.CancelledError:
                if is_cancelled():
                    raise
                reason = ClientClosed()  # by this client: see `_leave_stream`, or by the end of the process
            finally:
                stream.cancel()
                self._stream = None  # a closed client keeps nothing of gRPC: see `forks`
        except StreamLeft:
            self.transport.turn_from(link.endpoint)
        except (ClientClosed, Unreachable) as failure:
            reason = failure
        except Exception as defect:  # noqa: BLE001  no defect may end the session, and each is logged
            reason = for_caller(defect)
            self._refused(reason, is_final=False)
        self._lost(reason)
        return was_up

    def _end_of(self, ended: PopError, link: Link) -> PopError:
        """Why the stream has ended. RocketMQ's proxy refuses by a gRPC status alone, others by an HTTP status."""
        if isinstance(ended, Unreachable | UnsupportedByServer):  # no server has answered, or an old one
            self._failure, self._unreached = None, ended.sentence
        elif ended.retryable:
            self._failure = ended
        else:
            self._refused(ended, is_final=True)
            return ended
        return Unreachable(f"the session with {link.endpoint} broke: {ended.sentence}")

    def _leave_stream(self, why: str) -> None:
        if self._stream is not None:
            self._lost(Unreachable(why))
            self._stream.cancel()

    async def send_settings(self) -> None:
        """Sends the settings again if there is a stream; a new stream begins with them anyway."""
        if self._stream is None:
            return
        self._sent = self._pub_sub()
        settings = convert.settings(
            self._client_type,
            convert.endpoints(self.transport.endpoints),
            self.config.request_timeout,
            self._sent,
            self.client_properties,
        )
        await self._send_command(rpc.TelemetryCommand(settings=settings))

    async def agree(self) -> None:
        """Sends the settings again if there is a stream, and waits for the server's answer; raises its refusal.

        After a refusal the caller must undo its change before the session is opened again.
        """
        if self._stream is None:
            return
        self._agreement = asyncio.get_running_loop().create_future()
        try:
            await self.send_settings()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._agreement, HANDSHAKE_PATIENCE)
        finally:
            self._agreement = None

    def give_up(self, refusal: PopError) -> bool:
        """A call of a loop has failed. If that is final, calls `on_refused`, and returns True."""
        is_awaited = refusal.code == pb.TOPIC_NOT_FOUND and bool(self.config.wait_for_topic)
        if not is_final(refusal) or is_awaited:
            return False
        if not self.closing:
            call_back(self.on_refused, refusal)
        return True

    async def _send_command(self, command: rpc.TelemetryCommand) -> None:
        if self._stream is not None:
            with MayBreak():
                await self._stream.write(command)

    async def _handle_command(self, command: rpc.TelemetryCommand) -> None:
        kind = command.WhichOneof("command")
        if command.HasField("status") and command.status.code != pb.OK:
            self._settings_failed(error_of(command.status))
        elif kind == "settings":
            self._agreed(command.settings)
        elif kind in self.handlers:
            self.handlers[kind](getattr(command, kind))
        elif kind == "print_thread_stack_trace_command":
            await self._send_command(stack_traces(command.print_thread_stack_trace_command.nonce))
        elif kind == "verify_message_command":
            self._tasks.spawn(self._try_out(command.verify_message_command))
        elif kind == "reconnect_endpoints_command":
            raise StreamLeft

    async def _try_out(self, asked: rpc.VerifyMessageCommand) -> None:
        status = await self.on_trial(asked.message)
        result = rpc.VerifyMessageResult(nonce=asked.nonce)
        await self._send_command(rpc.TelemetryCommand(status=status, verify_message_result=result))

    def _settings_failed(self, refusal: PopError) -> None:
        """Ends the stream, unless the failure passes and earlier settings are still in force."""
        if not (refusal.retryable and self._connected):
            raise Refused(refusal)
        log.warning("the settings of %s were not taken: %s", self._who, refusal)

    def _agreed(self, settings: pb.Settings) -> None:
        before, self.settings = self.settings, settings
        self._failure = None
        sent = self._sent
        if isinstance(sent, pb.Subscription) and settings.subscription.subscriptions == sent.subscriptions:
            self._answer_agreement(None)
        self.capabilities = convert.capabilities(settings)
        self._refusal = None
        self._logged_refusal = ""
        self._answered.set()
        if not self._connected:
            self._connected = self.transport.reached = True
            self._tasks.spawn(self.heartbeats.send())
            if self._ever_connected:
                log.warning("%s is connected to %s again", self._who, self.transport.where)
                self.on_back()
                call_back(self.config.on_reconnect)
        if self._ever_connected:
            for notice in changed_notices(before, settings):
                call_back(self.on_notice, notice)
        self._ever_connected = True

    def _refused(self, refusal: PopError, *, is_final: bool) -> None:
        """Hands the refusal to a caller that waits in `start` or `agree`; otherwise logs it, once."""
        if self._answer_agreement(refusal):
            return
        if not self._waiting and str(refusal) != self._logged_refusal:
            log.warning("%s is refused: %s", self._who, refusal)
        self._logged_refusal = str(refusal)
        self._refusal = None if self._ever_connected else refusal
        self._answered.set()
        self._is_refused = is_final
        if is_final and self._ever_connected:
            call_back(self.on_refused, refusal)

    def _answer_agreement(self, refusal: PopError | None) -> bool:
        """Hands the answer to a caller that waits in `agree`. Was there one?"""
        agreement = self._agreement
        if agreement is None or agreement.done():
            return False
        agreement.set_result(None) if refusal is None else agreement.set_exception(refusal)
        return True

    def _lost(self, reason: Exception) -> None:
        if self._connected:
            self._connected = False
            if not self.closing:
                # A refusal was logged already.
                level = logging.INFO if isinstance(reason, PopError) and not reason.retryable else logging.WARNING
                log.log(level, "%s has lost its server: %s", self._who, reason)
                call_back(self.config.on_disconnect, reason)

    # ---- The end ----

    async def close(self, patience: float) -> None:
        """Says goodbye for at most `patience` seconds, and ends everything."""
        self.closing = True
        try:
            if self._ever_connected and patience > 0:
                patience = min(patience, self.config.request_timeout)
                await say_goodbye(self.transport, self._group_resource, patience, self._stream)
        finally:
            self._tasks.cancel()
            await self._tasks.ended()
            await self.transport.close()
