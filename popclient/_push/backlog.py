"""Messages that wait for the listener: which of them may run, in which order, and when each of them is late.

They wait in groups. The messages of one message group are a group that is consumed one by one. The messages of a topic
without a message group are a group of which many run at once. The groups take turns, so that neither a long message
group nor a busy topic delays the others.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from popclient._engine.runner import ListenerCall
from popclient.message import MessageView


class GroupBacklog:
    """Messages that wait for the same turn. An ordered group goes on when `busy` is 0.

    is_stuck: its batch has timed out, and the listener has not returned yet.
    """

    __slots__ = ("busy", "has_turn", "is_stuck", "key", "ordered", "waiting")

    def __init__(self, key: tuple[str, str | None]) -> None:
        self.key = key
        self.ordered = key[1] is not None
        self.waiting: deque[Buffered] = deque()
        self.busy = 0
        self.has_turn = False
        self.is_stuck = False


class Buffered:
    """A message that this client holds.

    batch: the batch in which the listener got it. decided: its outcome is known; a later result is ignored.
    """

    __slots__ = ("batch", "decided", "group", "size", "view")

    def __init__(self, view: MessageView, size: int, group: GroupBacklog) -> None:
        self.view = view
        self.size = size
        self.group = group
        self.batch: Batch | None = None
        self.decided = False


class Batch:
    """Messages of one group that are with the listener together."""

    __slots__ = ("call", "group", "held", "timed_out", "views")

    def __init__(self, held: Sequence[Buffered]) -> None:
        self.held = held
        self.group = held[0].group
        self.views = (held[0].view,) if len(held) == 1 else tuple(each.view for each in held)
        self.timed_out = False
        self.call: ListenerCall | None = None
        for each in held:
            each.batch = self

    @property
    def undecided(self) -> list[Buffered]:
        return [held for held in self.held if not held.decided]


class Backlog:
    """The groups of one consumer.

    on_turn: called when an ordered group may go on, with the message that could run next.
    """

    def __init__(self, batch_size: int, on_turn: Callable[[Buffered], None]) -> None:
        self._batch_size = batch_size
        self._on_turn = on_turn
        self._groups: dict[tuple[str, str | None], GroupBacklog] = {}
        self._turns: deque[GroupBacklog] = deque()

    def put(self, view: MessageView, size: int, message_group: str | None) -> Buffered:
        """Adds it at the end of its group."""
        key = (view.topic, message_group)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = GroupBacklog(key)
        held = Buffered(view, size, group)
        group.waiting.append(held)
        self._offer(group)
        return held

    def next_batch(self) -> Batch | None:
        """The next batch for the listener, in order; None if nothing may run.

        An ordered group is busy from now on, until `free`.
        """
        while self._turns:
            group = self._turns.popleft()
            group.has_turn = False
            if not group.waiting:  # all of them were taken out meanwhile
                self._forget_if_idle(group)
                continue
            count = min(self._batch_size, len(group.waiting))
            batch = Batch([group.waiting.popleft() for _ in range(count)] if count > 1 else [group.waiting.popleft()])
            if group.ordered:
                group.busy += 1
            else:
                self._offer(group)
                self._forget_if_idle(group)
            return batch
        return None

    def hold_up(self, group: GroupBacklog) -> None:
        """An ordered group does not go on before one more call of `free`."""
        group.busy += 1

    def free(self, group: GroupBacklog) -> None:
        """Undoes one `hold_up`."""
        group.busy -= 1
        self._offer(group)
        self._forget_if_idle(group)

    def withdraw(self, held: Buffered) -> bool:
        """Takes one out. False if it was not waiting."""
        try:
            held.group.waiting.remove(held)
        except ValueError:
            return False
        return True

    def withdraw_rest(self, group: GroupBacklog) -> list[Buffered]:
        """Takes out all waiting messages of the group."""
        rest, group.waiting = list(group.waiting), deque()
        return rest

    def withdraw_all(self) -> list[Buffered]:
        return [held for group in self._groups.values() for held in self.withdraw_rest(group)]

    def _offer(self, group: GroupBacklog) -> None:
        """Gives the group a turn if something in it may run."""
        if group.waiting and not group.has_turn and not (group.ordered and group.busy):
            group.has_turn = True
            self._turns.append(group)
            if group.ordered:
                self._on_turn(group.waiting[0])

    def _forget_if_idle(self, group: GroupBacklog) -> None:
        if not (group.waiting or group.busy or group.has_turn) and self._groups.get(group.key) is group:
            del self._groups[group.key]


class Deadlines:
    """Watches messages. Calls `late` with each that was not forgotten within `timeout` seconds after `watch`."""

    def __init__(self, timeout: float, late: Callable[[Buffered], None]) -> None:
        self._timeout = timeout
        self._late = late
        self._at: dict[Buffered, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, held: Buffered) -> None:
        """Watches it from now on, unless it is watched already."""
        at = asyncio.get_running_loop().time() + self._timeout
        self._at.setdefault(held, at)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(at, self._check_deadlines)

    @property
    def longest(self) -> float:
        """Seconds since the oldest one is watched; 0 if none is."""
        for at in self._at.values():
            return asyncio.get_running_loop().time() - at + self._timeout
        return 0.0

    def forget(self, held: Buffered) -> None:
        self._at.pop(held, None)

    def stop(self) -> None:
        self._at.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _check_deadlines(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._at:
            held, at = next(iter(self._at.items()))
            if at > loop.time():
                self._timer = loop.call_at(at, self._check_deadlines)
                return
            del self._at[held]
            self._late(held)
