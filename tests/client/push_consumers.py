"""Push consumers on a scripted server, and what the server heard of their messages."""

from __future__ import annotations

from typing import Any

from popclient import (
    aio,
)
from tests.support.scripted_server import ScriptedServer


def consumer_of(server: ScriptedServer, listener: Any, topics: Any = "t", **given: Any) -> aio.PushConsumer:
    return aio.PushConsumer(server.endpoints, "push", topics, listener, **given)


def acked(server: ScriptedServer) -> list[str]:
    return [entry.message_id for request in server.requests("AckMessage") for entry in request.entries]


def failed(server: ScriptedServer) -> list[tuple[str, float]]:
    """Message ids, and for how many seconds."""
    return [
        (request.message_id, request.invisible_duration.ToTimedelta().total_seconds())
        for request in server.requests("ChangeInvisibleDuration")
        if not request.suspend
    ]


def given_back(server: ScriptedServer) -> list[str]:
    return [r.message_id for r in server.requests("ChangeInvisibleDuration") if r.suspend]
