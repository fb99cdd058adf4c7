"""A listener that gives a message up, or cannot read it: a dead letter at once, whose reason says why."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

import popserver
from popclient import ConsumeResult, GiveUp, Message, MessageView, Producer, PushConsumer, aio, typed
from popclient.admin import Admin
from popclient.listening import GiveBack
from tests.client.push_consumers import acked, consumer_of, failed, given_back
from tests.support.documentation_pages import ADDRESS, blocks
from tests.support.scripted_server import ScriptedServer, put, until, until_in_thread

SUCCESS = ConsumeResult.SUCCESS
PAGE = Path(__file__).parents[2] / "docs" / "retries.md"
RUN = re.compile(r"^(PushConsumer\(.*\))\.run\(\)$", re.MULTILINE)
FORWARDED = "forwarded by its consumer: "


class Order(BaseModel):
    drink: str
    table: int
    extras: list[int] = []


def reasons(broker: popserver.EmbeddedBroker, group: str = "g") -> dict[str, str]:
    with Admin(broker.endpoint) as admin:
        return {each.message.text if each.message else "": each.reason for each in admin.dead_letters(group)}


def send(broker: popserver.EmbeddedBroker, topic: str, *bodies: str, message_group: str | None = None) -> None:
    with Producer(broker.endpoint) as producer:
        for body in bodies:
            producer.send(Message(topic, body, message_group=message_group))


# ---- GiveUp ----


@pytest.mark.parametrize("message_group", [None, "table-7"])
def test_what_a_listener_gives_up_is_a_dead_letter_with_its_reason_and_the_rest_follows(
    database_url: str, message_group: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        if message.text == "1":
            raise GiveUp("there is no table 1")
        return SUCCESS

    with popserver.embedded(database_url) as broker:
        send(broker, "t", "0", "1", "2", message_group=message_group)
        with PushConsumer(broker.endpoint, "g", "t", listener) as consumer:
            until_in_thread(lambda: len(seen) == 3 and consumer.cached == (0, 0))
        assert reasons(broker) == {"1": f"{FORWARDED}there is no table 1"}
    assert sorted(seen) == ["0", "1", "2"]
    assert seen == sorted(seen) or message_group is None
    [told] = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert told.getMessage().endswith(": the listener gives up, so this becomes a dead letter: there is no table 1")
    assert not told.exc_info, "nobody needs the traceback of what a listener decided"


def test_a_batch_is_given_up_together() -> None:
    def listener(_: Any) -> ConsumeResult:
        raise GiveUp

    with popserver.embedded() as broker:
        send(broker, "t", "0", "1")
        with PushConsumer(broker.endpoint, "g", "t", listener, batch_size=2) as consumer:
            until_in_thread(lambda: len(reasons(broker)) == 2 and consumer.cached == (0, 0))
        assert set(reasons(broker).values()) == {"forwarded by its consumer"}


async def test_at_any_server_it_is_forwarded_and_neither_acked_nor_failed(server: ScriptedServer) -> None:
    put(server, 1)

    async def listener(_: MessageView) -> ConsumeResult:
        raise GiveUp("never")

    async with consumer_of(server, listener) as consumer:
        await until(lambda: consumer.cached == (0, 0) and server.requests("ForwardMessageToDeadLetterQueue"))
    [forwarded] = server.requests("ForwardMessageToDeadLetterQueue")
    assert forwarded.message_id == "t-0"
    assert (acked(server), failed(server)) == ([], [])


# ---- GiveBack: what popclient.frameworks uses ----


@pytest.mark.parametrize("message_group", [None, "table-7"])
async def test_what_is_given_back_is_ready_at_once_and_keeps_its_attempts(message_group: str | None) -> None:
    seen: list[tuple[str, int]] = []

    async def listener(message: MessageView) -> ConsumeResult:
        seen.append((message.text, message.delivery_attempt))
        if len(seen) == 1:
            raise GiveBack
        return SUCCESS

    with popserver.embedded(manual_clock=True) as broker:
        await asyncio.to_thread(send, broker, "t", "0", "1", "2", message_group=message_group)
        async with aio.PushConsumer(broker.endpoint, "g", "t", listener, concurrency=1) as consumer:
            await until(lambda: len(seen) == 4 and consumer.cached == (0, 0))
    assert {attempt for _, attempt in seen} == {1}
    if message_group:
        assert [text for text, _ in seen] == ["0", "0", "1", "2"]


async def test_giving_back_is_no_failure(server: ScriptedServer, caplog: pytest.LogCaptureFixture) -> None:
    put(server, 1)
    returned: list[bool] = []

    async def listener(_: MessageView) -> ConsumeResult:
        if returned:
            return SUCCESS
        returned.append(True)
        raise GiveBack

    async with consumer_of(server, listener):
        await until(lambda: given_back(server))
    assert failed(server) == []
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []


# ---- Typed bodies ----


def run_typed(model: Any, *bodies: str) -> tuple[list[Any], dict[str, str]]:
    """What a listener got of these bodies, and the reasons of what it did not get."""
    got: list[Any] = []

    @typed(model)
    def listener(value: Any, message: MessageView) -> ConsumeResult:
        assert message.delivery_attempt == 1
        got.append(value)
        return SUCCESS

    with popserver.embedded() as broker:
        send(broker, "t", *bodies)
        with PushConsumer(broker.endpoint, "g", "t", listener) as consumer:
            until_in_thread(lambda: len(got) + len(reasons(broker)) == len(bodies) and consumer.cached == (0, 0))
        return got, {body: reason.removeprefix(FORWARDED) for body, reason in reasons(broker).items()}


def test_a_model_of_pydantic_reads_bodies_and_names_the_fields_that_are_wrong(
    caplog: pytest.LogCaptureFixture,
) -> None:
    good, missing, wrong = '{"drink": "tea", "table": 7}', '{"drink": "tea"}', '{"table": "x", "extras": [1, "secret"]}'
    got, given_up = run_typed(Order, good, missing, wrong, "no JSON")
    assert got == [Order(drink="tea", table=7)]
    assert given_up.pop("no JSON").startswith("the body cannot be read: body: Invalid JSON: ")
    assert given_up == {
        missing: "the body cannot be read: table: Field required",
        wrong: "the body cannot be read: drink: Field required; table: Input should be a valid integer, unable to parse"
        " string as an integer; extras.1: Input should be a valid integer, unable to parse string as an integer",
    }
    assert "extras.1: Input should be a valid integer" in caplog.text
    assert "secret" not in caplog.text


def test_a_function_reads_bodies_and_says_itself_what_is_wrong() -> None:
    got, given_up = run_typed(json.loads, '{"table": 7}', "no JSON")
    assert got == [{"table": 7}]
    assert given_up == {
        "no JSON": "the body cannot be read: JSONDecodeError: Expecting value: line 1 column 1 (char 0)"
    }
    got, given_up = run_typed(TypeAdapter(list[int]).validate_json, "[1, 2]", '[1, "x"]')
    assert got == [[1, 2]]
    assert given_up['[1, "x"]'].startswith("the body cannot be read: 1: Input should be a valid integer")


async def test_a_coroutine_function_is_a_listener_of_asyncio_and_may_fail_as_any() -> None:
    got: list[int] = []

    @typed(Order)
    async def listener(order: Order, message: MessageView) -> ConsumeResult:
        """Brews."""
        got.append(order.table)
        if message.delivery_attempt == 1:
            raise ValueError("no milk")
        return SUCCESS

    assert (listener.__name__, listener.__doc__) == ("listener", "Brews.")
    with popserver.embedded() as broker:
        async with aio.Admin(broker.endpoint) as admin:
            await admin.create_group("g", max_attempts=2, retry_intervals=[0.01])
        await asyncio.to_thread(send, broker, "t", '{"drink": "tea", "table": 7}')
        async with aio.PushConsumer(broker.endpoint, "g", "t", listener) as consumer:
            await until(lambda: len(got) == 2 and consumer.cached == (0, 0))
        assert await asyncio.to_thread(reasons, broker) == {}


def test_the_programs_of_the_page() -> None:
    programs = [block.text for block in blocks(PAGE) if block.language == "python"]
    with popserver.embedded() as broker, ExitStack() as consumers, Producer(broker.endpoint) as producer:
        for program in programs:
            code = RUN.sub(r"started(\1)", program.replace(ADDRESS, broker.endpoint))
            exec(compile(code, "retries.md", "exec"), {"started": consumers.enter_context})
        producer.send("orders", '{"drink": "tea"}', properties={"table": "0"})
        until_in_thread(lambda: reasons(broker, "waiters") and reasons(broker, "kitchen"))
        said = [reason for group in ("waiters", "kitchen") for reason in reasons(broker, group).values()]
    assert said == [f"{FORWARDED}there is no table 0", f"{FORWARDED}the body cannot be read: table: Field required"]


@pytest.mark.parametrize("model", [dict, 7, "Order", None])
def test_what_cannot_read_bytes_is_refused_when_the_listener_is_made(model: Callable[[bytes], Any]) -> None:
    with pytest.raises(TypeError, match=r"^model is .*; give a pydantic model, or a function that takes bytes"):
        typed(model)
