"""Members as a broker sees them: clients with streams that say what they want."""

from __future__ import annotations

from popserver.filters import tags
from popserver.filters.subscription import ClientKind, Role, subscription, topic_filters
from popserver.members.flow import Membership
from popserver.members.notices import NOTIFY_PAUSE_MS, Listener
from popserver.members.rules import GroupView
from popserver.model.group import Model
from popserver.model.names import Resource
from tests.support.builders import GROUP, TOPIC
from tests.support.running_broker import RunningBroker, until
from tests.support.several_brokers import SeveralBrokers


async def come(
    broker: RunningBroker,
    client_id: str = "c1",
    *,
    stream: object = "stream",
    topic: Resource = TOPIC,
    model: Model = Model.CLUSTERING,
) -> None:
    """The client opens a stream with the server and says that it is a member."""
    inner, filters = broker.broker, [(topic, tags.parse("*"))]
    inner.sessions.clients.connected(client_id, stream)
    membership = Membership(await inner.catalog.group(GROUP), model, topic_filters(filters))
    await inner.sessions.group_members.join(client_id, membership)
    role = Role(GROUP, ClientKind.PULL, subscription(filters), model=model)
    inner.sessions.clients.settled(client_id, works_in_order=False, role=role, membership=membership)


async def listed(broker: RunningBroker) -> list[str]:
    return [each.client_id for each in await broker.broker.sessions.group_members.of(GROUP)]


class Heard:
    """A member's stream, and the numbers it was told."""

    def __init__(self, broker: RunningBroker, group: Resource = GROUP) -> None:
        self.told: list[GroupView] = []
        self.listener: Listener = broker.broker.sessions.group_members.notices.listen(group)
        self.listener.open(None, self._tell)

    async def _tell(self, standing: GroupView) -> None:
        self.told.append(standing)


async def a_group(servers: SeveralBrokers) -> None:
    """A group of which both servers have heard."""
    heard = {broker: Heard(broker) for broker in (servers.a, servers.b)}
    await servers.a.group()
    await until(lambda: all(each.told for each in heard.values()))
    for broker, each in heard.items():
        broker.broker.sessions.group_members.notices.leave(each.listener)
    await servers.advance(NOTIFY_PAUSE_MS)
