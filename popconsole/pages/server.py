"""The server and its clients: version, clock, database, budgets; who is connected."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from starlette.responses import JSONResponse, Response

from popclient.admin import ClientFacts
from popconsole.paging import page_of
from popconsole.rendering import build
from popconsole.visits import Outcome, Visit

CLIENTS_MAX: Final = 1_000  # of which the server tells


async def server(visit: Visit) -> Response:
    asked_at = datetime.now(UTC)
    status = await visit.pulse.fresh(visit.admin)
    middle = asked_at + (datetime.now(UTC) - asked_at) / 2
    await visit.attempt(visit.pulse.mirrors.look(visit.admin))  # for the navigation
    return visit.show(
        "server.html",
        now=visit.pulse.time,
        status=status,
        ahead_s=(status.now - middle).total_seconds(),
        clock_is_doubted=any("clock confirm" in each for each in status.hints),
    )


async def alive(visit: Visit) -> Response:
    """Whether the server works now, for the script of open pages."""
    health = await visit.pulse.health(visit.admin)
    reasons = [each.reason for each in health.checks if not each.ok]
    return JSONResponse({"is_ready": health.ready, "sentence": "; ".join(reasons), "build": build()})


async def confirm_clock(visit: Visit) -> Response:
    return visit.go(visit.path("server"), await visit.admin.confirm_clock())


async def clients(visit: Visit) -> Response:
    """Who is connected to the server."""
    await visit.pulse.now(visit.admin)
    listed = await visit.attempt(visit.admin.list_clients(visit.asked("group") or None))
    found: list[ClientFacts] = listed.value or []
    wanted = visit.asked("name").lower()
    rows = [each for each in found if wanted in each.client_id.lower() or wanted in each.group.lower()]
    return visit.show(
        "clients.html",
        now=visit.pulse.time,
        rows=page_of(visit, rows, is_more=len(found) >= CLIENTS_MAX),
        wanted=visit.asked("name"),
        failure=listed.failure,
    )


async def client(visit: Visit) -> Response:
    """One client."""
    return await _client(visit, visit.named("client"), None)


async def stack(visit: Visit) -> Response:
    """The same, and what its threads do: the client has to find out, so only a form asks it."""
    name = visit.named("client")
    return await _client(visit, name, await visit.attempt(visit.admin.print_threads(name)))


async def _client(visit: Visit, name: str, stack: Outcome | None) -> Response:
    await visit.pulse.now(visit.admin)
    found = [each for each in await visit.admin.list_clients() if each.client_id == name]
    wants = []
    hints: tuple[str, ...] = ()
    if found and found[0].group:
        group = await visit.attempt(visit.admin.get_group(found[0].group))
        if group.value is not None:
            wants = [each for each in group.value.consumers if each.client_id == name]
            hints = group.value.hints
    return visit.show(
        "client.html", now=visit.pulse.time, name=name, found=found, stack=stack, wants=wants, hints=hints
    )
