"""The calls of mirrors, and of operators who look at them."""

from __future__ import annotations

from popserver.engine.clock import Clock
from popserver.engine.reader import Reader
from popserver.engine.writer import Writer
from popserver.mirrors import records
from popserver.mirrors.rules import MirrorFacts, MirrorRow, check, check_mirror_id


class Mirrors:
    """The record of mirrors in the store."""

    def __init__(self, reader: Reader, writer: Writer, clock: Clock) -> None:
        self._reader = reader
        self._writer = writer
        self._clock = clock

    def now_ms(self) -> int:
        return self._clock.now_ms()

    async def report(self, facts: MirrorFacts, lease_ms: int, *, claim: bool) -> MirrorRow:
        """Take or renew the lease for `lease_ms`, and store the facts; with `claim` only take it, if it is recorded.

        Raises `BadRequest`; `LeaseTaken` if another process has the lease, or has taken it since; `AlreadyExists` if
        the record is about another topic or group.
        """
        check(facts, lease_ms)
        return await self._writer.submit(records.ReportMirror(facts, lease_ms, claim))

    async def all(self, namespace: str | None) -> list[MirrorRow]:
        """The records of one namespace or (None) of all, by id, without their positions."""
        found = await self._reader.read(records.listed)
        return [each for each in found if namespace in (None, each.namespace)]

    async def forget(self, mirror_id: str) -> None:
        """Remove a record. Raises `NotFound`, and `LeaseTaken` while its lease lasts."""
        check_mirror_id(mirror_id)
        await self._writer.submit(records.ForgetMirror(mirror_id))
