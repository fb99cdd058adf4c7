"""Clients of a simulated server: what they may do next, and what they write into the history."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Sequence
from itertools import repeat
from typing import TypeVar

from popserver.filters.tags import parse
from popserver.model.errors import Internal, NoAnswer, PopError
from popserver.model.handles import decode_receipt
from popserver.model.message import REDRIVE_OF, REDRIVE_PLAN, Delivery, Message, SendResult
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.topic import MessageType
from proof.history.events import ClockStep, DelayedSend, OrderedSend
from proof.history.scenes import Scene
from proof.simulate.machine import Machine
from tests.support.checker import Ack, ChangeInvisible, Delivered, History, Outcome, Receive, Send
from tests.support.workload import digest

T = TypeVar("T")

TOPIC = Resource("", "orders")
HOLDS_MS = (1_000, 5_000, 30_000)
DELAYS_MS = (500, 5_000, 60_000)
MESSAGE_GROUPS = ("red", "green", "blue")
REMEMBERED = 16  # holds of a consumer, current and old


class Diary:
    """The history of a run, in ms since its start; no two moments are equal."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.history = History()
        self.start_ms = machine.clock.now_ms()
        self._last_ms = 0.0
        machine.clock_was_set = self._clock_was_set

    def now(self) -> float:
        self._last_ms = max(self._last_ms + 0.001, float(self.machine.clock.now_ms() - self.start_ms))
        return self._last_ms

    def deadline_ms(self, wait_ms: int) -> int:
        """The end of a wait that begins now, by the clock of the server that is called."""
        return self.machine.broker.engine.clock.deadline_ms(wait_ms)

    def _clock_was_set(self, by_ms: int) -> None:
        now = self.now()
        self.history.add(ClockStep(Outcome.OK, now, now, float(by_ms)))

    async def outcome(self, call: Awaitable[T]) -> tuple[Outcome, T | None]:
        """What the caller learns. A call that ends with its server is unknown."""
        try:
            return Outcome.OK, await call
        except (Internal, NoAnswer):
            return Outcome.UNKNOWN, None
        except PopError:
            return Outcome.REFUSED, None


def content(message: Message) -> str:
    """Of what its producer gave; a redrive adds where the message comes from."""
    added = {REDRIVE_OF, REDRIVE_PLAN}
    return digest(message.body, {name: each for name, each in message.properties.items() if name not in added})


class Producer:
    """Sends messages one after the other; repeats what may not have arrived."""

    def __init__(self, diary: Diary, scene: Scene, number: int) -> None:
        self._diary = diary
        self._scene = scene
        self._number = number
        self._count = 0
        self._again: tuple[Message, float] | None = None

    async def act(self, chance: random.Random) -> None:
        again, self._again = self._again, None
        message, due_ms = again or self._new(chance)
        invoked, outcome = self._diary.now(), Outcome.UNKNOWN
        try:
            outcome, answer = await self._diary.outcome(self._diary.machine.broker.send([message], f"p{self._number}"))
            if answer is not None and not isinstance(answer[0], SendResult):
                outcome = Outcome.UNKNOWN if isinstance(answer[0], Internal) else Outcome.REFUSED
        finally:
            if outcome is Outcome.UNKNOWN:
                self._again = message, due_ms
            self._write(message, due_ms, outcome, invoked)

    def _new(self, chance: random.Random) -> tuple[Message, float]:
        self._count += 1
        message_id = f"m{self._number}-{self._count}"
        message = Message(TOPIC, message_id, b"body " + message_id.encode(), properties={"n": str(self._count)})
        if self._scene is Scene.FIFO:
            name = f"{chance.choice(MESSAGE_GROUPS)}{self._number}"
            return message._replace(message_group=name, message_type=MessageType.FIFO), 0.0
        if self._scene is Scene.DELAY:
            due_ms = self._diary.machine.clock.calendar_ms() + chance.choice(DELAYS_MS)
            message = message._replace(deliver_at_ms=due_ms, message_type=MessageType.DELAY)
            return message, float(due_ms - self._diary.start_ms)
        return message, 0.0

    def _write(self, message: Message, due_ms: float, outcome: Outcome, invoked: float) -> None:
        mark = content(message)
        call = (outcome, invoked, self._diary.now(), message.message_id, mark)
        if message.message_group is not None:
            self._diary.history.add(OrderedSend(*call, message.message_group))
        elif self._scene is Scene.DELAY:
            self._diary.history.add(DelayedSend(*call, due_ms))
        else:
            self._diary.history.add(Send(*call))


