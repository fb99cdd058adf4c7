"""A client id goes into logs and answers: it has visible characters."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast
from unittest.mock import AsyncMock

import pytest

from popserver.access.flow import Access
from popserver.access.gate import ClientGate
from popserver.engine.clock import ManualClock
from popserver.model.errors import BadRequest
from popserver.transport.call import Call
from popserver.transport.calls import Caller
from tests.support.wire_server import opened


@pytest.mark.parametrize("client_id", ["a\nb", "a\x1b[2Jb", "a\x00b", "a\x7fb", "a\x9bb"])
async def test_control_characters_are_refused(tmp_path: Path, client_id: str) -> None:
    """No gRPC client lets such a header through, so the gate is asked itself."""
    async with opened(tmp_path) as wire_server:
        seen: list[str] = []
        clients = SimpleNamespace(present={}, seen=seen.append)
        access = Access(wire_server.broker.engine.reader, wire_server.broker.engine.clock, None)
        gate = ClientGate(access, clients, ManualClock(), AsyncMock())
        call = cast("Call", SimpleNamespace(headers={"x-mq-client-id": client_id}))
        with pytest.raises(BadRequest, match="control character") as refused:
            gate.enter("Heartbeat", Caller(call), anonymous=False)
        assert repr(client_id) in refused.value.sentence
        assert seen == []
