"""Progress in a file of this machine (requirement H2): for broadcasting, where each consumer has its own."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

from popclient._progress.store import NO_OFFSET, OFFSET_ERROR, RememberingStore
from popclient.errors import PreconditionFailed
from popclient.message import MessageQueue
from popclient.offset_file import (
    OffsetFileTorn,
    read_offset_file,
    split_table_key,
    table_key,
    write_offset_file,
)

log = logging.getLogger("popclient")

T = TypeVar("T")

FILE_NAME: Final = "offsets.json"
LOCK_NAME: Final = "offsets.lock"


def default_home() -> Path:
    return Path.home() / ".popmq" / "offsets"


class LocalFileOffsetStore(RememberingStore):
    """`<home>/<client name>/<group>/offsets.json`, and its `.bak`.

    client_name: must be the same after a restart. One consumer at a time may have it: the file is locked from `load` to
    `close`.
    home: ~/.popmq/offsets unless given.
    """

    def __init__(self, client_name: str, group: str, home: Path | None = None) -> None:
        for name, value in (("client_name", client_name), ("group", group)):
            _require_folder_name(name, value)
        super().__init__()
        self._client_name = client_name
        self._group = group
        self.path = (home or default_home()) / client_name / group / FILE_NAME
        self._stored: dict[MessageQueue, int] = {}
        self._generations: dict[str, int] = {}  # of the topics, as they are now
        self._written: dict[str, int] = {}  # of the topics, as in the file
        self._writing = threading.Lock()
        self._lock: int | None = None

    async def load(self) -> None:
        """Raises PreconditionFailed if another consumer uses the file, OffsetFileTorn if it and its `.bak` are torn."""
        await _in_a_thread(self._load)
        for mq, offset in self._stored.items():
            self._memory.update(mq, offset, increase_only=False)

    async def _read_stored(self, mq: MessageQueue) -> int:
        try:
            offsets, generations = await _in_a_thread(self._read)
        except (OSError, OffsetFileTorn) as failure:
            log.warning("offset of %s for group %s is not known: %s", mq, self._group, failure)
            return OFFSET_ERROR
        stored = self._of_now(offsets, generations).get(mq, NO_OFFSET)
        if stored >= 0:
            self._memory.update(mq, stored, increase_only=False)
        return stored

    async def update_consume_offset_to_broker(self, mq: MessageQueue, offset: int, is_oneway: bool = True) -> None:
        """Writes to the file: a consumer with its own file has no progress on the server."""
        await (self._persist if is_oneway else self._keep)({mq: offset})

    def generation(self, mq: MessageQueue) -> int:
        return self._generations.get(mq.topic, 0)

    def note_generation(self, topic: str, generation: int) -> None:
        """It is written with the next offset."""
        if generation not in (before := self._generations.get(topic, 0), 0):
            self._generations[topic] = generation
            if before:
                for mq in self._memory.copy(topic):
                    self._memory.remove(mq)

    def _of_now(self, offsets: dict[MessageQueue, int], generations: dict[str, int]) -> dict[MessageQueue, int]:
        """The offsets that belong, or may belong, to the present generations of the topics."""
        outdated = {topic for topic, each in generations.items() if self._generations.setdefault(topic, each) != each}
        return {mq: offset for mq, offset in offsets.items() if mq.topic not in outdated}

    async def close(self) -> None:
        """Releases the file for another consumer."""
        self._unlock_folder()

    async def _persist(self, offsets: dict[MessageQueue, int]) -> None:
        try:
            await self._keep(offsets)
        except (OSError, PreconditionFailed) as failure:
            log.warning("offsets of group %s are not in %s yet: %s", self._group, self.path, failure)

    async def _keep(self, offsets: dict[MessageQueue, int]) -> None:
        generations = dict(self._generations)  # of these offsets; they may be others when a thread writes them
        await _in_a_thread(lambda: self._write(offsets, generations))

    # ---- In a thread: disks are slow ----

    def _load(self) -> None:
        self._lock_folder()
        try:
            self._stored, self._written = self._read()
            self._generations = dict(self._written)
        except BaseException:
            self._unlock_folder()
            raise

    def _lock_folder(self) -> None:
        if self._lock is not None:
            return
        if fcntl is None:
            raise PreconditionFailed(
                f"this system has no file locks of POSIX, so two consumers could write {self.path}; consume as a"
                " cluster, where the server has the offsets"
            )
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path.with_name(LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise PreconditionFailed(
                f"{self.path} is in use by another consumer named {self._client_name!r} of group {self._group!r}; give"
                " each consumer a client_name of its own, since two would overwrite each other's progress"
            ) from None
        self._lock = handle

    def _unlock_folder(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self) -> tuple[dict[MessageQueue, int], dict[str, int]]:
        """Offsets, and the generations of topics."""
        found: dict[MessageQueue, int] = {}
        offsets, generations = read_offset_file(self.path) or ({}, {})
        for key, of_key in offsets.items():
            topic, group = split_table_key(key)
            if group != self._group:
                raise OffsetFileTorn(
                    f"{self.path} has offsets of group {group!r}, but belongs to {self._group!r}; put its own there"
                )
            found.update({MessageQueue(topic, queue_id): offset for queue_id, offset in of_key.items()})
        return found, {split_table_key(key)[0]: each for key, each in generations.items()}

    def _write(self, offsets: dict[MessageQueue, int], generations: dict[str, int]) -> None:
        """Adds them to the file. Other queues keep their progress."""
        with self._writing:
            if self._lock is None:  # the content of the file is unknown, and another process may own it now
                raise PreconditionFailed(f"{self.path} is not open; offsets are written between load and close")
            wanted = {**self._of_now(self._stored, self._written), **offsets}
            if wanted == self._stored and generations == self._written:
                return
            table: dict[str, dict[int, int]] = {}
            for mq, offset in wanted.items():
                table.setdefault(table_key(mq.topic, self._group), {})[mq.queue_id] = offset
            kept = {table_key(topic, self._group): each for topic, each in generations.items()}
            write_offset_file(self.path, table, {key: each for key, each in kept.items() if key in table})
            self._stored, self._written = wanted, generations


async def _in_a_thread(work: Callable[[], T]) -> T:
    """Runs it in a thread; if the process is ending, no thread can start, so it runs in the event loop."""
    try:
        doing = asyncio.get_running_loop().run_in_executor(None, work)
    except RuntimeError:
        return work()
    return await doing


def _require_folder_name(name: str, value: str) -> None:
    if not value or value in (".", "..") or "/" in value or "\0" in value:
        raise ValueError(f"{name} is {value!r}; offsets are kept in a folder of that name, so it must be one")
