"""Goes on with a store that was filled by an earlier version: everything that its clients were told must hold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
from sqlalchemy import text

from popclient import Message, Producer, PullConsumer, SimpleConsumer, TransactionResolution
from popclient.admin import Admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popproto.v2.service_pb2_grpc import MessagingServiceStub
from tests.support.final_state import looking

WITHIN_S = 15.0
LOOK_AGAIN_S = 0.05


def go_on(endpoint: str, database_url: str, told: dict[str, Any]) -> list[str]:
    """What does not hold, at a server that runs on the store."""
    after = _After(endpoint, database_url, told)
    for look in (after.holds, after.message_groups, after.offsets, after.pending, after.dead_letter, after.repeated):
        try:
            look()
        except Exception as error:  # noqa: BLE001 - whatever it is, an upgrade broke it
            after.wrong.append(f"{look.__name__}: {type(error).__name__}: {error}")
    return after.wrong


class _After:
    def __init__(self, endpoint: str, database_url: str, told: dict[str, Any]) -> None:
        self._endpoint, self._database_url, self._told = endpoint, database_url, told
        self.wrong: list[str] = []

    def holds(self) -> None:
        """Holds are in force, acks are final, what waits is delivered, and the holder may still ack (I1, I3, I5)."""
        self._same("deliveries to billing", self._all("billing", "orders"), [f"order {n}" for n in range(4, 8)])
        self._ack("billing", "orders", self._told["held"], self._told["handle"])
        held = self._state("orders", "billing", self._told["held"])
        self._same("the state after an ack of the earlier hold", held, "COMMIT")
        self._same("the state of the retried", self._state("retries", "retrying", "retried"), "WAITING_RETRY")
        self._same("the state of the renewed", self._state("orders", "billing", self._told["renewed"]), "INFLIGHT")

    def message_groups(self) -> None:
        """A message group stays locked by its first message, and goes on in order after it (I6)."""
        self._same("deliveries beside a locked message group", self._all("ordered", "fifo"), ["b1", "b2"])
        self._ack("ordered", "fifo", self._told["first"], self._told["first_handle"])
        self._same("deliveries after the first one's ack", self._all("ordered", "fifo"), ["a2", "a3"])

    def offsets(self) -> None:
        """A queue continues where its group has committed (I12)."""
        with PullConsumer(self._endpoint, "pulling", consume_from="CONSUME_FROM_FIRST_OFFSET") as consumer:
            (queue,) = consumer.assign(consumer.queues("orders"))
            self._same("the committed offset", consumer.committed(queue), len(self._told["pulled"]))
            ends_s = time.monotonic() + WITHIN_S
            pulled: list[str] = []
            while not pulled and time.monotonic() < ends_s:
                pulled = [each.text for each in consumer.poll(1, 1)]
        self._same("the next message of the queue", pulled, [f"order {len(self._told['pulled'])}"])

    def pending(self) -> None:
        """What is due has come, what is not due waits, and a half message is asked about (I10)."""
        self._stored("later", "soon")
        with looking(self._database_url) as conn:
            waiting = conn.execute(text("SELECT body FROM pending WHERE kind = 'DELAY'")).scalars()
            self._same("what waits for its time", [bytes(body) for body in waiting], [b"in an hour"])
        with Producer(self._endpoint, "paid", checker=lambda _message: TransactionResolution.COMMIT):
            self._stored("paid", "half")

    def dead_letter(self) -> None:
        """A dead letter can be read, and a user is known (I8)."""
        with Admin(self._endpoint) as admin:
            admin.get_dead_letter("billing", self._told["sent"][self._told["dead"]])
            self._same("users", [user.access_key for user in admin.list_users()], [self._told["user"]])

    def repeated(self) -> None:
        """A send that is repeated with its key is the first one (I11)."""
        with Producer(self._endpoint) as producer:
            again = producer.send(Message("orders-once", "once", tag="A", keys="k", idempotency_key="once"))
        self._same("the id of a repeated send", again.message_id, self._told["sent"]["once"])

    def _all(self, group: str, topic: str) -> list[str]:
        """Everything that a group gets now, acked."""
        seen: list[str] = []
        with SimpleConsumer(self._endpoint, group, topic) as consumer:
            while got := consumer.receive(32, invisible_duration=60, await_duration=0):
                seen += [each.text for each in got]
                consumer.ack(got)
        return seen

    def _ack(self, group: str, topic: str, name: str, handle: str) -> None:
        """Ack with a handle that an earlier server gave."""
        entry = wire.AckMessageEntry(message_id=self._told["sent"][name], receipt_handle=handle)
        request = wire.AckMessageRequest(
            group=pb.Resource(name=group), topic=pb.Resource(name=topic), entries=[entry]
        )  # fmt: skip
        with grpc.insecure_channel(self._endpoint) as channel:
            answer = MessagingServiceStub(channel).AckMessage(request, metadata=(("x-mq-client-id", "earlier"),))
        self._same(f"the answer to an ack of {name}", answer.status.code, pb.Code.OK)

    def _state(self, topic: str, group: str, name: str) -> str:
        query = text(
            "SELECT s.state FROM message_state s JOIN message m ON m.message_key = s.message_key"
            " WHERE s.topic = :topic AND s.consumer_group = :group AND m.body = :body"
        )
        with looking(self._database_url) as conn:
            return str(
                conn.execute(query, {"topic": topic, "group": group, "body": name.encode()}).scalar_one_or_none()
            )

    def _stored(self, topic: str, name: str) -> None:
        query = text(
            "SELECT COUNT(*) FROM message m JOIN topic t ON t.topic_id = m.topic_id WHERE t.name = :topic"
            " AND m.body = :body"
        )

        def is_there() -> bool:
            with looking(self._database_url) as conn:
                return bool(conn.execute(query, {"topic": topic, "body": name.encode()}).scalar_one() == 1)

        self._same(f"{name} is stored once in {topic}", _within(is_there), True)

    def _same(self, what: str, is_now: object, should_be: object) -> None:
        if is_now != should_be:
            self.wrong.append(f"{what}: {is_now!r}, and not {should_be!r}")


def _within(is_so: Callable[[], bool]) -> bool:
    ends_s = time.monotonic() + WITHIN_S
    while not is_so():
        if time.monotonic() > ends_s:
            return False
        time.sleep(LOOK_AGAIN_S)
    return True
