"""The peers that can be measured, PopMQ first: the others are compared with it."""

from __future__ import annotations

from benchmarks.peers.nats_jetstream import NatsJetStream
from benchmarks.peers.peer import Peer
from benchmarks.peers.pgmq import Pgmq
from benchmarks.peers.popmq import PopMQ, PopMQOnPostgres
from benchmarks.peers.rabbitmq import RabbitMQ
from benchmarks.peers.redis_streams import RedisStreams
from benchmarks.peers.rocketmq import RocketMQ, RocketMQByDefault


def known() -> dict[str, Peer]:
    """By name."""
    peers: list[Peer] = [
        PopMQ(),
        PopMQOnPostgres(),
        RedisStreams(),
        NatsJetStream(),
        RabbitMQ(),
        Pgmq(),
        RocketMQ(),
        RocketMQByDefault(),
    ]
    return {each.name: each for each in peers}
