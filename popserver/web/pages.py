"""The paths of the server itself: `/livez` and `/readyz`."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from popserver.inspection.readiness import Readiness, ReadinessCheck
from popserver.web.mounts import Mounts

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


def application(own: Sequence[Route], mounts: Mounts) -> Starlette:
    """All paths of the HTTP port."""
    paths = Starlette(routes=own)
    paths.router.default = mounts
    return paths


def _answer(is_ok: bool, facts: dict[str, object]) -> JSONResponse:
    return JSONResponse(facts, 200 if is_ok else 503, headers=NOT_STORED)


def _shown(check: ReadinessCheck) -> dict[str, object]:
    return {"name": check.name, "ok": check.ok, "reason": check.sentence}
