"""The paths of the server itself: `/metrics`, `/livez` and `/readyz`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from popserver.inspection.readiness import Readiness, ReadinessCheck
from popserver.metrics.exporter import Exporter
from popserver.web.mounts import Mounts

PART_BYTES = 64 * 1024
NOT_STORED = {"cache-control": "no-store"}


class HealthPages:
    """Whether the server runs, and whether it should get requests: 200 or 503, with the reasons as JSON."""

    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    @property
    def routes(self) -> Sequence[Route]:
        return [Route("/livez", self._live), Route("/readyz", self._ready)]

    async def _live(self, _: Request) -> JSONResponse:
        check = self._readiness.liveness()
        return _answer(check.ok, {"live": check.ok, "checks": [_shown(check)]})

    async def _ready(self, _: Request) -> JSONResponse:
        report = await self._readiness.report()
        return _answer(
            report.is_ready,
            {
                "ready": report.is_ready,
                "checks": [_shown(each) for each in report.checks],
                "warnings": list(report.warnings),
            },
        )


class MetricsPage:
    """The metrics for Prometheus."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter

    @property
    def routes(self) -> Sequence[Route]:
        return [Route("/metrics", self._metrics)]

    async def _metrics(self, request: Request) -> Response:
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


def _answer(is_ok: bool, facts: dict[str, object]) -> JSONResponse:
    return JSONResponse(facts, 200 if is_ok else 503, headers=NOT_STORED)


def _shown(check: ReadinessCheck) -> dict[str, object]:
    return {"name": check.name, "ok": check.ok, "reason": check.sentence}
