"""Calling the roll of a group whenever its members change: who is a member here and not in the list comes back into it.

A row belongs to one server, and another may have removed it: the one to which the client had a second stream, or had
moved for a while. A group that is deleted and created again begins without members (requirement J1).
"""

from __future__ import annotations

from collections.abc import Callable

from popserver.broker.errands import Errands
from popserver.broker.group_notices import GroupNotices, Listener
from popserver.broker.reader import Reader
from popserver.domain.group import Group
from popserver.domain.names import Resource
from popserver.store import group_members as store


class Roll:
    """The members at this server, by the name of their group; `missed` is told of each that is not in the list."""

    def __init__(
        self, reader: Reader, errands: Errands, notices: GroupNotices, missed: Callable[[str, Group], None]
    ) -> None:
        self._reader = reader
        self._errands = errands
        self._notices = notices
        self._missed = missed
        self._here: dict[Resource, set[str]] = {}
        self._listeners: dict[Resource, Listener] = {}

    def add(self, name: Resource, client_id: str) -> None:
        if name not in self._here:
            self._here[name] = set()
            self._listeners[name] = self._notices.listen(name)
            self._listeners[name].open(None, lambda _: self._changed(name))
        self._here[name].add(client_id)

    def remove(self, name: Resource, client_id: str) -> None:
        self._here[name].discard(client_id)
        if not self._here[name]:
            del self._here[name]
            self._notices.leave(self._listeners.pop(name))

    async def call(self, name: Resource) -> None:
        """Compare with the list; a group that is gone has none until somebody makes it again."""
        listed = await self._reader.read(lambda conn: store.listed(conn, name))
        if listed is not None:
            group, client_ids = listed
            for client_id in sorted(self._here.get(name, set()) - client_ids):
                self._missed(client_id, group)

    async def _changed(self, name: Resource) -> None:
        # As an errand: it is tried again where the database is away.
        self._errands.do((name, "roll"), lambda: self.call(name))
