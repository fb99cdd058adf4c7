"""Commands to clients, and their answers, as frames of the telemetry stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.clients.commands import Command, Commands, LoseLiteTopic, Outcome, PrintThreads, TryMessage
from popserver.model.acl import Action, ResourceKind, Right
from popserver.model.errors import NotFound
from popserver.model.message import StoredMessage
from popserver.transport import convert
from popserver.transport.call import Write
from popserver.transport.calls import Caller

STACK_TRACE_LENGTH_MAX = 256 * 1024  # characters; clients of the administration accept answers of 4 MiB


def sender(caller: Caller, write: Write, store_host: str) -> Callable[[Command, str], Awaitable[None]]:
    """A function that writes commands to the caller's stream, but no message that the user may not read."""

    async def send(command: Command, nonce: str) -> None:
        if isinstance(command, TryMessage):
            caller.require([(Right(Action.SUB, ResourceKind.TOPIC, command.stored.message.topic),)])
        try:
            await write(_frame(command, nonce, store_host))
        except caller.call.Disconnected:
            raise NotFound(f"client '{caller.client_id}' disconnected before it got the command") from None

    return send


def orphan_check(stored: StoredMessage, transaction_id: str, store_host: str) -> wire.TelemetryCommand:
    """The question to a producer whether to commit or roll back a half message (protocol 8.1)."""
    topic = convert.as_resource(stored.message.topic)
    command = wire.RecoverOrphanedTransactionCommand(
        message=convert.unheld(stored, topic, store_host), transaction_id=transaction_id
    )
    return wire.TelemetryCommand(
        status=pb.Status(code=pb.OK, message="OK"), recover_orphaned_transaction_command=command
    )


def take_answer(commands: Commands, client_id: str, frame: wire.TelemetryCommand) -> None:
    """Pass a client's answer to the operator's call that waits for it."""
    kind = frame.WhichOneof("command")
    if kind == "thread_stack_trace":
        trace = frame.thread_stack_trace
        commands.answered(client_id, trace.nonce, _shortened(trace.thread_stack_trace))
    elif kind in ("verify_message_result", "verify_message_command"):
        # The Node client echoes the command instead of sending a result.
        sent = frame.verify_message_result if kind == "verify_message_result" else frame.verify_message_command
        nonce = sent.nonce
        commands.answered(client_id, nonce, Outcome(frame.status.code, frame.status.message[:STACK_TRACE_LENGTH_MAX]))


def _frame(command: Command, nonce: str, store_host: str) -> wire.TelemetryCommand:
    frame = wire.TelemetryCommand(status=pb.Status(code=pb.OK, message="OK"))
    if isinstance(command, PrintThreads):
        frame.print_thread_stack_trace_command.nonce = nonce
    elif isinstance(command, TryMessage):
        topic = convert.as_resource(command.stored.message.topic)
        frame.verify_message_command.nonce = nonce
        frame.verify_message_command.message.MergeFrom(convert.unheld(command.stored, topic, store_host))
        # Several clients do not accept a message without it.
        frame.verify_message_command.message.system_properties.delivery_attempt = 1
    elif isinstance(command, LoseLiteTopic):
        frame.notify_unsubscribe_lite_command.lite_topic = command.lite_topic
    else:
        frame.reconnect_endpoints_command.nonce = nonce
    return frame


def _shortened(trace: str) -> str:
    if len(trace) <= STACK_TRACE_LENGTH_MAX:
        return trace
    return f"{trace[:STACK_TRACE_LENGTH_MAX]}\n… {len(trace) - STACK_TRACE_LENGTH_MAX} characters more"
