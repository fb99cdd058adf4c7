"""The telemetry stream of a client that may be a member of a group that owns whole queues.

The server answers a member's settings, and sends another answer whenever its group changes. The answers have two
numbers: `popmq.members` changes with the members, `popmq.resets` when an operator moves the group's progress. Clients
of other projects do not get them.
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
    """`write` writes a frame to the stream."""

    def __init__(self, catalog: Catalog, group_members: GroupMembers, caller: Caller, write: Write) -> None:
        self._catalog = catalog
        self._group_members = group_members
        self._caller = caller
        self._write = write
        self._listener: Listener | None = None
        self._next: Listener | None = None
        self._view: GroupView | None = None

    async def join(self, sent: pb.Settings, merged: pb.Settings) -> Membership | None:
        """Register the client as a member if its settings say so, and put the two numbers into its answer."""
        membership = await settings.membership_of(sent, self._caller.namespace, self._catalog)
        if membership is None:
            return None
        members, client_id = self._group_members, self._caller.client_id
        if "popmq.client" not in sent.client_properties:
            await members.join(client_id, membership)
            return membership
        self._listen(membership.group.name)
        await members.join(client_id, membership)
        self._view = await members.notices.view(membership.group.name)
        # With users, members are known by longer ids than the client ids.
        merged.client_properties["popmq.client_id"] = client_id
        _fill(merged, self._view)
        return membership

    def open(self, agreed: pb.Settings) -> None:
        """The answer has been written: from now on the stream gets changes of the group."""
        listener, self._next = self._next, None
        if not agreed.client_type:
            # The settings were refused; the ones before stay valid.
            self._drop(listener)
            return
        self._drop(self._listener)
        self._listener = listener
        if listener is not None:

            async def send(view: GroupView) -> None:
                changed = pb.Settings()
                changed.CopyFrom(agreed)
                _fill(changed, view)
                await self._write(wire.TelemetryCommand(status=status.OK, settings=changed))

            listener.open(self._view, send)

    def close(self) -> None:
        """The stream has ended."""
        self._drop(self._listener)
        self._drop(self._next)

    def _listen(self, group: Resource) -> None:
        """Start to listen. This must come before the numbers are read, so that no change is missed."""
        self._drop(self._next)
        self._next = self._group_members.notices.listen(group)

    def _drop(self, listener: Listener | None) -> None:
        if listener is not None:
            self._group_members.notices.leave(listener)


def _fill(merged: pb.Settings, view: GroupView | None) -> None:
    if view is not None:
        merged.client_properties["popmq.members"] = str(view.members)
        merged.client_properties["popmq.resets"] = str(view.resets)
