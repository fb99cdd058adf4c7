"""The subscriptions of one consumer, for its settings and its pulls (requirements B17, B22, C5, J12)."""

from __future__ import annotations

from typing import Final

from popclient._engine.clock import Clock
from popclient._engine.flow import QueueLimits
from popclient._queue_push.options import QueueOptions
from popclient._queue_push.pull_service import HOLD
from popclient._queues.subscription import TopicSubscription, subscriptions
from popclient._session import convert
from popclient._session.session import Session
from popclient.message import FilterExpression
from popproto.v2 import definition_pb2 as pb

MODEL: Final = "popmq.model"
SUBSCRIPTION_VERSION: Final = "popmq.subscription_version"


class Subscribed:
    """The subscriptions of one consumer, its retry topic among them, and what may be cached of each topic's queues.

    version: epoch milliseconds; it grows with every change, also of the queues that are owned. The server refuses a
    pull with an older version than that of the settings, so the settings are sent first.
    """

    def __init__(self, options: QueueOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self.version = clock.epoch_ms()
        self._by_topic = subscriptions(options.group, options.topics, self.version, retries=options.is_clustering)
        self._limits: dict[str, QueueLimits] = {}

    @property
    def topics(self) -> list[str]:
        return list(self._by_topic)

    def get(self, topic: str) -> TopicSubscription | None:
        return self._by_topic.get(topic)

    def wire(self, namespace: str) -> pb.Subscription:
        wanted = {topic: each.filter_expression for topic, each in self._by_topic.items()}
        return convert.subscription(self._options.group, wanted, namespace, HOLD)

    # ---- Changes; `tell` makes them known ----

    def put(self, topic: str, expression: FilterExpression) -> None:
        self.bump()
        self._by_topic[topic] = TopicSubscription(topic, expression, self.version)

    def remove(self, topic: str) -> None:
        if self._by_topic.pop(topic, None) is not None:
            self.bump()

    def bump(self) -> None:
        self.version = max(self._clock.epoch_ms(), self.version + 1)

    async def tell(self, session: Session) -> None:
        self.note(session)
        await session.send_settings()

    async def agree(self, session: Session) -> None:
        """The same, and waits for the answer of the server. Raises its refusal."""
        self.note(session)
        await session.agree()

    def note(self, session: Session) -> None:
        """Adds it to the properties of the next settings."""
        session.client_properties[MODEL] = self._options.model
        session.client_properties[SUBSCRIPTION_VERSION] = str(self.version)

    # ---- Flow control ----

    def owns(self, topic: str, queues: int) -> None:
        """The number of the topic's queues that this consumer owns: they share its thresholds (requirement C5)."""
        self._limits[topic] = self._options.flow.of_queue(queues)

    def limits(self, topic: str) -> QueueLimits:
        return self._limits.get(topic, self._options.flow)
