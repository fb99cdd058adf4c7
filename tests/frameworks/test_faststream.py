"""What docs/frameworks/faststream.md says of FastStream, and its second program."""

from __future__ import annotations

import importlib
import pkgutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import faststream
import pytest
from faststream.redis import RedisBroker, TestRedisBroker

from popclient import aio
from popserver import EmbeddedBroker
from tests.frameworks.conftest import Counts, become
from tests.support.documentation_pages import ADDRESS, blocks
from tests.support.scripted_server import until

PAGE = Path(__file__).parents[2] / "docs" / "frameworks" / "faststream.md"


def public_names() -> set[str]:
    """Of FastStream and its public modules, as far as what they need is installed."""
    names = set(faststream.__all__)
    for each in pkgutil.iter_modules(faststream.__path__):
        with suppress(ImportError):
            names.update(getattr(importlib.import_module(f"faststream.{each.name}"), "__all__", ()))
    return names


def test_what_a_broker_is_made_of_is_private() -> None:
    """When this fails FastStream has published it: then write a broker."""
    bases = {each.__name__ for each in RedisBroker.__mro__ if each.__module__.startswith("faststream._internal")}
    assert {"BrokerUsecase", "Registrator"} <= bases
    names = public_names()
    assert "RedisBroker" in names
    assert not names & {*bases, "SubscriberUsecase", "PublisherUsecase", "ProducerProto", "BrokerConfig"}


async def test_an_application_without_a_broker_does_not_start() -> None:
    with pytest.raises(AssertionError, match="broker"):
        await faststream.FastStream().start()


async def test_a_push_consumer_beside_a_broker(stored: EmbeddedBroker) -> None:
    """The application's lifespan opens it, and FastStream's own test broker gets what it forwards."""
    program = next(block.text for block in blocks(PAGE) if block.text.startswith("# bridge.py"))
    names: dict[str, Any] = {}
    exec(compile(program.replace(ADDRESS, stored.endpoint), "bridge.py", "exec"), names)
    broker, app = names["broker"], names["app"]
    got: list[str] = []

    async def take(order: str) -> None:
        got.append(order)

    broker.subscriber(channel="orders")(take)
    async with TestRedisBroker(broker), faststream.TestApp(app), aio.Producer(stored.endpoint) as producer:
        await producer.send("orders", "one espresso")
        await until(lambda: got == ["one espresso"])
        assert app.context.get("consumer").healthy
        await become(stored, Counts(), "orders", "bridge")
