"""How far a plain call walks: the functions and files of the server that it enters, on all threads.

The door does not count: HTTP/2 is what other servers leave to a library. Limits may only shrink. The goals are
29 functions in 12 files for an ack, 44 in 16 for a send, 83 in 16 for a receive.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import popserver
from popproto.v2 import service_pb2 as wire
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, handle_of, opened

ROOT = str(Path(popserver.__file__).parent)
DOOR = ("/popserver/http2/", "/popserver/front/")
TRIES = 20  # timers may fire in the middle of a call, on a busy machine in many of them
LIMITS = {"ack": (29, 12), "send": (44, 16), "receive": (83, 22)}  # functions, files


class Walk:
    """The code that is entered while it records. Made before the server's threads start."""

    def __init__(self) -> None:
        self.entered: set[CodeType] | None = None

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and self.entered is not None:
            self.entered.add(frame.f_code)

    async def of(self, call: Callable[[], Awaitable[Any]]) -> list[str]:
        """The named functions of the server that a call enters, as `file:function`."""
        entered: set[CodeType] = set()
        self.entered = entered
        try:
            await call()
        finally:
            self.entered = None
        named = (each for each in entered if _counts(each.co_filename) and each.co_name[0] != "<")
        return sorted(f"{each.co_filename.removeprefix(ROOT)}:{each.co_qualname}" for each in named)


def _counts(file: str) -> bool:
    return file.startswith(ROOT) and not any(room in file for room in DOOR)


@pytest.fixture
async def walked(tmp_path: Path) -> AsyncIterator[tuple[Walk, WireServer]]:
    walk = Walk()
    before = sys.getprofile()
    threading.setprofile(walk)
    sys.setprofile(walk)
    try:
        async with opened(tmp_path) as wire_server:
            yield walk, wire_server
    finally:
        sys.setprofile(before)
        threading.setprofile(before)


@pytest.mark.parametrize("kind", LIMITS)
async def test_a_plain_call_walks_no_further(walked: tuple[Walk, WireServer], kind: str) -> None:
    walk, wire_server = walked
    walks = []
    for number in range(TRIES + 1):
        message = a_message(f"m{number}")
        sent = await walk.of(lambda: wire_server.send(message))  # noqa: B023 - called at once
        got: list[Any] = []

        async def receive() -> None:
            got[:] = await wire_server.receive()  # noqa: B023

        received = await walk.of(receive)
        entry = wire.AckMessageEntry(message_id=message.system_properties.message_id, receipt_handle=handle_of(got[0]))
        request = wire.AckMessageRequest(group=GROUP, topic=TOPIC, entries=[entry])
        acked = await walk.of(lambda: wire_server.call("AckMessage", request))  # noqa: B023
        walks.append({"send": sent, "receive": received, "ack": acked}[kind])
    shortest = min(walks[1:], key=len)  # the first one makes the topic and the group
    functions, files = LIMITS[kind]
    assert len(shortest) <= functions, "\n".join(shortest)
    assert len({each.partition(":")[0] for each in shortest}) <= files, "\n".join(shortest)
