"""Which queues belong to which member (requirements J3 to J5).

Every member sorts the same queues and the same member ids and calls the same pure function. So the shares are disjoint
and together have all queues, and no member has to ask another. While the views of members differ, two may own the same
queue: then messages are repeated, and none is lost.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final, Protocol

from popclient._queues import calls
from popclient._queues.calls import GroupMember
from popclient._queues.subscription import is_retry_topic
from popclient._queues.wire import call, has_legacy, readable, resource_of
from popclient._session import convert
from popclient._session.session import Session
from popclient.message import MessageQueue
from popproto.v2 import service_pb2 as rpc

VIRTUAL_NODES: Final = 10


class AllocateStrategy(Protocol):
    """Any callable of this shape: (group, client id, queues, members), the share of that client.

    The queues are those of one topic. Queues and members are sorted, without duplicates; the client id is a member.
    """

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]: ...


def allocate(
    strategy: AllocateStrategy,
    group: str,
    client_id: str,
    queues: Collection[MessageQueue],
    members: Collection[str],
) -> list[MessageQueue]:
    """The client's share of one topic's queues, sorted. The order of the views does not matter.

    Empty for a client that is not among the members yet. Raises ValueError for an empty view, because that is no reason
    to give queues up, and for a strategy that returns queues that it was not given.
    """
    if not client_id:
        raise ValueError("client_id is empty; a share needs the id by which the members know this client")
    for name, view in (("queues", queues), ("members", members)):
        if not view:
            raise ValueError(f"{name} of group {group!r} are empty; keep the present share and ask the server again")
    if client_id not in members:
        return []
    ordered = sorted(set(queues))
    share = list(strategy(group, client_id, ordered, sorted(set(members))))
    if strangers := set(share) - set(ordered):
        raise ValueError(
            f"{strategy!r} gave {client_id} {', '.join(map(str, sorted(strangers)))}; it may give of"
            f" {', '.join(map(str, ordered))}"
        )
    return sorted(set(share))


# ---- Strategies ----


@dataclass(frozen=True, slots=True)
class Averagely:
    """AVG, the default: contiguous ranges of nearly equal size; the first members may have one queue more."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        index = members.index(client_id)
        each, over = divmod(len(queues), len(members))
        begin = index * each + min(index, over)
        return queues[begin : begin + each + (index < over)]


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """AVG_BY_CIRCLE: dealt out one by one."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        return queues[members.index(client_id) :: len(members)]


@dataclass(frozen=True, slots=True)
class ByConfig:
    """CONFIG: this member gets the queues named here, if they exist. Name each queue at exactly one member. A retry
    topic that is not named is shared by AVG, because no member would consume it otherwise.
    """

    queues: frozenset[MessageQueue]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        named = [mq for mq in queues if mq in self.queues]
        if not named and is_retry_topic(queues[0].topic):
            return Averagely()(group, client_id, queues, members)
        return named


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """MACHINE_ROOM: only the queues of these rooms, divided evenly among all members; the first members get one more
    each if that leaves a remainder. Queues of other rooms are for other members. Retry topics belong to every room.

    room_of_queue: tells the room of a queue.
    """

    rooms: frozenset[str]
    room_of_queue: Callable[[MessageQueue], str]

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        ours = [mq for mq in queues if is_retry_topic(mq.topic) or self.room_of_queue(mq) in self.rooms]
        index = members.index(client_id)
        each, over = divmod(len(ours), len(members))
        first_over = each * len(members) + index
        return ours[index * each : (index + 1) * each] + ours[first_over : first_over + (index < over)]


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """MACHINE_ROOM_NEARBY: a room's queues are shared among the members in it, and those of a room without any member
    among all; each time by `inner`.

    room_of_queue, room_of_member: tell the room of a queue, and of a member by its client id.
    """

    room_of_queue: Callable[[MessageQueue], str]
    room_of_member: Callable[[str], str]
    inner: AllocateStrategy = Averagely()

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        by_room: dict[str, list[MessageQueue]] = {}
        for mq in queues:
            by_room.setdefault(_room(mq, self.room_of_queue(mq)), []).append(mq)
        inhabited: dict[str, list[str]] = {}
        for member in members:
            inhabited.setdefault(_room(member, self.room_of_member(member)), []).append(member)
        share: list[MessageQueue] = []
        for room, of_room in by_room.items():
            entitled = inhabited.get(room, members)
            if client_id in entitled:
                share += self.inner(group, client_id, of_room, entitled)
        return share


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """CONSISTENT_HASH: members stand on a ring, each at several places, and a queue belongs to the next one on it; when
    a member comes or goes, few of the other queues move.
    """

    virtual_nodes: int = VIRTUAL_NODES

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ValueError(f"virtual_nodes is {self.virtual_nodes}; a member needs at least 1 place on the ring")

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        ring = sorted(
            (_ring_position(f"{member}-{i}"), member) for member in members for i in range(self.virtual_nodes)
        )
        positions = [index for index, _ in ring]
        return [mq for mq in queues if ring[bisect(positions, _ring_position(str(mq))) % len(ring)][1] == client_id]


# ---- By name ----

_NEEDS_NOTHING: Final[dict[str, AllocateStrategy]] = {
    "AVG": Averagely(),
    "AVG_BY_CIRCLE": AveragelyByCircle(),
    "CONSISTENT_HASH": ConsistentHash(),
}
_NEEDS_TELLING: Final = {
    "CONFIG": "ByConfig(queues)",
    "MACHINE_ROOM": "ByMachineRoom(rooms, room_of_queue)",
    "MACHINE_ROOM_NEARBY": "MachineRoomNearby(room_of_queue, room_of_member)",
}


def strategy_of(given: str | AllocateStrategy) -> AllocateStrategy:
    """The strategy of that name, or the callable itself. Raises ValueError, TypeError for what is neither."""
    if not isinstance(given, str):
        if not callable(given):
            raise TypeError(f"allocate_strategy is {given!r}; it must be a name or a callable")
        return given
    if given in _NEEDS_TELLING:
        raise ValueError(
            f"allocate_strategy {given!r} cannot be had by its name alone; give {_NEEDS_TELLING[given]} instead"
        )
    if given not in _NEEDS_NOTHING:
        names = ", ".join([*_NEEDS_NOTHING, *_NEEDS_TELLING])
        raise ValueError(f"allocate_strategy is {given!r}; it must be one of {names}, or a callable")
    return _NEEDS_NOTHING[given]


def _room(what: object, room: str) -> str:
    if not room:
        raise ValueError(f"{what} has no room; room_of_queue and room_of_member must name one for each")
    return room


def _ring_position(name: str) -> int:
    """A hash that is the same on every member, unlike `hash`."""
    return int.from_bytes(md5(name.encode(), usedforsecurity=False).digest()[:8])


_SHARES: Final = "CLUSTERING"  # a broadcasting member has every queue, and takes none from the others


class Sharing:
    """One member's view. Its calls raise a PopError if the server does not answer."""

    def __init__(self, session: Session, group: str, strategy: AllocateStrategy) -> None:
        self._session = session
        self._group = group
        self._strategy = strategy

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, in order."""
        return readable(topic, await self._session.route(topic))

    async def members(self) -> list[GroupMember] | None:
        """The group's members; None if the server divides the queues itself."""
        if not await has_legacy(self._session):
            return None
        return await calls.list_members(self._session, self._group)

    async def share(
        self, topic: str, queues: list[MessageQueue], members: list[GroupMember] | None
    ) -> list[MessageQueue] | None:
        """This member's part of the queues; None while this client is not among the server's members."""
        if members is None:
            return await self._assigned(topic)
        ids = [each.client_id for each in members if topic in each.topics and each.model == _SHARES]
        if self._own_id not in ids:
            return None
        return allocate(self._strategy, self._group, self._own_id, queues, ids)

    @property
    def _own_id(self) -> str:
        """The id by which the members know this client. If users sign, it is longer than the client's own."""
        return self._session.settings.client_properties.get("popmq.client_id", self._session.client_id)

    async def _assigned(self, topic: str) -> list[MessageQueue]:
        request = rpc.QueryAssignmentRequest(
            topic=resource_of(self._session, topic),
            group=resource_of(self._session, self._group),
            endpoints=convert.endpoints(self._session.transport.endpoints),
        )
        answer = await call(self._session, "QueryAssignment", lambda link: link.messaging.QueryAssignment, request)
        return sorted(MessageQueue(topic, each.message_queue.id) for each in answer.assignments)
