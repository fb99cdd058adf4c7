"""popclient for asyncio: the same names, awaited.

    async with Producer("127.0.0.1:8081") as producer:
        await producer.send("flights", b"...", tag="UA")

    async with SimpleConsumer("127.0.0.1:8081", "billing", "flights") as consumer:
        async for message in consumer:
            await consumer.ack(message)

Everything else (Message, ClientConfig, errors) is that of `popclient`.
"""

from __future__ import annotations

from popclient.aio.producer import Producer
from popclient.aio.simple_consumer import SimpleConsumer
from popclient.config import ClientConfig, Tls
from popclient.message import FilterExpression, Message, MessageView, SendReceipt, SendResults

__all__ = [
    "ClientConfig",
    "FilterExpression",
    "Message",
    "MessageView",
    "Producer",
    "SendReceipt",
    "SendResults",
    "SimpleConsumer",
    "Tls",
]
