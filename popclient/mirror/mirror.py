"""A mirror of one topic, for one group or whole: its work, its counts, and its record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from popclient._tasks import begin_task
from popclient.errors import PopError
from popclient.mirror.counts import Counts, Place, State
from popclient.mirror.handing import Handing, pause
from popclient.mirror.letters import hand_over_dead_letters, hand_over_scheduled
from popclient.mirror.plans import Task
from popclient.mirror.records import AlreadyRuns, Record
from popclient.mirror.side import Side

REPORT_S: Final = 2.0
REST_S: Final = 5.0  # between two looks at dead letters and delayed messages
WORKERS: Final = 4  # of a topic without message groups
EMPTY_RECEIVES: Final = 2  # of each worker in a row, before the mirror looks whether all is done


class Mirror:
    """Hands over what a task names, until it is stopped or held."""

    def __init__(self, task: Task, source: Side, target: Side, record: Record) -> None:
        self.task = task
        self.counts = Counts(lag=-1 if task.lag is None else task.lag)
        self.place = Place()
        self.state = State.RUNNING
        self._source, self._target, self._record = source, target, record
        self._running: list[Handing] = []
        self._held: list[str] = []
        self._rest_is_done = self._is_done = False
        self._rest_trouble = ""  # of dead letters and delayed messages

    @property
    def sentence(self) -> str:
        """Why it waits or is held; empty if it works."""
        troubles = [*self._held, *(each.trouble for each in self._running), self._rest_trouble]
        return "; ".join(dict.fromkeys(each for each in troubles if each))

    async def run(
        self, stop: asyncio.Event, *, until_empty: bool = False, told: Callable[[], None] = lambda: None
    ) -> State:
        """Until `stop`; with `until_empty` until nothing is left at the source. Returns how it ended.

        Raises AlreadyRuns, also later if another mirror has taken over, and what the record's server refuses.
        """
        async with self._record as record:
            self.counts, self.place = await record.begin()
            was_killed, self.place.is_held = self.place.is_held, True
            await self._report()
            ending = asyncio.Event()
            work = [begin_task(each) for each in self._work(ending, was_killed=was_killed)]
            try:
                await self._watch(work, stop, until_empty=until_empty, told=told)
            finally:
                ending.set()
                await asyncio.gather(*work, return_exceptions=True)
            for each in work:
                each.result()
            self.state = State.HELD if self._held else State.DONE if self._is_done else State.STOPPED
            self.place.is_held = False
            await self._report()
            told()
            return self.state

    def _work(self, ending: asyncio.Event, *, was_killed: bool) -> list[Coroutine[Any, Any, None]]:
        """One coroutine for each worker; each ends with `ending`, or with a refusal."""
        task = self.task
        for _ in range(0 if not task.takes_messages else 1 if task.topic.has_order else WORKERS):
            handing = Handing(task, self._source, self._target, self.counts, was_killed=was_killed)
            self._running.append(handing)
        return [self._guarded(each.run(ending)) for each in self._running] + [self._guarded(self._rest(ending))]

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """A refusal ends this work alone; it stays to be read."""
        try:
            await work
        except PopError as refusal:
            self._held.append(str(refusal))

    async def _rest(self, ending: asyncio.Event) -> None:
        """Dead letters and delayed messages, again and again."""
        while not ending.is_set():
            found = 0
            try:
                for copy in self._copies():
                    found += await copy
            except PopError as failure:
                if not failure.retryable:
                    raise
                self._rest_trouble = str(failure)
            else:
                self._rest_trouble, self._rest_is_done = "", not found
            if not found:
                await pause(ending, REST_S)

    def _copies(self) -> list[Coroutine[Any, Any, int]]:
        task, found = self.task, list[Coroutine[Any, Any, int]]()
        if task.takes_scheduled:
            found.append(hand_over_scheduled(task.topic, self._source, self._target, self.counts))
        if task.handover.group is not None:
            found.append(hand_over_dead_letters(task, self._source, self._target, self.counts, self.place))
        return found

    async def _watch(
        self, work: Sequence[asyncio.Task[None]], stop: asyncio.Event, *, until_empty: bool, told: Callable[[], None]
    ) -> None:
        """Reports, until there is a reason to end."""
        while not stop.is_set() and not all(each.done() for each in work):
            if any(each.done() and each.exception() for each in work):
                return  # an error of this program, which `run` raises
            self.state = State.HELD if self._held else State.RUNNING
            await self._count_lag()
            await self._report()
            told()
            if until_empty and (self._held or await self._is_empty()):
                self._is_done = not self._held
                return
            await pause(stop, REPORT_S)

    async def _is_empty(self) -> bool:
        if not self._rest_is_done or any(each.empty_receives < EMPTY_RECEIVES for each in self._running):
            return False
        try:
            return await self._source.is_done(self.task.handover, self.task.group)
        except PopError:
            return False

    async def _count_lag(self) -> None:
        try:
            lag = await self._source.lag(self.task.handover, self.task.group)
        except PopError:
            return
        self.counts.lag = -1 if lag is None else lag

    async def _report(self) -> None:
        """Keep counts and place. A record that is away for a moment does not stop the mirror: it counts again later."""
        try:
            await self._record.write(self.counts, self.place, self.state, self.sentence)
        except AlreadyRuns:
            raise
        except PopError as failure:
            if not failure.retryable:
                raise
