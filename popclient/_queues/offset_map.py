"""Messages by offset, in the order of their offsets.

A sorted list beside a dict: pulls bring offsets in order, so a new one nearly always goes to the end, and of the few
thousand that flow control lets in, moving the rest up for one taken out costs less than a tree's bookkeeping would.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from popclient.message import MessageView


class OffsetMap:
    """Not safe in threads; whoever owns it locks."""

    __slots__ = ("_messages", "_offsets")

    def __init__(self) -> None:
        self._offsets: list[int] = []
        self._messages: dict[int, MessageView] = {}

    def put(self, message: MessageView) -> bool:
        """False, and nothing changes, if there is one of that offset."""
        offset = message.queue_offset
        if offset in self._messages:
            return False
        self._messages[offset] = message
        if not self._offsets or offset > self._offsets[-1]:
            self._offsets.append(offset)
        else:
            insort(self._offsets, offset)
        return True

    def pop(self, offset: int) -> MessageView | None:
        message = self._messages.pop(offset, None)
        if message is not None:
            del self._offsets[bisect_left(self._offsets, offset)]
        return message

    def pop_first(self, most: int) -> list[MessageView]:
        """Up to `most` messages of the smallest offsets, in order."""
        taken, self._offsets = self._offsets[:most], self._offsets[most:]
        return [self._messages.pop(offset) for offset in taken]

    def clear(self) -> None:
        self._offsets.clear()
        self._messages.clear()

    @property
    def first_offset(self) -> int | None:
        return self._offsets[0] if self._offsets else None

    @property
    def last_offset(self) -> int | None:
        return self._offsets[-1] if self._offsets else None

    def get(self, offset: int) -> MessageView | None:
        return self._messages.get(offset)

    def __len__(self) -> int:
        return len(self._offsets)

    def __contains__(self, offset: object) -> bool:
        return offset in self._messages

    def in_order(self) -> list[MessageView]:
        return [self._messages[offset] for offset in self._offsets]
