"""Very many long polls that find nothing, over plain HTTP/2: a gRPC library would need more memory than the server."""

from __future__ import annotations

import asyncio
import resource
import struct
from collections import Counter
from functools import partial
from typing import Any

from benchmarks.floods import (
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    block_of,
    frame,
)
from benchmarks.http2 import framed
from benchmarks.raw_load import HEADERS as CLIENT_HEADERS
from benchmarks.raw_load import SERVICE
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire

ACK = 1
HEAD_BYTES = 9
PREFIX_BYTES = 5  # of a message in a gRPC body
WINDOW = 1 << 30
AT_ONCE = 100  # connections that are opened together


class IdlePolls:
    """Its verbs are the loads `polls.…`. Polls are renewed until they are closed."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._answers: Counter[str] = Counter()
        self._connections: list[_Connection] = []

    async def open(self, topic: str, polls: int, connections: int, groups: int, poll_seconds: float) -> dict[str, Any]:
        """Open these polls, spread over connections, each a client of its own, and over consumer groups."""
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        host, _, port = self._endpoint.rpartition(":")
        loop, each = asyncio.get_running_loop(), polls // connections
        for first in range(0, connections, AT_ONCE):
            made = [
                _Connection(
                    self._answers,
                    f"client-{number}",
                    [_body(topic, f"bench-idle-{(number * each + own) % groups}", poll_seconds) for own in range(each)],
                )
                for number in range(first, min(first + AT_ONCE, connections))
            ]
            # Local addresses in turn, because one address has too few ports for all.
            address = f"127.0.0.{2 + first // AT_ONCE % 200}"
            await asyncio.gather(
                *(
                    loop.create_connection(partial(_itself, one), host, int(port), local_addr=(address, 0))
                    for one in made
                )
            )
            self._connections += made
            await asyncio.sleep(0.05 + each * len(made) / 5_000)
        return self._figures()

    async def look(self) -> dict[str, Any]:
        """How many polls are open, and what was answered so far, by status."""
        return self._figures()

    async def close(self) -> dict[str, Any]:
        figures = self._figures()
        for each in self._connections:
            each.close()
        self._connections = []
        return figures

    def _figures(self) -> dict[str, Any]:
        return {"open": sum(each.open for each in self._connections), "answers": dict(self._answers)}


class _Connection(asyncio.Protocol):
    """One client. Each of its polls is repeated when it is answered."""

    def __init__(self, answers: Counter[str], client: str, bodies: list[bytes]) -> None:
        self.open = 0
        self._answers = answers
        self._bodies = bodies
        self._block = block_of(SERVICE + "ReceiveMessage", ("x-mq-client-id", client), *CLIENT_HEADERS[1:])
        self._polls: dict[int, int] = {}  # the number of the request on each stream
        self._next_stream = 1
        self._unread = b""
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.write(PREFACE + frame(SETTINGS, 0, 0) + frame(WINDOW_UPDATE, 0, 0, WINDOW.to_bytes(4, "big")))
        for number in range(len(self._bodies)):
            self._poll(number)

    def data_received(self, data: bytes) -> None:
        data = self._unread + data
        at = 0
        while len(data) - at >= HEAD_BYTES:
            size = int.from_bytes(data[at : at + 3], "big")
            if len(data) - at < HEAD_BYTES + size:
                break
            kind, flags, stream = struct.unpack_from(">BBI", data, at + 3)
            self._heard(kind, flags, stream, data[at + HEAD_BYTES : at + HEAD_BYTES + size])
            at += HEAD_BYTES + size
        self._unread = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        self.open = 0
        self._answers["connections lost"] += 1

    def close(self) -> None:
        self._transport.abort()

    def _heard(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind in (SETTINGS, PING) and not flags & ACK:
            self._transport.write(frame(kind, ACK, 0, payload if kind == PING else b""))
        elif kind == DATA:
            self._count(payload)
        elif kind == RST_STREAM:
            self._answers["reset"] += 1
            self._ended(stream)
        if flags & END_STREAM and kind in (DATA, HEADERS):
            self._ended(stream)

    def _count(self, payload: bytes) -> None:
        """Small answers: a frame has whole messages."""
        while payload:
            end = PREFIX_BYTES + int.from_bytes(payload[1:PREFIX_BYTES], "big")
            answer = wire.ReceiveMessageResponse.FromString(payload[PREFIX_BYTES:end])
            payload = payload[end:]
            if answer.HasField("status"):
                self._answers[pb.Code.Name(answer.status.code)] += 1

    def _ended(self, stream: int) -> None:
        number = self._polls.pop(stream, None)
        if number is not None:
            self.open -= 1
            self._poll(number)

    def _poll(self, number: int) -> None:
        stream, self._next_stream = self._next_stream, self._next_stream + 2
        self._polls[stream] = number
        self.open += 1
        self._transport.write(
            frame(HEADERS, END_HEADERS, stream, self._block) + frame(DATA, END_STREAM, stream, self._bodies[number])
        )


def _itself(one: _Connection) -> _Connection:
    return one


def _body(topic: str, group: str, poll_seconds: float) -> bytes:
    request = wire.ReceiveMessageRequest(
        group=pb.Resource(name=group),
        message_queue=pb.MessageQueue(topic=pb.Resource(name=topic)),
        filter_expression=pb.FilterExpression(type=pb.TAG, expression="*"),
        batch_size=32,
    )
    request.invisible_duration.seconds = 60
    request.long_polling_timeout.seconds = int(poll_seconds)
    written = request.SerializeToString()
    return framed(len(written)) + written
