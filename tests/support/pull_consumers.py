"""Pull consumers, and what their tests say in few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import popserver
from popclient import (
    Message,
    MessageQueue,
    MessageView,
    Producer,
    PullConsumer,
    aio,
)
from popclient._pull.core import PullConsumerCore
from popclient.admin import Admin
from popproto.v1 import legacy_pb2 as legacy
from popproto.v2 import definition_pb2 as pb
from tests.support.scripted_server import OK, until_in_thread

FIRST = "CONSUME_FROM_FIRST_OFFSET"


def texts(messages: Iterable[MessageView]) -> list[str]:
    return [message.text for message in messages]


def numbers(count: int, begin: int = 0) -> list[str]:
    return [str(number) for number in range(begin, count)]


def core_of(consumer: aio.PullConsumer) -> PullConsumerCore:
    return consumer._core


def make_topic(broker: popserver.EmbeddedBroker, topic: str, queues: int) -> list[MessageQueue]:
    with Admin(broker.endpoint) as admin:
        admin.create_topic(topic, queue_count=queues)
    return [MessageQueue(topic, queue_id) for queue_id in range(queues)]


def read_all(members: Sequence[PullConsumer], count: int) -> list[str]:
    """What they poll in turn, committed each time."""
    seen: list[str] = []

    def some() -> bool:
        for member in members:
            if member.assignment:
                seen.extend(message.text for message in member.poll(0))
                member.commit()
        return len(set(seen)) >= count

    until_in_thread(some)
    return seen


def members(*client_ids: str) -> legacy.ListMembersResponse:
    answer = legacy.ListMembersResponse(status=OK)
    for client_id in client_ids:
        member = answer.members.add(client_id=client_id, model="CLUSTERING")
        member.subscriptions.add(topic=pb.Resource(name="flights"))
    return answer


def send(endpoint: str, topic: str, bodies: Iterable[str], tag: str | None = None) -> list[int]:
    """Their offsets, each in its queue."""
    with Producer(endpoint) as producer:
        return [
            receipt.offset
            for receipt in producer.send_many([Message(topic, body, tag=tag) for body in bodies]).receipts
        ]
