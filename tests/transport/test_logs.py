"""What the server says about its own failures: the reason, never what its users sent."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.messages import stored
from tests.support.wire_server import WireServer, a_message

SECRET = "planted-7f3a9c"


@pytest.mark.parametrize("where", ["sending", "store"])
async def test_a_failure_is_logged_without_bodies_or_properties(
    wire_server: WireServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    def fail(*_args: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("a defect")

    if where == "sending":
        monkeypatch.setattr(wire_server.broker.producing.sending, "send", fail)
    else:
        monkeypatch.setattr(stored, "_append_to_topic", fail)
    sent = a_message("m1", body=SECRET.encode())
    sent.user_properties["card"] = SECRET
    (status,) = await wire_server.statuses("SendMessage", wire.SendMessageRequest(messages=[sent]))
    assert status.code == pb.INTERNAL_SERVER_ERROR
    printed = "".join(capsys.readouterr())
    assert "a defect" in printed, "the reason is in the log"
    assert SECRET not in printed
    assert SECRET not in status.message
