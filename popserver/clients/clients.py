"""Connected clients, and how long push holds last.

A push hold needs no renewals: it lasts while its client is connected. A client is gone if it says goodbye, if it sends
nothing for 35 s, or one second after its telemetry stream broke while it has no open call (requirements L11, L15). Its
messages are READY one second later; a client that comes back before that keeps its holds. A member that owns whole
queues may be silent for 120 s (requirement J1).

With several servers, each knows the clients that connect to it. A push consumer is gone if no server has it any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from popserver.clients.consumers import Consumers
from popserver.engine.background import BackgroundTasks
from popserver.engine.clock import Alarm, Clock
from popserver.filters.subscription import ClientKind, Role
from popserver.members.flow import GroupMembers, Membership
from popserver.model.names import Resource
from popserver.model.retry import CLIENT_LAPSE_MS, MEMBER_LAPSE_MS, ORPHAN_DELAY_MS


@dataclass(slots=True)
class Client:
    """What this server knows about one client."""

    client_id: str
    last_seen_ms: int
    stream: object | None = None  # the newest telemetry stream; during a reconnect there may be two
    open_calls: int = 0
    lost_at_ms: int | None = None  # when its stream broke, if it has sent nothing since
    is_gone: bool = False
    has_left: bool = False  # it said goodbye; a later client with this id is another one
    is_push: bool = False  # its holds last while it is connected
    is_expected: bool = False  # it held messages before this server knew it
    language: str = ""  # of its library, and its version; empty if unknown
    version: str = ""
    hostname: str = ""  # of its machine, as its client reports
    address: str = ""  # that its newest stream came from, without the port; that of a proxy, if there is one
    kind: ClientKind | None = None  # of consumer, by its newest settings, even if they were refused
    works_in_order: bool = False  # its settings ask it to process the messages of a message group in order
    role: Role | None = None
    membership: Membership | None = None
    alarm: Alarm | None = field(default=None, repr=False)

    @property
    def may_hold(self) -> bool:
        """Whether it may have push holds. For all other clients, which are many, nothing is written when they lapse."""
        return self.is_push or self.is_expected

    @property
    def lapse_ms(self) -> int:
        """How long it may be silent, in ms."""
        return CLIENT_LAPSE_MS if self.membership is None else MEMBER_LAPSE_MS


class Clients:
    """All clients of this server.

    `abandon` and `extend` end and prolong a client's push holds; `abandon` also gets whether the client said goodbye.
    `attach` gets push consumers that are new on this server and may come from another one; None with one server.
    `leave_lite` gets clients that said goodbye: they have no lite topics any more.
    """

    def __init__(
        self,
        clock: Clock,
        background: BackgroundTasks,
        abandon: Callable[[str, bool], Awaitable[None]],
        extend: Callable[[str], Awaitable[None]],
        attach: Callable[[str], Awaitable[None]] | None,
        group_members: GroupMembers,
        leave_lite: Callable[[str], None],
    ) -> None:
        self._clock = clock
        self._background = background
        self._abandon = abandon
        self._extend = extend
        self._attach = attach
        self._group_members = group_members
        self._leave_lite = leave_lite
        self._by_id: dict[str, Client] = {}
        # Clients that are not gone and have not lost their stream: a request of one changes only `last_seen_ms`.
        self.present: dict[str, Client] = {}
        self.consumers = Consumers()

    def __len__(self) -> int:
        return sum(not client.is_gone for client in self._by_id.values())

    def expect(self, client_id: str) -> None:
        """A client held messages before this server knew it. It has 35 s to connect."""
        if client_id not in self._by_id:
            self.seen(client_id)
        self._by_id[client_id].is_expected = True

    def has(self, client_id: str) -> bool:
        """Whether the client is connected to this server."""
        return self.get(client_id) is not None

    def get(self, client_id: str) -> Client | None:
        """The client; None if it is not connected to this server."""
        client = self._by_id.get(client_id)
        return None if client is None or client.is_gone else client

    def here(self) -> list[Client]:
        """The connected clients, sorted by id."""
        return sorted((each for each in self._by_id.values() if not each.is_gone), key=lambda client: client.client_id)

    def is_attached(self, client_id: str) -> bool:
        """Whether it is a member with a telemetry stream to this server. Only the stream makes it a member."""
        client = self._by_id.get(client_id)
        return client is not None and not client.is_gone and client.stream is not None and client.membership is not None

    def pushes(self, client_id: str) -> None:
        """The client, seen just now, is a push consumer: its holds last while it is connected."""
        client = self._by_id.get(client_id)
        if client is None or client.is_push:
            return
        client.is_push = True
        if self._background.has(client_id):
            # Its goodbye is not stored yet. Storing it would end the holds that the client gets until then.
            self._submit(self._extend, client_id)
        elif self._attach is not None:
            self._submit(self._attach, client_id)

    def attach_again(self) -> None:
        """Announce again to the other servers which push consumers and members are connected here."""
        if self._attach is None:
            return
        for client in self._by_id.values():
            if client.may_hold and not client.is_gone:
                self._submit(self._attach, client.client_id)
            if client.membership is not None and not client.is_gone:
                self._group_members.rejoin(client.client_id, client.membership)

    def seen(self, client_id: str) -> None:
        """The client has sent something: a request, a heartbeat or a settings frame."""
        now_ms = self._clock.now_ms()
        client = self._by_id.get(client_id)
        if client is None:
            client = self._by_id[client_id] = self.present[client_id] = Client(client_id, now_ms)
            self._watch(client, now_ms + CLIENT_LAPSE_MS)
            return
        self.present[client_id] = client
        client.last_seen_ms, client.lost_at_ms = now_ms, None
        if client.is_gone:
            client.is_gone = False
            self._watch(client, now_ms + client.lapse_ms)
            if client.role is not None:
                self.consumers.took(client_id, client.role)
            if client.membership is not None and client.stream is not None:
                # Without a stream it may have moved to another server; if not, it sends its settings here.
                self._group_members.rejoin(client_id, client.membership)
            if client.may_hold:
                self._submit(self._extend, client_id)

    def connected(self, client_id: str, stream: object) -> None:
        """The client opened a telemetry stream; the newest one counts."""
        self.seen(client_id)
        self._by_id[client_id].stream = stream

    def disconnected(self, client_id: str, stream: object) -> None:
        """A telemetry stream ended without a goodbye."""
        client = self._by_id.get(client_id)
        if client is None:
            # It said goodbye while the server answered its settings.
            self._group_members.leave(client_id)
        if client is None or client.stream is not stream:
            return
        client.stream, client.lost_at_ms = None, self._clock.now_ms()
        self.present.pop(client_id, None)
        if not client.is_gone:
            self._watch(client, self._ends_at_ms(client))

    def declares(self, client_id: str, kind: ClientKind | None) -> None:
        """The client has sent settings of this kind of consumer, which may be refused."""
        client = self._by_id.get(client_id)
        if client is not None:
            client.kind = kind

    def settled(
        self, client_id: str, *, works_in_order: bool, role: Role | None, membership: Membership | None = None
    ) -> None:
        """The client has sent its role (None: no consumer) and got its settings. A member has joined already.

        A client that is gone again does not become a member: no code would remove it later.
        """
        if not self.has(client_id):
            self._group_members.leave(client_id)
        client = self._by_id.get(client_id)
        if client is None:
            return
        client.works_in_order, client.role, client.membership = works_in_order, role, membership
        if membership is None:
            self._group_members.leave(client_id)
        if role is None:
            self.consumers.left(client_id)
        elif not client.is_gone:
            self.consumers.took(client_id, role)

    def introduced(self, client_id: str, language: str, version: str, hostname: str, address: str) -> None:
        """The client has reported its library and its machine; its stream came from `address`."""
        client = self._by_id.get(client_id)
        if client is not None:
            client.language, client.version, client.hostname, client.address = language, version, hostname, address

    def role_of(self, client_id: str) -> Role | None:
        """The client's role; None for a client that is no consumer or that this server does not know."""
        client = self._by_id.get(client_id)
        return None if client is None else client.role

    def kind_of(self, client_id: str) -> ClientKind | None:
        """The kind of the consumer, also if its settings were refused; None if this server does not know it."""
        client = self._by_id.get(client_id)
        return None if client is None else client.kind

    def consumers_of(self, group: Resource) -> list[Client]:
        """The group's consumers on this server; those with the same subscription are next to each other."""
        return [self._by_id[client_id] for client_id in self.consumers.of(group)]

    def call_opened(self, client_id: str) -> Client:
        """A long call of the client began: while it is open, the client counts as connected."""
        client = self.present.get(client_id)
        if client is None:
            self.seen(client_id)
            client = self._by_id[client_id]
        client.open_calls += 1
        return client

    def call_closed(self, client: Client) -> None:
        """The call of that client ended, perhaps after the client's goodbye (`has_left`)."""
        client.open_calls -= 1
        client.last_seen_ms = self._clock.now_ms()
        if client.lost_at_ms is not None and not client.is_gone and not client.has_left:
            self._watch(client, self._ends_at_ms(client))

    def ended(self, client_id: str) -> None:
        """The client said goodbye."""
        client = self._by_id.pop(client_id, None)
        self.present.pop(client_id, None)
        self.consumers.left(client_id)
        self._group_members.leave(client_id)
        if client is not None:
            client.has_left = True
            _cancel(client)
        self._leave_lite(client_id)
        self._abandon_holds(client_id, said_goodbye=True)

    def close(self) -> None:
        """Stop watching clients."""
        for client in self._by_id.values():
            _cancel(client)

    def _watch(self, client: Client, at_ms: int) -> None:
        _cancel(client)
        client.alarm = self._clock.call_at(at_ms, lambda: self._check(client))

    def _check(self, client: Client) -> None:
        ends_at_ms = self._ends_at_ms(client)
        if self._clock.now_ms() >= ends_at_ms:
            self._end(client)
        else:
            self._watch(client, ends_at_ms)

    def _ends_at_ms(self, client: Client) -> int:
        """When the client counts as gone if it sends nothing more, in server time."""
        if client.open_calls:
            return self._clock.now_ms() + CLIENT_LAPSE_MS
        if client.lost_at_ms is not None:
            return client.lost_at_ms + ORPHAN_DELAY_MS
        return client.last_seen_ms + client.lapse_ms

    def _end(self, client: Client) -> None:
        client.is_gone = True
        self.present.pop(client.client_id, None)
        self.consumers.left(client.client_id)
        self._group_members.leave(client.client_id)
        if client.may_hold:
            self._abandon_holds(client.client_id, said_goodbye=False)
        # Remembered for one more lapse time, so that its return is noticed.
        client.alarm = self._clock.call_at(self._clock.now_ms() + CLIENT_LAPSE_MS, lambda: self._forget(client))

    def _forget(self, client: Client) -> None:
        if client.is_gone:
            self._by_id.pop(client.client_id, None)

    def _abandon_holds(self, client_id: str, *, said_goodbye: bool) -> None:
        self._submit(lambda gone: self._abandon(gone, said_goodbye), client_id)

    def _submit(self, task: Callable[[str], Awaitable[None]], client_id: str) -> None:
        # A client's tasks run in sequence: in one transaction `abandon` and a later `extend` would run in phase order.
        self._background.submit(client_id, lambda: task(client_id))


def _cancel(client: Client) -> None:
    if client.alarm is not None:
        client.alarm.cancel()
        client.alarm = None
