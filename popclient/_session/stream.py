"""What happens on a Telemetry stream: its ends, and the answers to the server's commands."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

import grpc

from popclient._version import log
from popclient.errors import PopError
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc

# A PopMQ server announces changes of the group by settings with another value of one of these properties.
NOTICES: Final = ("popmq.members", "popmq.resets")


class StreamLeft(Exception):
    """The server asked for a new stream."""


class Refused(Exception):
    """The server has refused the settings."""

    def __init__(self, refusal: PopError) -> None:
        super().__init__(refusal)
        self.refusal = refusal


def named(client_type: pb.ClientType.ValueType, group: str | None, client_id: str) -> str:
    """What the log calls a client."""
    kind = pb.ClientType.Name(client_type).lower().replace("_", " ")
    return f"the {kind} {client_id}" if group is None else f"the {kind} of group {group}"


def is_cancelled() -> bool:
    """Is this task itself cancelled? Cancelling a stream raises CancelledError in its reader and writer too."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


class MayBreak:
    """The task that reads a broken stream opens a new one and sends the settings.

    No generator: gRPC's error would be in a cycle with the frame of its end, and keep the stream and the connection of
    a closed client until a garbage collection.
    """

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is None:
            return False
        if issubclass(kind, asyncio.CancelledError):
            return not is_cancelled()
        return issubclass(kind, grpc.aio.AioRpcError | asyncio.InvalidStateError)


def stack_traces(nonce: str) -> rpc.TelemetryCommand:
    """The stack traces of all threads, as the answer to the command with that nonce."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    traces = "\n".join(
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    )
    return rpc.TelemetryCommand(
        status=pb.Status(code=pb.OK), thread_stack_trace=rpc.ThreadStackTrace(nonce=nonce, thread_stack_trace=traces)
    )


async def no_trial(_message: pb.Message) -> pb.Status:
    """The answer of a client without a listener."""
    return pb.Status(code=pb.NOT_IMPLEMENTED, message="only a push consumer consumes messages on trial")


def changed_notices(before: pb.Settings, now: pb.Settings) -> list[str]:
    """The names of the notices that these settings bring."""
    old, new = before.client_properties, now.client_properties
    return [name for name in NOTICES if new.get(name, "") not in ("", old.get(name, ""))]


def call_back(callback: Callable[..., None] | None, *given: Exception | str | frozenset[str]) -> None:
    """Calls a function of the user; logs what it raises."""
    if callback is not None:
        try:
            callback(*given)
        except Exception:  # noqa: BLE001  the user's own code may raise anything
            log.exception("%r failed", callback)
