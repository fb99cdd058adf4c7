"""The paths of the server itself: `/metrics`, `/livez` and `/readyz`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from popserver.administration.readiness import Readiness, ReadinessCheck
from popserver.metrics.exporter import Exporter
from popserver.web.mounts import Mounts
from popserver.web.readers import Readers

PART_BYTES = 64 * 1024
PROBES = ("/livez", "/readyz")  # for everybody
NOT_STORED = {"cache-control": "no-store"}


class HealthPages:
    """Whether the server runs, and whether it should get requests: 200 or 503, as JSON.

    Those who may read them get the reasons too.
    """

    def __init__(self, readiness: Readiness, readers: Readers) -> None:
        self._readiness = readiness
        self._readers = readers

    @property
    def routes(self) -> Sequence[Route]:
        methods = ["GET", "HEAD", "OPTIONS"]  # load balancers ask with each of them
        return [
            Route(path, page, methods=methods) for path, page in zip(PROBES, (self._live, self._ready), strict=True)
        ]

    async def _live(self, request: Request) -> JSONResponse:
        check = self._readiness.liveness()
        return self._answer(request, "live", check.ok, {"checks": [_shown(check)]})

    async def _ready(self, request: Request) -> JSONResponse:
        report = await self._readiness.report()
        reasons = {"checks": [_shown(each) for each in report.checks], "warnings": list(report.warnings)}
        return self._answer(request, "ready", report.is_ready, reasons)

    def _answer(self, request: Request, word: str, is_ok: bool, reasons: Mapping[str, object]) -> JSONResponse:
        facts = {word: is_ok, **(reasons if self._readers.may_read(request) else {})}
        return JSONResponse(facts, 200 if is_ok else 503, headers=NOT_STORED)


class MetricsPage:
    """The metrics for Prometheus."""

    def __init__(self, exporter: Exporter, readers: Readers) -> None:
        self._exporter = exporter
        self._readers = readers

    @property
    def routes(self) -> Sequence[Route]:
        return [Route("/metrics", self._metrics)]

    async def _metrics(self, request: Request) -> Response:
        if not self._readers.may_read(request):
            headers = {**NOT_STORED, "www-authenticate": "Bearer"}
            return PlainTextResponse(f"{self._readers.refusal}\n", 401, headers=headers)
        compress = "gzip" in request.headers.get("accept-encoding", "")
        text = await self._exporter.text(request.headers.get("accept", ""), compress=compress)
        headers = {**NOT_STORED, "vary": "accept, accept-encoding", "content-length": str(len(text.body))}
        if text.is_compressed:
            headers["content-encoding"] = "gzip"
        return StreamingResponse(_parts(text.body), headers=headers, media_type=text.content_type)


async def _parts(body: bytes) -> AsyncIterator[memoryview]:
    """A part is sent when the client has read the one before, so that slow clients share the memory of one body."""
    whole = memoryview(body)
    for start in range(0, len(body), PART_BYTES):
        yield whole[start : start + PART_BYTES]
        await asyncio.sleep(0)


def application(own: Sequence[Route], mounts: Mounts) -> Starlette:
    """All paths of the HTTP port."""
    paths = Starlette(routes=own)
    paths.router.default = mounts
    return paths


def _shown(check: ReadinessCheck) -> dict[str, object]:
    return {"name": check.name, "ok": check.ok, "reason": check.sentence}
