"""A topic's route in the form that 4.x clients and consoles read: RocketMQ's TopicRouteData as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from popserver.model.topic import Topic

CLUSTER = "popmq"
READ_WRITE = 6  # RocketMQ's bits: 4 reads, 2 writes


class RouteServer(NamedTuple):
    """A server: its name as a broker, and its `HOST:PORT`."""

    broker_name: str
    address: str


def as_json(topic: Topic, servers: Sequence[RouteServer]) -> str:
    """The queues are divided among the servers, at least one per server, as in the route of the 5.x protocol."""
    count = max(len(topic.queues), len(servers))
    queues = Counter(servers[index % len(servers)].broker_name for index in range(count))
    return json.dumps(
        {
            "brokerDatas": [
                {"brokerAddrs": {"0": each.address}, "brokerName": each.broker_name, "cluster": CLUSTER}
                for each in servers
            ],
            "filterServerTable": {},
            "queueDatas": [
                {
                    "brokerName": name,
                    "perm": READ_WRITE,
                    "readQueueNums": number,
                    "topicSysFlag": 0,
                    "writeQueueNums": number,
                }
                for name, number in queues.items()
            ],
        },
        separators=(",", ":"),
    )