class Consumer:
    """Receives, acks, prolongs, lets holds end, and tries handles again that no longer count."""

    def __init__(self, diary: Diary, group: str, number: int) -> None:
        self._diary = diary
        self._group = Resource("", group)
        self._client = f"{group}-{number}"
        self._held: list[tuple[str, str]] = []  # message id and handle
        self._old: list[tuple[str, str]] = []

    async def act(self, chance: random.Random) -> None:
        what = chance.random()
        if what < 0.06 and self._old:
            await self.ack([chance.choice(self._old)])
        elif what < 0.12 and self._old:
            await self.change(chance.choice(self._old), chance.choice(HOLDS_MS))
        elif what < 0.18 and self._held:
            await self.change(self._take(chance), chance.choice(HOLDS_MS))
        elif what < 0.25 and self._held:
            self._take(chance)  # forgotten: its hold ends by itself
        elif what < 0.65 and self._held:
            await self.ack([self._take(chance) for _ in range(min(len(self._held), chance.choice((1, 1, 4))))])
        else:
            poll_ms = chance.choice((0, 0, 0, 2_000))
            await self.receive(chance.choice((1, 3, 8)), chance.choice(HOLDS_MS), poll_ms)

    def _take(self, chance: random.Random) -> tuple[str, str]:
        found = self._held.pop(chance.randrange(len(self._held)))
        self._old = [*self._old, found][-REMEMBERED:]
        return found

    async def receive(self, batch_size: int, invisible_ms: int, poll_ms: int = 0) -> int:
        """How many came."""
        diary = self._diary
        invoked, outcome, got = diary.now(), Outcome.UNKNOWN, None
        try:
            outcome, got = await diary.outcome(
                diary.machine.broker.receive(
                    self._group,
                    TOPIC,
                    wanted=parse("*"),
                    batch_size=batch_size,
                    invisible_ms=invisible_ms,
                    holder=Holder.SIMPLE,
                    client_id=self._client,
                    poll_until_ms=diary.deadline_ms(poll_ms),
                )
            )
        finally:
            came = tuple(map(delivered, got or ()))
            diary.history.add(Receive(outcome, invoked, diary.now(), self._group.name, invisible_ms, came))
        self._held += [(each.message_id, each.handle) for each in came]
        return len(came)

    async def ack(self, held: Sequence[tuple[str, str]]) -> None:
        """One call, which answers each message for itself."""
        diary = self._diary
        calls = [(diary.now(), *each) for each in held]
        outcome, answers = Outcome.UNKNOWN, None
        try:
            handles = [handle for _, handle in held]
            outcome, answers = await diary.outcome(diary.machine.broker.ack(self._group, TOPIC, handles))
        finally:
            for (invoked, *each), error in zip(calls, answers or repeat(None), strict=False):
                own = outcome
                if error is not None:
                    own = Outcome.UNKNOWN if isinstance(error, Internal) else Outcome.REFUSED
                diary.history.add(Ack(own, invoked, diary.now(), self._group.name, *each))

    async def ack_all(self) -> None:
        held, self._held = self._held, []
        if held:
            await self.ack(held)

    async def change(self, held: tuple[str, str], duration_ms: int) -> None:
        diary = self._diary
        invoked, outcome, new = diary.now(), Outcome.UNKNOWN, None
        try:
            outcome, new = await diary.outcome(
                diary.machine.broker.change_invisible(self._group, TOPIC, held[1], duration_ms)
            )
            if new and decode_receipt(new).ends_at_ms <= diary.deadline_ms(0):
                # A repeated change gets its first answer again, here of a hold that has ended since.
                outcome, new = Outcome.REFUSED, None
        finally:
            diary.history.add(
                ChangeInvisible(outcome, invoked, diary.now(), self._group.name, *held, duration_ms, new or "")
            )
        if new:
            self._held.append((held[0], new))


def delivered(given: Delivery) -> Delivered:
    message = given.stored.message
    return Delivered(message.message_id, content(message), given.attempt, given.receipt_handle)
