"""popclient for asyncio: the same names, awaited.

    async with Producer("127.0.0.1:8081") as producer:
        await producer.send("flights", b"...", tag="UA")

    async with SimpleConsumer("127.0.0.1:8081", "billing", "flights") as consumer:
        async for message in consumer:
            await consumer.ack(message)

    await PushConsumer("127.0.0.1:8081", "billing", "flights", listener).run()

Everything else (Message, ClientConfig, errors) is that of `popclient`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from popclient._consume.listener import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    OrderlyListener,
)
from popclient.aio.admin.admin import Admin
from popclient.aio.lite_consumers import LitePushConsumer, LiteSimpleConsumer
from popclient.aio.producer import Producer, Transaction
from popclient.aio.pull_consumer import PullConsumer
from popclient.aio.push_consumer import PushConsumer
from popclient.aio.queue_push_consumer import QueuePushConsumer
from popclient.aio.simple_consumer import SimpleConsumer
from popclient.config import ClientConfig, Tls
from popclient.listening import (
    ConsumeResult,
    ConsumeStatus,
    Consumption,
    GiveUp,
    Interceptor,
    TransactionResolution,
    typed,
)
from popclient.message import FilterExpression, Message, MessageView
from popclient.receipts import SendReceipt, SendResults

if TYPE_CHECKING:
    from popclient.aio.relay import Relay as Relay
else:

    def __getattr__(name: str) -> object:
        """The relay is loaded when first named, and not by `import *`: it needs SQLAlchemy."""
        if name != "Relay":
            raise AttributeError(f"module 'popclient.aio' has no attribute {name!r}")
        from popclient.aio.relay import Relay

        return Relay

    def __dir__() -> list[str]:
        return sorted({*globals(), "Relay"})


__all__ = [
    "Admin",
    "ClientConfig",
    "ConsumeConcurrentlyContext",
    "ConsumeConcurrentlyStatus",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeResult",
    "ConsumeStatus",
    "Consumption",
    "FilterExpression",
    "GiveUp",
    "Interceptor",
    "LitePushConsumer",
    "LiteSimpleConsumer",
    "Message",
    "MessageView",
    "OrderlyListener",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "QueuePushConsumer",
    "SendReceipt",
    "SendResults",
    "SimpleConsumer",
    "Tls",
    "Transaction",
    "TransactionResolution",
    "typed",
]
