"""popclient at the end of a pipe, so that it is compared with the official clients; see `official_client.py`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from popclient import (
    ClientConfig,
    ConsumeResult,
    FilterExpression,
    LitePushConsumer,
    LiteSimpleConsumer,
    MessageView,
    Producer,
    PushConsumer,
    SimpleConsumer,
    Tls,
    Transaction,
    TransactionResolution,
)
from popclient import Message as Outbound
from tests.interop.clients.pipe import REQUEST_TIMEOUT_S, Command, NoSuchCall, Plan, say, serve

_clients: dict[str, Any] = {}
_plans: dict[str, Plan] = {}
_received: dict[str, MessageView] = {}
_transactions: dict[str, Transaction] = {}


def open_client(command: Command) -> dict[str, Any]:
    client = OPENS[command["kind"]](command, config(command))
    client.start()
    _clients[command["client"]] = client
    return {"client_id": ""}


def config(command: Command) -> ClientConfig:
    ca = os.environ.get("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "")
    key, secret = (os.environ.get(f"OFFICIAL_ACCESS_{name}", "") for name in ("KEY", "SECRET"))
    return ClientConfig(
        command["endpoint"],
        namespace=command["namespace"],
        access_key=key,
        access_secret=secret,
        request_timeout=REQUEST_TIMEOUT_S,
        tls=Tls(ca=ca) if "OFFICIAL_TLS" in os.environ else False,
    )


def open_producer(command: Command, config: ClientConfig) -> Producer:
    def check(half: MessageView) -> TransactionResolution:
        say(heard=command["client"], message=described(half))
        return TransactionResolution[command["decides"]]

    return Producer(config, command["topics"], checker=check if command["decides"] else None)


def open_simple(command: Command, config: ClientConfig) -> SimpleConsumer:
    return SimpleConsumer(config, command["group"], subscriptions(command), await_duration=command["await_s"])


def open_push(command: Command, config: ClientConfig) -> PushConsumer:
    return PushConsumer(config, command["group"], subscriptions(command), listener(command))


def open_lite(command: Command, config: ClientConfig) -> LitePushConsumer:
    if command["suspend_s"]:
        raise NoSuchCall("suspend")
    (topic,) = command["topics"]
    return LitePushConsumer(config, command["group"], topic, listener(command))


def open_lite_simple(command: Command, config: ClientConfig) -> LiteSimpleConsumer:
    (topic,) = command["topics"]
    return LiteSimpleConsumer(config, command["group"], topic, await_duration=command["await_s"])


def listener(command: Command) -> Callable[[MessageView], ConsumeResult]:
    plan = _plans[command["client"]] = Plan(command)
    return lambda message: ConsumeResult.SUCCESS if plan.is_consumed(described(message)) else ConsumeResult.FAILURE


OPENS: dict[str, Callable[[Command, ClientConfig], Any]] = {
    "producer": open_producer,
    "simple": open_simple,
    "push": open_push,
    "lite": open_lite,
    "lite_simple": open_lite_simple,
}


def subscriptions(command: Command) -> dict[str, FilterExpression]:
    return {
        topic: FilterExpression(expression, "SQL" if command["sql"] else "TAG")
        for topic, expression in command["topics"].items()
    }


def send(command: Command) -> dict[str, Any]:
    due_s = command["deliver_at_s"]
    message = Outbound(
        command["topic"],
        command["body"].encode(),
        tag=command["tag"],
        keys=command["keys"],
        properties=command["properties"],
        message_group=command["message_group"],
        delivery_timestamp=None if due_s is None else datetime.fromtimestamp(due_s, UTC),
        priority=command["priority"],
        lite_topic=command["lite_topic"],
    )
    producer: Producer = _clients[command["client"]]
    if command["half"]:
        transaction = producer.transaction(message)
        transaction.__enter__()
        _transactions[transaction.message_id] = transaction
        return {"message_id": transaction.message_id, "offset": -1, "transaction_id": transaction.transaction_id}
    receipt = producer.send(message)
    return {"message_id": receipt.message_id, "offset": receipt.offset, "recall_handle": receipt.recall_handle}


def end(command: Command) -> dict[str, Any]:
    transaction = _transactions[command["message_id"]]
    if command["resolution"] == "COMMIT":
        transaction.commit()
    else:
        transaction.rollback()
    return {}


def recall(command: Command) -> dict[str, Any]:
    return {"message_id": _clients[command["client"]].recall(command["topic"], command["handle"])}


def receive(command: Command) -> dict[str, Any]:
    messages = _clients[command["client"]].receive(command["count"], command["invisible_s"])
    return {"messages": [described(message) for message in messages]}


def ack(command: Command) -> dict[str, Any]:
    _clients[command["client"]].ack(_received[command["token"]])
    return {}


def change_invisible(command: Command) -> dict[str, Any]:
    message = _received[command["token"]]
    _clients[command["client"]].change_invisible_duration(message, command["invisible_s"])
    return {"handle": message.receipt_handle}


def subscribe_lite(command: Command) -> dict[str, Any]:
    _clients[command["client"]].subscribe_lite(command["lite_topics"])
    return {}


def unsubscribe_lite(command: Command) -> dict[str, Any]:
    _clients[command["client"]].unsubscribe_lite(command["lite_topic"])
    return {}


def lite_topics(command: Command) -> dict[str, Any]:
    return {"lite_topics": sorted(_clients[command["client"]].lite_topics)}


def suspend(command: Command) -> dict[str, Any]:
    _clients[command["client"]].suspend(_received[command["token"]], command["suspend_s"])
    return {}


def release(command: Command) -> dict[str, Any]:
    _plans[command["client"]].released.set()
    return {}


def close(command: Command) -> dict[str, Any]:
    _clients.pop(command["client"]).close()
    return {}


def described(message: MessageView) -> dict[str, Any]:
    token = f"{message.message_id}/{message.delivery_attempt}/{message.receipt_handle}"
    _received[token] = message
    return {
        "token": token,
        "message_id": message.message_id,
        "topic": message.topic,
        "body": message.text,
        "tag": message.tag,
        "keys": sorted(message.keys),
        "properties": message.properties,
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
    serve(COMMANDS, ThreadPoolExecutor(32))
