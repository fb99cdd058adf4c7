"""The methods for members of a group and for queue locks, for consumers that own whole queues."""

from __future__ import annotations

from collections.abc import Iterable

from popproto.v1 import legacy_pb2 as wire
from popserver.access import rights
from popserver.members import flow
from popserver.members.flow import QueueLocks
from popserver.members.locks import LAPSE_MS
from popserver.members.rules import Member
from popserver.model.names import check_group
from popserver.model.topic import QueueName
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method


class MemberMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, members: flow.GroupMembers, queue_locks: QueueLocks) -> None:
        self._members = members
        self._queue_locks = queue_locks
        self.methods: dict[str, AnyMethod] = {
            "ListMembers": Method(self.list_members, rights.group),
            "LockQueues": Method(self.lock_queues, rights.consume_queues),
            "UnlockQueues": Method(self.unlock_queues, rights.consume_queues),
        }

    async def list_members(self, request: wire.ListMembersRequest, caller: Caller) -> wire.ListMembersResponse:
        group = caller.resource(request.group)
        check_group(group)
        found = await self._members.of(group)
        return wire.ListMembersResponse(status=status.OK, members=map(_member, found))

    async def lock_queues(self, request: wire.LockQueuesRequest, caller: Caller) -> wire.LockQueuesResponse:
        """Queues that others have locked are missing in the answer; that is not an error."""
        group = caller.resource(request.group)
        named = _named(request.queues, caller)
        locked = await self._queue_locks.lock(group, caller.client_id, list(named))
        return wire.LockQueuesResponse(
            status=status.OK, locked=[named[each] for each in locked], lapses_after=convert.duration(LAPSE_MS)
        )

    async def unlock_queues(self, request: wire.UnlockQueuesRequest, caller: Caller) -> wire.UnlockQueuesResponse:
        group = caller.resource(request.group)
        await self._queue_locks.unlock(group, caller.client_id, list(_named(request.queues, caller)))
        return wire.UnlockQueuesResponse(status=status.OK)


def _named(queues: Iterable[wire.QueueName], caller: Caller) -> dict[QueueName, wire.QueueName]:
    """Each queue once, with its name as the caller wrote it."""
    return {QueueName(caller.resource(each.topic), each.queue_id): each for each in queues}


def _member(member: Member) -> wire.GroupMember:
    return wire.GroupMember(
        client_id=member.client_id,
        model=member.model,
        subscriptions=map(convert.subscription_entry, member.filters),
        joined_at=convert.timestamp(member.joined_at_ms),
    )
