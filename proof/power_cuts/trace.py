"""Reads what strace has recorded: the changes of files below one folder, in the order in which they ended."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from proof.power_cuts.disk import Change, Create, Remove, Rename, Resize, Sync, Write

CALLS = (
    "write pwrite64 writev pwritev pwritev2 ftruncate truncate fallocate fsync fdatasync rename renameat renameat2"
    " unlink unlinkat open openat lseek"
).split()
_LINE = re.compile(rb"(\d+) +(\d+\.\d+) (?:<\.\.\. (?P<resumed>\w+) resumed>|(?P<call>\w+)\()", re.DOTALL)
_UNFINISHED = b" <unfinished ...>"
_RESULT = re.compile(rb"\) += (-?\d+)(?:<([^>]*)>)?[^)]*$")
_FILE = re.compile(rb"(\d+)<([^>]*)>(\(deleted\))?(?:, )?")
_TEXT = re.compile(rb'"([^"]*)"')
_SYNCS = {"fsync", "fdatasync"}


class Event(NamedTuple):
    """A change, the line of the recording where it ended, and when that line began (s of the wall clock)."""

    line: int
    at_s: float
    change: Change


class _Call(NamedTuple):
    process: bytes
    name: str
    began: int  # a line
    arguments: bytes


def tracer(file: Path) -> list[str]:
    """The command under which a program is recorded. It hides behind the program, which stays our child.

    Raises RuntimeError where programs cannot be traced.
    """
    found = shutil.which("strace")
    if found is None:
        raise RuntimeError("strace, which records what is written, is not installed; on Debian: apt-get install strace")
    command = [found, "-D", "-f", "-q", "--seccomp-bpf", "-y", "-xx", "-ttt", "-s", str(1 << 26)]
    tried = subprocess.run(
        [*command, "-o", "/dev/null", "-e", f"trace={','.join(CALLS)}", "true"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if tried.returncode != 0:
        raise RuntimeError(f"strace cannot trace programs here: {tried.stderr.strip()}")
    return [*command, "-o", str(file), "-e", f"trace={','.join(CALLS)}"]


def read_trace(file: Path, root: Path, sizes: Mapping[str, int]) -> Iterator[Event]:
    """What happened to the files below `root`, by their paths from there. `sizes`: of those that were there before."""
    reader = _Reader(str(root), sizes)
    open_calls: dict[bytes, _Call] = {}
    with file.open("rb") as lines:
        for number, line in enumerate(lines):
            head = _LINE.match(line)
            if head is None:
                continue  # a signal, or the end of a process
            process, at_s, rest = head[1], float(head[2]), line[head.end() :].rstrip(b"\n")
            if head["resumed"]:
                call = open_calls.pop(process, None)
                if call is None:
                    continue
                call = call._replace(arguments=call.arguments + rest)
            else:
                call = _Call(process, head["call"].decode(), number, rest)
                if rest.endswith(_UNFINISHED):
                    open_calls[process] = call._replace(arguments=rest[: -len(_UNFINISHED)])
                    continue
            yield from (Event(number, at_s, change) for change in reader.changes(call))


def has_ended(file: Path) -> bool:
    """Whether every recorded process has, so that nothing is written any more."""
    running: set[bytes] = set()
    with file.open("rb") as lines:
        for line in lines:
            process = line.split(b" ", 1)[0]
            (running.discard if line.rstrip().endswith(b"+++") else running.add)(process)
    return not running


class _Reader:
    """Turns calls into changes; it knows where each open file is written next."""

    def __init__(self, root: str, sizes: Mapping[str, int]) -> None:
        self._root = PurePosixPath(root)
        self._places: dict[tuple[bytes, bytes], int] = {}  # by process and number of the open file
        self._sizes = dict(sizes)
        self._by_name: dict[str, Callable[[_Call, int], list[Change]]] = {
            "write": self._write,
            "writev": self._write,
            "pwrite64": self._write_at,
            "pwritev": self._write_at,
            "pwritev2": self._write_at,
            "ftruncate": self._truncate,
            "truncate": self._truncate,
            "fallocate": self._allocate,
            "rename": self._rename,
            "renameat": self._rename,
            "renameat2": self._rename,
            "unlink": self._remove,
            "unlinkat": self._remove,
        }

    def changes(self, call: _Call) -> list[Change]:
        result = _RESULT.search(call.arguments)
        if result is None or int(result[1]) < 0:
            return []
        if call.name in {"open", "openat"}:
            return self._open(call, result)
        if call.name == "lseek":
            self._places[self._number(call)] = int(result[1])
            return []
        if call.name in _SYNCS:
            path = self._path_of(call)
            return [Sync(path, call.began)] if path is not None else []
        answer = self._by_name.get(call.name)
        return answer(call, int(result[1])) if answer else []

    def _open(self, call: _Call, result: re.Match[bytes]) -> list[Change]:
        path = self._below(_decoded(result[2] or b""))
        if path is None:
            return []
        self._places[call.process, result[1]] = self._sizes.get(path, 0) if b"O_APPEND" in call.arguments else 0
        made: list[Change] = []
        if b"O_CREAT" in call.arguments and path not in self._sizes:
            made.append(Create(path))
            self._sizes[path] = 0
        if b"O_TRUNC" in call.arguments:
            made.append(Resize(path, 0))
            self._sizes[path] = 0
        return made

    def _write(self, call: _Call, count: int) -> list[Change]:
        path = self._path_of(call)
        if path is None:
            return []
        number = self._number(call)
        at = self._places.get(number, 0)
        self._places[number] = at + count
        return self._written(path, at, call, count)

    def _write_at(self, call: _Call, count: int) -> list[Change]:
        path = self._path_of(call)
        if path is None:
            return []
        numbers = re.findall(rb", (\d+)(?=[,)])", call.arguments[call.arguments.rindex(b'"') :])
        # After the bytes come their number, or that of their parts, and the place; `pwritev2` has flags behind it.
        return self._written(path, int(numbers[1]), call, count)

    def _written(self, path: str, at: int, call: _Call, count: int) -> list[Change]:
        data = b"".join(_decoded_bytes(each) for each in _TEXT.findall(call.arguments))[:count]
        self._sizes[path] = max(self._sizes.get(path, 0), at + count)
        return [Write(path, at, data)] if count else []

    def _truncate(self, call: _Call, _result: int) -> list[Change]:
        named = _TEXT.match(call.arguments)
        path = self._below(_decoded(named[1])) if named else self._path_of(call)
        if path is None:
            return []
        size = int(call.arguments.split(b", ")[1].split(b")")[0])
        self._sizes[path] = size
        return [Resize(path, size)]

    def _allocate(self, call: _Call, _result: int) -> list[Change]:
        path = self._path_of(call)
        if path is None:
            return []
        _, mode, offset, length = call.arguments.split(b") = ")[0].split(b", ")
        assert mode == b"0", f"fallocate with mode {mode!r} is not known here"
        size = int(offset) + int(length)
        self._sizes[path] = max(self._sizes.get(path, 0), size)
        return [Resize(path, size, grows=True)]

    def _rename(self, call: _Call, _result: int) -> list[Change]:
        old, new = (self._below(_decoded(each)) for each in _TEXT.findall(call.arguments))
        if old is None or new is None:
            return []
        self._sizes[new] = self._sizes.pop(old, 0)
        return [Rename(old, new)]

    def _remove(self, call: _Call, _result: int) -> list[Change]:
        path = self._below(_decoded(_TEXT.findall(call.arguments)[0]))
        if path is None or b"AT_REMOVEDIR" in call.arguments:
            return []
        self._sizes.pop(path, None)
        return [Remove(path)]

    def _number(self, call: _Call) -> tuple[bytes, bytes]:
        found = _FILE.match(call.arguments)
        return call.process, found[1] if found else b""

    def _path_of(self, call: _Call) -> str | None:
        """The path of the open file that a call names first; None for sockets too."""
        found = _FILE.match(call.arguments)
        path = _decoded(found[2]) if found and not found[3] else ""
        return self._below(path) if path.startswith("/") else None

    def _below(self, path: str) -> str | None:
        """The path from the folder; a relative one begins there, because Postgres works in its data folder."""
        whole = self._root / path
        return str(whole.relative_to(self._root)) if whole.is_relative_to(self._root) else None


def _decoded_bytes(text: bytes) -> bytes:
    return bytes.fromhex(text.replace(b"\\x", b"").decode())


def _decoded(text: bytes) -> str:
    return _decoded_bytes(text).decode(errors="surrogateescape")
