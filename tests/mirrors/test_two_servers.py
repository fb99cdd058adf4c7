"""Processes that ask two servers on one Postgres for the lease of one mirror: one of them gets it."""

from __future__ import annotations

import asyncio

from popserver.mirrors.flow import Mirrors
from popserver.mirrors.rules import MirrorFacts, MirrorRow
from popserver.model.errors import LeaseTaken
from popserver.model.retry import SECOND_MS
from popserver.model.states import MirrorState
from tests.support.running_broker import RunningBroker
from tests.support.several_brokers import SeveralBrokers

LEASE_MS = 5 * SECOND_MS
ROUNDS, RACERS = 10, 8


def facts(owner: str, mirror_id: str = "m", handed: int = 0) -> MirrorFacts:
    return MirrorFacts(mirror_id, "old:1", "new:1", "", "flights", "", owner, owner, MirrorState.RUNNING, handed=handed)


def mirrors_of(broker: RunningBroker) -> Mirrors:
    engine = broker.broker.engine
    return Mirrors(engine.reader, engine.writer, engine.clock)


async def test_one_of_many_gets_the_lease(servers: SeveralBrokers) -> None:
    asked = [mirrors_of(servers.a), mirrors_of(servers.b)]
    for number in range(ROUNDS):
        owners = [f"{number}-{racer}" for racer in range(RACERS)]
        racers = [asked[n % 2].report(facts(owner), LEASE_MS, claim=True) for n, owner in enumerate(owners)]
        answers = await asyncio.gather(*racers, return_exceptions=True)
        (won,) = [each for each in answers if isinstance(each, MirrorRow)]
        assert won.handed == number, "it continues where the one before was"
        assert all(isinstance(each, LeaseTaken) for each in answers if each is not won)
        told = [
            asked[(n + 1) % 2].report(facts(owner, handed=number + 1), LEASE_MS, claim=False)
            for n, owner in enumerate(owners)
        ]
        stored = await asyncio.gather(*told, return_exceptions=True)
        assert [each.owner for each in stored if isinstance(each, MirrorRow)] == [won.owner]
        await servers.advance(LEASE_MS)


async def test_reports_of_several_mirrors_do_not_deadlock(servers: SeveralBrokers) -> None:
    """Each transaction has many mirrors, and the servers name them in opposite orders."""
    names = [f"m{number}" for number in range(20)]
    for _ in range(5):
        forward = [mirrors_of(servers.a).report(facts("one", name), LEASE_MS, claim=False) for name in names]
        backward = [mirrors_of(servers.b).report(facts("one", name), LEASE_MS, claim=False) for name in names[::-1]]
        await asyncio.gather(*forward, *backward)
    assert len(await mirrors_of(servers.a).all(None)) == len(names)
