"""One run: a real server, its load, and samples at equal intervals; beside an open transaction if that is asked for."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from statistics import median

import psycopg

from proof.soak.level import SAMPLES_MIN, WARM_SHARE, Bar, Growth, judge
from proof.soak.load import SoakLoad
from proof.soak.samples import ROWS, Sampler, bar_of
from tests.support.server_process import ServerProcess, served

# Messages and keys become old several times in a run of ten minutes, and holds of less than a second end.
OPTIONS = ("--http", "127.0.0.1:0", "--min-invisible", "0s", "--retention", "1m", "--idempotency-window", "1m",
           "--transaction-timeout", "1s", "--transaction-check-interval", "1s", "--transaction-checks",
           "3")  # fmt: skip
SAMPLES = 120  # of a run, but for long ones, which have a sample each `PERIOD_S_MAX`
PERIOD_S_MAX = 10.0
# Beside an open transaction a message costs less than twice what it did before.
HELD_BARS = {
    "cost, ms per message": Bar(1.0, 0),
    "CPU ms per message": Bar(1.0, 0),
    "Postgres ms per message": Bar(1.0, 0),
    "blocks per message": Bar(1.0, 0),
    "ms per transaction": bar_of("ms per transaction"),
}
FAILED_SHARE = 0.001  # of all calls; those that a busy machine does not answer in time
STOP_WITHIN_S = 60.0


Sample = dict[str, float]  # the value of each measure
Told = Callable[[Sample], None]


def _nobody(_sample: Sample) -> None:
    pass


@dataclass
class Result:
    """What a run found."""

    growths: list[Growth]
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def violations(self) -> list[Growth]:
        return [each for each in self.growths if each.grows]

    @property
    def fails(self) -> bool:
        """Whether more calls failed than a busy machine explains. A server that does no work does not grow either."""
        return self.counts["failures"] + self.counts["unknown"] > FAILED_SHARE * self.counts["calls"]


async def soak(
    database_url: str,
    minutes: float,
    *,
    seed: int = 1,
    options: Sequence[str] = OPTIONS,
    under: Sequence[str] = (),
    told: Told = _nobody,
) -> Result:
    """Run the load for so long, and judge each measure. `under`: a command that runs the server, see `ServerProcess`.
    `told` gets each sample when it is taken.

    Raises ExceptionGroup when the server or a client ends, TimeoutError when a client does not.
    """
    async with _loaded(database_url, seed, options, under) as (server, load):
        sampler = Sampler(server, database_url)
        samples = await _samples(sampler, minutes * 60, told)
        load.counts["messages"] = round(sampler.messages)
    return Result(growths_of(samples), load.counts)


def growths_of(samples: Sequence[Sample]) -> list[Growth]:
    """Each measure, judged. Left out: tables without rows, and costs in runs of seconds (a server counts once a
    second)."""
    names = dict.fromkeys(name for sample in samples for name in sample)
    measures = {name: [each[name] for each in samples if name in each] for name in names}
    return [
        judge(name, values, bar_of(name))
        for name, values in measures.items()
        if len(values) >= SAMPLES_MIN and (not name.startswith(ROWS) or any(values))
    ]


async def hold(
    database_url: str, minutes: float, *, seed: int = 1, before_minutes: float = 5.0, told: Told = _nobody
) -> Result:
    """On Postgres: run the load, then open a transaction of a user beside it, for so long. The cost of a message at the
    end is compared with that before the transaction began."""
    async with _loaded(database_url, seed, OPTIONS, ()) as (server, load):
        sampler = Sampler(server, database_url, counts_rows=False)
        before = await _samples(sampler, before_minutes * 60, told)
        async with await psycopg.AsyncConnection.connect(database_url) as user:
            await user.set_isolation_level(psycopg.IsolationLevel.REPEATABLE_READ)
            await user.execute("SELECT count(*) FROM message")
            during = await _samples(sampler, minutes * 60, told)
        load.counts["messages"] = round(sampler.messages)
    return Result([compared(name, before, during) for name in HELD_BARS], load.counts)


def compared(measure: str, before: Sequence[Sample], during: Sequence[Sample]) -> Growth:
    """The median after the warm-up, beside that of the last third."""
    warm = [each[measure] for each in before if measure in each]
    held = [each[measure] for each in during if measure in each]
    early, late = median(warm[int(len(warm) * WARM_SHARE) :]), median(held[len(held) * 2 // 3 :])
    allowed = HELD_BARS[measure].of(early)
    return Growth(measure, early, late, allowed, late - early >= allowed)


@asynccontextmanager
async def _loaded(
    database_url: str, seed: int, options: Sequence[str], under: Sequence[str]
) -> AsyncIterator[tuple[ServerProcess, SoakLoad]]:
    """A server that works; in the end clients leave first."""
    async with served(database_url, *options, under=under) as server:
        load = SoakLoad(server.endpoint, seed)
        await load.prepare()
        async with asyncio.timeout(None) as patience, asyncio.TaskGroup() as tasks:
            # A client that fails ends the group, and so the run.
            tasks.create_task(load.run())
            yield server, load
            load.stop()
            patience.reschedule(asyncio.get_running_loop().time() + STOP_WITHIN_S)


async def _samples(sampler: Sampler, seconds: float, told: Told) -> list[Sample]:
    """Samples of so many seconds, at equal intervals."""
    period_s = min(PERIOD_S_MAX, seconds / SAMPLES)
    began_s = time.monotonic()
    samples: list[Sample] = []
    while (passed_s := time.monotonic() - began_s) < seconds or len(samples) <= SAMPLES_MIN:
        samples.append(await sampler.take())
        told(samples[-1])
        await asyncio.sleep(period_s - passed_s % period_s)
    return samples
