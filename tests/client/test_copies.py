"""`copy` and `pickle` of what users hold."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import create_engine

import popserver
from popclient import (
    ClientConfig,
    FilterExpression,
    InvalidReceiptHandle,
    Message,
    MultipleResults,
    NotFound,
    PopError,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    Tls,
    aio,
)
from popclient._session.tls import NoHandshake
from popclient.admin import Admin
from popclient.config import Endpoint
from popclient.errors import EXCEPTION_OF
from popclient.sql import Relay
from tests.client.test_arguments import done

COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


@pytest.mark.parametrize("copied", COPIES)
def test_a_received_message(shared: popserver.EmbeddedBroker, topic: str, copied: Callable[[Any], Any]) -> None:
    with Producer(shared.endpoint) as producer, SimpleConsumer(shared.endpoint, topic, topic) as consumer:
        producer.send(topic, "tea", tag="a", keys=["k"], properties={"n": "1"})
        [message] = consumer.receive()
        consumer.change_invisible_duration(message, 60)  # gives it a new handle
        again = copied(message)
        assert (again, hash(again), repr(again)) == (message, hash(message), repr(message))
        assert (again.text, again.tag, again.keys, again.properties) == ("tea", "a", ("k",), {"n": "1"})
        assert (again.receipt_handle, again.invisible_until) == (message.receipt_handle, message.invisible_until)
        with pytest.raises(RuntimeError, match="is a copy"):
            again.keep_alive()
        consumer.ack(again)
        assert again != "tea"
        producer.send(topic, "milk")
        assert consumer.receive() != [message]


@pytest.mark.parametrize("copied", COPIES)
def test_values(shared: popserver.EmbeddedBroker, topic: str, copied: Callable[[Any], Any]) -> None:
    with Producer(shared.endpoint) as producer, Admin(shared.endpoint) as admin:
        receipt = producer.send(topic, "x")
        results = producer.send_many([Message(topic, "y")])
        values = [
            receipt,
            Message(topic, "x", keys=["a"], properties={"a": "b"}),
            ClientConfig("a:1", access_key="k", access_secret="s", tls=Tls(ca=b"pem")),
            FilterExpression.sql("a > 1"),
            admin.status(),
            admin.get_topic(topic),
        ]
        for value in values:
            assert copied(value) == value
        assert list(copied(results)) == list(results)


@pytest.mark.parametrize("copied", COPIES)
def test_errors(copied: Callable[[Any], Any]) -> None:
    failed = NotFound("no such topic", code=40402, name="TOPIC_NOT_FOUND")
    message = Message("t", "x")
    errors: list[PopError] = [
        failed,
        *(kind("why", code=code, name="NAME") for code, kind in EXCEPTION_OF.items()),
        NoHandshake(Endpoint("a", 1), TimeoutError()),
        MultipleResults("one failed", failures=[(message, failed)]),
        InvalidReceiptHandle(),
    ]
    for error in errors:
        again = copied(error)
        assert type(again) is type(error)
        assert (str(again), again.code, again.name, again.sentence) == (
            str(error), error.code, error.name, error.sentence,
        )  # fmt: skip
    [(of, why)] = copied(errors[-2]).failures
    assert (of, str(why)) == (message, str(failed))


@pytest.mark.parametrize("copied", COPIES)
def test_what_belongs_to_a_connection_is_not_copied(
    shared: popserver.EmbeddedBroker, topic: str, copied: Callable[[Any], Any]
) -> None:
    with Producer(shared.endpoint) as producer, SimpleConsumer(shared.endpoint, topic, topic) as consumer:
        producer.send(topic, "x")
        [message] = consumer.receive()
        clients = [
            producer,
            consumer,
            PushConsumer("a", "g", "t", done),
            PullConsumer("a", "g"),
            Admin("a"),
            aio.Producer("a"),
            Relay(create_engine("sqlite://"), producer),
            message.keep_alive(),
            producer.transaction(Message(topic, "y")),
            shared,
        ]
        for client in clients:
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                copied(client)
