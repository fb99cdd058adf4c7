"""Collects all numbers of a server for a scrape, and writes them as text.

Many scrapes at one time cost one: an answer is given again for a second. The text is written outside of the event loop.
"""

from __future__ import annotations

import asyncio
import gzip
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import structlog
from prometheus_client import GCCollector, ProcessCollector
from prometheus_client.core import CollectorRegistry, Metric
from prometheus_client.exposition import choose_encoder

from popserver.access.flow import Access
from popserver.administration.readiness import Readiness
from popserver.broker.broker import Broker
from popserver.clients.clients import Client
from popserver.engine.meters import now_s
from popserver.engine.reader import LogLimit
from popserver.metrics.families import Families, Identity
from popserver.metrics.flow import StoreWatch
from popserver.metrics.server_numbers import (
    ConnectedClient,
    Names,
    ServerNumbers,
    add_clients,
    add_delivered,
    add_sent,
    add_server,
)
from popserver.metrics.store import StoreNumbers
from popserver.metrics.store_numbers import (
    SERIES_OF_PAIR,
    LeftOut,
    add_groups,
    add_mirrors,
    add_pairs,
    add_store,
    add_stuck,
    add_topics,
    names_in,
)

REMEMBERED_S = 1.0
VERSIONS_MAX = 100  # of client libraries, as clients report them
_VERSION = re.compile(r"[0-9A-Za-z.+-]{1,32}")

# The forms that a scrape has: whatever callers ask for, there are two of them.
TEXT = "text/plain; version=0.0.4"
OPENMETRICS = "application/openmetrics-text; version=1.0.0"

log = structlog.get_logger("popserver.metrics")


class Exposition(NamedTuple):
    """The text of a scrape, and its content type; compressed if the scraper can read that."""

    body: bytes
    content_type: str
    is_compressed: bool
    at_s: float  # when it was written


class ClientMetrics(Protocol):
    """The metrics of clients (`client_metrics`)."""

    @property
    def left_out(self) -> Mapping[Any, int]:
        """How many points were refused, by the reason."""
        ...

    def add_to(self, families: Families, names: Names) -> int:
        """Add the totals; returns how many series are left out."""
        ...


