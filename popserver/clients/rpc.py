"""The calls of a client's session: heartbeat, the telemetry stream with the settings handshake, goodbye."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access import rights
from popserver.catalog.flow import Catalog
from popserver.clients import command_frames, settings
from popserver.clients.clients import Clients
from popserver.clients.commands import Commands
from popserver.clients.member_stream import MemberStream
from popserver.clients.telemetry_writer import TelemetryWriter
from popserver.members.flow import GroupMembers
from popserver.model.errors import BadRequest, Busy, ClientIdRequired, Internal, PopError
from popserver.model.names import check_group
from popserver.producing.checks import Transactions
from popserver.producing.half_messages import Check
from popserver.transport import status
from popserver.transport.call import Write
from popserver.transport.calls import AnyMethod, Caller, ConversationMethod, Method
from popserver.transport.incoming import Frames
from popserver.transport.limits import CallLimits


class SessionMethods:
    """The sessions of clients."""

    def __init__(
        self,
        catalog: Catalog,
        clients: Clients,
        commands: Commands,
        transactions: Transactions,
        group_members: GroupMembers,
        limits: CallLimits,
        version: str,
        store_host: str,
        *,
        has_idempotency_keys: bool,
        ask_for_metrics: Callable[[pb.Settings], None] | None,
    ) -> None:
        """`ask_for_metrics` adds to settings where their client should send its metrics; None: nowhere."""
        self._ask_for_metrics = ask_for_metrics
        self._catalog = catalog
        self._clients = clients
        self._commands = commands
        self._transactions = transactions
        self._group_members = group_members
        self._limits = limits
        self._version = version
        self._store_host = store_host
        self._capabilities = settings.capabilities(has_idempotency_keys=has_idempotency_keys)
        self._streams: dict[asyncio.Task[object], Caller] = {}
        self._turning: set[asyncio.Task[object]] = set()  # those of PopMQ's own clients
        self._closing = False
        self.methods: dict[str, AnyMethod] = {
            "Heartbeat": Method(self.heartbeat, rights.group_if_named, anonymous=True),
            "Telemetry": ConversationMethod(self.telemetry, self.delay_refusal),
            "NotifyClientTermination": Method(self.notify_client_termination, rights.own_client),
        }

    async def heartbeat(self, request: wire.HeartbeatRequest, caller: Caller) -> wire.HeartbeatResponse:
        """A heartbeat needs no settings before it. An empty one may come without a client id (protocol 1.4)."""
        if not caller.client_id and request.ByteSize():
            raise ClientIdRequired
        if request.group.name:
            check_group(caller.resource(request.group))
        if request.client_type in (pb.PUSH_CONSUMER, pb.LITE_PUSH_CONSUMER):
            self._clients.pushes(caller.client_id)
        return wire.HeartbeatResponse(status=status.OK)

    async def telemetry(self, commands: Frames[wire.TelemetryCommand], caller: Caller, write: Write) -> None:
        """Answer every settings frame. A refused one ends the stream (protocol 3.1).

        If a client has several streams, the newest counts; if it ends without a goodbye, the client is gone.
        """
        stream = asyncio.current_task()
        assert stream is not None
        clients = self._clients
        self._streams[stream] = caller
        clients.connected(caller.client_id, stream)
        writer = TelemetryWriter(write, caller.call.Disconnected, self._limits.stream_idle_ms)
        member_stream = MemberStream(self._catalog, self._group_members, caller, writer.write)
        has_agreed = False
        try:
            async for command in commands:
                clients.seen(caller.client_id)
                answer = await self._answer(command, caller, member_stream, has_agreed=has_agreed)
                if answer is not None:
                    has_agreed = True
                    send_command = command_frames.sender(caller, writer.write, self._store_host)
                    self._commands.joined(caller.client_id, stream, send_command)
                    await writer.write(answer)
                    if settings.SERVER in answer.settings.client_properties:
                        self._turning.add(stream)
                    member_stream.open(answer.settings)
                    if answer.settings.client_type == pb.PRODUCER:
                        await self._begin_session(answer.settings, caller, stream, writer.write)
        except asyncio.CancelledError:
            if not self._closing:
                # `end_forbidden_streams` ended the stream; the client gets the reason.
                caller.require(caller.stands_on)
                raise
        finally:
            del self._streams[stream]
            self._turning.discard(stream)
            writer.close()
            member_stream.close()
            self._commands.left(caller.client_id, stream)
            self._transactions.producers.left(caller.client_id, stream)
            if not self._closing:
                clients.disconnected(caller.client_id, stream)

    async def notify_client_termination(
        self, _request: wire.NotifyClientTerminationRequest, caller: Caller
    ) -> wire.NotifyClientTerminationResponse:
        """Goodbye: the messages that the client holds soon go to other consumers. An unknown client is no error."""
        self._transactions.producers.left(caller.client_id)
        self._clients.ended(caller.client_id)
        return wire.NotifyClientTerminationResponse(status=status.OK)

    async def delay_refusal(self) -> None:
        """Delay a refusal: a client that repeats it at once would be refused again and again."""
        await asyncio.sleep(self._limits.stream_refusal_pause_ms / 1_000)

    def end_forbidden_streams(self) -> None:
        """End the streams of clients that have lost the rights they need."""
        for stream, caller in self._streams.items():
            try:
                caller.require(caller.stands_on)
            except PopError:
                stream.cancel()

    async def send_away(self) -> None:
        """Let PopMQ's clients go to another of their addresses. Other clients go where routes lead them."""
        async with asyncio.TaskGroup() as telling:
            for stream in self._turning:
                telling.create_task(self._commands.turn(self._streams[stream].client_id))

    def close(self) -> None:
        """End all telemetry streams. The clients do not count as gone, because they will come back."""
        self._closing = True
        for stream in self._streams:
            stream.cancel()

    async def _begin_session(self, agreed: pb.Settings, caller: Caller, stream: object, write: Write) -> None:
        """Register the stream. A producer can now be asked about undecided half messages (protocol 8.1)."""

        async def ask(check: Check) -> None:
            # A check carries the message, so a producer that may no longer send to the topic is not asked.
            caller.require(rights.of_check(check.stored.message.topic))
            await write(command_frames.orphan_check(check.stored, check.transaction_id, self._store_host))

        topics = [caller.resource(each) for each in agreed.publishing.topics]
        await self._transactions.joined(caller.client_id, stream, topics, ask)

    async def _answer(
        self, command: wire.TelemetryCommand | BadRequest, caller: Caller, attendance: MemberStream, *, has_agreed: bool
    ) -> wire.TelemetryCommand | None:
        """The answer to a command; None if it needs none. Raises the refusal of settings."""
        try:
            if isinstance(command, BadRequest):
                raise command
            if not command.HasField("settings"):
                command_frames.take_answer(self._commands, caller.client_id, command)
                return None
            wanted = rights.of_settings(command.settings, caller)
            caller.require(wanted)
            caller.stands_on = wanted
            # Some clients do not wait for the answer. Those that it refuses must not create what they cannot use.
            self._clients.declares(caller.client_id, settings.kind_of(command.settings))
            merged = await settings.merge(
                command.settings,
                caller.namespace,
                self._catalog,
                self._limits,
                self._version,
                self._capabilities,
            )
            if self._ask_for_metrics is not None:
                self._ask_for_metrics(merged)
            membership = await attendance.join(command.settings, merged)
        except (Busy, Internal) as failure:
            if not has_agreed:
                raise
            # The settings before stay valid, and some clients never reopen a stream.
            return wire.TelemetryCommand(status=status.of(failure))
        self._clients.settled(
            caller.client_id,
            works_in_order=merged.subscription.fifo,
            role=settings.role_of(command.settings, caller.namespace),
            membership=membership,
        )
        agent = merged.user_agent
        # The numbers of newer clients have no name here.
        language = pb.Language.Name(agent.language) if agent.language in pb.Language.values() else "OTHER"
        self._clients.introduced(
            caller.client_id,
            language,
            agent.version[:VERSION_SHOWN_MAX],
            agent.hostname[:HOSTNAME_SHOWN_MAX],
            caller.peer.rpartition(":")[0].strip("[]"),
        )
        return wire.TelemetryCommand(status=status.OK, settings=merged)


# In characters: a client may send megabytes, and they would be kept for each client.
VERSION_SHOWN_MAX = 64
HOSTNAME_SHOWN_MAX = 255
