"""A cache with a limit in bytes, which drops the least recently used values first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

BYTES_MAX = 4 * 1024 * 1024


class LruCache(Generic[K, V]):
    """A mapping that forgets. May be used by several threads at once."""

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._kept: dict[K, tuple[V, int]] = {}  # the least recently used first
        self.size = 0  # bytes
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """The value; None if it is not in the cache."""
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                return None
            self._kept[key] = found
            return found[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Store a value of about `size` bytes, including its key. A value larger than the cache is not stored."""
        with self._lock:
            self._drop(key)
            if size > self._bytes_max:
                return
            self._kept[key] = (value, size)
            self.size += size
            while self.size > self._bytes_max:
                self._drop(next(iter(self._kept)))

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.size = 0

    def _drop(self, key: K) -> None:
        found = self._kept.pop(key, None)
        if found is not None:
            self.size -= found[1]


class CachedFunction(Generic[V]):
    """A function of a text that remembers its results."""

    def __init__(self, function: Callable[[str], V], size: Callable[[str], int]) -> None:
        self._function = function
        self._size = size
        self.results: LruCache[str, V] = LruCache()

    def __call__(self, text: str) -> V:
        known = self.results.get(text)
        if known is None:
            known = self._function(text)
            self.results.put(text, known, self._size(text))
        return known


def cached(size: Callable[[str], int]) -> Callable[[Callable[[str], V]], CachedFunction[V]]:
    """Make a function remember its results; `size` says how many bytes the result of a text takes."""
    return lambda function: CachedFunction(function, size)
