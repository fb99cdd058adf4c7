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

from popclient.config import ClientConfig, Tls
from popclient.errors import (
    BadRequest,
    ClientClosed,
    FailedToConsume,
    Forbidden,
    Forked,
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
    RefusedByProxy,
    Repeat,
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
from popclient.listening import (
    ConsumeResult,
    ConsumeStatus,
    Consumption,
    GiveUp,
    Interceptor,
    TransactionResolution,
    typed,
)
from popclient.message import DeadLetterOrigin, FilterExpression, Message, MessageQueue, MessageView
from popclient.receipts import SendReceipt, SendResults

if TYPE_CHECKING:
    from popclient._consume.listener import (
        ConsumeConcurrentlyContext,
        ConsumeConcurrentlyStatus,
        ConsumeOrderlyContext,
        ConsumeOrderlyStatus,
        OrderlyListener,
    )
    from popclient._consume.statistics import TopicStatistics, consumer_statistics
    from popclient._progress.local import LocalFileOffsetStore
    from popclient._progress.start import ConsumeFromWhere
    from popclient._progress.store import OffsetStore, ReadOffsetType
    from popclient._queue_push.options import MessageModel
    from popclient._queues.allocation import AllocateStrategy, ByConfig, ByMachineRoom, MachineRoomNearby
    from popclient._sync.lite_consumers import LitePushConsumer, LiteSimpleConsumer
    from popclient._sync.producer import Producer, Transaction
    from popclient._sync.pull_consumer import PullConsumer
    from popclient._sync.push_consumer import PushConsumer
    from popclient._sync.queue_push_consumer import QueuePushConsumer
    from popclient._sync.simple_consumer import SimpleConsumer
    from popclient.keep_alive import KeepAlive
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
    "AllocateStrategy": "popclient._queues.allocation",
    "ByConfig": "popclient._queues.allocation",
    "ByMachineRoom": "popclient._queues.allocation",
    "ConsumeConcurrentlyContext": "popclient._consume.listener",
    "ConsumeConcurrentlyStatus": "popclient._consume.listener",
    "ConsumeFromWhere": "popclient._progress.start",
    "ConsumeOrderlyContext": "popclient._consume.listener",
    "ConsumeOrderlyStatus": "popclient._consume.listener",
    "KeepAlive": "popclient.keep_alive",
    "LitePushConsumer": "popclient._sync.lite_consumers",
    "LiteSimpleConsumer": "popclient._sync.lite_consumers",
    "LocalFileOffsetStore": "popclient._progress.local",
    "MachineRoomNearby": "popclient._queues.allocation",
    "MessageModel": "popclient._queue_push.options",
    "OffsetStore": "popclient._progress.store",
    "OrderlyListener": "popclient._consume.listener",
    "Producer": "popclient._sync.producer",
    "PullConsumer": "popclient._sync.pull_consumer",
    "PushConsumer": "popclient._sync.push_consumer",
    "QueuePushConsumer": "popclient._sync.queue_push_consumer",
    "ReadOffsetType": "popclient._progress.store",
    "SimpleConsumer": "popclient._sync.simple_consumer",
    "TopicStatistics": "popclient._consume.statistics",
    "consumer_statistics": "popclient._consume.statistics",
    "Transaction": "popclient._sync.producer",
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
    "Forked",
    "GiveUp",
    "HoldLost",
    "Interceptor",
    "InvalidReceiptHandle",
    "KeepAlive",
    "LitePushConsumer",
    "LiteSimpleConsumer",
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
    "RefusedByProxy",
    "Repeat",
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
    "typed",
]
