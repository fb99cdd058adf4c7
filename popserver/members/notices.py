"""Tells members that their group has changed: its members, or its progress by an operator (requirement J6).

Members get two numbers that are read from the store. A stream that has these numbers already gets nothing, so several
changes at once cause one message. A group is notified at most every 200 ms, because its members then ask for the whole
list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.timers import BackgroundTasks
from popserver.members import sql
from popserver.members.rules import GroupView
from popserver.model.names import Resource

PAUSE_MS = 200

# Writes the numbers to one stream; raises if the stream is broken.
Tell = Callable[[GroupView], Awaitable[None]]

log = structlog.get_logger("popserver.group_notices")


class Listener:
    """One stream of a member. Changes before `open` are sent when it is opened."""

    def __init__(self, group: Resource) -> None:
        self.group = group
        self._told: GroupView | None = None
        self._latest: GroupView | None = None
        self._tell: Tell | None = None
        self._telling: asyncio.Task[None] | None = None

    def open(self, told: GroupView | None, tell: Tell) -> None:
        """The stream has these numbers already, and `tell` can send others from now on."""
        self._told, self._tell = told, tell
        if self._latest is not None:
            self.hear(self._latest)

    def hear(self, standing: GroupView) -> None:
        self._latest = standing
        if self._tell is not None and standing != self._told and self._telling is None:
            self._telling = asyncio.get_running_loop().create_task(self._keep_telling(self._tell))

    def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()

    async def _keep_telling(self, tell: Tell) -> None:
        """Send the latest numbers one after the other. A slow stream skips those in between."""
        try:
            while self._latest is not None and self._latest != self._told:
                self._told = self._latest
                await tell(self._told)
        except Exception as error:  # noqa: BLE001 - the reader of the stream gets the error too
            log.debug("a member could not be notified", group=str(self.group), reason=str(error))
        finally:
            self._telling = None


class GroupNotices:
    """The members' streams at this server, by group."""

    def __init__(self, reader: Reader, background: BackgroundTasks, clock: Clock) -> None:
        self._reader = reader
        self._background = background
        self._clock = clock
        self._listeners: dict[Resource, set[Listener]] = {}
        self._waiting: set[Resource] = set()
        self._resting: set[Resource] = set()

    def listen(self, group: Resource) -> Listener:
        """Make a listener, which gets the group's changes until `leave`."""
        listener = Listener(group)
        self._listeners.setdefault(group, set()).add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        listener.close()
        listeners = self._listeners.get(listener.group, set())
        listeners.discard(listener)
        if not listeners:
            self._listeners.pop(listener.group, None)

    async def standing(self, group: Resource) -> GroupView | None:
        """The group's numbers now; None if it does not exist."""
        return await self._reader.read(lambda conn: sql.group_view_of(conn, group))

    def changed(self, group: Resource) -> None:
        """The group has changed: notify its members at this server."""
        if group not in self._listeners or group in self._waiting:
            return
        self._waiting.add(group)
        if group not in self._resting:
            self._begin(group)

    def all_changed(self) -> None:
        """Any group may have changed: notify the members of all groups."""
        for group in list(self._listeners):
            self.changed(group)

    def _begin(self, group: Resource) -> None:
        self._resting.add(group)
        self._background.submit(group, lambda: self._tell(group))

    async def _tell(self, group: Resource) -> None:
        # Cleared first, so that a change during the read is notified again.
        self._waiting.discard(group)
        try:
            standing = await self.standing(group)
        except BaseException:
            self._waiting.add(group)
            raise
        if standing is not None:
            for listener in self._listeners.get(group, ()):
                listener.hear(standing)
        self._clock.call_at(self._clock.now_ms() + PAUSE_MS, lambda: self._rested(group))

    def _rested(self, group: Resource) -> None:
        self._resting.discard(group)
        if group not in self._listeners:
            self._waiting.discard(group)
        elif group in self._waiting:
            self._begin(group)
