"""What happens to servers, Postgres and networks while clients work. Each accident is over when it returns."""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from proof.history.events import Accident
from proof.surroundings import CLOCKS_MS
from proof.torture import crash_points
from proof.torture.crash_points import POINTS
from proof.torture.place import Place
from proof.torture.proxy import Fault
from proof.torture.spark_process import Moment
from proof.totals import FAULT
from tests.support.checker import History, Outcome
from tests.support.server_process import ServerProcess
from tests.support.waiting import eventually
from tests.support.workload import now_ms

# Longer than most holds of the load, so that leases end meanwhile.
PAUSE_S = (0.1, 1.5)
FAULT_S = (0.05, 0.8)
CLIENT_WORKS_WITHIN_S = 150.0  # a member that vanished with its server keeps its queues for 120 s
PASSES_MAX = 20
POINT_WITHIN_S = 4.0  # some points belong to other scenes
BATCH_S = 1.0  # about what one takes

Mishap = Callable[[Place, random.Random], Awaitable[str | None]]  # returns the kind, if it has several


async def kill_server(place: Place, chance: random.Random) -> None:
    """`kill -9`, and a start at once."""
    server = chance.choice(place.servers)
    await server.kill()
    await server.start()


async def crash_server(place: Place, chance: random.Random) -> str:
    """A server that kills itself at a point, if it comes there; then it starts at once."""
    server, point, passes = chance.choice(place.servers), chance.choice(list(POINTS)), chance.randint(1, PASSES_MAX)
    await server.kill()
    with suppress(AssertionError):  # it may come there while it starts
        await server.start((*server.under, sys.executable, "-m", crash_points.__name__, point, str(passes)))
        await eventually(partial(_has_ended, server), f"it comes to the point: {point}", within_s=POINT_WITHIN_S)
    is_reached = await _has_ended(server)
    if is_reached:
        await server.ended()
    else:
        await server.kill()
    await server.start()
    return f"crash {point}" if is_reached else "crash point that is not reached"


async def _has_ended(server: ServerProcess) -> bool:
    return not server.is_running


async def kill_database(place: Place, _chance: random.Random) -> None:
    """`kill -9` of every process of Postgres; the servers stay."""
    assert place.postgres is not None
    await asyncio.to_thread(place.postgres.kill)
    await asyncio.to_thread(place.postgres.restart)


async def pause_server(place: Place, chance: random.Random) -> None:
    server = chance.choice(place.servers)
    server.freeze()
    await asyncio.sleep(chance.uniform(*PAUSE_S))
    server.thaw()


async def pause_database(place: Place, chance: random.Random) -> None:
    assert place.postgres is not None
    place.postgres.freeze()
    await asyncio.sleep(chance.uniform(*PAUSE_S))
    place.postgres.thaw()


async def break_network(place: Place, chance: random.Random) -> str:
    proxy, fault = chance.choice(place.proxies), chance.choice(list(Fault))
    proxy.break_by(fault)
    await asyncio.sleep(chance.uniform(*FAULT_S))
    proxy.mend()
    return f"network {fault}"


async def kill_client(place: Place, chance: random.Random) -> str:
    """`kill -9` of a program that has worked, and a start of one of the next kind."""
    await eventually(partial(_one_has_worked, place), "a program works", within_s=CLIENT_WORKS_WITHIN_S)
    program = chance.choice([each for each in place.programs if each.has_worked])
    await asyncio.sleep(chance.uniform(0, 0.05))
    kind = program.kind
    await program.kill()
    await program.start()
    return f"kill client {kind}"


async def _one_has_worked(place: Place) -> bool:
    return any(each.has_worked for each in place.programs)


async def pause_client(place: Place, chance: random.Random) -> None:
    program = chance.choice(place.programs)
    program.freeze()
    await asyncio.sleep(chance.uniform(*PAUSE_S))
    program.thaw()


async def set_clock(place: Place, chance: random.Random) -> None:
    """The system clock of the servers is wrong by another amount from now on."""
    place.set_clock(chance.choice(CLOCKS_MS))


async def kill_spark(place: Place, chance: random.Random) -> str:
    """`kill -9` of a driver that has done something, and a start from its checkpoint: after it has read a batch, after
    the sink has it, or whenever that may be."""
    assert place.spark is not None
    moment = chance.choice((*Moment, None))
    await place.spark.reach(moment or Moment.SUNK)
    if moment is None:
        await asyncio.sleep(chance.uniform(0, BATCH_S))
    await place.spark.kill()
    await place.spark.start()
    return f"kill spark {moment}" if moment else "kill spark at any time"


async def pause_spark(place: Place, chance: random.Random) -> None:
    assert place.spark is not None
    place.spark.freeze()
    await asyncio.sleep(chance.uniform(*PAUSE_S))
    place.spark.thaw()


# The accident, what it counts as, how often it is chosen.
_BY_ITSELF: list[tuple[Mishap, str, int]] = [(crash_server, "kills", 6)]
_EVERYWHERE: list[tuple[Mishap, str, int]] = [(kill_server, "kills", 12), (pause_server, "pauses", 2)]
_ON_POSTGRES: list[tuple[Mishap, str, int]] = [(kill_database, "database_kills", 2), (pause_database, "pauses", 1)]
_OF_PROGRAMS: list[tuple[Mishap, str, int]] = [(kill_client, "client_kills", 6), (pause_client, "pauses", 1)]
_OF_CLOCKS: list[tuple[Mishap, str, int]] = [(set_clock, "clock_steps", 4)]
_OF_SPARK: list[tuple[Mishap, str, int]] = [(kill_spark, "spark_kills", 4), (pause_spark, "pauses", 1)]
_BY_PROXY: list[tuple[Mishap, str, int]] = [(break_network, "network_faults", 6)]


class Accidents:
    """Chooses and counts."""

    def __init__(self, place: Place, chance: random.Random, history: History) -> None:
        self._history = history
        self._place = place
        self._chance = chance
        self._possible = [
            *_EVERYWHERE,
            *(() if place.is_planted else _BY_ITSELF),
            *(_ON_POSTGRES if place.postgres else ()),
            *(_BY_PROXY if place.proxies else ()),
            *(_OF_CLOCKS if place.sets_clock else ()),
            *(_OF_PROGRAMS if place.programs else ()),
            *(_OF_SPARK if place.spark else ()),
        ]
        self.counts: Counter[str] = Counter()

    async def happen(self, only: Mishap | None = None) -> None:
        """One of those that are possible here, or this one."""
        possible = [each for each in self._possible if only in {None, each[0]}]
        ((accident, name, _),) = self._chance.choices(possible, [weight for _, _, weight in possible])
        began_ms = now_ms()
        kind = await accident(self._place, self._chance) or getattr(accident, "__name__", "").replace("_", " ")
        self._history.add(Accident(Outcome.OK, began_ms, now_ms(), kind))
        self.counts[name] += 1
        self.counts[f"{FAULT}{kind}"] += 1