class Exporter:
    """All metrics of one server."""

    def __init__(
        self,
        broker: Broker,
        access: Access,
        readiness: Readiness,
        identity: Identity,
        *,
        codes: Mapping[int, str],
        version: str,
        series_max: int,
        has_units: bool,
        client_meters: ClientMetrics | None,
    ) -> None:
        """`codes`: the names of status codes. `series_max`: how many samples a scrape has at most. `has_units`: the
        names end with the units."""
        self._has_units = has_units
        self._client_meters = client_meters
        self._broker = broker
        self._access = access
        self._readiness = readiness
        self._identity = identity
        self._codes = codes
        self._version = version
        self._series_max = series_max
        self._watch = StoreWatch(broker.engine.reader, broker.engine.clock, series_max // SERIES_OF_PAIR)
        self._process = CollectorRegistry()
        ProcessCollector(registry=self._process)
        GCCollector(registry=self._process)
        self._log_limit = LogLimit()
        self._texts: dict[tuple[str, bool], asyncio.Task[Exposition]] = {}

    async def text(self, accept: str, *, compress: bool) -> Exposition:
        """The metrics in the form that the header `accept` asks for."""
        key = (form_of(accept), compress)
        task = self._texts.get(key)
        if task is None or _is_over(task):
            task = self._texts[key] = asyncio.get_running_loop().create_task(self._write(*key))
        return await asyncio.shield(task)

    async def close(self) -> None:
        """Wait for what still runs."""
        await asyncio.gather(*self._texts.values(), return_exceptions=True)
        await self._watch.close()

    async def families(self) -> Sequence[Metric]:
        """All metrics, without those of the process, under their names without units."""
        collect = await self._gathered(has_units=False)
        return await asyncio.to_thread(collect)

    async def _write(self, form: str, compress: bool) -> Exposition:
        encode, content_type = choose_encoder(form)
        collect = await self._gathered(has_units=self._has_units)

        def write() -> Exposition:
            body = encode(_Collected([*collect(), *self._process.collect()]))
            return Exposition(gzip.compress(body, 1) if compress else body, content_type, compress, now_s())

        return await asyncio.to_thread(write)

    async def _gathered(self, *, has_units: bool) -> Callable[[], Sequence[Metric]]:
        """Gather all numbers. The result makes samples of them, which takes long and may run in any thread."""
        store, server = await self._watch.numbers(), await self._server_numbers()
        stuck = await self._broker.patrol.counts()
        return lambda: self._collect(
            Families(self._identity, self._series_max, has_units=has_units), server, store, stuck
        )

    def _collect(
        self, families: Families, server: ServerNumbers, store: StoreNumbers | None, stuck: Counter[str] | None
    ) -> Sequence[Metric]:
        left_out = LeftOut()
        add_server(families, server)
        add_stuck(families, stuck)
        if self._client_meters is not None:
            for why, points in self._client_meters.left_out.items():
                families.add("popmq_client_metrics_left_out_total", points, why)
        if store is None:
            add_clients(families, server.clients)
        else:
            names = names_in(store)
            add_store(families, store, self._storage)
            add_groups(families, store)
            left_out.topics = add_sent(families, server.meters, names)
            left_out.pairs = add_delivered(families, server.meters, names)
            add_topics(families, store, left_out)
            add_mirrors(families, store, left_out)
            add_clients(families, server.clients)
            add_pairs(families, store, names, left_out)
            if self._client_meters is not None:
                # Last, so that series of clients never displace the server's own.
                families.add("popmq_metrics_left_out", self._client_meters.add_to(families, names), "clients")
            families.add("popmq_metrics_left_out", left_out.topics, "topics")
            families.add("popmq_metrics_left_out", left_out.pairs, "pairs")
            families.add("popmq_metrics_left_out", left_out.mirrors, "mirrors")
            self._log_left_out(left_out)
        return list(families.all())

    async def _server_numbers(self) -> ServerNumbers:
        broker, ready = self._broker, await self._readiness.report()
        return ServerNumbers(
            meters=broker.engine.meters,
            budgets=list(broker.engine.budgets),
            codes=self._codes,
            clients=connected(broker.sessions.clients.here()),
            waiting={"writer": broker.engine.writer.waiting, "reader": broker.engine.reader.waiting},
            parked=broker.parked,
            tasks=len(asyncio.all_tasks()),
            discarded=broker.producing.transactions.discarded,
            rejected=self._access.rejected,
            is_ready=ready.is_ready,
            space=ready.space,
            version=self._version,
            database=self._storage,
            durability=broker.engine.database.durability,
        )

    @property
    def _storage(self) -> str:
        return "postgres" if self._broker.engine.database.is_shared else "sqlite"

    def _log_left_out(self, left_out: LeftOut) -> None:
        if not left_out.topics and not left_out.pairs:
            return
        if self._log_limit.dropped(self._broker.engine.clock.now_ms()) is not None:
            log.warning(
                "metrics are left out; popmq_group_messages still counts all of them",
                topics=left_out.topics,
                pairs=left_out.pairs,
                limit=self._series_max,
                option="--max-metric-series",
            )


class _Collected:
    """What the encoders take for a registry."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def form_of(accept: str) -> str:
    """The form that a header `Accept` asks for. Callers write it, so nothing of it is kept, and any text is allowed."""
    for each in accept.split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        versions = [part for part in parameters if part.startswith("version=")]
        if kind == "application/openmetrics-text" and versions in ([], ["version=1.0.0"]):
            return OPENMETRICS
    return TEXT


def _is_over(task: asyncio.Task[Exposition]) -> bool:
    """Whether a new text is needed. One that is still being written is new for all callers that wait for it."""
    if not task.done():
        return False
    return task.cancelled() or task.exception() is not None or now_s() - task.result().at_s > REMEMBERED_S


def connected(clients: Iterable[Client]) -> list[ConnectedClient]:
    """The clients with the labels of their library. Clients choose them, so at most `VERSIONS_MAX` are kept."""
    seen: set[tuple[str, str]] = set()
    found = []
    for client in clients:
        library = (client.language.lower(), client.version if _VERSION.fullmatch(client.version) else "other")
        if library not in seen and len(seen) >= VERSIONS_MAX:
            library = ("other", "other")
        seen.add(library)
        role = client.role
        found.append(
            ConnectedClient(*library, None, "")
            if role is None
            else ConnectedClient(*library, role.group, role.kind.lower())
        )
    return found
