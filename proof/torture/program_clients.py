"""What programs call: popclient and the official Python client, each behind the same few calls. Failures raise."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from popclient import (
    ClientConfig,
    LiteSimpleConsumer,
    Message,
    MessageView,
    Producer,
    SimpleConsumer,
    TransactionResolution,
)

HOLD_S = 2
WAIT_S = 2
TIMEOUT_S = 5  # with the wait it must be longer than the shortest poll, 5 s
RECEIVE_MAX = 8

# Whether a half message is to be delivered, by its id; the server asks when nobody has decided.
Decide = Callable[[str], bool]


class Got(NamedTuple):
    """A message as each of the clients gives it."""

    message_id: str
    body: bytes
    properties: dict[str, str]
    attempt: int
    handle: str
    original: Any


class Half(NamedTuple):
    """A stored half message, and how to decide about it."""

    message_id: str
    commit: Callable[[], object]
    roll_back: Callable[[], object]


class Sending(Protocol):
    """What a program sends by."""

    def send(self, body: str, message_group: str, due_s: int) -> str:
        """In the message group, unless that is ""; delivered at `due_s` (UNIX time), unless that is 0."""

    def send_half(self, body: str) -> Half: ...


class Client(Sending, Protocol):
    """What both clients can do.

    surely_held_s: nobody else gets a message for so long after the call that received it has begun.
    receives_ahead: the client may begin another receive after a full one, and may give its messages back.
    """

    surely_held_s: float
    receives_ahead: bool

    def receive(self) -> list[Got]: ...
    def ack(self, got: Got) -> None: ...


class PopProducer:
    """Sends by popclient. With `is_lite` message groups are lite topics, which keep their order likewise."""

    def __init__(self, producer: Producer, topic: str, *, is_lite: bool = False) -> None:
        self._producer = producer
        self._topic = topic
        self._is_lite = is_lite

    def send(self, body: str, message_group: str, due_s: int) -> str:
        due = datetime.fromtimestamp(due_s, UTC) if due_s else None
        group, lite_topic = (None, message_group) if self._is_lite else (message_group or None, None)
        receipt = self._producer.send(
            self._topic, body, message_group=group, lite_topic=lite_topic, delivery_timestamp=due
        )  # fmt: skip
        return receipt.message_id

    def send_half(self, body: str) -> Half:
        half = self._producer.transaction(Message(self._topic, body))
        half.__enter__()  # a kill is what leaves it
        return Half(half.message_id, half.commit, half.rollback)


class PopClient(PopProducer):
    """The client of this project: it hands out what it has received ahead while half of the hold is left."""

    surely_held_s: float = HOLD_S / 2
    receives_ahead = True

    def __init__(self, endpoint: str, topic: str, group: str, decide: Decide) -> None:
        def check(message: MessageView) -> TransactionResolution:
            decided = decide(message.message_id)
            return TransactionResolution.COMMIT if decided else TransactionResolution.ROLLBACK

        config = ClientConfig(endpoint, request_timeout=TIMEOUT_S)
        super().__init__(Producer(config, topic, checker=check), topic)
        self._consumer = SimpleConsumer(config, group, topic, invisible_duration=HOLD_S, await_duration=WAIT_S)

    def receive(self) -> list[Got]:
        return _got(self._consumer.receive(RECEIVE_MAX))

    def ack(self, got: Got) -> None:
        self._consumer.ack(got.original)


class LiteClient(PopProducer):
    """popclient's consumer of lite topics."""

    surely_held_s: float = HOLD_S / 2
    receives_ahead = True

    def __init__(self, endpoint: str, topic: str, group: str) -> None:
        config = ClientConfig(endpoint, request_timeout=TIMEOUT_S)
        super().__init__(Producer(config, topic), topic, is_lite=True)
        self._consumer = LiteSimpleConsumer(config, group, topic, invisible_duration=HOLD_S, await_duration=WAIT_S)
        self.subscribe = self._consumer.subscribe_lite

    def receive(self) -> list[Got]:
        return _got(self._consumer.receive(RECEIVE_MAX))

    def ack(self, got: Got) -> None:
        self._consumer.ack(got.original)


class OfficialClient:
    """RocketMQ's Python client: one call is one receive."""

    surely_held_s: float = HOLD_S
    receives_ahead = False

    def __init__(self, endpoint: str, topic: str, group: str, decide: Decide) -> None:
        from rocketmq import (
            ClientConfiguration,
            Credentials,
            FilterExpression,
            Message,
            Producer,
            SimpleConsumer,
            TransactionChecker,
            TransactionResolution,
        )

        class Checker(TransactionChecker):  # type: ignore[misc]
            def check(self, message: Any) -> Any:
                decided = decide(message.message_id)
                return TransactionResolution.COMMIT if decided else TransactionResolution.ROLLBACK

        self._topic = topic
        self._message = Message
        configuration = ClientConfiguration(endpoint, Credentials(), "", TIMEOUT_S)
        self._producer = Producer(configuration, [topic], checker=Checker(), tls_enable=False)
        self._consumer = SimpleConsumer(
            configuration, group, {topic: FilterExpression()}, await_duration=WAIT_S, tls_enable=False
        )
        self._producer.startup()
        self._consumer.startup()

    def send(self, body: str, message_group: str, due_s: int) -> str:
        message = self._new(body)
        if message_group:
            message.message_group = message_group
        if due_s:
            message.delivery_timestamp = due_s
        message_id: str = self._producer.send(message).message_id
        return message_id

    def send_half(self, body: str) -> Half:
        transaction = self._producer.begin_transaction()
        receipt = self._producer.send(self._new(body), transaction)
        return Half(receipt.message_id, transaction.commit, transaction.rollback)

    def receive(self) -> list[Got]:
        return _got(self._consumer.receive(RECEIVE_MAX, HOLD_S))

    def ack(self, got: Got) -> None:
        self._consumer.ack(got.original)

    def _new(self, body: str) -> Any:
        message = self._message()
        message.topic = self._topic
        message.body = body.encode()
        return message


def _got(messages: Iterable[Any]) -> list[Got]:
    """Both clients have the same names."""
    return [
        Got(each.message_id, each.body, dict(each.properties), each.delivery_attempt, each.receipt_handle, each)
        for each in messages
    ]


CLIENTS: dict[str, Callable[[str, str, str, Decide], Client]] = {"popclient": PopClient, "official": OfficialClient}
