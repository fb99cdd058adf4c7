"""Administration of an Apache RocketMQ 5 cluster from Python, by RocketMQ's own protocol for that.

A proxy of RocketMQ has no calls of administration. They are calls of its name servers and brokers, in a protocol that
RocketMQ calls remoting.

    from popclient.remoting import RocketMQAdmin

    async with RocketMQAdmin("127.0.0.1:9876") as admin:
        await admin.create_topic("orders", accepts="FIFO", queues=8)
        print(await admin.backlog("billing", "orders"))
"""

from __future__ import annotations

from popclient.remoting.admin import RocketMQAdmin
from popclient.remoting.errors import RefusedByBroker
from popclient.remoting.facts import Permission, RocketMQBacklog, RocketMQConsumer, RocketMQGroup, RocketMQTopic

__all__ = [
    "Permission",
    "RefusedByBroker",
    "RocketMQAdmin",
    "RocketMQBacklog",
    "RocketMQConsumer",
    "RocketMQGroup",
    "RocketMQTopic",
]
