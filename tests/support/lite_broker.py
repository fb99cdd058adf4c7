"""A broker with a topic of lite topics, and what its clients do."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from popserver.lite import subscriptions
from popserver.lite.flow import LiteAction
from popserver.lite.offsets import OffsetOption
from popserver.lite.subscriptions import SyncLite
from popserver.model.group import Group, LiteModel
from popserver.model.message import Delivery, Message
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic, Topic
from tests.support.builders import GROUP, TOPIC, messages_of
from tests.support.open_store import OpenStore
from tests.support.running_broker import RunningBroker, ids, running_broker


def lite_messages(lite_topic: str, count: int = 1, topic: Resource = TOPIC, **more: Any) -> list[Message]:
    """Messages of one lite topic."""
    return messages_of(count, topic, message_group=lite_topic, message_type=MessageType.LITE, **more)


def subscribe(store: OpenStore, group: Group, topic: Topic, client_id: str, *names: str) -> None:
    """The client adds these lite topics to its subscriptions."""
    store.one(subscriptions.sync, SyncLite(group, topic, client_id, names))


class LiteBroker(RunningBroker):
    """A running broker whose topic `orders` has lite topics."""

    async def send_lite(self, *lite_topics: str, **more: Any) -> list[str]:
        """Send one message to each; the ids."""
        batch = [message for each in lite_topics for message in lite_messages(each, **more)]
        await self.send(batch)
        return [each.message_id for each in batch]

    async def sync(
        self,
        *lite_topics: str,
        client_id: str = "c1",
        group: Resource = GROUP,
        topic: Resource = TOPIC,
        action: LiteAction = LiteAction.PARTIAL_ADD,
        offset: OffsetOption | None = None,
    ) -> None:
        await self.broker.sessions.lite.sync(group, topic, client_id, action, lite_topics, offset)

    async def got(self, client_id: str = "c1", **more: Any) -> list[str]:
        """The ids of the messages that the client receives now."""
        return ids(await self.receive(client_id=client_id, **more))

    async def take(self, client_id: str = "c1", **more: Any) -> list[str]:
        """The same, and it acks them."""
        held = await self.receive(client_id=client_id, **more)
        if held:
            assert set(await self.ack(*held, group=more.get("group", GROUP))) == {None}
        return ids(held)

    async def exclusive(self, name: Resource = GROUP, model: LiteModel = LiteModel.EXCLUSIVE) -> None:
        await self.group(name, lite=model)


def lite_topics_of(held: Sequence[Delivery]) -> list[str | None]:
    return [each.stored.message.message_group for each in held]


@asynccontextmanager
async def lite_broker(url: str = "sqlite://", *, queues: int = 2, **more: Any) -> AsyncIterator[LiteBroker]:
    """A broker as long as the context, with the topic `orders` of the type LITE."""
    async with running_broker(url, **more) as running:
        await running.broker.catalog.create_topic(NewTopic(TOPIC, queues, (MessageType.LITE,)))
        yield LiteBroker(running.broker, running.clock)
