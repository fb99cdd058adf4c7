"""A Spark query beside the load: killed with all that belongs to it, started again from its checkpoint."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from popclient.spark.session import JavaMissing, java_home
from proof.history.events import SinkRow, SparkBatch, SparkEnded, SunkBatch
from proof.torture import spark_program
from tests.support.checker import History, Outcome
from tests.support.server_process import clean_environment
from tests.support.workload import now_ms

LINE_BYTES_MAX = 1 << 20
# From the start of a driver to its first batch, beside a load, servers that are killed, and other work.
WORKS_WITHIN_S = 240.0
WHY_CHARACTERS = 600


class Moment(StrEnum):
    """What a driver has just done."""

    READ = "read"  # it has a batch's rows; the sink does not have them yet
    SUNK = "sunk"  # the sink has them; Spark does not know it yet


def spark_is_there() -> bool:
    """Whether this machine can run Spark."""
    try:
        java_home()
    except JavaMissing:
        return False
    return find_spec("pyspark") is not None


class SparkProcess:
    """The driver, its JVM and its workers. `under`: a command that runs the program, see `ServerProcess`."""

    def __init__(
        self, history: History, mode: str, endpoints: Sequence[str], topic: str, folder: Path, under: Sequence[str] = ()
    ) -> None:
        self._history = history
        self._mode = mode
        self._command = [
            *(under or (sys.executable, "-m")), spark_program.__name__, mode, ";".join(endpoints), topic, str(folder),
        ]  # fmt: skip
        self._folder = folder
        self._sink = folder / spark_program.SINK
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_killed = False
        self._moments: Counter[Moment] = Counter()
        self._changed = asyncio.Condition()
        self.has_ended = False  # by itself

    async def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=log,
                limit=LINE_BYTES_MAX, process_group=0, env=clean_environment(),
            )  # fmt: skip
        self._is_killed = False
        assert self._process.stdout is not None
        self._reading = asyncio.create_task(self._read(self._process.stdout))

    async def reach(self, moment: Moment) -> None:
        """Wait until the query is there the next time; return at once when it has ended. Raises AssertionError."""
        seen = self._moments[moment]
        try:
            async with asyncio.timeout(WORKS_WITHIN_S), self._changed:
                await self._changed.wait_for(lambda: self.has_ended or self._moments[moment] > seen)
        except TimeoutError:
            raise AssertionError(f"the query has {moment} no batch within {WORKS_WITHIN_S:.0f} s") from None

    async def kill(self) -> None:
        """`kill -9`, if it runs; what has begun is in the history afterwards."""
        if self._process is None or self._reading is None:
            return
        self._is_killed = True
        self._signal(signal.SIGKILL)
        await self._process.wait()
        await self._reading

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def messages_in_sink(self) -> int:
        """How many different ones there are now."""
        return len({row[2] for rows in spark_program.stored_in(self._sink).values() for row in rows})

    def look_at_sink(self) -> None:
        """Its batches become part of the history."""
        at_ms = now_ms()
        for (query, number), rows in spark_program.stored_in(self._sink).items():
            kept = tuple(SinkRow(*row) for row in rows)
            self._history.add(SunkBatch(Outcome.OK, at_ms, now_ms(), self._mode, query, number, kept))

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _read(self, lines: asyncio.StreamReader) -> None:
        begun: dict[str, Any] | None = None
        began_ms = now_ms()
        async for line in lines:
            try:
                said = json.loads(line)
            except ValueError:  # Spark's own words, or the half line of a killed driver
                continue
            if "rows" in said:
                begun = said
            elif begun is not None:
                self._add(begun, Outcome.OK, said["at_ms"])
                begun = None
            await self._say(Moment.READ if begun else Moment.SUNK)
        if begun is not None:
            self._add(begun, Outcome.UNKNOWN, now_ms())
        if not self._is_killed:
            why = (self._folder / "log").read_text(errors="replace")[-WHY_CHARACTERS:]
            self._history.add(SparkEnded(Outcome.REFUSED, began_ms, now_ms(), why))
            self.has_ended = True
            await self._say(None)

    async def _say(self, moment: Moment | None) -> None:
        if moment is not None:
            self._moments[moment] += 1
        async with self._changed:
            self._changed.notify_all()

    def _add(self, begun: dict[str, Any], outcome: Outcome, completed_ms: float) -> None:
        rows = tuple(SinkRow(*row) for row in begun["rows"])
        self._history.add(
            SparkBatch(outcome, begun["at_ms"], completed_ms, self._mode, begun["query"], begun["number"], rows)
        )
