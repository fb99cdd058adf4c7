"""The gRPC health service and GetHealth of a whole server: the facts of /livez and /readyz, by name."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

import popclient
from popclient.admin import Admin, Health
from popserver.app import App
from popserver.transport import public_services
from tests.support.failing_database import hanging_database
from tests.web.conftest import started

SERVING = HealthCheckResponse.SERVING
NOT_SERVING = HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN
READINESS = ("", "readiness", "apache.rocketmq.v2.MessagingService", "popmq.v1.Admin")
LIVENESS = ("startup", "liveness")


@asynccontextmanager
async def stub_of(app: App) -> AsyncIterator[Any]:
    async with grpc.aio.insecure_channel(app.endpoint) as channel:
        yield HealthStub(channel)


async def states(app: App, *names: str) -> list[int]:
    async with stub_of(app) as stub:
        return [(await stub.Check(HealthCheckRequest(service=name))).status for name in names]


def reported(app: App, **credentials: Any) -> Health:
    with Admin(popclient.ClientConfig(app.endpoint, **credentials)) as admin:
        return admin.health()


async def test_a_server_that_works_serves_under_every_name(database_url: str) -> None:
    async with started(database_url) as app:
        assert set(await states(app, *READINESS, *LIVENESS)) == {SERVING}
        health = await asyncio.to_thread(reported, app)
    assert (health.live, health.ready, health.warnings) == (True, True, ())
    assert [each.name for each in health.checks] == ["accepts requests", "writer", "transactions", "database"]
    assert all(each.ok and each.reason for each in health.checks)


async def test_a_database_that_does_not_answer_makes_a_server_unready_but_not_dead(
    web: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hanging_database(monkeypatch):
        assert set(await states(web, *READINESS)) == {NOT_SERVING}
        assert set(await states(web, *LIVENESS)) == {SERVING}
        health = await asyncio.to_thread(reported, web)
    (reason,) = [each.reason for each in health.checks if not each.ok]
    assert "has not answered for" in reason
    assert (health.live, health.ready) == (True, False)


async def test_many_ask_at_one_time(web: App) -> None:
    async with stub_of(web) as stub:
        answers = await asyncio.gather(*(stub.Check(HealthCheckRequest(service="readiness")) for _ in range(50)))
    assert {each.status for each in answers} == {SERVING}


async def test_a_dead_writer_is_a_dead_server(web: App) -> None:
    await web.broker.engine.writer.close()
    assert set(await states(web, *READINESS, *LIVENESS)) == {NOT_SERVING}


async def test_a_watch_tells_each_change(web: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_services, "WATCH_S", 0.01)
    async with stub_of(web) as stub:
        watch = stub.Watch(HealthCheckRequest(service="readiness"))
        assert (await watch.read()).status == SERVING
        with hanging_database(monkeypatch):
            assert (await watch.read()).status == NOT_SERVING
        assert (await watch.read()).status == SERVING
        watch.cancel()


async def test_a_server_that_stops_is_live_but_not_ready(tmp_path: Path) -> None:
    """Watches are told, and end."""
    async with started(f"sqlite:///{tmp_path / 'popmq.db'}") as app, stub_of(app) as stub:
        ready, live = (stub.Watch(HealthCheckRequest(service=name)) for name in ("readiness", "liveness"))
        assert [(await each.read()).status for each in (ready, live)] == [SERVING, SERVING]
        app.readiness.leave()
        assert set(await states(app, *READINESS)) == {NOT_SERVING}
        assert set(await states(app, *LIVENESS)) == {SERVING}
        assert (await ready.read()).status == NOT_SERVING
        assert [await each.read() for each in (ready, live)] == [grpc.aio.EOF] * 2


async def test_a_name_that_nobody_knows(web: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """NOT_FOUND for a check. A watch stays open, because a service may appear later."""
    monkeypatch.setattr(public_services, "WATCH_S", 0.01)
    async with stub_of(web) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Check(HealthCheckRequest(service="nobody"))
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND
        watch = stub.Watch(HealthCheckRequest(service="nobody"))
        assert (await watch.read()).status == SERVICE_UNKNOWN
        second = asyncio.ensure_future(watch.read())
        await states(web, *READINESS)
        assert not second.done()
        watch.cancel()
        await asyncio.wait([second])


async def test_reasons_are_for_admins_and_states_for_everybody(tmp_path: Path) -> None:
    keys = {"access_key": "root", "access_secret": "a-long-secret-of-the-admin"}
    options = {"auth": True, "admin_access_key": keys["access_key"], "admin_secret": keys["access_secret"]}
    async with started(f"sqlite:///{tmp_path / 'popmq.db'}", **options) as app:
        assert await states(app, "readiness") == [SERVING]
        with pytest.raises(popclient.PopError, match="sign"):
            await asyncio.to_thread(reported, app)
        assert (await asyncio.to_thread(reported, app, **keys)).ready
