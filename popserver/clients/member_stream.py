"""One telemetry stream of a client that may be a member of a group that owns whole queues.

The answer to a member's settings, and a further one whenever something becomes of its group, carry two numbers:
`popmq.members` changes with the members, `popmq.resets` when an operator moves the group's progress. Foreign clients
are not told.
"""

from __future__ import annotations

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.catalog.flow import Catalog
from popserver.clients import settings
from popserver.members.flow import GroupMembers, Membership
from popserver.members.notices import Listener
from popserver.members.rules import GroupView
from popserver.model.names import Resource
from popserver.transport import status
from popserver.transport.call import Write
from popserver.transport.calls import Caller


class MemberStream:
    """`say` writes a frame to the stream."""

    def __init__(self, catalog: Catalog, group_members: GroupMembers, caller: Caller, say: Write) -> None:
        self._catalog = catalog
        self._group_members = group_members
        self._caller = caller
        self._say = say
        self._listener: Listener | None = None
        self._next: Listener | None = None
        self._standing: GroupView | None = None

    async def join(self, sent: pb.Settings, merged: pb.Settings) -> Membership | None:
        """Make a member of whoever is one by the settings it sent, and tell it in its answer what to watch."""
        membership = await settings.membership_of(sent, self._caller.namespace, self._catalog)
        if membership is None:
            return None
        members, client_id = self._group_members, self._caller.client_id
        if "popmq.client" not in sent.client_properties:
            await members.join(client_id, membership)
            return membership
        self._listen(membership.group.name)
        await members.join(client_id, membership)
        self._standing = await members.notices.standing(membership.group.name)
        # With users, members know each other by longer ids than their own.
        merged.client_properties["popmq.client_id"] = client_id
        _fill(merged, self._standing)
        return membership

    def open(self, agreed: pb.Settings) -> None:
        """The answer has been written: what becomes of the group is told from now on."""
        listener, self._next = self._next, None
        if not agreed.client_type:
            # A refusal; what was agreed before still holds.
            self._drop(listener)
            return
        self._drop(self._listener)
        self._listener = listener
        if listener is not None:

            async def tell(standing: GroupView) -> None:
                told = pb.Settings()
                told.CopyFrom(agreed)
                _fill(told, standing)
                await self._say(wire.TelemetryCommand(status=status.OK, settings=told))

            listener.open(self._standing, tell)

    def close(self) -> None:
        """The stream has ended."""
        self._drop(self._listener)
        self._drop(self._next)

    def _listen(self, group: Resource) -> None:
        """Before the numbers are read, so that no change is missed."""
        self._drop(self._next)
        self._next = self._group_members.notices.listen(group)

    def _drop(self, listener: Listener | None) -> None:
        if listener is not None:
            self._group_members.notices.leave(listener)


def _fill(merged: pb.Settings, standing: GroupView | None) -> None:
    if standing is not None:
        merged.client_properties["popmq.members"] = str(standing.members)
        merged.client_properties["popmq.resets"] = str(standing.resets)
