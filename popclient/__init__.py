"""popclient: the Python client of PopMQ and of any RocketMQ 5 proxy.

Synchronous and safe in threads; `popclient.aio` has the same names for asyncio. Needs grpcio and protobuf, no more.

    from popclient import Producer, SimpleConsumer

    with Producer("127.0.0.1:8081") as producer:
        producer.send("flights", b"...", tag="UA", keys="UA-1545")

    with SimpleConsumer("127.0.0.1:8081", "billing", "flights") as consumer:
        for message in consumer:
            consumer.ack(message)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from popclient.config import ClientConfig, Tls
from popclient.errors import (
    BadRequest,
    ClientClosed,
    FailedToConsume,
    Forbidden,
    InvalidReceiptHandle,
    MultipleResults,
    NotFound,
    PayloadTooLarge,
    PaymentRequired,
    PopError,
    PreconditionFailed,
    PropertiesTooLarge,
    QuotaExceeded,
    RequestTimeout,
    ServerError,
    ServerTimeout,
    TooManyRequests,
    Unauthorized,
    UnexpectedAnswer,
    Unreachable,
    UnsupportedByServer,
)
from popclient.message import DeadLetterOrigin, FilterExpression, Message, MessageView, SendReceipt, SendResults

if TYPE_CHECKING:
    from popclient.producer import Producer
    from popclient.simple_consumer import SimpleConsumer
else:

    def __getattr__(name: str) -> object:
        """Clients are loaded when first named: gRPC takes 0.2 s, which a Spark worker should not pay."""
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'popclient' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


_MODULE_OF = {"Producer": "popclient.producer", "SimpleConsumer": "popclient.simple_consumer"}

__all__ = [
    "BadRequest",
    "ClientClosed",
    "ClientConfig",
    "DeadLetterOrigin",
    "FailedToConsume",
    "FilterExpression",
    "Forbidden",
    "InvalidReceiptHandle",
    "Message",
    "MessageView",
    "MultipleResults",
    "NotFound",
    "PayloadTooLarge",
    "PaymentRequired",
    "PopError",
    "PreconditionFailed",
    "Producer",
    "PropertiesTooLarge",
    "QuotaExceeded",
    "RequestTimeout",
    "SendReceipt",
    "SendResults",
    "ServerError",
    "ServerTimeout",
    "SimpleConsumer",
    "Tls",
    "TooManyRequests",
    "Unauthorized",
    "UnexpectedAnswer",
    "Unreachable",
    "UnsupportedByServer",
]
