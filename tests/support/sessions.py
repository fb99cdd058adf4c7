"""Clients with a session: a telemetry stream on which they have sent their settings, and answer what they are asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from tests.support.wire_server import GROUP, TOPIC, WireServer

CONSUMER = wire.TelemetryCommand(
    settings=pb.Settings(client_type=pb.PUSH_CONSUMER, subscription=pb.Subscription(group=GROUP))
)
PRODUCER = wire.TelemetryCommand(
    settings=pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
)
Answer = Callable[[wire.TelemetryCommand], wire.TelemetryCommand | None]


@asynccontextmanager
async def client(
    wire_server: WireServer,
    client_id: str = "c1",
    answer: Answer = lambda _: None,
    settings: Any = CONSUMER,
    **options: Any,
) -> AsyncIterator[list[wire.TelemetryCommand]]:
    """A client that has told its settings; what it is asked, and it answers so."""
    asked: list[wire.TelemetryCommand] = []

    async def serve(stream: Any) -> None:
        while isinstance(command := await stream.read(), wire.TelemetryCommand):
            asked.append(command)
            reply = answer(command)
            if reply is not None:
                await stream.write(reply)

    async with wire_server.telemetry(client_id, **options) as stream:
        await stream.write(settings)
        assert (await stream.read()).status.code == pb.OK
        serving = asyncio.create_task(serve(stream))
        try:
            yield asked
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


def traces(text: str) -> Answer:
    def answer(command: wire.TelemetryCommand) -> wire.TelemetryCommand:
        nonce = command.print_thread_stack_trace_command.nonce
        trace = wire.ThreadStackTrace(nonce=nonce, thread_stack_trace=text)
        return wire.TelemetryCommand(status=pb.Status(code=pb.OK), thread_stack_trace=trace)

    return answer


def tried(code: pb.Code.ValueType, sentence: str = "") -> Answer:
    def answer(command: wire.TelemetryCommand) -> wire.TelemetryCommand:
        result = wire.VerifyMessageResult(nonce=command.verify_message_command.nonce)
        return wire.TelemetryCommand(status=pb.Status(code=code, message=sentence), verify_message_result=result)

    return answer
