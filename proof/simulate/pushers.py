"""A simulated push consumer: it holds what it gets while it shows life, and hands back what fails."""

from __future__ import annotations

import random
from functools import partial

from popserver.filters.tags import parse
from popserver.model.retry import Holder, RetryPolicy, interval_ms
from proof.history.events import Gone, PushReceive, SignOfLife
from proof.simulate.clients import REMEMBERED, TOPIC, Consumer, Diary, delivered
from proof.simulate.servers import Server
from tests.support.checker import ChangeInvisible, Outcome

WAITS_MS = (0, 0, 1_000, 20_000)  # of what is handed back; 0: as long as the group's ladder says


class PushConsumer(Consumer):
    """Connects, shows life, is silent for a while, breaks off, says goodbye; works meanwhile, and hands back."""

    def __init__(self, diary: Diary, group: str, number: int, policy: RetryPolicy) -> None:
        super().__init__(diary, group, number)
        self._policy = policy
        self._attempts: dict[str, int] = {}  # by handle
        self._servers: list[Server] = []  # that it has a stream to; it shows life to the last one
        self._stream = object()
        self._silent = 0  # how often it does nothing from now on

    async def act(self, chance: random.Random) -> None:
        what = chance.random()
        if self._silent:
            self._silent -= 1
        elif what < 0.04:
            self._silent = chance.choice((2, 10))
        elif what < 0.08:
            self._leave(says_goodbye=chance.random() < 0.5)
        elif what < 0.25:
            self._show_life()
        elif what < 0.30 and self._old:
            self._show_life()
            await self.ack([chance.choice(self._old)])
        elif what < 0.42 and self._held:
            self._show_life()
            await self._hand_back(self._take(chance), chance.choice(WAITS_MS))
        elif what < 0.65 and self._held:
            self._show_life()
            await self.ack([self._take(chance)])
        else:
            await self.receive(chance.choice((1, 3, 8)), 0, chance.choice((0, 0, 2_000)))

    def beat(self) -> None:
        """Its heartbeat, unless it is silent or has left."""
        if self._servers and self._servers[-1] in self._diary.machine.servers and not self._silent:
            self._servers[-1].run(self._show_life)

    async def receive(self, batch_size: int, _invisible_ms: int, poll_ms: int = 0) -> int:
        self._show_life()
        diary, clients = self._diary, self._diary.machine.broker.sessions.clients
        invoked, outcome, got = diary.now(), Outcome.UNKNOWN, None
        client = clients.call_opened(self._client)
        try:
            outcome, got = await diary.outcome(
                diary.machine.broker.receive(
                    self._group,
                    TOPIC,
                    wanted=parse("*"),
                    batch_size=batch_size,
                    invisible_ms=0,
                    holder=Holder.PUSH,
                    client_id=self._client,
                    poll_until_ms=diary.deadline_ms(poll_ms),
                )
            )
        finally:
            clients.call_closed(client)
            came = tuple(map(delivered, got or ()))
            diary.history.add(PushReceive(outcome, invoked, diary.now(), self._group.name, 0.0, came, self._client))
        self._attempts |= {each.handle: each.attempt for each in came}
        self._held += [(each.message_id, each.handle) for each in came]
        return len(came)

    async def _hand_back(self, held: tuple[str, str], wait_ms: int) -> None:
        """It comes again after this time, and not before; without one after the group's interval."""
        diary = self._diary
        invoked, outcome, new = diary.now(), Outcome.UNKNOWN, None
        try:
            outcome, new = await diary.outcome(
                diary.machine.broker.change_invisible(self._group, TOPIC, held[1], wait_ms)
            )
        finally:
            waits_ms = wait_ms or interval_ms(self._policy, self._attempts[held[1]])
            diary.history.add(
                ChangeInvisible(outcome, invoked, diary.now(), self._group.name, *held, waits_ms, new or "")
            )

    def _show_life(self) -> None:
        diary, here = self._diary, self._diary.machine.here
        clients = here.broker.sessions.clients
        if here in self._servers:
            self._servers.remove(here)
            clients.seen(self._client)
        else:
            clients.connected(self._client, self._stream)
        clients.pushes(self._client)
        self._servers.append(here)
        diary.history.add(SignOfLife(Outcome.OK, diary.now(), diary.now(), self._client))

    def _leave(self, *, says_goodbye: bool) -> None:
        """Its process ends, and so do all its streams."""
        diary = self._diary
        there = [each for each in self._servers if each in diary.machine.servers]
        self._servers = []
        if not there:
            return
        self._old = [*self._old, *self._held][-REMEMBERED:]
        self._held = []
        for each in there:
            clients = each.broker.sessions.clients
            each.run(
                partial(clients.ended, self._client)
                if says_goodbye
                else partial(clients.disconnected, self._client, self._stream)
            )
        diary.history.add(Gone(Outcome.OK, diary.now(), diary.now(), self._client))
