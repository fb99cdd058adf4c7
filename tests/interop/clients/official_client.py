"""The official Python client at the end of a pipe.

One JSON command per line on stdin, one JSON answer per line on stdout; `node/official_client.js` speaks the same. What
a push consumer's listener hears comes unasked. Durations are whole seconds: this client knows no shorter ones.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from rocketmq.v5.client.connection import RpcClient

_stdout = threading.Lock()
_clients: dict[str, Any] = {}
_listeners: dict[str, Listener] = {}
_received: dict[str, Message] = {}


def say(**event: Any) -> None:
    line = json.dumps(event)
    with _stdout:
        print(line, flush=True)


class Listener(MessageListener):
    """Fails the first `fail` attempts of a message (`how`: by a result, or by raising); may wait to be released."""

    def __init__(self, name: str, fail: int, how: str, waits: bool) -> None:
        self._name = name
        self._fail = fail
        self._how = how
        self.released = threading.Event()
        if not waits:
            self.released.set()

    def consume(self, message: Message) -> ConsumeResult:
        say(heard=self._name, message=described(message))
        self.released.wait()
        if message.delivery_attempt > self._fail:
            return ConsumeResult.SUCCESS
        if self._how == "raise":
            raise RuntimeError("the listener raises on purpose")
        return ConsumeResult.FAILURE


def open_producer(command: dict[str, Any], configuration: ClientConfiguration) -> Producer:
    return Producer(configuration, command["topics"] or None)


def open_simple(command: dict[str, Any], configuration: ClientConfiguration) -> SimpleConsumer:
    return SimpleConsumer(configuration, command["group"], subscriptions(command), await_duration=command["await_s"])


def open_push(command: dict[str, Any], configuration: ClientConfiguration) -> PushConsumer:
    listener = Listener(command["client"], command["fail"], command["how"], command["waits"])
    _listeners[command["client"]] = listener
    return PushConsumer(configuration, command["group"], listener, subscriptions(command))


def subscriptions(command: dict[str, Any]) -> dict[str, FilterExpression]:
    return {topic: FilterExpression(expression) for topic, expression in command["topics"].items()}


def open_client(command: dict[str, Any]) -> dict[str, Any]:
    opens = {"producer": open_producer, "simple": open_simple, "push": open_push}[command["kind"]]
    client = opens(command, ClientConfiguration(command["endpoint"], Credentials(), command["namespace"]))
    client.startup()
    _clients[command["client"]] = client
    return {"client_id": client.client_id}


def send(command: dict[str, Any]) -> dict[str, Any]:
    message = Message()
    message.topic = command["topic"]
    message.body = command["body"].encode()
    if command["tag"] is not None:
        message.tag = command["tag"]
    for key in command["keys"]:
        message.keys = key
    for name, value in command["properties"].items():
        message.add_property(name, value)
    receipt = _clients[command["client"]].send(message)
    return {"message_id": receipt.message_id, "offset": receipt.offset}


def receive(command: dict[str, Any]) -> dict[str, Any]:
    messages = _clients[command["client"]].receive(command["count"], command["invisible_s"])
    return {"messages": [described(message) for message in messages]}


def ack(command: dict[str, Any]) -> dict[str, Any]:
    _clients[command["client"]].ack(held(command))
    return {}


def change_invisible(command: dict[str, Any]) -> dict[str, Any]:
    message = held(command)
    _clients[command["client"]].change_invisible_duration(message, command["invisible_s"])
    return {"handle": message.receipt_handle}


def release(command: dict[str, Any]) -> dict[str, Any]:
    _listeners[command["client"]].released.set()
    return {}


def close(command: dict[str, Any]) -> dict[str, Any]:
    _clients.pop(command["client"]).shutdown()
    return {}


def held(command: dict[str, Any]) -> Message:
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
        "handle": message.receipt_handle,
        "corrupted": message.corrupted,
    }


COMMANDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "open": open_client,
    "send": send,
    "receive": receive,
    "ack": ack,
    "change_invisible": change_invisible,
    "release": release,
    "close": close,
}


def answer(command: dict[str, Any]) -> None:
    try:
        said = COMMANDS[command["do"]](command)
    except Exception as error:  # noqa: BLE001 - whatever the client raises is the answer
        code = getattr(error, "code", None)
        said = {
            "refused": type(error).__name__,
            "code": int(code) if isinstance(code, int) else None,
            "words": str(error),
        }
    say(answer=command["number"], **said)


def main() -> None:
    # A route that is answered before the client looks for it is handled in the thread that asked, which must then know
    # the client's own event loop; else its telemetry stream never opens.
    loop = RpcClient().get_channel_io_loop()
    with ThreadPoolExecutor(32, initializer=asyncio.set_event_loop, initargs=(loop,)) as workers:
        for line in sys.stdin:
            workers.submit(answer, json.loads(line))


if __name__ == "__main__":
    main()
