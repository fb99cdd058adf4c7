"""Planted faults: of the law, and of the statements. A walk that finds none of a fault would prove nothing."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from popserver.model.states import Event
from proof.worlds.law import ENDED, Answer, Deed, Happening, Law, Life, Rules, Stage

SIMPLE, PUSH = Rules(1), Rules(1, is_push=True)
IN_ORDER = Rules(2, in_order=True)


class LateAcks(Law):
    """An ack counts after the end of its hold."""

    def holds(self, life: Life, what: Happening) -> bool:
        return life.stage is Stage.INFLIGHT and not what.old


class OldHandles(Law):
    """A replaced handle still holds."""

    def holds(self, life: Life, what: Happening) -> bool:
        return life.stage is Stage.INFLIGHT and life.end > 0


class CountedReturns(Law):
    """A message that is given back has lost an attempt."""

    def _changed(self, life: Life, what: Happening) -> Life:
        after = super()._changed(life, what)
        return after._replace(attempt=life.attempt) if what.deed is Deed.GIVE_BACK else after


class OneMore(Law):
    """A message has one attempt more than its group allows."""

    def _ended(self, life: Life) -> Life:
        allowed = Law(self.rules._replace(max_attempts=self.rules.max_attempts + 1))
        return Law._ended(allowed, life)


class LateIntervals(Law):
    """The interval of a retry begins when somebody notices the end of the hold."""

    def _ended(self, life: Life) -> Life:
        return super()._ended(life._replace(end=max(life.end, 0)))


class UntoldSkips(Law):
    """A skip by force tells the former holder nothing."""

    def _skip(self, lives: list[Life], number: int, *, by_force: bool) -> bool:
        done = super()._skip(lives, number, by_force=by_force)
        lives[number] = lives[number]._replace(is_forced=False)
        return done


class ShortResets(Law):
    """A reset leaves what has ended."""

    def _in_group(self, lives: list[Life], what: Happening) -> Answer:
        before = list(lives)
        answer = super()._in_group(lives, what)
        if what.deed is Deed.RESET:
            lives[:] = [old if old.stage in ENDED else new for old, new in zip(before, lives, strict=True)]
        return answer


class Overtaking(Law):
    """A message of a message group may be received while an earlier one is held."""

    def grantable(self, lives: list[Life]) -> list[int]:
        return [number for number, each in enumerate(lives) if each.stage is Stage.READY]


class EarlyCommits(Law):
    """An ack before that of an earlier message of the message group counts at once."""

    def _settled(self, lives: list[Life]) -> tuple[Life, ...]:
        return tuple(each._replace(stage=Stage.COMMIT, is_marked=False) if each.is_marked else each for each in lives)


LAWS: dict[type[Law], Rules] = {
    LateAcks: SIMPLE,
    OldHandles: SIMPLE,
    CountedReturns: SIMPLE,
    OneMore: SIMPLE,
    LateIntervals: PUSH,
    UntoldSkips: SIMPLE,
    ShortResets: SIMPLE,
    Overtaking: IN_ORDER,
    EarlyCommits: IN_ORDER,
}


class Patch(NamedTuple):
    """A function of the server that is replaced; `instead` is given the right one."""

    rules: Rules
    module: str
    name: str
    instead: Callable[[Any], Any]


def _nothing(_: Any) -> Any:
    return lambda *_: None


STATEMENTS: dict[str, Patch] = {
    "an ack is answered and not carried out": Patch(SIMPLE, "settling.ack", "_commit", lambda _: lambda *_: {}),
    "every late ack is good": Patch(SIMPLE, "settling.ack", "why_not", _nothing),
    "an attempt too many": Patch(SIMPLE, "settling.expire", "when_hold_ends", lambda _: lambda *_: Event.RELEASE),
    "a push consumer's message comes at once": Patch(
        PUSH, "settling.expire", "when_hold_ends", lambda right: lambda _, *more: right("SIMPLE", *more)
    ),
    "a failed attempt does not wait": Patch(PUSH, "settling.expire", "interval_ms", lambda _: lambda *_, **__: 0),
    "a failed attempt is an extension": Patch(
        PUSH, "settling.change", "when_visibility_changes", lambda _: lambda *_: Event.CHANGE_INVISIBLE
    ),
    "a repeated change is refused": Patch(SIMPLE, "settling.change", "_repeated", _nothing),
    "a return costs an attempt": Patch(
        SIMPLE, "settling.change", "_attempt_after", lambda _: lambda event, request, held: held.attempt
    ),
    "a skip by force does nothing": Patch(SIMPLE, "progress.skip", "_end_hold", _nothing),
    "a skip by force is not told": Patch(SIMPLE, "settling.refusals", "skipped_while_held_ms", _nothing),
    "an unread message is not skipped": Patch(SIMPLE, "progress.skip", "_move_progress", _nothing),
    "a reset moves nothing": Patch(SIMPLE, "progress.reset", "_move", _nothing),
    "a group does not go on after a dead letter": Patch(IN_ORDER, "settling.change", "_advance_groups_after", _nothing),
}


@contextmanager
def planted(patch: Patch) -> Iterator[None]:
    """The fault, until the end of the block."""
    module: Any = importlib.import_module(f"popserver.{patch.module}")
    right = getattr(module, patch.name)
    setattr(module, patch.name, patch.instead(right))
    try:
        yield
    finally:
        setattr(module, patch.name, right)
