"""Carries out a move. Every step may be repeated, so a killed mover goes on at its next start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, ParamSpec, TypeVar

from popclient._tasks import begin_task
from popclient.errors import PopError
from popclient.mirror.counts import State
from popclient.mirror.handing import pause
from popclient.mirror.mirror import Mirror
from popclient.mirror.plans import Plan, Task, look, make
from popclient.mirror.records import Record
from popclient.mirror.routes import Way
from popclient.mirror.side import Side
from popclient.moving.moves import Move, MovedTopic, Stage

LOOK_S: Final = 1.0  # between two looks at what a group has left
LOOKS: Final = 2  # in a row that must find nothing
PAUSE_S: Final = 1.0  # after a call that a server could not answer

T = TypeVar("T")
P = ParamSpec("P")


class MoveHeld(PopError):
    """A part of the move waits for a person; the sentence says for what."""


class _Stopped(Exception):
    """The person has stopped the command; what it has done is kept."""


class Mover:
    """Moves between two sides. Belongs to one event loop, and to one process at a time (`MoveFile.held`)."""

    def __init__(
        self,
        move: Move,
        save: Callable[[Move], None],
        sides: tuple[Side, Side],
        record_of: Callable[[Task, Side, Side], Record],
        say: Callable[[str], None],
    ) -> None:
        """sides: the old one and the new one. say: gets a line for the person who looks on."""
        self.move = move
        self.mirrors: list[Mirror | None] = []  # those that have not begun are None
        self._save, self._record_of, self._say = save, record_of, say
        self._source, self._target = sides

    # ---- The commands ----

    async def start(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises what a side refuses for good."""
        with suppress(_Stopped):
            plan = await self._prepare(stop)
            await self._together(
                [self._release(each, stop) for each in self._in_order(plan)], self._mirrors(plan, stop), stop
            )

    async def finish(self, stop: asyncio.Event) -> list[str]:
        """Returns what both sides have in the end, in words; nothing if `stop` came first."""
        with suppress(_Stopped):
            plan = await self._prepare(stop)
            await self._finish_in_order(plan, stop)
            # Also those that are closed: a person may have opened one.
            await asyncio.gather(*(self._close(each, stop) for each in self.move.topics))
            while True:
                await self._together([], self._mirrors(plan, stop, until_empty=True), stop)
                if not await self._left(plan, stop):
                    return await self._sums(stop)
                await pause(stop, PAUSE_S)
        return []

    async def _finish_in_order(self, plan: Plan, stop: asyncio.Event) -> None:
        """Until every group has finished the topics in order; mirrors go on meanwhile."""
        ending = asyncio.Event()
        stopping = begin_task(stop.wait())
        stopping.add_done_callback(lambda _: ending.set())
        try:
            with suppress(_Stopped):
                await self._together([self._released(plan, ending)], self._mirrors(plan, ending), ending)
        finally:
            stopping.cancel()
        _go_on(stop)

    async def back(self, stop: asyncio.Event) -> None:
        """Turns the move round unless it is turned, and goes on in the other direction until `stop`."""
        with suppress(_Stopped):
            if not self.move.is_turned:
                await self._turn(stop)
            await self.start(stop)

    # ---- Preparing ----

    async def _look(self, source: Side, target: Side) -> Plan:
        names = [each.name for each in self.move.topics]
        in_order = [each.name for each in self.move.in_order]
        plan = await look(source, target, names, self.move.groups, self.move.reader, in_order)
        plan.check()
        return plan

    async def _prepare(self, stop: asyncio.Event) -> Plan:
        """Makes topics and groups, and lets producers change sides. Notes before what was there."""
        source, target = self._source, self._target
        plan = await self._until(stop, self._look, source, target)
        if self.move.stage is not Stage.RUNNING or not self.move.imported:
            imported = {each: await self._until(stop, self._imported, each) for each in self.move.groups}
            self.move.imported, self.move.stage = imported, Stage.RUNNING
            self._keep()
        await self._until(stop, make, plan, source, target)
        if target.can_make:
            for topic in self.move.plain:  # an earlier move may have closed it
                await self._until(stop, target.open_topic, topic.name)
        if waiting := [self._switch(each, stop) for each in self.move.in_order if not each.is_switched]:
            await self._together(waiting, [], stop)
        return plan

    async def _imported(self, group: str) -> int:
        names = self._target.topics_of_imports(group, [each.name for each in self.move.plain])
        return sum([await self._target.stored(each) or 0 for each in names])

    # ---- Topics in order ----

    def _in_order(self, plan: Plan) -> list[Task]:
        return [each for each in plan.tasks if not each.takes_messages]

    def _topic(self, task: Task) -> MovedTopic:
        return next(each for each in self.move.topics if each.name == task.handover.topic)

    async def _switch(self, topic: MovedTopic, stop: asyncio.Event) -> None:
        """Producers change sides at one moment."""
        source, target, name = self._source, self._target, topic.name
        await self._until(
            stop, target.close_topic, name, f"send to {source.config.endpoints}; this side is not open yet"
        )
        is_new = not await self._until(stop, target.stored, name)
        for group in self.move.groups:
            if is_new:
                await self._until(stop, target.begin_at_first, group, name)
            await self._until(stop, target.hold_back, group, name)
        await self._close(topic, stop)
        if topic.stored_there is None:
            topic.stored_there = await self._until(stop, target.stored, name)
            self._keep()
        await self._until(stop, target.open_topic, name)
        topic.is_switched = True
        self._keep()
        self._say(f"topic {name}: producers are refused at {source.where}, and taken at {target.where}")

    async def _close(self, topic: MovedTopic, stop: asyncio.Event) -> None:
        """At the old side."""
        moved = f"it has moved to {self._target.config.endpoints}; send there"
        await self._until(stop, self._source.close_topic, topic.name, moved)
        topic.is_closed = True
        self._keep()

    async def _released(self, plan: Plan, ending: asyncio.Event) -> None:
        """Until every group has finished the topics in order; sets `ending`."""
        await asyncio.gather(*(self._release(each, ending) for each in self._in_order(plan)))
        ending.set()

    async def _release(self, task: Task, stop: asyncio.Event) -> None:
        """Let the group have the topic at the new side, when it has finished the old one."""
        topic, group, looks = self._topic(task), task.group, 0
        while looks < LOOKS and group not in topic.finished:
            is_done = await self._until(stop, self._source.is_done, task.handover, group)
            looks = looks + 1 if is_done else 0
            await pause(stop, LOOK_S)
        if self.move.is_finished_elsewhere(group, topic) or not self._target.holds_whole_groups:
            await self._until(stop, self._target.let_go, group, topic.name)
        if group not in topic.finished:
            topic.finished.append(group)
            self._keep()
            self._say(
                f"topic {topic.name}: group {group} has finished the old side, and goes on at {self._target.where}"
            )

    # ---- Going back ----

    async def _turn(self, stop: asyncio.Event) -> None:
        source, target = self._source, self._target
        plan = await self._until(stop, self._look, source, target)
        await self._until(stop, self._look, target, source)  # whether it can go back
        self.move.is_turning = True
        self._keep()
        await asyncio.gather(*(self._settle(each, plan, stop) for each in self.move.in_order))
        for topic in self.move.topics:
            if not topic.is_switched:
                await self._until(stop, source.open_topic, topic.name)
            if topic.in_order:
                for group in self.move.groups:  # what is at the new side must be finished there
                    await self._until(stop, target.let_go, group, topic.name)
        self.move.turn()
        self._source, self._target = target, source
        self._keep()
        self._say(f"turned: it moves back from {target.where} to {source.where}")

    async def _settle(self, topic: MovedTopic, plan: Plan, stop: asyncio.Event) -> None:
        """Before a turn: either no producer has sent to the new side, or all groups have finished the old one."""
        target, name = self._target, topic.name
        if not topic.finished:
            still_there = f"send to {self._source.config.endpoints}; it moves back"
            await self._until(stop, target.close_topic, name, still_there)
            if topic.stored_there in (None, await self._until(stop, target.stored, name)):
                topic.is_closed = topic.is_switched = False
                topic.stored_there = None
                self._keep()
                return
            await self._until(stop, target.open_topic, name)
            topic.is_switched = True
            self._keep()
        self._say(f"topic {name}: it turns when its groups have finished the old side")
        tasks = [each for each in self._in_order(plan) if each.handover.topic == name]
        await asyncio.gather(*(self._release(each, stop) for each in tasks))

    # ---- Mirrors ----

    def _mirrors(
        self, plan: Plan, stop: asyncio.Event, *, until_empty: bool = False
    ) -> list[Coroutine[Any, Any, None]]:
        self.mirrors = [None] * len(plan.tasks)
        return [self._mirror(number, each, stop, until_empty) for number, each in enumerate(plan.tasks)]

    async def _mirror(self, number: int, task: Task, stop: asyncio.Event, until_empty: bool) -> None:
        async def run() -> State:
            mirror = Mirror(task, self._source, self._target, self._record_of(task, self._source, self._target))
            self.mirrors[number] = mirror
            return await mirror.run(stop, until_empty=until_empty)

        if await self._until(stop, run) is State.HELD:
            held = self.mirrors[number]
            raise MoveHeld(f"{task.handover} is held: {held.sentence if held else ''}")

    # ---- The end ----

    async def _left(self, plan: Plan, stop: asyncio.Event) -> bool:
        """Whether anything is left at the old side, or will come in there."""
        for task in plan.tasks:
            if not await self._until(stop, self._source.is_done, task.handover, task.group):
                return True
        for topic in self.move.topics:
            if await self._until(stop, self._source.waits, topic.name):
                self._say(f"topic {topic.name}: delayed or half messages wait at {self._source.where}")
                return True
        return False

    async def _sums(self, stop: asyncio.Event) -> list[str]:
        """Raises MoveHeld if the new side has got less than was handed over."""
        lines = []
        for group in self.move.groups:
            of_group = [each for each in self.mirrors if each is not None and each.task.group == group]
            alone = [
                each.counts for each in of_group if each.task.handover.way is Way.GROUP and each.task.takes_messages
            ]
            if alone:
                handed = sum(each.handed - each.repeated for each in alone)
                came = await self._until(stop, self._imported, group) - self.move.imported[group]
                if came < handed and self._target.can_make:
                    raise MoveHeld(
                        f"group {group}: {handed} messages were handed over, and {self._target.where} has got {came};"
                        " the move is not finished, look for who removed some there"
                    )
                lines.append(f"group {group}: {handed} messages were handed over, {came} came in")
            letters = sum(each.counts.dead_letters for each in of_group)
            lines.append(f"group {group}: 0 messages left at {self._source.where}, {letters} dead letters copied")
        self.move.stage = Stage.FINISHED
        self._keep()
        return lines

    # ---- Calls ----

    async def _until(
        self, stop: asyncio.Event, call: Callable[P, Awaitable[T]], *given: P.args, **named: P.kwargs
    ) -> T:
        """The answer of a server, which is asked again while it cannot answer.

        Raises its refusal, and _Stopped.
        """
        told = ""
        while True:
            _go_on(stop)
            try:
                return await call(*given, **named)
            except PopError as failure:
                if not failure.retryable:
                    raise
                if str(failure) != told:
                    told = str(failure)
                    self._say(f"waits: {told}")
                await pause(stop, PAUSE_S)

    def _keep(self) -> None:
        self._save(self.move)

    async def _together(
        self,
        work: Sequence[Coroutine[Any, Any, None]],
        mirrors: Sequence[Coroutine[Any, Any, None]],
        stop: asyncio.Event,
    ) -> None:
        """All at once, until all have ended. If one fails, the others are stopped, and its failure is raised."""
        running = [begin_task(each) for each in (*work, *mirrors)]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            if any(not each.done() or each.cancelled() or each.exception() for each in running):
                stop.set()
            await asyncio.gather(*running, return_exceptions=True)
        failures = [failure for each in running if (failure := each.exception())]
        failures.sort(key=lambda failure: isinstance(failure, _Stopped))
        if failures:
            raise failures[0]


def _go_on(stop: asyncio.Event) -> None:
    """Raises _Stopped at `stop`."""
    if stop.is_set():
        raise _Stopped
