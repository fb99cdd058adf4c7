"""Messages that wait for the listener: which may run, in which order, and until when something must become of each.

They wait in chains. Messages of one message group form a chain that is consumed one after the other; the messages of a
topic that belong to no message group form a chain of which many run at once. Chains take turns, so that neither a long
message group nor a busy topic keeps the others waiting.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from popclient.message import MessageView


class Chain:
    """Messages that wait for the same turn. `busy` counts what keeps an ordered chain from going on.

    is_stuck: its batch has timed out and the listener still has it.
    """

    __slots__ = ("busy", "has_turn", "is_stuck", "key", "ordered", "waiting")

    def __init__(self, key: tuple[str, str | None]) -> None:
        self.key = key
        self.ordered = key[1] is not None
        self.waiting: deque[Held] = deque()
        self.busy = 0
        self.has_turn = False
        self.is_stuck = False


class Held:
    """A message in this client's hands.

    batch: what it went to the listener with. decided: what becomes of it is settled, a later result counts no more.
    """

    __slots__ = ("batch", "chain", "decided", "size", "view")

    def __init__(self, view: MessageView, size: int, chain: Chain) -> None:
        self.view = view
        self.size = size
        self.chain = chain
        self.batch: Batch | None = None
        self.decided = False


class Batch:
    """Messages of one chain that are with the listener together."""

    __slots__ = ("chain", "held", "timed_out", "views")

    def __init__(self, held: Sequence[Held]) -> None:
        self.held = held
        self.chain = held[0].chain
        self.views = tuple(each.view for each in held)
        self.timed_out = False
        for each in held:
            each.batch = self

    @property
    def undecided(self) -> list[Held]:
        return [held for held in self.held if not held.decided]


class Backlog:
    """The chains of one consumer.

    on_turn: told of the message that could run next, whenever an ordered chain may go on.
    """

    def __init__(self, batch_size: int, on_turn: Callable[[Held], None]) -> None:
        self._batch_size = batch_size
        self._on_turn = on_turn
        self._chains: dict[tuple[str, str | None], Chain] = {}
        self._turns: deque[Chain] = deque()

    def put(self, view: MessageView, size: int, message_group: str | None) -> Held:
        """Lets it wait at the end of its chain."""
        key = (view.topic, message_group)
        chain = self._chains.get(key)
        if chain is None:
            chain = self._chains[key] = Chain(key)
        held = Held(view, size, chain)
        chain.waiting.append(held)
        self._offer(chain)
        return held

    def next_batch(self) -> Batch | None:
        """What the listener may have next, in order; None when nothing may run.

        An ordered chain is busy from now on, until `free`.
        """
        while self._turns:
            chain = self._turns.popleft()
            chain.has_turn = False
            if not chain.waiting:  # all withdrawn meanwhile
                self._forget_if_idle(chain)
                continue
            batch = Batch([chain.waiting.popleft() for _ in range(min(self._batch_size, len(chain.waiting)))])
            if chain.ordered:
                chain.busy += 1
            else:
                self._offer(chain)
                self._forget_if_idle(chain)
            return batch
        return None

    def hold_up(self, chain: Chain) -> None:
        """One more thing that must be over before an ordered chain goes on."""
        chain.busy += 1

    def free(self, chain: Chain) -> None:
        """One thing less."""
        chain.busy -= 1
        self._offer(chain)
        self._forget_if_idle(chain)

    def withdraw(self, held: Held) -> bool:
        """Takes one out; False if it does not wait any more."""
        try:
            held.chain.waiting.remove(held)
        except ValueError:
            return False
        return True

    def withdraw_rest(self, chain: Chain) -> list[Held]:
        """Takes out all that waits in the chain."""
        rest, chain.waiting = list(chain.waiting), deque()
        return rest

    def withdraw_all(self) -> list[Held]:
        return [held for chain in self._chains.values() for held in self.withdraw_rest(chain)]

    def _offer(self, chain: Chain) -> None:
        """Gives the chain a turn if something in it may run."""
        if chain.waiting and not chain.has_turn and not (chain.ordered and chain.busy):
            chain.has_turn = True
            self._turns.append(chain)
            if chain.ordered:
                self._on_turn(chain.waiting[0])

    def _forget_if_idle(self, chain: Chain) -> None:
        if not (chain.waiting or chain.busy or chain.has_turn) and self._chains.get(chain.key) is chain:
            del self._chains[chain.key]


class Deadlines:
    """Watches messages; `late` is told of each that has not been forgotten `timeout` seconds after `watch`."""

    def __init__(self, timeout: float, late: Callable[[Held], None]) -> None:
        self._timeout = timeout
        self._late = late
        self._at: dict[Held, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, held: Held) -> None:
        """From now on, unless it is watched already."""
        at = asyncio.get_running_loop().time() + self._timeout
        self._at.setdefault(held, at)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_at(at, self._look)

    @property
    def longest(self) -> float:
        """Seconds for which the oldest has been watched; 0 without any."""
        for at in self._at.values():
            return asyncio.get_running_loop().time() - at + self._timeout
        return 0.0

    def forget(self, held: Held) -> None:
        self._at.pop(held, None)

    def stop(self) -> None:
        self._at.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._at:
            held, at = next(iter(self._at.items()))
            if at > loop.time():
                self._timer = loop.call_at(at, self._look)
                return
            del self._at[held]
            self._late(held)
