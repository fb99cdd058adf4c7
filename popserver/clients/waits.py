"""Calls that wait while their topic or group is changed or deleted, or their user loses rights.

Such a call is answered at once, without messages, on every server. Its client repeats it, and gets messages of a topic
that was created again, or the status that says what does not exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from popserver.engine.wakeups import PollKey
from popserver.model.names import Resource

REMEMBERED_MAX = 10_000  # changed topics and groups; beyond that all count as changed

_Name = tuple[str, Resource]  # the kind is a word of `database.notifications`


class Waits:
    """The names that waiting calls depend on."""

    def __init__(self) -> None:
        self.changes = 0
        self._all_changed = 0
        self._changed: dict[_Name, int] = {}
        self._waiting: dict[_Name, Counter[PollKey]] = {}
        self._end: list[Callable[[PollKey], None]] = []

    def on_end(self, callback: Callable[[PollKey], None]) -> None:
        """`callback` ends the waits of a group in a topic."""
        self._end.append(callback)

    def has_changed(self, since: int, *names: _Name) -> bool:
        """Whether one of these names has changed since `changes` had the value `since`."""
        return self._all_changed > since or any(self._changed.get(each, 0) > since for each in names)

    @contextmanager
    def at(self, key: PollKey, *names: _Name) -> Iterator[None]:
        """While a call waits in this context, it depends on these names."""
        for each in names:
            self._waiting.setdefault(each, Counter())[key] += 1
        try:
            yield
        finally:
            for each in names:
                waiting = self._waiting[each]
                waiting[key] -= 1
                if not waiting[key]:
                    del waiting[key]
                if not waiting:
                    del self._waiting[each]

    def change(self, kind: str, name: Resource) -> None:
        """This topic or group was changed or deleted."""
        self.changes += 1
        if len(self._changed) >= REMEMBERED_MAX:
            self._changed.clear()
            self._all_changed = self.changes
        self._changed[kind, name] = self.changes
        self._end_waits(self._waiting.get((kind, name), ()))

    def change_all(self) -> None:
        """Users or policies were changed: the rights of each call must be checked again."""
        self.changes += 1
        self._all_changed = self.changes
        self._end_waits({key for waiting in self._waiting.values() for key in waiting})

    def _end_waits(self, keys: Counter[PollKey] | set[PollKey] | tuple[()]) -> None:
        for key in list(keys):
            for callback in self._end:
                callback(key)
