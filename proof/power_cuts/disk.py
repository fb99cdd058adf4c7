"""A disk that may lose power: what was synced is there afterwards, and what was written since then may be or may not.

The rules are those of a file system with a journal, such as ext4 or XFS. Changes of one file's content that were not
synced are independent of each other, and a write may be torn between two sectors. Changes of names, as of a rename,
reach the disk in their order; a sync of a file or of its folder brings the changes of its name, and all earlier ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import NamedTuple

SECTOR_BYTES = 512  # a sector is written whole or not at all


class Write(NamedTuple):
    path: str
    offset: int
    data: bytes


class Resize(NamedTuple):
    """`grows`: a file that is longer already stays so."""

    path: str
    size: int
    grows: bool = False


class Create(NamedTuple):
    path: str


class Remove(NamedTuple):
    path: str


class Rename(NamedTuple):
    path: str
    to: str


class Sync(NamedTuple):
    """A sync has ended. It covers what had ended before `began`, a line of the recording."""

    path: str
    began: int


Change = Write | Resize | Create | Remove | Rename | Sync


class Keep(StrEnum):
    """Which of the changes that no sync covered are on the disk."""

    NOTHING = "nothing"
    ALL = "all"
    FIRST = "the first ones"
    SOME = "some"
    TORN = "some, torn"


@dataclass
class _File:
    """Its content on the disk, and the changes since then with their lines."""

    synced: bytearray = field(default_factory=bytearray)
    changes: list[tuple[int, Write | Resize]] = field(default_factory=list)

    def sync(self, began: int) -> None:
        covered = sum(line < began for line, _ in self.changes)  # lines only grow
        for _, change in self.changes[:covered]:
            _carry_out(self.synced, change)
        del self.changes[:covered]

    def image(self, parts_of: Callable[[int, Write | Resize], list[Write | Resize]]) -> bytes:
        content = bytearray(self.synced)
        for line, change in self.changes:
            for part in parts_of(line, change):
                _carry_out(content, part)
        return bytes(content)


class Disk:
    """The files below one folder, by their paths. Lines are those of the recording; they only grow."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._files = {path: _File(bytearray(content)) for path, content in files.items()}
        self._synced_names = dict(self._files)
        self._renamings: list[tuple[int, Create | Remove | Rename, _File | None]] = []

    def apply(self, line: int, change: Change) -> None:
        match change:
            case Write() | Resize():
                self._files.setdefault(change.path, _File()).changes.append((line, change))
            case Sync():
                self._sync(change)
            case _:
                file = _File() if isinstance(change, Create) else self._files.get(change.path)
                _rename(self._files, change, file)
                self._renamings.append((line, change, file))

    @property
    def waiting(self) -> int:
        """How many changes a power cut may lose now."""
        return len(self._renamings) + sum(len(file.changes) for file in self._files.values())

    def image(self, keep: Keep, chance: random.Random) -> dict[str, bytes]:
        """The files after a power cut, by their paths."""
        lines = [line for file in self._files.values() for line, _ in file.changes]
        last = chance.choice(lines) if lines else 0

        def parts_of(line: int, change: Write | Resize) -> list[Write | Resize]:
            match keep:
                case Keep.NOTHING:
                    return []
                case Keep.ALL:
                    return [change]
                case Keep.FIRST:
                    return [change] if line <= last else []
                case Keep.SOME:
                    return [change] if chance.random() < 0.5 else []
            if chance.random() < 0.3 or isinstance(change, Resize):
                return [change] if chance.random() < 0.5 else []
            return [part for part in _sectors(change) if chance.random() < 0.5]

        names = dict(self._synced_names)
        for _, change, file in self._renamings[: self._names_kept(keep, chance)]:
            _rename(names, change, file)
        return {path: file.image(parts_of) for path, file in names.items()}

    def _names_kept(self, keep: Keep, chance: random.Random) -> int:
        match keep:
            case Keep.NOTHING:
                return 0
            case Keep.ALL:
                return len(self._renamings)
        return chance.randint(0, len(self._renamings))

    def _sync(self, sync: Sync) -> None:
        if file := self._files.get(sync.path):
            file.sync(sync.began)
        covered = 0
        for number, (line, change, _) in enumerate(self._renamings, 1):
            paths = {change.path, change.to} if isinstance(change, Rename) else {change.path}
            if line < sync.began and (sync.path in paths or sync.path in map(_folder, paths)):
                covered = number
        for _, change, renamed in self._renamings[:covered]:
            _rename(self._synced_names, change, renamed)
        del self._renamings[:covered]


def _rename(names: dict[str, _File], change: Create | Remove | Rename, file: _File | None) -> None:
    names.pop(change.path, None)
    if file is not None and not isinstance(change, Remove):
        names[change.to if isinstance(change, Rename) else change.path] = file


def _carry_out(content: bytearray, change: Write | Resize) -> None:
    match change:
        case Write(_, offset, data):
            if len(content) < offset:
                content.extend(bytes(offset - len(content)))
            content[offset : offset + len(data)] = data
        case Resize(_, size, grows):
            if len(content) < size:
                content.extend(bytes(size - len(content)))
            elif not grows:
                del content[size:]


def _sectors(write: Write) -> list[Write]:
    """The write in parts that each lie in one sector."""
    parts, at, end = [], write.offset, write.offset + len(write.data)
    while at < end:
        until = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        parts.append(Write(write.path, at, write.data[at - write.offset : until - write.offset]))
        at = until
    return parts


def _folder(path: str) -> str:
    return str(PurePosixPath(path).parent)
