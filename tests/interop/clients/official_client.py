"""The official Python client at the end of a pipe.

One JSON command per line on stdin, one JSON answer per line on stdout; `node/official_client.js` speaks the same. What
a push consumer's listener hears comes unasked. Durations are whole seconds: this client knows no shorter ones.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)
from rocketmq.v5.client.connection import RpcClient
from rocketmq.v5.model.filter_expression import FilterType

from tests.interop.clients.pipe import REQUEST_TIMEOUT_S, Command, NoSuchCall, Plan, say, serve

TLS = "OFFICIAL_TLS" in os.environ

_clients: dict[str, Any] = {}
_listeners: dict[str, Listener] = {}
# UNKNOWN is the protocol's unspecified one.
RESOLUTIONS: dict[str, int] = {
    "UNKNOWN": TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
    "COMMIT": TransactionResolution.COMMIT,
    "ROLLBACK": TransactionResolution.ROLLBACK,
}
_received: dict[str, Message] = {}
_transactions: dict[str, Any] = {}


class Listener(MessageListener):
    def __init__(self, command: Command) -> None:
        self.plan = Plan(command)

    def consume(self, message: Message) -> ConsumeResult:
        return ConsumeResult.SUCCESS if self.plan.is_consumed(described(message)) else ConsumeResult.FAILURE


class Checker(TransactionChecker):
    """Says what it heard, and the same of every half message."""

    def __init__(self, name: str, decides: str) -> None:
        self._name = name
        self._decides = decides

    def check(self, message: Message) -> int:
        say(heard=self._name, message=described(message))
        return RESOLUTIONS[self._decides]


def open_producer(command: Command, configuration: ClientConfiguration) -> Producer:
    checker = Checker(command["client"], command["decides"]) if command["decides"] else None
    return Producer(configuration, command["topics"] or None, checker, tls_enable=TLS)


def open_simple(command: Command, configuration: ClientConfiguration) -> SimpleConsumer:
    return SimpleConsumer(
        configuration, command["group"], subscriptions(command), await_duration=command["await_s"], tls_enable=TLS
    )


def open_push(command: Command, configuration: ClientConfiguration) -> PushConsumer:
    listener = Listener(command)
    _listeners[command["client"]] = listener
    return PushConsumer(configuration, command["group"], listener, subscriptions(command), tls_enable=TLS)


def open_lite(command: Command, configuration: ClientConfiguration) -> LitePushConsumer:
    if command["suspend_s"]:
        raise NoSuchCall("suspend")
    (topic,) = command["topics"]
    return LitePushConsumer(configuration, command["group"], topic, Listener(command), tls_enable=TLS)


class SettledLiteSimpleConsumer(LiteSimpleConsumer):
    """Starts with its settings: before, it refuses to subscribe to anything, because its quota is zero."""

    def __init__(self, *given: Any, **options: Any) -> None:
        self._has_settings = threading.Event()
        super().__init__(*given, **options)

    def reset_setting(self, settings: Any) -> None:
        super().reset_setting(settings)
        self._has_settings.set()

    def startup(self) -> None:
        super().startup()
        self._has_settings.wait(REQUEST_TIMEOUT_S)


def open_lite_simple(command: Command, configuration: ClientConfiguration) -> LiteSimpleConsumer:
    (topic,) = command["topics"]
    return SettledLiteSimpleConsumer(topic, configuration, command["group"], command["await_s"], tls_enable=TLS)


def subscriptions(command: Command) -> dict[str, FilterExpression]:
    kind = FilterType.SQL if command["sql"] else FilterType.TAG
    return {topic: FilterExpression(expression, kind) for topic, expression in command["topics"].items()}


OPENS: dict[str, Callable[[Command, ClientConfiguration], Any]] = {
    "producer": open_producer,
    "simple": open_simple,
    "push": open_push,
    "lite": open_lite,
    "lite_simple": open_lite_simple,
}


def credentials() -> Credentials:
    key, secret = (os.environ.get(f"OFFICIAL_ACCESS_{name}") for name in ("KEY", "SECRET"))
    return Credentials(key, secret) if key else Credentials()


def open_client(command: Command) -> dict[str, Any]:
    configuration = ClientConfiguration(command["endpoint"], credentials(), command["namespace"], REQUEST_TIMEOUT_S)
    client = OPENS[command["kind"]](command, configuration)
    client.startup()
    _clients[command["client"]] = client
    return {"client_id": client.client_id}


def send(command: Command) -> dict[str, Any]:
    message = Message()
    message.topic = command["topic"]
    message.body = command["body"].encode()
    if command["tag"] is not None:
        message.tag = command["tag"]
    for key in command["keys"]:
        message.keys = key
    for name, value in command["properties"].items():
        message.add_property(name, value)
    if command["deliver_at_s"] is not None:
        message.delivery_timestamp = command["deliver_at_s"]
    if command["message_group"] is not None:
        message.message_group = command["message_group"]
    if command["priority"] is not None:
        message.priority = command["priority"]
    if command["lite_topic"] is not None:
        message.lite_topic = command["lite_topic"]
    producer = _clients[command["client"]]
    transaction = producer.begin_transaction() if command["half"] else None
    receipt = producer.send(message, transaction) if command["half"] else producer.send(message)
    if transaction is not None:
        _transactions[receipt.message_id] = transaction
    return {
        "message_id": receipt.message_id,
        "offset": receipt.offset,
        "recall_handle": receipt.recall_handle or "",
        "transaction_id": receipt.transaction_id or "",
    }


def end(command: Command) -> dict[str, Any]:
    transaction = _transactions[command["message_id"]]
    if command["resolution"] == "COMMIT":
        transaction.commit()
    else:
        transaction.rollback()
    return {}


def recall(command: Command) -> dict[str, Any]:
    return {"message_id": _clients[command["client"]].recall_message(command["topic"], command["handle"])}


def receive(command: Command) -> dict[str, Any]:
    messages = _clients[command["client"]].receive(command["count"], command["invisible_s"])
    return {"messages": [described(message) for message in messages]}


def ack(command: Command) -> dict[str, Any]:
    _clients[command["client"]].ack(held(command))
    return {}


def change_invisible(command: Command) -> dict[str, Any]:
    message = held(command)
    _clients[command["client"]].change_invisible_duration(message, command["invisible_s"])
    return {"handle": message.receipt_handle}


def subscribe_lite(command: Command) -> dict[str, Any]:
    """`subscribe_lite` names the letters of the lite topic; after `subscribe_lite_all` the server has the names."""
    consumer = _clients[command["client"]]
    for lite_topic in command["lite_topics"]:
        consumer.subscribe_lite(lite_topic)
    consumer.subscribe_lite_all()
    return {}


def unsubscribe_lite(command: Command) -> dict[str, Any]:
    _clients[command["client"]].unsubscribe_lite(command["lite_topic"])
    return {}


def lite_topics(command: Command) -> dict[str, Any]:
    """It reads no notice of a server, and shows nobody what it subscribes to."""
    raise NoSuchCall("lite_topics")


def suspend(command: Command) -> dict[str, Any]:
    raise NoSuchCall("suspend")


def release(command: Command) -> dict[str, Any]:
    _listeners[command["client"]].plan.released.set()
    return {}


def close(command: Command) -> dict[str, Any]:
    _clients.pop(command["client"]).shutdown()
    return {}


def held(command: Command) -> Message:
    """The message a handle belongs to, carrying just that handle: the client itself remembers the newest alone."""
    message = _received[command["token"]]
    message.receipt_handle = command["handle"]
    return message


def described(message: Message) -> dict[str, Any]:
    token = f"{message.message_id}/{message.delivery_attempt}/{message.receipt_handle}"
    _received[token] = message
    return {
        "token": token,
        "message_id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": dict(message.properties),
        "attempt": message.delivery_attempt,
        "message_group": message.message_group,
        "priority": message.priority,
        "lite_topic": message.lite_topic,
        "handle": message.receipt_handle,
        "corrupted": message.corrupted,
    }


COMMANDS = {
    "open": open_client,
    "send": send,
    "end": end,
    "recall": recall,
    "receive": receive,
    "ack": ack,
    "change_invisible": change_invisible,
    "subscribe_lite": subscribe_lite,
    "unsubscribe_lite": unsubscribe_lite,
    "lite_topics": lite_topics,
    "suspend": suspend,
    "release": release,
    "close": close,
}

if __name__ == "__main__":
    # A route that is answered before the client looks for it is handled in the thread that asked, which must then know
    # the client's own event loop; else its telemetry stream never opens.
    loop = RpcClient().get_channel_io_loop()
    serve(COMMANDS, ThreadPoolExecutor(32, initializer=asyncio.set_event_loop, initargs=(loop,)))
