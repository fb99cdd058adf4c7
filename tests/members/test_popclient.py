"""popclient's sessions as members, at real servers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from popclient import ClientConfig, MessageQueue
from popclient._queues import calls
from popclient._queues.allocation import Averagely, Sharing
from popclient._session.session import Session
from popproto.v2 import definition_pb2 as pb
from popserver import embedded
from popserver.in_process import EmbeddedBroker
from tests.support.running_broker import until
from tests.support.waiting import eventually

TOPIC = "orders"
ROOT = ("root", "root-has-a-secret")


class Attendee:
    """A session of a member of group `billing`, its share, and how often it was told that the members have changed."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.sharing = Sharing(session, "billing", Averagely())
        self.told = 0

    def hear(self, notice: str) -> None:
        self.told += notice == "popmq.members"

    async def share(self) -> list[MessageQueue] | None:
        return await self.sharing.share(TOPIC, await self.sharing.queues(TOPIC), await self.sharing.members())

    async def listed(self) -> list[str]:
        return [each.client_id for each in await calls.list_members(self.session, "billing")]


@asynccontextmanager
async def attendee(server: EmbeddedBroker, model: str = "CLUSTERING", **config: Any) -> AsyncIterator[Attendee]:
    def subscription() -> pb.Subscription:
        entry = pb.SubscriptionEntry(topic=pb.Resource(name=TOPIC), expression=pb.FilterExpression(expression="*"))
        return pb.Subscription(group=pb.Resource(name="billing"), subscriptions=[entry])

    session = Session(ClientConfig(endpoints=server.endpoint, **config), pb.PULL_CONSUMER, "billing", subscription)
    session.client_properties["popmq.model"] = model
    found = Attendee(session)
    session.on_notice = found.hear
    await session.start()
    try:
        yield found
    finally:
        await session.close(1)


@pytest.fixture
def two_servers(postgres_url: str) -> Iterator[tuple[EmbeddedBroker, EmbeddedBroker]]:
    with embedded(postgres_url) as a, embedded(postgres_url) as b:
        yield a, b


@pytest.mark.row("G1", "G6", "J2")
async def test_members_at_two_servers_see_each_other_come_and_go(
    two_servers: tuple[EmbeddedBroker, EmbeddedBroker],
) -> None:
    async with AsyncExitStack() as open_ones:
        one = await open_ones.enter_async_context(attendee(two_servers[0]))
        everything = await one.share()
        assert everything is not None
        assert len(everything) == 8
        async with attendee(two_servers[1]) as other:
            await until(lambda: one.told > 0)
            assert await one.listed() == await other.listed()
            shares = [await one.share(), await other.share()]
            assert sorted(queue for share in shares for queue in share or ()) == everything
            told = one.told
        await until(lambda: one.told > told)
        assert await one.share() == everything


async def test_who_broadcasts_takes_no_queue_from_the_others() -> None:
    with embedded() as server:
        async with attendee(server) as one, attendee(server, "BROADCASTING"):
            assert len(await one.share() or ()) == 8


async def test_members_of_several_users_share_as_well() -> None:
    with embedded(auth=True, admin_access_key=ROOT[0], admin_secret=ROOT[1]) as server:
        keys = {"access_key": ROOT[0], "access_secret": ROOT[1]}
        async with attendee(server, **keys) as one, attendee(server, **keys) as other:

            async def are_two() -> bool:
                return len(await one.listed()) == 2

            await eventually(are_two, "both are members", within_s=5)
            first, second = await asyncio.gather(one.share(), other.share())
            assert len(first or ()) == len(second or ()) == 4
