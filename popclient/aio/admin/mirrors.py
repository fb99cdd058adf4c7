"""The record of mirrors: reported by themselves, listed and forgotten by operators."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

from popclient._arguments import as_timedelta
from popclient.admin.answers import mirror_of
from popclient.admin.mirror_facts import MirrorFacts, MirrorReport
from popclient.aio.admin.calls import Calls
from popproto.v1 import admin_pb2 as wire


class Mirrors(Calls):
    """The calls about mirrors."""

    async def report_mirror(
        self, report: MirrorReport, *, lease: float | timedelta = 30.0, claim: bool = False
    ) -> MirrorFacts:
        """Takes or renews the lease of a mirror for `lease` (seconds or a timedelta, 5 to 300 s), and stores its facts.

        The first report of a process has `claim`. It takes the lease, if no other process has it, and records the
        mirror. If it is recorded already, position, counts and endpoints stay, and the answer has them. A report with
        the state STOPPED or DONE ends the lease. Returns the record as it is now.

        Raises PreconditionFailed if another process has the lease, or has taken it since, or if the mirror is recorded
        with another topic or group; BadRequest for a value that is not allowed.
        """
        fields = asdict(report)
        fields |= {"topic": self._named(report.topic), "group": self._named(report.group)}
        request = wire.ReportMirrorRequest(mirror=wire.Mirror(**fields), claim=claim)
        request.lease.FromTimedelta(as_timedelta("lease", lease))
        answer = await self._call(lambda link: link.admin.ReportMirror, request)
        return mirror_of(answer.mirror)

    async def list_mirrors(self) -> list[MirrorFacts]:
        """The records of all mirrors by id, without their positions; with a namespace, those of it."""
        answer = await self._call(lambda link: link.admin.ListMirrors, wire.ListMirrorsRequest())
        return [mirror_of(each) for each in answer.mirrors]

    async def forget_mirror(self, mirror_id: str) -> None:
        """Removes the record of a mirror, with its position. A mirror of that name would begin anew.

        Raises NotFound, and PreconditionFailed while its lease lasts.
        """
        await self._call(lambda link: link.admin.ForgetMirror, wire.ForgetMirrorRequest(mirror_id=mirror_id))
