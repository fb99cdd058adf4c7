"""Who is connected, and whose push holds live.

A push hold needs no renewing write: it lives as long as its client. A client ends when it says so; it lapses when
nothing was heard of it for 35 s; and when its telemetry stream breaks and it has no open call either, it is
taken for gone after a second (requirements L11, L15). Its holds then become Ready one second later; a client that
comes back before that gets them back. A member that owns whole queues may be silent for 120 s (requirement J1).

Of several servers each knows who has come to it. A push consumer is gone when the last one has lost it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from popserver.clients.consumers import Consumers
from popserver.engine.clock import Alarm, Clock
from popserver.engine.timers import BackgroundTasks
from popserver.filters.subscription import Role
from popserver.members.flow import GroupMembers, Membership
from popserver.model.names import Resource
from popserver.model.retry import CLIENT_LAPSE_MS, MEMBER_LAPSE_MS, ORPHAN_DELAY_MS


@dataclass(slots=True)
class Client:
    """One client, as far as this server knows it."""

    client_id: str
    last_seen_ms: int
    stream: object | None = None  # the newest telemetry stream; on reconnect two may overlap
    open_calls: int = 0
    lost_at_ms: int | None = None  # when its stream broke, if nothing was heard since
    is_gone: bool = False
    has_left: bool = False  # it said goodbye; one of that name that is heard of later is another
    is_push: bool = False  # its holds live as long as it does
    is_expected: bool = False  # it held messages before this server answered for it
    works_in_order: bool = False  # it was told to take the messages of a message group one after the other
    role: Role | None = None
    membership: Membership | None = None
    alarm: Alarm | None = field(default=None, repr=False)

    @property
    def may_hold(self) -> bool:
        """Whether it may have push holds; for others, which are many, nothing is written when they lapse."""
        return self.is_push or self.is_expected

    @property
    def lapse_ms(self) -> int:
        """How long it may be silent."""
        return CLIENT_LAPSE_MS if self.membership is None else MEMBER_LAPSE_MS


class Clients:
    """Every client heard of.

    `orphan` and `adopt` act on a client's push holds; `orphan` is told as well whether the client said goodbye.
    `attend` is told of a push consumer that is new here, and may have been elsewhere; None where there is no elsewhere.
    """

    def __init__(
        self,
        clock: Clock,
        background: BackgroundTasks,
        orphan: Callable[[str, bool], Awaitable[None]],
        adopt: Callable[[str], Awaitable[None]],
        attend: Callable[[str], Awaitable[None]] | None,
        group_members: GroupMembers,
    ) -> None:
        self._clock = clock
        self._background = background
        self._orphan = orphan
        self._adopt = adopt
        self._attend = attend
        self._group_members = group_members
        self._known: dict[str, Client] = {}
        self._consumers = Consumers()

    def __len__(self) -> int:
        return sum(not client.is_gone for client in self._known.values())

    def expect(self, client_id: str) -> None:
        """A client that held messages before this server answered for it: it has 35 s to be heard of."""
        if client_id not in self._known:
            self.seen(client_id)
        self._known[client_id].is_expected = True

    def has(self, client_id: str) -> bool:
        """Whether the client is here."""
        client = self._known.get(client_id)
        return client is not None and not client.is_gone

    def here(self) -> list[Client]:
        """Those that are there, by id."""
        return sorted((each for each in self._known.values() if not each.is_gone), key=lambda client: client.client_id)

    def is_attached(self, client_id: str) -> bool:
        """Whether it is a member that has a telemetry stream here: by that it is one, whatever else is heard of it."""
        client = self._known.get(client_id)
        return client is not None and not client.is_gone and client.stream is not None and client.membership is not None

    def pushes(self, client_id: str) -> None:
        """The client, seen just now, is a push consumer: its holds live as long as it does."""
        client = self._known.get(client_id)
        if client is None or client.is_push:
            return
        client.is_push = True
        if self._attend is not None:
            self._do(self._attend, client_id)

    def attend_again(self) -> None:
        """The other servers may have forgotten that the push consumers and members that live are here."""
        if self._attend is None:
            return
        for client in self._known.values():
            if client.may_hold and not client.is_gone:
                self._do(self._attend, client.client_id)
            if client.membership is not None and not client.is_gone:
                self._group_members.come_back(client.client_id, client.membership)

    def seen(self, client_id: str) -> None:
        """Something was heard of the client: a request, a heartbeat, a settings frame."""
        now_ms = self._clock.now_ms()
        client = self._known.get(client_id)
        if client is None:
            client = self._known[client_id] = Client(client_id, now_ms)
            self._watch(client, now_ms + CLIENT_LAPSE_MS)
            return
        client.last_seen_ms, client.lost_at_ms = now_ms, None
        if client.is_gone:
            client.is_gone = False
            self._watch(client, now_ms + client.lapse_ms)
            if client.role is not None:
                self._consumers.took(client_id, client.role)
            if client.membership is not None and client.stream is not None:
                # Without its stream it may have moved to another server; if not, it comes by its settings.
                self._group_members.come_back(client_id, client.membership)
            if client.may_hold:
                self._do(self._adopt, client_id)

    def connected(self, client_id: str, stream: object) -> None:
        """The client opened a telemetry stream; the newest one counts."""
        self.seen(client_id)
        self._known[client_id].stream = stream

    def disconnected(self, client_id: str, stream: object) -> None:
        """A telemetry stream ended without a word."""
        client = self._known.get(client_id)
        if client is None:
            # It said goodbye while its settings were being answered.
            self._group_members.leave(client_id)
        if client is None or client.stream is not stream:
            return
        client.stream, client.lost_at_ms = None, self._clock.now_ms()
        if not client.is_gone:
            self._watch(client, self._ends_at_ms(client))

    def settled(
        self, client_id: str, *, works_in_order: bool, role: Role | None, membership: Membership | None = None
    ) -> None:
        """The client said what it is, None for no consumer, and was told how to work. A member has joined already.

        One that is gone again by now is no member: nobody would ever take that back.
        """
        if not self.has(client_id):
            self._group_members.leave(client_id)
        client = self._known.get(client_id)
        if client is None:
            return
        client.works_in_order, client.role, client.membership = works_in_order, role, membership
        if membership is None:
            self._group_members.leave(client_id)
        if role is None:
            self._consumers.left(client_id)
        elif not client.is_gone:
            self._consumers.took(client_id, role)

    def role_of(self, client_id: str) -> Role | None:
        """What the client said it is; None for no consumer, and for one that this server does not know."""
        client = self._known.get(client_id)
        return None if client is None else client.role

    def consumers_of(self, group: Resource) -> list[Client]:
        """Who works for the group with this server, those that want the same one after the other."""
        return [self._known[client_id] for client_id in self._consumers.of(group)]

    def disagreement(self, group: Resource) -> str:
        """See `Consumers`."""
        return self._consumers.disagreement(group)

    def disagreements(self, limit: int) -> list[str]:
        """See `Consumers`."""
        return self._consumers.disagreements(limit)

    def call_opened(self, client_id: str) -> Client:
        """A long call of the client began: while it is open the client is there."""
        self.seen(client_id)
        client = self._known[client_id]
        client.open_calls += 1
        return client

    def call_closed(self, client: Client) -> None:
        """The call of that client ended. It may have outlived the client's goodbye (`has_left`)."""
        client.open_calls -= 1
        client.last_seen_ms = self._clock.now_ms()
        if client.lost_at_ms is not None and not client.is_gone and not client.has_left:
            self._watch(client, self._ends_at_ms(client))

    def ended(self, client_id: str) -> None:
        """The client said goodbye."""
        client = self._known.pop(client_id, None)
        self._consumers.left(client_id)
        self._group_members.leave(client_id)
        if client is not None:
            client.has_left = True
            _cancel(client)
        self._lose(client_id, said_goodbye=True)

    def close(self) -> None:
        """Look after nobody any more."""
        for client in self._known.values():
            _cancel(client)

    def _watch(self, client: Client, at_ms: int) -> None:
        _cancel(client)
        client.alarm = self._clock.call_at(at_ms, lambda: self._look_after(client))

    def _look_after(self, client: Client) -> None:
        ends_at_ms = self._ends_at_ms(client)
        if self._clock.now_ms() >= ends_at_ms:
            self._end(client)
        else:
            self._watch(client, ends_at_ms)

    def _ends_at_ms(self, client: Client) -> int:
        """When the client is gone unless something is heard of it."""
        if client.open_calls:
            return self._clock.now_ms() + CLIENT_LAPSE_MS
        if client.lost_at_ms is not None:
            return client.lost_at_ms + ORPHAN_DELAY_MS
        return client.last_seen_ms + client.lapse_ms

    def _end(self, client: Client) -> None:
        client.is_gone = True
        self._consumers.left(client.client_id)
        self._group_members.leave(client.client_id)
        if client.may_hold:
            self._lose(client.client_id, said_goodbye=False)
        # Remembered for one more lapse, so that its return is noticed.
        client.alarm = self._clock.call_at(self._clock.now_ms() + CLIENT_LAPSE_MS, lambda: self._forget(client))

    def _forget(self, client: Client) -> None:
        if client.is_gone:
            self._known.pop(client.client_id, None)

    def _lose(self, client_id: str, *, said_goodbye: bool) -> None:
        self._do(lambda gone: self._orphan(gone, said_goodbye), client_id)

    def _do(self, deed: Callable[[str], Awaitable[None]], client_id: str) -> None:
        # By client: taken together, an orphaning and the adoption after it would be done in the store's order.
        self._background.submit(client_id, lambda: deed(client_id))


def _cancel(client: Client) -> None:
    if client.alarm is not None:
        client.alarm.cancel()
        client.alarm = None
