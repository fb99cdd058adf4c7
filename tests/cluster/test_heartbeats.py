"""What a server says of its heartbeats while the database is away."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from popserver.cluster.sql import LONE_HEARTBEAT_MS
from popserver.model.errors import StoreUnavailable
from tests.support.several_brokers import SeveralBrokers


async def test_it_tells_once_that_they_fail_and_when_they_succeed_again(
    lone_server: SeveralBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = lone_server.a.broker.servers
    heartbeat, failures = servers._heartbeat, 3

    async def fails_at_first() -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable
        await heartbeat()

    monkeypatch.setattr(servers, "_heartbeat", fails_at_first)
    with capture_logs() as said:
        for _ in range(6):
            await lone_server.advance(LONE_HEARTBEAT_MS)
    assert failures == 0
    assert [each["event"] for each in said if "heartbeat" in each["event"]] == [
        "a heartbeat to the other servers failed",
        "heartbeats to the other servers succeed again",
    ]
    (again,) = [each for each in said if "succeed again" in each["event"]]
    assert again["after"] == "9 s"
