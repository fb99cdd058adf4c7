"""popclient: the Python client of PopMQ and of any RocketMQ 5 proxy.

Synchronous and safe in threads; `popclient.aio` has the same names for asyncio. Needs grpcio and protobuf, no more.

    from popclient import Producer, SimpleConsumer

    with Producer("127.0.0.1:8081") as producer:
        producer.send("flights", b"...", tag="UA", keys="UA-1545")

    with SimpleConsumer("127.0.0.1:8081", "billing", "flights") as consumer:
        for message in consumer:
            consumer.ack(message)

    def listener(message):
        handle(message.body)
        return ConsumeResult.SUCCESS

    PushConsumer("127.0.0.1:8081", "billing", "flights", listener).run()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from popclient._queue.message_queue import MessageQueue
from popclient.config import ClientConfig, Tls
from popclient.errors import (
    BadRequest,
    ClientClosed,
    FailedToConsume,
    Forbidden,
    HoldLost,
    InvalidReceiptHandle,
    MultipleResults,
    NotFound,
    OutOfOrder,
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
    UnsupportedByStore,
)
from popclient.listening import ConsumeResult, ConsumeStatus, Consumption, Interceptor
from popclient.message import DeadLetterOrigin, FilterExpression, Message, MessageView, SendReceipt, SendResults
from popclient.transaction import TransactionResolution

if TYPE_CHECKING:
    from popclient._queue.allocation import AllocateStrategy, ByConfig, ByMachineRoom, MachineRoomNearby
    from popclient._queue.consume_from import ConsumeFromWhere
    from popclient._queue.listening import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        OrderlyListener,
    )
    from popclient._queue.local_offset_store import LocalFileOffsetStore
    from popclient._queue.offset_store import OffsetStore, ReadOffsetType
    from popclient._queue.options import MessageModel
    from popclient._queue.statistics import TopicStatistics, consumer_statistics
    from popclient.keep_alive import KeepAlive
    from popclient.producer import Producer, Transaction
    from popclient.pull_consumer import PullConsumer
    from popclient.push_consumer import PushConsumer
    from popclient.queue_push_consumer import QueuePushConsumer
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


_MODULE_OF = {
    "AllocateStrategy": "popclient._queue.allocation",
    "ByConfig": "popclient._queue.allocation",
    "ByMachineRoom": "popclient._queue.allocation",
    "ConsumeConcurrentlyContext": "popclient._queue.listening",
    "ConsumeConcurrentlyStatus": "popclient._queue.listening",
    "ConsumeFromWhere": "popclient._queue.consume_from",
    "ConsumeOrderlyContext": "popclient._queue.listening",
    "ConsumeOrderlyStatus": "popclient._queue.listening",
    "KeepAlive": "popclient.keep_alive",
    "LocalFileOffsetStore": "popclient._queue.local_offset_store",
    "MachineRoomNearby": "popclient._queue.allocation",
    "MessageModel": "popclient._queue.options",
    "OffsetStore": "popclient._queue.offset_store",
    "OrderlyListener": "popclient._queue.listening",
    "Producer": "popclient.producer",
    "PullConsumer": "popclient.pull_consumer",
    "PushConsumer": "popclient.push_consumer",
    "QueuePushConsumer": "popclient.queue_push_consumer",
    "ReadOffsetType": "popclient._queue.offset_store",
    "SimpleConsumer": "popclient.simple_consumer",
    "TopicStatistics": "popclient._queue.statistics",
    "consumer_statistics": "popclient._queue.statistics",
    "Transaction": "popclient.producer",
}

__all__ = [
    "AllocateStrategy",
    "BadRequest",
    "ByConfig",
    "ByMachineRoom",
    "ClientClosed",
    "ClientConfig",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeFromWhere",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeResult",
    "ConsumeStatus",
    "Consumption",
    "DeadLetterOrigin",
    "FailedToConsume",
    "FilterExpression",
    "Forbidden",
    "HoldLost",
    "Interceptor",
    "InvalidReceiptHandle",
    "KeepAlive",
    "LocalFileOffsetStore",
    "MachineRoomNearby",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageView",
    "MultipleResults",
    "NotFound",
    "OffsetStore",
    "OrderlyListener",
    "OutOfOrder",
    "PayloadTooLarge",
    "PaymentRequired",
    "PopError",
    "PreconditionFailed",
    "Producer",
    "PropertiesTooLarge",
    "PullConsumer",
    "PushConsumer",
    "QueuePushConsumer",
    "QuotaExceeded",
    "ReadOffsetType",
    "RequestTimeout",
    "SendReceipt",
    "SendResults",
    "ServerError",
    "ServerTimeout",
    "SimpleConsumer",
    "Tls",
    "TooManyRequests",
    "TopicStatistics",
    "Transaction",
    "TransactionResolution",
    "Unauthorized",
    "UnexpectedAnswer",
    "Unreachable",
    "UnsupportedByServer",
    "UnsupportedByStore",
    "consumer_statistics",
]
