"""Notifies members that their group has changed: its members, or its progress by an operator (requirement J6).

Members get two numbers that are read from the store. A stream that has these numbers already gets nothing, so several
changes at once cause one message. A group is notified at most every 200 ms, because its members then ask for the whole
list.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from popserver.engine.background import BackgroundTasks
from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.members import sql
from popserver.members.rules import GroupView
from popserver.model.names import Resource

NOTIFY_PAUSE_MS = 200

# Writes the numbers to one stream; raises if the stream is broken.
SendView = Callable[[GroupView], Awaitable[None]]

log = structlog.get_logger("popserver.group_notices")


class Listener:
    """One stream of a member. Changes before `open` are sent when it is opened."""

    def __init__(self, group: Resource) -> None:
        self.group = group
        self._sent: GroupView | None = None
        self._latest: GroupView | None = None
        self._send: SendView | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self, sent: GroupView | None, send: SendView) -> None:
        """The stream has these numbers already, and `send` can send others from now on."""
        self._sent, self._send = sent, send
        if self._latest is not None:
            self.update(self._latest)

    def update(self, view: GroupView) -> None:
        self._latest = view
        if self._send is not None and view != self._sent and self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._send_latest(self._send))

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _send_latest(self, send: SendView) -> None:
        """Send the latest numbers one after the other. A slow stream skips those in between."""
        try:
            while self._latest is not None and self._latest != self._sent:
                self._sent = self._latest
                await send(self._sent)
        except Exception as error:  # noqa: BLE001 - the reader of the stream gets the error too
            log.debug("a member could not be notified", group=str(self.group), reason=str(error))
        finally:
            self._task = None


class GroupNotices:
    """The members' streams at this server, by group."""

    def __init__(self, reader: Reader, background: BackgroundTasks, clock: Clock) -> None:
        self._reader = reader
        self._background = background
        self._clock = clock
        self._listeners: dict[Resource, set[Listener]] = {}
        self._waiting: set[Resource] = set()
        self._paused: set[Resource] = set()

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

    async def view(self, group: Resource) -> GroupView | None:
        """The group's numbers now; None if it does not exist."""
        return await self._reader.read(lambda conn: sql.group_view_of(conn, group))

    def changed(self, group: Resource) -> None:
        """The group has changed: notify its members at this server."""
        if group not in self._listeners or group in self._waiting:
            return
        self._waiting.add(group)
        if group not in self._paused:
            self._notify_later(group)

    def all_changed(self) -> None:
        """Any group may have changed: notify the members of all groups."""
        for group in list(self._listeners):
            self.changed(group)

    def _notify_later(self, group: Resource) -> None:
        self._paused.add(group)
        self._background.submit(group, lambda: self._notify(group))

    async def _notify(self, group: Resource) -> None:
        # Cleared first, so that a change during the read is notified again.
        self._waiting.discard(group)
        try:
            view = await self.view(group)
        except BaseException:
            self._waiting.add(group)
            raise
        if view is not None:
            for listener in self._listeners.get(group, ()):
                listener.update(view)
        self._clock.call_at(self._clock.now_ms() + NOTIFY_PAUSE_MS, lambda: self._resume(group))

    def _resume(self, group: Resource) -> None:
        self._paused.discard(group)
        if group not in self._listeners:
            self._waiting.discard(group)
        elif group in self._waiting:
            self._notify_later(group)
