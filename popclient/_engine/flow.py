"""How much a push consumer may have in its hands: messages and bytes of their bodies (requirements A3, C6).

A poll takes room for what it asks for before it leaves, so all polls together never bring more messages than fit. How
large the messages will be nobody knows before they come: a poll guesses from what it has seen, and none leaves while
the bytes are used up.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

# A poll for a few costs as much as one for many; so a poll waits until this part of all room is free.
PART_WORTH_A_POLL: Final = 4


class Cached(NamedTuple):
    """What a push consumer has in its hands: received and not settled. `bytes` counts bodies."""

    messages: int
    bytes: int


class Ask(NamedTuple):
    """Room for what one poll may bring; given up with `Room.over`."""

    messages: int
    bytes: int


class Room:
    """Counts what is held and what polls on their way may bring."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.messages = 0
        self.bytes = 0
        self.asked_messages = 0
        self.asked_bytes = 0
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()

    async def ask(self, wanted: int, message_bytes: int, polls: int) -> Ask:
        """Waits until there is room; grants at most `wanted` messages of a guessed size.

        polls: how many polls share the room: a poll on an empty topic keeps what it has asked for, and must leave the
            others enough.
        """
        wanted = max(1, min(wanted, self.max_messages // polls))
        enough = max(1, min(wanted, self.max_messages // PART_WORTH_A_POLL))
        async with self._turn:  # in the order of asking
            while self._free_messages < enough or self._free_bytes <= 0:
                self._freed.clear()
                await self._freed.wait()
            most_bytes = self.max_bytes // (2 * polls)
            fitting = min(most_bytes, self._free_bytes) // max(message_bytes, 1)
            granted = max(1, min(wanted, self._free_messages, fitting))
            ask = Ask(granted, min(granted * message_bytes, most_bytes))
            self.asked_messages += ask.messages
            self.asked_bytes += ask.bytes
            return ask

    def take(self, size: int) -> None:
        """A message of that many bytes has come."""
        self.messages += 1
        self.bytes += size

    def leave(self, size: int) -> None:
        """A message of that many bytes is settled."""
        self.messages -= 1
        self.bytes -= size
        self._freed.set()

    def over(self, ask: Ask) -> None:
        """The poll has ended; what it brought has been taken."""
        self.asked_messages -= ask.messages
        self.asked_bytes -= ask.bytes
        self._freed.set()

    @property
    def cached(self) -> Cached:
        return Cached(self.messages, self.bytes)

    @property
    def _free_messages(self) -> int:
        return self.max_messages - self.messages - self.asked_messages

    @property
    def _free_bytes(self) -> int:
        return self.max_bytes - self.bytes - self.asked_bytes
