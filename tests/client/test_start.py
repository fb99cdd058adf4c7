"""What a consumer is made of, and the order in which it comes to life."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import popclient
from popclient import ClientConfig, aio
from popclient.aio import SimpleConsumer
from tests.support.scripted_server import ScriptedServer


@pytest.mark.row("N5")
async def test_settings_route_server_then_the_request(server: ScriptedServer) -> None:
    known: list[tuple[list[str], int]] = []

    def look(_request: Any) -> None:
        known.append(([name for name, _ in server.calls], len(server.settings)))

    server.answers["ReceiveMessage"] = look
    async with SimpleConsumer(server.endpoints, group="billing", topics={"orders": "A || B"}) as consumer:
        await consumer.receive(await_duration=0.1)
    before, settings = known[0]
    assert before.index("QueryRoute") < before.index("ReceiveMessage")
    assert settings >= 1, "the subscription is told before the first message is asked for"
    subscription = server.settings[0].subscription
    assert subscription.group.name == "billing"
    assert [(each.topic.name, each.expression.expression) for each in subscription.subscriptions] == [
        ("orders", "A || B")
    ]


@pytest.mark.row("N4")
async def test_namespace_group_and_credentials_reach_the_server(server: ScriptedServer) -> None:
    config = ClientConfig(server.endpoints, namespace="blue", access_key="reader", access_secret="s3cret")
    async with SimpleConsumer(config, group="billing", topics="orders") as consumer:
        await consumer.receive(await_duration=0.1)
    (request, *_) = server.requests("ReceiveMessage")
    headers = server.metadata["ReceiveMessage"]
    assert (request.group.name, request.group.resource_namespace) == ("billing", "blue")
    assert headers["x-mq-namespace"] == "blue"
    assert "Credential=reader" in headers["authorization"]
    assert "s3cret" not in str(headers)


@pytest.mark.row("N4")
def test_both_faces_take_the_same_parameters() -> None:
    wanted = {"group", "topics"}
    for consumer in (popclient.SimpleConsumer, SimpleConsumer):
        assert wanted <= set(inspect.signature(consumer).parameters)
    assert {"namespace", "access_key", "access_secret"} <= set(inspect.signature(ClientConfig).parameters)


@pytest.mark.row("L4")
@pytest.mark.parametrize("face", [popclient, aio], ids=["sync", "aio"])
def test_every_listener_has_fifteen_minutes_unless_it_is_told_otherwise(face: Any) -> None:
    found = {
        f"{kind}.{name}": parameter.default
        for kind, maker in inspect.getmembers(face, inspect.isclass)
        for _, function in inspect.getmembers(maker, inspect.isfunction)
        for name, parameter in inspect.signature(function).parameters.items()
        if name in ("consumption_timeout", "consume_timeout")
    }
    assert found == {
        "PushConsumer.consumption_timeout": 900,
        "LitePushConsumer.consumption_timeout": 900,
        "QueuePushConsumer.consume_timeout": 900,
        "PullConsumer.consume_timeout": 900,
    }


@pytest.mark.row("N8")
@pytest.mark.parametrize("face", [popclient, aio], ids=["sync", "aio"])
@pytest.mark.parametrize(
    ("kind", "others"),
    [
        ("SimpleConsumer", ["t"]),
        ("PullConsumer", []),
        ("LiteSimpleConsumer", ["t"]),
        ("PushConsumer", ["t", "listener"]),
        ("LitePushConsumer", ["t", "listener"]),
        ("QueuePushConsumer", ["t", "listener"]),
    ],
)
def test_no_consumer_is_made_without_a_group_or_a_listener(face: Any, kind: str, others: list[str]) -> None:
    async def hears(*_: object) -> None: ...

    def listens(*_: object) -> None: ...

    consumer = getattr(face, kind)
    given = [(hears if face is aio else listens) if each == "listener" else each for each in others]
    for missing in ("", " ", None):
        with pytest.raises((TypeError, ValueError), match="group"):
            consumer("127.0.0.1:1", missing, *given)
    if "listener" in others:
        with pytest.raises(TypeError, match="listener"):
            consumer("127.0.0.1:1", "g", "t")
        with pytest.raises(TypeError, match="listener is None"):
            consumer("127.0.0.1:1", "g", "t", None)
    consumer("127.0.0.1:1", "g", *given)
