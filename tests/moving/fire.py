"""Moves under load, while the movers and processes of both sides are killed. `proof.history.moves` judges them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from popclient import ClientConfig, Message, PopError, aio
from popclient.aio.admin.admin import Admin
from popclient.moving.moves import Move, MoveFile, Stage
from proof.history.moves import Consumed, Sent, Verdict, judge
from tests.support.server_process import ServerProcess
from tests.support.shell import POPMQ

PATIENCE_S: Final = 120.0
QUIET_S: Final = 60.0
HOLD_S: Final = 20.0
MESSAGE_GROUPS: Final = 4

Kill = Callable[[], Awaitable[None]]


class Part(NamedTuple):
    """A topic with its groups, and a move of its own."""

    topic: str
    in_order: bool
    groups: list[str]


async def make_at_popmq(endpoint: str, parts: Sequence[Part]) -> None:
    """The topics and groups."""
    async with Admin(ClientConfig(endpoint)) as admin:
        for part in parts:
            types = ("FIFO",) if part.in_order else ("NORMAL",)
            await admin.create_topic(part.topic, queue_count=4, accept_message_types=types)
            for group in part.groups:
                await admin.create_group(group, max_attempts=16)


async def again(server: ServerProcess) -> None:
    """kill -9, and a start."""
    await server.kill()
    await server.start()


class Fire:
    """old, new: endpoints. victims: by name, what kills a process and starts it again. words: for `popmq move plan`."""

    def __init__(
        self, folder: Path, old: str, new: str, parts: Sequence[Part], victims: Mapping[str, Kill], words: Sequence[str]
    ) -> None:
        self.sent: list[Sent] = []
        self.consumed: list[Consumed] = []
        self.kills: list[str] = []
        self._sides = {"old": old, "new": new}
        self._parts = parts
        self._victims = victims
        self._words = words
        self._files = {each.topic: MoveFile(folder / f"{each.topic}.json") for each in parts}
        self._movers: dict[str, asyncio.subprocess.Process] = {}
        self._moving: list[asyncio.Task[None]] = []
        self._sends = self._receives = True
        self._turns = False
        self._news = asyncio.Event()  # set when a message is confirmed or delivered
        self._random = random.Random(1)

    async def run(self, kills: int, apart: int, lax: str | None = None, *, back: bool = False) -> Verdict:
        """Load at the old side, the moves with so many kills, the end, and the verdict.

        apart: about so many messages are confirmed between two kills. back: half of the kills fall into the way there,
        the others into the way back.
        """
        load = [asyncio.create_task(each) for each in self._load()]
        await self._confirmed(apart)
        for part in self._parts:
            groups = [word for each in part.groups for word in ("--group", each)]
            await self._done(part, "plan", *self._words, "--topic", part.topic, *groups)
        self._moving = [asyncio.create_task(self._move(each)) for each in self._parts]
        await self._kill(kills // 2 if back else kills, apart)
        await self._until(_is_switched)
        if back:
            self._turns = True
            await self._kill(kills - kills // 2, apart)
            await self._until(lambda move: move.is_turned and _is_switched(move))
        self._sends = False
        await asyncio.gather(*self._moving)
        await self._drained()
        self._receives = False
        await asyncio.gather(*load)
        return judge(self.sent, self.consumed, {each.topic: each.groups for each in self._parts}, lax)

    async def _kill(self, count: int, apart: int) -> None:
        for _ in range(count):
            await self._confirmed(self._random.randrange(apart // 2, apart * 3 // 2))
            await self._kill_one()

    async def _confirmed(self, count: int) -> None:
        """Until so many more messages are confirmed."""
        enough = len(self.sent) + count
        async with asyncio.timeout(PATIENCE_S):
            while len(self.sent) < enough:
                self._news.clear()
                await self._news.wait()

    async def _kill_one(self) -> None:
        victims = [*self._victims, *(f"mover of {topic}" for topic in self._movers)]
        chosen = self._random.choice(victims)
        self.kills.append(chosen)
        if chosen in self._victims:
            await self._victims[chosen]()
        else:
            with contextlib.suppress(ProcessLookupError):
                self._movers[chosen.removeprefix("mover of ")].kill()

    # ---- The moves ----

    async def _move(self, part: Part) -> None:
        """Start, until producers may send to the new side only; then finish. Whatever is killed is started again."""
        await self._again(part, "start", until=lambda: self._turns or not self._sends)
        if self._turns:
            await self._again(part, "back", until=lambda: not self._sends)
        await self._again(part, "finish")

    async def _again(self, part: Part, action: str, until: Callable[[], bool] = lambda: False) -> None:
        while not until():
            mover = await self._process(part, action)
            self._movers[part.topic] = mover
            talking = asyncio.create_task(mover.communicate())
            while not until() and not (await asyncio.wait([talking], timeout=0.1))[0]:
                pass
            if not talking.done():
                mover.terminate()
            out, err = await talking
            if mover.returncode == 0 and action == "finish":
                return
            # One that starts while a side is away ends with this sentence.
            assert mover.returncode in (0, -signal.SIGKILL) or b"no answer from" in err, (out, err)

    async def _process(self, part: Part, action: str, *more: str) -> asyncio.subprocess.Process:
        yes = () if action == "plan" else ("--yes",)
        words = [POPMQ, "--json", "move", action, *more, *yes, "--file", str(self._files[part.topic].path)]
        return await asyncio.create_subprocess_exec(*words, stdout=-1, stderr=-1)

    async def _done(self, part: Part, action: str, *more: str) -> None:
        process = await self._process(part, action, *more)
        out, err = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        assert process.returncode == 0, (out, err)

    async def _until(self, fact: Callable[[Move], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not all(fact(each.load()) for each in self._files.values()):
                for ended in (await asyncio.wait(self._moving, timeout=0.2))[0]:
                    ended.result()

    # ---- The load ----

    def _load(self) -> list[Coroutine[Any, Any, None]]:
        work: list[Coroutine[Any, Any, None]] = []
        for part in self._parts:
            names = [f"g{number}" for number in range(MESSAGE_GROUPS)] if part.in_order else [None, None]
            work += [self._produce(part, number, name) for number, name in enumerate(names)]
            work += [self._consume(part, group, side) for group in part.groups for side in self._sides]
        return work

    async def _produce(self, part: Part, producer: int, message_group: str | None) -> None:
        """One message after the other: each is sent until a side confirms it; a refusal leads to the other side."""
        async with aio.Producer(_config(self._sides["old"])) as old, aio.Producer(_config(self._sides["new"])) as new:
            producers = {"old": old, "new": new}
            side, number = "old", 0
            while self._sends:
                body = f"{message_group or f'p{producer}'}:{number}"
                tries = 0
                while True:
                    tries += 1
                    try:
                        await producers[side].send(Message(part.topic, body, message_group=message_group))
                    except PopError as failure:
                        if not failure.retryable or tries % 4 == 0:
                            side = "new" if side == "old" else "old"
                        await asyncio.sleep(0.2)
                    else:
                        break
                self.sent.append(Sent(part.topic, message_group, number, body, side, tries))
                self._news.set()
                number += 1
                if message_group is None and self._random.random() < 0.05:
                    side = self._side_to_be(part)
                await asyncio.sleep(self._random.uniform(0.02, 0.1))

    def _side_to_be(self, part: Part) -> str:
        """Where the producers of a topic without message groups go, when they change sides at some time."""
        file = self._files[part.topic]
        move = file.load() if file.path.exists() else None
        return "new" if move is not None and move.stage is Stage.RUNNING and not move.is_turned else "old"

    async def _consume(self, part: Part, group: str, side: str) -> None:
        while self._receives:
            try:
                async with aio.SimpleConsumer(
                    _config(self._sides[side]), group, part.topic, invisible_duration=HOLD_S, await_duration=5
                ) as consumer:
                    while self._receives:
                        await self._receive(part, group, side, consumer)
            except PopError:
                await asyncio.sleep(0.2)

    async def _receive(self, part: Part, group: str, side: str, consumer: aio.SimpleConsumer) -> None:
        views = await consumer.receive()
        for view in views:
            what = group, part.topic, view.message_group, view.text, side, view.delivery_attempt
            self.consumed.append(Consumed(*what))
            self._news.set()
        for view in views:
            with contextlib.suppress(PopError):
                await consumer.ack(view)

    async def _drained(self) -> None:
        """Until every group has got all that was confirmed, or nothing came for a minute."""
        with contextlib.suppress(TimeoutError):
            while self._missing():
                self._news.clear()
                await asyncio.wait_for(self._news.wait(), QUIET_S)

    def _missing(self) -> bool:
        got = {(each.group, each.topic, each.body) for each in self.consumed}
        groups = {each.topic: each.groups for each in self._parts}
        return any((group, each.topic, each.body) not in got for each in self.sent for group in groups[each.topic])


def _config(endpoint: str) -> ClientConfig:
    return ClientConfig(endpoint, request_timeout=10.0)


def _is_switched(move: Move) -> bool:
    return move.stage is not Stage.PLANNED and all(each.is_switched for each in move.in_order)


def told(fire: Fire, verdict: Verdict) -> str:
    """What a run has done, for a note."""
    by_side = {side: sum(each.side == side for each in fire.sent) for side in ("old", "new")}
    return (
        f"{len(fire.sent)} messages confirmed {by_side}, {len(fire.consumed)} deliveries, kills {fire.kills},"
        f" doubles {dict(verdict.doubles)}"
    )


def show(line: str) -> None:
    """Past the capture of a test."""
    print(line, file=sys.__stderr__, flush=True)
