"""What the server does not speak, it says so on page one, and lets go of whoever tries."""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path

import pytest

from popproto.v2 import service_pb2 as wire
from tests.support.wire_server import TOPIC, WireServer

README = (Path(__file__).parents[2] / "README.md").read_text()
NON_GOALS = README.split("## Honest limits of this version")[1].split("\n## ")[0]


def remoting_frame() -> bytes:
    """A request for a route, as the TCP protocol of 4.x frames it: both lengths, then a header in JSON."""
    header = json.dumps({"code": 105, "language": "JAVA", "opaque": 7, "extFields": {"topic": TOPIC.name}}).encode()
    return struct.pack(">II", 4 + len(header), len(header)) + header


@pytest.mark.row("N7")
async def test_the_tcp_protocol_of_4_is_no_goal_and_harms_nobody(wire_server: WireServer) -> None:
    assert "The gRPC protocol of RocketMQ 5, not the TCP protocol of 4.x." in NON_GOALS
    reader, writer = await asyncio.open_connection("127.0.0.1", wire_server.server.port)
    writer.write(remoting_frame())
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    assert b"opaque" not in answer, "no answer of that protocol, and the connection has ended"
    route = await wire_server.call("QueryRoute", wire.QueryRouteRequest(topic=TOPIC))
    assert route.message_queues, "others are served as ever"
