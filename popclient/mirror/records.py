"""Where a mirror keeps its counts and its place, so that it continues after an end, and is not started twice."""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import zlib
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Protocol, Self

from popclient._version import HOSTNAME
from popclient.admin.mirror_facts import MirrorFacts, MirrorReport
from popclient.aio.admin.admin import Admin
from popclient.errors import PopError, PreconditionFailed
from popclient.mirror.counts import Counts, Place, State

NAME_MAX: Final = 64
SENTENCE_MAX: Final = 2_000


class AlreadyRuns(PopError):
    """A mirror with this name runs already."""


class Record(Protocol):
    """Entered when the mirror starts: raises AlreadyRuns if another one has it."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, at: TracebackType | None
    ) -> None: ...

    async def begin(self) -> tuple[Counts, Place]:
        """What former runs have done."""

    async def write(self, counts: Counts, place: Place, state: State, sentence: str) -> None:
        """Keeps it. Raises AlreadyRuns if another mirror has taken over meanwhile."""


class FileRecord:
    """In a file of this machine, which is locked while the mirror runs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock: IO[str] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._lock = lock(self._path)
        except BlockingIOError:
            raise AlreadyRuns(f"a mirror that keeps its state in {self._path} runs already; stop it first") from None
        except OSError as failure:
            raise PopError(f"{self._path} cannot be locked: {failure.strerror}; name another --state FILE") from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    async def begin(self) -> tuple[Counts, Place]:
        try:
            document = json.loads(self._path.read_text())
            return Counts(**document["counts"]), Place(**document["place"])
        except FileNotFoundError:
            return Counts(), Place()
        except (OSError, ValueError, KeyError, TypeError) as failure:
            raise PopError(
                f"{self._path} is no state of a mirror ({failure}); name another --state FILE, or remove it to count"
                " from 0"
            ) from None

    async def write(self, counts: Counts, place: Place, state: State, sentence: str) -> None:
        document: dict[str, Any] = {"state": state.value, "sentence": sentence}
        document |= {"counts": asdict(counts), "place": asdict(place)}
        replace_file(self._path, document)


def lock(path: Path) -> IO[str]:
    """A lock for the file, until what it returns is closed. Raises BlockingIOError if another process has it."""
    held = path.with_name(path.name + ".lock").open("a+")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        held.close()
        raise
    return held


def replace_file(path: Path, document: dict[str, Any]) -> None:
    """Writes the document as JSON: after a crash the file has the old or the new one."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w") as file:
        json.dump(document, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


LEASE_S: Final = 20.0


class ServerRecord:
    """At a PopMQ server: in its table `mirror`, in its metrics and its console. A lease keeps others away."""

    def __init__(self, admin: Admin, report: MirrorReport) -> None:
        """report: names the mirror, its sides, its topic and group, and this process."""
        self._admin = admin
        self._report = report
        self._found: MirrorFacts | None = None

    async def __aenter__(self) -> Self:
        try:
            self._found = await self._admin.report_mirror(self._report, lease=LEASE_S, claim=True)
        except PreconditionFailed as refusal:
            raise AlreadyRuns(refusal.sentence) from None
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, at: TracebackType | None
    ) -> None:
        """The last report has ended the lease; after a crash it ends by itself."""

    async def begin(self) -> tuple[Counts, Place]:
        assert self._found is not None, "entered"
        of = self._found
        try:
            place = Place(**json.loads(of.position)) if of.position else Place()
        except (ValueError, TypeError):
            raise PopError(
                f"mirror {of.mirror_id} has a position that this version does not know; forget it with: popmq mirrors"
                f" forget {of.mirror_id}"
            ) from None
        lag = -1 if of.lag is None else of.lag
        return Counts(of.handed, of.repeated, of.dead_letters, of.scheduled, of.bytes, 0, lag), place

    async def write(self, counts: Counts, place: Place, state: State, sentence: str) -> None:
        report = replace(
            self._report,
            state=state.value,
            sentence=sentence[:SENTENCE_MAX],
            position=json.dumps(asdict(place)),
            handed=counts.handed,
            repeated=counts.repeated,
            dead_letters=counts.dead_letters,
            scheduled=counts.scheduled,
            bytes=counts.bytes,
            lag=None if counts.lag < 0 else counts.lag,
        )
        try:
            await self._admin.report_mirror(report, lease=LEASE_S)
        except PreconditionFailed as refusal:
            raise AlreadyRuns(refusal.sentence) from None


def record_name(source: str, target: str, topic: str, group: str | None, move_id: str = "") -> str:
    """A name for the record of a mirror: the same for the same sides, topic, group and move."""
    whole = json.dumps([source, target, topic, group, *([move_id] if move_id else [])])
    words = re.sub(r"[^A-Za-z0-9_-]+", "_", topic if group is None else f"{topic}-{group}")
    return f"{words[: NAME_MAX - 9]}-{zlib.crc32(whole.encode()):08x}"


def new_owner() -> str:
    """Names this process and no other."""
    return secrets.token_hex(8)


def this_process() -> str:
    return f"{HOSTNAME} (process {os.getpid()})"
