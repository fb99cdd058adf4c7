"""Addresses, headers, signature: what every call carries (protocol 2)."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import math
import re
from datetime import timedelta
from typing import Any, cast

import pytest

from popclient import ClientClosed, ClientConfig, Unreachable, _forks, aio
from popclient._session import transport
from popclient._session.transport import Headers, Transport, authorization
from popclient._version import new_client_id
from popclient.admin import Admin
from popclient.config import Endpoint, parse_endpoints
from popclient.remoting import RocketMQAdmin
from popproto.v2 import service_pb2 as rpc
from tests.support.scripted_server import ScriptedServer


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h:1", [Endpoint("h", 1)]),
        ("h", [Endpoint("h", 8081)]),
        (" a:1 ; b:2 ;", [Endpoint("a", 1), Endpoint("b", 2)]),
        ("http://h:80/", [Endpoint("h", 80)]),
        ("[::1]:9", [Endpoint("::1", 9)]),
        ("::1", [Endpoint("::1", 8081)]),
    ],
)
def test_endpoints(text: str, found: list[Endpoint]) -> None:
    assert parse_endpoints(text) == found


@pytest.mark.parametrize("text", [";", "h:0", "h:65536", "h:x", ":1", "a b:1", "a,b:1"])
def test_endpoints_that_are_none_are_named(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_endpoints(text)


def test_the_environment_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCKETMQ_ENDPOINTS", "broker:1;other:2")
    monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "key")
    monkeypatch.setenv("ROCKETMQ_ACCESS_SECRET", "secret")
    config = ClientConfig()
    assert (config.endpoints, config.access_key, config.access_secret) == ("broker:1;other:2", "key", "secret")
    assert "secret" not in repr(config).replace("access_secret", "")
    assert ClientConfig(endpoints="mine:3").endpoints == "mine:3"


@pytest.mark.parametrize("endpoints", ["https://h:1", "a:1;https://b:2"])
def test_https_needs_tls(endpoints: str) -> None:
    with pytest.raises(ValueError, match="ask for TLS, but tls is off"):
        ClientConfig(endpoints)
    assert ClientConfig(endpoints, tls=True).tls


@pytest.mark.parametrize("name", ["namespace", "access_key", "session_token"])
@pytest.mark.parametrize("value", ["hush\n", "hush\x7f", "hushé"])
def test_what_no_header_carries_is_refused_unseen(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=rf"character 5 of 5 in {name} is U\+00") as refusal:
        ClientConfig(**cast("dict[str, Any]", {name: value}))
    assert "hush" not in str(refusal.value)


def test_headers() -> None:
    headers = dict(Headers(ClientConfig(namespace="ns", session_token="t"), "me")())
    assert headers["x-mq-client-id"] == "me"
    assert headers["x-mq-language"] == "PYTHON"
    assert headers["x-mq-protocol"] == "v2"
    assert headers["x-mq-namespace"] == "ns"
    assert headers["x-mq-session-token"] == "t"
    assert headers["x-mq-client-version"]
    assert re.fullmatch(r"\d{8}T\d{6}Z", headers["x-mq-date-time"])
    assert "authorization" not in headers


def test_each_request_has_an_id_of_its_own() -> None:
    headers = Headers(ClientConfig(), "me")
    assert dict(headers())["x-mq-request-id"] != dict(headers())["x-mq-request-id"]


def test_signature() -> None:
    headers = dict(Headers(ClientConfig(access_key="ak", access_secret="sk"), "me")())
    digest = hmac.new(b"sk", headers["x-mq-date-time"].encode(), hashlib.sha1).hexdigest().upper()
    assert headers["authorization"] == (
        f"MQv2-HMAC-SHA1 Credential=ak, SignedHeaders=x-mq-date-time, Signature={digest}"
    )


def test_signature_of_a_known_text() -> None:
    made = authorization("ak", "sk", "20261120T101112Z")
    assert made.endswith("Signature=" + hmac.digest(b"sk", b"20261120T101112Z", "sha1").hex().upper())


def test_client_ids_are_unique() -> None:
    drawn = {new_client_id() for _ in range(100)}
    assert len(drawn) == 100
    assert all(re.fullmatch(r".+@\d+@\d+@[0-9a-f]{8}", text) for text in drawn)


async def test_headers_reach_the_server(server: ScriptedServer) -> None:
    config = ClientConfig(endpoints=server.endpoints, namespace="ns", access_key="ak", access_secret="sk")
    async with aio.Producer(config) as producer:
        await producer.send("t", b"x")
        for method in ("QueryRoute", "Telemetry", "SendMessage"):
            assert server.metadata[method]["x-mq-client-id"] == producer.client_id
            assert server.metadata[method]["x-mq-namespace"] == "ns"
            assert "Credential=ak" in server.metadata[method]["authorization"]
    assert server.requests("SendMessage")[0].messages[0].topic.resource_namespace == "ns"


@pytest.mark.row("N1")
async def test_the_first_endpoint_is_dead_the_second_serves(server: ScriptedServer) -> None:
    dead = ScriptedServer()
    await dead.start()
    await dead.stop()
    async with aio.Producer(f"{dead.endpoints};{server.endpoints}", "t") as producer:
        receipt = await producer.send("t", b"x")
        assert producer.healthy
    assert server.stored["t"][0].system_properties.message_id == receipt.message_id


@pytest.mark.row("N1")
async def test_a_server_that_dies_is_left_for_the_other(server: ScriptedServer) -> None:
    lost: list[Exception] = []
    async with ScriptedServer() as first:
        endpoints = f"{first.endpoints};{server.endpoints}"
        async with aio.Producer(endpoints, "t", on_disconnect=lost.append) as producer:
            await producer.send("t", b"1")
            assert len(first.stored["t"]) == 1
            await first.stop()
            await producer.send("t", b"2")
            assert len(server.stored["t"]) == 1
    assert lost


async def test_a_client_that_is_closed_while_it_looks_up_a_name_opens_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def looked_up(_: str) -> None:
        asked.set()
        await answered.wait()

    monkeypatch.setattr(transport, "proxy_for", looked_up)
    closed = Transport(ClientConfig("broker:1"), "c")
    linking = asyncio.ensure_future(closed.link())
    await asked.wait()
    await closed.close()
    answered.set()
    with pytest.raises(ClientClosed):
        await linking
    assert closed not in _forks._forks.open


async def test_nobody_there_is_unreachable_within_the_deadline() -> None:
    gone = ScriptedServer()
    await gone.start()
    await gone.stop()
    transport = Transport(ClientConfig(endpoints=gone.endpoints), "me")
    with pytest.raises(Unreachable, match=gone.endpoints):
        await transport.unary(lambda link: link.messaging.Heartbeat, rpc.HeartbeatRequest(), 0.3)
    await transport.close()


def test_durations_may_be_timedeltas() -> None:
    minute = timedelta(minutes=1)
    config = ClientConfig(request_timeout=minute, wait_for_server=minute, close_timeout=minute)
    assert config == ClientConfig(request_timeout=60, wait_for_server=60, close_timeout=60)
    assert (config.request_timeout, config.wait_for_server, config.close_timeout) == (60.0, 60.0, 60.0)
    assert Admin(config, connect_timeout=minute)._connect_timeout == 60.0
    RocketMQAdmin("127.0.0.1:9876", timeout=minute)


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        (
            {"request_timeout": "3"},
            TypeError,
            "request_timeout is '3'; it must be seconds or a timedelta, from 0.001 s",
        ),
        ({"request_timeout": 0}, ValueError, "request_timeout is 0; it must be seconds or a timedelta, from 0.001 s"),
        ({"request_timeout": math.nan}, ValueError, "request_timeout is nan"),
        ({"close_timeout": math.inf}, ValueError, "close_timeout is inf; .* to 36500 days"),
        ({"close_timeout": -1}, ValueError, "close_timeout is -1; .* from 0 s"),
        ({"max_attempts": 0}, ValueError, "max_attempts is 0; it must be at least 1"),
        ({"max_attempts": 1.5}, TypeError, "max_attempts is 1.5; it must be a whole number"),
    ],
)
def test_numbers_that_are_none_are_refused(wrong: dict[str, Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        ClientConfig(**wrong)
