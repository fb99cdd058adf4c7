"""The law of a small world, without a database: written from the rules of docs/lifecycle.md and not from the code.

A world is a value, so that equal worlds are visited once. Times are ticks from now, and 0 is over. Only the hold of a
push consumer goes below 0, because its interval begins when it ended, and not when somebody notices.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from itertools import takewhile
from typing import NamedTuple

HOLD = 1  # ticks: the invisible duration of a receive
LONG = 2  # ticks: the longer one that a holder asks for
INTERVAL = 1  # ticks: before a retry
NOW = 0


class Stage(StrEnum):
    """Where a message is in a group."""

    READY = "READY"
    INFLIGHT = "INFLIGHT"
    WAITING_RETRY = "WAITING_RETRY"
    COMMIT = "COMMIT"
    DLQ = "DLQ"


class Deed(StrEnum):
    """What somebody does, or what happens."""

    SEND = "send"
    RECEIVE = "receive"
    ACK = "ack"
    CHANGE = "change invisible"
    GIVE_BACK = "give back"
    FORWARD = "forward"
    TICK = "time passes"
    END_DUE = "end what is due"
    SKIP = "skip"
    FORCE = "skip by force"
    RESET = "reset"
    REDRIVE = "redrive"


class Happening(NamedTuple):
    """One event. `old`: with the handle before the newest. `number`: the batch size of a receive, ticks of a change."""

    deed: Deed
    group: int = 0
    message: int = 0
    old: bool = False
    number: int = 0


class Life(NamedTuple):
    """One message in one group. `end`: of its hold or its wait. `newest`, `older`: when its last two handles end.

    `by` is the change that replaced the older handle by the newest; None if it was another receive. `has_row`: it was
    delivered since the last reset. `is_marked`: acked before an earlier message of its message group.
    """

    stage: Stage = Stage.READY
    attempt: int = 0
    end: int = 0
    newest: int | None = None
    older: int | None = None
    by: int | None = None
    has_row: bool = False
    is_marked: bool = False
    is_forced: bool = False


class World(NamedTuple):
    """Of each group, the lives of the messages that are stored."""

    groups: tuple[tuple[Life, ...], ...]


class Answer(NamedTuple):
    """What the caller is told: whether it was done, and of a receive the messages with their attempts."""

    ok: bool
    got: tuple[tuple[int, int], ...] = ()


class Rules(NamedTuple):
    """What a world is made of."""

    messages: int = 2
    groups: int = 1
    max_attempts: int = 2
    is_push: bool = False
    in_order: bool = False


ENDED = {Stage.COMMIT, Stage.DLQ}


class Law:
    """What may follow. A planted fault is a subclass."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules

    def start(self) -> World:
        return World(((),) * self.rules.groups)

    def happenings(self, world: World) -> Iterator[Happening]:
        """Everything that can be tried now; most of it is refused."""
        sent = len(world.groups[0])
        if sent < self.rules.messages:
            yield Happening(Deed.SEND)
        if any(self._is_timed(each) for lives in world.groups for each in lives):
            yield Happening(Deed.TICK)
        yield Happening(Deed.END_DUE)
        for group, lives in enumerate(world.groups):
            # Without message groups a store may choose among several: a receive of one names no single outcome.
            if self.rules.in_order or len(self.grantable(list(lives))) < 2:
                yield Happening(Deed.RECEIVE, group, number=1)
            if sent > 1:
                yield Happening(Deed.RECEIVE, group, number=2)
            if any(each != Life() for each in lives):
                yield Happening(Deed.RESET, group)
            for message, life in enumerate(lives):
                yield from self._about_one(group, message, life)

    def _about_one(self, group: int, message: int, life: Life) -> Iterator[Happening]:
        yield Happening(Deed.SKIP, group, message)
        yield Happening(Deed.FORCE, group, message)
        if not self.rules.in_order:
            yield Happening(Deed.REDRIVE, group, message)
        for old in (False, True):
            if (life.older if old else life.newest) is not None:
                yield Happening(Deed.ACK, group, message, old)
                yield Happening(Deed.FORWARD, group, message, old)
                yield Happening(Deed.CHANGE, group, message, old, NOW)
                yield Happening(Deed.CHANGE, group, message, old, LONG)
                if not old:
                    yield Happening(Deed.GIVE_BACK, group, message)

    def after(self, world: World, what: Happening) -> tuple[World, Answer]:
        """The world afterwards, and what the caller is told."""
        if what.deed is Deed.SEND:
            return World(tuple((*lives, Life()) for lives in world.groups)), Answer(True)
        if what.deed is Deed.TICK:
            return World(tuple(tuple(self._older(each) for each in lives) for lives in world.groups)), Answer(True)
        if what.deed is Deed.END_DUE:
            return World(tuple(self._settled([self._ended(each) for each in one]) for one in world.groups)), Answer(
                True
            )
        lives = list(world.groups[what.group])
        answer = self._in_group(lives, what)
        groups = list(world.groups)
        groups[what.group] = self._settled(lives)
        return World(tuple(groups)), answer

    def _in_group(self, lives: list[Life], what: Happening) -> Answer:
        if what.deed is Deed.RECEIVE:
            return self._receive(lives, what.number)
        if what.deed is Deed.RESET:
            lives[:] = [Life(newest=each.newest, older=each.older) for each in lives]
            return Answer(True)
        if what.deed in {Deed.SKIP, Deed.FORCE}:
            return Answer(self._skip(lives, what.message, by_force=what.deed is Deed.FORCE))
        life = lives[what.message]
        if what.deed is Deed.REDRIVE:
            if life.stage is Stage.DLQ:
                lives[what.message] = Life(newest=life.newest, older=life.older, has_row=True)
            return Answer(life.stage is Stage.DLQ)
        lives[what.message], ok = self._by_holder(life, what)
        return Answer(ok)

    def grantable(self, lives: list[Life]) -> list[int]:
        """The messages that a receive may have, in their order."""
        if not self.rules.in_order:
            return [number for number, each in enumerate(lives) if each.stage is Stage.READY]
        run = [number for number, each in enumerate(lives) if each.has_row and each.stage not in ENDED]
        if not run:
            return [number for number, each in enumerate(lives) if not each.has_row and each.stage is Stage.READY]
        again = takewhile(lambda number: lives[number].stage is Stage.READY, run)
        return [
            each for each in again if not (lives[each].is_marked and lives[each].attempt >= self.rules.max_attempts)
        ]

    def _receive(self, lives: list[Life], batch: int) -> Answer:
        got = self.grantable(lives)[:batch]
        for number in got:
            each = lives[number]
            lives[number] = Life(Stage.INFLIGHT, each.attempt + 1, HOLD, HOLD, each.newest, None, True)
        return Answer(True, tuple((number, lives[number].attempt) for number in got))

    def _skip(self, lives: list[Life], number: int, *, by_force: bool) -> bool:
        each = lives[number]
        is_held = each.stage is Stage.INFLIGHT
        if each.stage in ENDED or (is_held and not by_force):
            return False
        if not each.has_row and any(not one.has_row and one.stage is Stage.READY for one in lives[:number]):
            return False  # it is not the next one, so nothing could record it
        lives[number] = each._replace(stage=Stage.COMMIT, end=0, is_marked=False, is_forced=is_held)
        return True

    def _by_holder(self, life: Life, what: Happening) -> tuple[Life, bool]:
        holds = self.holds(life, what)
        own_end = (life.older if what.old else life.newest) or 0
        if what.deed is Deed.ACK:
            if holds:
                if self.rules.in_order:
                    return life._replace(stage=Stage.READY, end=0, is_marked=True), True
                return life._replace(stage=Stage.COMMIT, end=0), True
            is_acked = life.stage is Stage.COMMIT or (life.is_marked and not what.old)
            return life, is_acked and own_end > 0 and not life.is_forced
        if what.deed is Deed.FORWARD:
            return (self._dead(life), True) if holds else (life, life.stage in ENDED)
        if not holds:
            return life, life.stage not in ENDED and not life.is_marked and what.old and life.by == what.number
        return self._changed(life, what), True

    def holds(self, life: Life, what: Happening) -> bool:
        return life.stage is Stage.INFLIGHT and not what.old and life.end > 0

    def _changed(self, life: Life, what: Happening) -> Life:
        after = life._replace(newest=what.number, older=life.newest, by=what.number, end=what.number)
        if what.deed is Deed.GIVE_BACK:
            return after._replace(stage=Stage.READY, attempt=life.attempt - 1)
        if not self.rules.is_push:
            return after
        if life.attempt >= self.rules.max_attempts:
            return self._dead(life)
        wait = INTERVAL if self.rules.in_order else what.number or INTERVAL
        return after._replace(stage=Stage.WAITING_RETRY, end=wait, newest=wait)

    def _dead(self, life: Life) -> Life:
        return life._replace(stage=Stage.DLQ, end=0, is_marked=False)

    def _ended(self, life: Life) -> Life:
        if life.end > 0 or life.stage not in {Stage.INFLIGHT, Stage.WAITING_RETRY}:
            return life
        if life.stage is Stage.WAITING_RETRY:
            return life._replace(stage=Stage.READY)
        if life.attempt >= self.rules.max_attempts:
            return self._dead(life)
        if self.rules.is_push and life.end + INTERVAL > 0:
            return life._replace(stage=Stage.WAITING_RETRY, end=life.end + INTERVAL)
        return life._replace(stage=Stage.READY, end=0)

    def _settled(self, lives: list[Life]) -> tuple[Life, ...]:
        """In a message group, provisional acks count from its first message on."""
        for number, each in enumerate(lives):
            if each.stage in ENDED:
                continue
            if not each.is_marked:
                break
            lives[number] = each._replace(stage=Stage.COMMIT, is_marked=False)
        return tuple(lives)

    def _is_timed(self, life: Life) -> bool:
        return bool(life.end > self._lowest_end(life) or life.newest or life.older)

    def _older(self, life: Life) -> Life:
        def less(ticks: int | None) -> int | None:
            return None if ticks is None else max(ticks - 1, 0)

        end = max(life.end - 1, self._lowest_end(life))
        return life._replace(end=end, newest=less(life.newest), older=less(life.older))

    def _lowest_end(self, life: Life) -> int:
        return -INTERVAL if self.rules.is_push and life.stage is Stage.INFLIGHT else NOW
