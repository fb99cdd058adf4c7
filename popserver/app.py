"""The composition root: puts a server together, starts it and stops it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from popport.addresses import is_loopback
from popserver import __version__
from popserver.access.flow import Access, Rules
from popserver.access.users import Users
from popserver.administration.readiness import Readiness
from popserver.broker import Broker
from popserver.config import OFF, Config, check_exposure, check_http_exposure
from popserver.database import migrate
from popserver.database.database import Database
from popserver.engine.clock import ManualClock, SystemClock
from popserver.front.sockets import NONE_GIVEN, GivenSockets
from popserver.logs import set_level
from popserver.model import budget
from popserver.model.budget import Budgets
from popserver.model.errors import CannotListen
from popserver.postgres import starting
from popserver.producing.rules import CheckPolicy
from popserver.server import PopServer
from popserver.services import build
from popserver.transport.limits import CallLimits
from popserver.transport.listen import PLAINTEXT, Listening, address_of, split_address
from popserver.transport.status import code_names

if TYPE_CHECKING:
    from popserver.front.certificate import Certificate
    from popserver.metrics.client_numbers import ClientMeters
    from popserver.metrics.exporter import Exporter
    from popserver.metrics.otlp import MetricPush
    from popserver.web.server import WebServer

# Addresses to listen on, and for each one at which this machine reaches it.
_ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on

READABLE_BY_OTHERS = 0o044
CLUSTER = "popmq"  # the label of all metrics
MIB = 1024 * 1024

log = structlog.get_logger("popserver")


class App:
    """One broker with one port. Call `start` and `stop` in the same event loop."""

    def __init__(
        self,
        config: Config,
        clock: SystemClock | ManualClock | None = None,
        *,
        own_process: bool = False,
        worker: int = 0,
        given: GivenSockets = NONE_GIVEN,
        upgrades: bool = True,
    ) -> None:
        """`worker`: its number among the processes of one `popmq serve`. `given`: sockets that are bound already.

        `upgrades`: it may upgrade the schema; otherwise it does not start if that is necessary.
        """
        self.config = config
        self.worker = worker
        self._given = given
        self._upgrades = upgrades
        self.own_process = own_process  # see `Database`
        self.clock = clock or SystemClock()
        self.budgets = Budgets()  # of this server
        self.database: Database | None = None
        self.broker: Broker
        self.access: Access
        self.server: PopServer
        self.web: WebServer | None = None
        self.exporter: Exporter | None = None
        self.metric_push: MetricPush | None = None
        self.client_meters: ClientMeters | None = None
        self.own_client: Certificate | None = None  # with which packages of the HTTP port reach this server

    @property
    def readiness(self) -> Readiness:
        return self.server.readiness

    @property
    def http_endpoint(self) -> str:
        """The address of metrics, health and console: `HOST:PORT`; empty without HTTP."""
        return "" if self.web is None else self.web.address

    @property
    def admin_endpoint(self) -> str:
        """The address of the administration: `HOST:PORT`; that for clients, unless it has a port of its own."""
        return self.server.admin_address

    @property
    def endpoint(self) -> str:
        """The address for clients: `HOST:PORT`, with an IPv6 host in brackets."""
        return self.server.address

    async def start(self) -> None:
        """Open the store, upgrade its schema, begin with the work that is due, then listen.

        Raises a `PopError` that says why the server cannot start.
        """
        config = self.config
        has_auth = config.auth or config.tls_client_ca is not None
        check_exposure(config.host, has_auth=has_auth, insecure=config.insecure)
        if config.admin:
            check_exposure(split_address(config.admin, port_min=0)[0], has_auth=has_auth, insecure=config.insecure)
        if config.http != OFF:
            check_http_exposure(split_address(config.http, port_min=0)[0], auth=config.auth, insecure=config.insecure)
        self.database = Database(config.database_url, durability=config.durability, own_process=self.own_process)
        telling = (
            asyncio.create_task(starting.tell_of_wait(self.database.connections)) if self.database.is_shared else None
        )
        try:
            if self.database.is_shared:
                await starting.check(self.database.connections, self.database.name)
            # In a thread: a commit may wait for a standby without end, and the event loop has to hear signals.
            await asyncio.to_thread(migrate.upgrade if self._upgrades else migrate.check_unchanged, self.database)
            self.broker = Broker(
                self.database,
                self.clock,
                auto_create=self.config.auto_create_enabled,
                retention_ms=self.config.retention,
                clock_jump_ms_max=self.config.max_clock_jump,
                key_window_ms=self.config.idempotency_window,
                delay_ms_max=self.config.max_delay,
                checks=CheckPolicy(
                    self.config.transaction_timeout,
                    self.config.transaction_check_interval,
                    self.config.transaction_checks,
                ),
                long_polling=config.long_polling,
                # A manual clock cannot follow the database's clock, so it allows no other servers.
                shared=self.database.is_shared and isinstance(self.clock, SystemClock),
                worker=self.worker,
                budgets=self.budgets,
                limits=budget.BrokerLimits(
                    send_backlog_bytes=config.send_backlog * MIB,
                    filter_bytes=config.max_filter_memory * MIB,
                    undelivered_bytes=config.max_undelivered * MIB,
                    lite_subscriptions=config.max_lite_subscriptions,
                ),
            )
            await self._start_broker()
        except BaseException:
            self.database.close()
            raise
        finally:
            if telling is not None:
                telling.cancel()

    def stop_accepting(self) -> None:
        """Accept no more connections, for a successor has the sockets too. Open ones are served."""
        self.server.stop_accepting()
        if self.web is not None:
            self.web.stop_accepting()

    async def stop(self) -> None:
        """Let running calls finish, complete waiting work, close the store."""
        await self.server.drain(self.config.drain_timeout / 1_000)
        if self.metric_push is not None:
            await self.metric_push.close()
        if self.web is not None:
            await self.web.stop()
        if self.exporter is not None:
            await self.exporter.close()
        await self.access.close()
        await self.broker.stop()
        if self.database is not None:
            self.database.close()

    async def _start_broker(self) -> None:
        self.broker.writer.start()
        opened: list[PopServer | WebServer] = []
        try:
            await self.broker.timekeeper.start()
            await self.broker.start()
            await self._open_access()
            listening = self._listening()
            self.server = build(
                self.broker,
                host=self.config.host,
                port=self.config.port,
                limits=CallLimits(
                    invisible_ms_min=self.config.min_invisible,
                    incoming_bytes_max=self.config.max_incoming * MIB,
                    watches_max=self.config.max_watches,
                    connections_max=self.config.max_connections,
                    connections_per_address_max=self.config.max_connections_per_address,
                    admin_connections_max=self.config.max_admin_connections,
                ),
                version=__version__,
                is_administered=True,
                admin_at=split_address(self.config.admin, port_min=0) if self.config.admin else None,
                listening=listening,
                access=self.access,
                client_meters=self._count_client_metrics(),
                set_log_level=set_level if self.own_process else None,
                given=self._given,
                engine=self.config.grpc_engine,
            )
            opened.append(self.server)
            self.web = self._open_web()
            opened += [self.web] if self.web else []
            await self.broker.servers.list_at(self.config.advertise or self._own_address())
            await self.server.start()
            await self._serve_web()
            self._announce(listening)
            self._log_lowered_limit(self.server.connections_max)
            self._push_metrics()
        except BaseException:
            for each in opened:
                each.close()
            await self.broker.stop()
            raise

    def _own_address(self) -> str:
        """The address where the server listens; empty for a wildcard address, to which clients cannot connect."""
        return "" if self.config.host in _ANYWHERE else self.server.address

    def _open_web(self) -> WebServer | None:
        """The HTTP port, which does not answer yet; None if there is none.

        A server that was not told where its HTTP port is starts without it if another program has the usual one.
        """
        config = self.config
        if config.http == OFF:
            return None
        # Loaded here, because a server without HTTP does not need these libraries.
        from popserver.web.server import HttpAddress, WebServer

        at = HttpAddress(*split_address(config.http, port_min=0))
        given, is_local = self._given.http, is_loopback(at.host)
        try:
            return WebServer(at, self.budgets, config.max_http_connections, given, is_local=is_local)
        except CannotListen as refusal:
            if "http" in config.model_fields_set:
                raise
            log.warning("no metrics, health and console over HTTP", reason=refusal.sentence)
            return None

    async def _serve_web(self) -> None:
        if self.web is None:
            return
        from popserver.web.mounts import Place
        from popserver.web.pages import HealthPages, MetricsPage
        from popserver.web.readers import Readers

        config = self.config
        host = split_address(config.admin, port_min=0)[0] if config.admin else config.host
        port = int(self.server.admin_address.rpartition(":")[2])
        reached = address_of(_ANYWHERE.get(host, host), port)
        readers = Readers(config.metrics_token.get_secret_value(), trusts_all=config.insecure)
        own = [*MetricsPage(self._all_metrics(), readers).routes, *HealthPages(self.readiness, readers).routes]
        if config.allow_host and not (config.auth or config.insecure or config.tls_client_ca):
            log.warning(
                "anybody can use the console",
                hosts=config.allow_host,
                reason="--allow-host lets others reach it, such as by a proxy, and the server has no users; let users"
                " sign (--auth), let the proxy ask who comes, or give --insecure if only trusted people reach it",
            )
        names, asks = frozenset(config.allow_host), config.tls_client_ca is not None
        place = Place(reached, config.tls, config.auth, __version__, names, asks, self.own_client)
        await self.web.start(place, own, config.http_path)

    def _all_metrics(self) -> Exporter:
        """The exporter of all metrics, made at its first use: a server without one does not need its libraries."""
        from popserver.metrics.exporter import Exporter
        from popserver.metrics.families import Identity

        if self.exporter is None:
            self.exporter = Exporter(
                self.broker,
                self.access,
                self.readiness,
                Identity(CLUSTER, "broker", self._node_id),
                codes=code_names(),
                version=__version__,
                series_max=self.config.max_metric_series,
                has_units=self.config.metric_unit_suffix,
                client_meters=self.client_meters,
            )
        return self.exporter

    @property
    def _node_id(self) -> str:
        address = self.config.advertise or self.server.address
        return f"{address}/{self.worker}" if self.worker else address

    def _count_client_metrics(self) -> ClientMeters | None:
        if not self.config.client_metrics:
            return None
        try:
            from popserver.metrics import rpc as _  # noqa: F401 - whether it can be loaded
            from popserver.metrics.client_numbers import ClientMeters, exported_max
        except ImportError as error:
            log.error(
                "metrics of clients are not received: --client-metrics needs OpenTelemetry; run pip install"
                " 'popmq[otlp]', or leave the option out",
                reason=str(error),
            )
            return None
        kept = self.budgets.add(
            "client metrics", self.config.max_client_metric_series, "series", "max_client_metric_series"
        )
        exported = self.budgets.add(
            "exported client metrics", exported_max(self.config.max_metric_series), "series", "max_metric_series"
        )
        self.client_meters = ClientMeters(kept, exported, self.clock)
        return self.client_meters

    def _push_metrics(self) -> None:
        config = self.config
        if not config.otlp_endpoint:
            return
        try:
            from popserver.metrics.otlp import Instance, MetricPush
        except ImportError as error:
            # No reason to refuse messages.
            log.error(
                "metrics are not pushed: --otlp-endpoint needs OpenTelemetry; run pip install 'popmq[otlp]', or leave"
                " the option out",
                reason=str(error),
            )
            return
        source = Instance(self._node_id, __version__, self.clock.calendar_ms())
        self.metric_push = MetricPush(
            self._all_metrics(), self.clock, config.otlp_endpoint, config.otlp_period / 1_000, source
        )

    async def _open_access(self) -> None:
        config, broker = self.config, self.broker
        rules = Rules(config.auth, config.auth_max_age, config.max_send_rate, config.max_request_rate)
        self.access = Access(broker.reader, self.clock, rules, is_shared=broker.database.is_shared)
        if config.auth and config.admin_access_key:
            secret = config.admin_secret.get_secret_value()
            if not await Users(broker.writer, broker.reader, self.access).ensure_admin(config.admin_access_key, secret):
                log.warning("the admin's stored secret differs from the configured one; the stored one is used")
        await self.access.start()
        broker.users_changed = self.access.reload_soon
        file = broker.database.file
        if config.auth and file is not None and file.stat().st_mode & READABLE_BY_OTHERS:
            log.warning("the database has secrets, and other users may read its file: chmod 600", file=str(file))

    def _listening(self) -> Listening:
        config = self.config
        if config.tls == "plaintext":
            return PLAINTEXT
        # Loaded here, because a server without TLS does not need these libraries.
        from popserver.front.source import CertificateOptions, open_source

        folder, prefix = self._place_of_own_certificate()
        options = CertificateOptions(config.host, config.tls_cert, config.tls_key, config.tls_client_ca, folder, prefix)
        source = open_source(options, lambda: datetime.now(UTC))
        return Listening(config.tls, source, self._make_own_client())

    def _make_own_client(self) -> bytes:
        """Where clients need a certificate, the console gets one of its own, whose key is only in memory.

        Not without users: the HTTP port asks browsers for no certificate, so then anybody there could do anything.
        """
        config = self.config
        if config.tls_client_ca is None or not config.auth or config.http == OFF:
            return b""
        from popserver.front.self_signed import make_client_certificate

        self.own_client = make_client_certificate(datetime.now(UTC))
        return self.own_client.chain

    def _announce(self, listening: Listening) -> None:
        if listening.certificate is not None:
            from popserver.front.source import announce

            announce(listening.certificate, datetime.now(UTC))

    def _log_lowered_limit(self, allowed: int) -> None:
        """Log if the process cannot open the number of connections that the operator has configured."""
        asked = self.config.max_connections
        if allowed < asked and "max_connections" in self.config.model_fields_set:
            log.warning(
                "fewer connections than --max-connections asks for: the process may not open enough files;"
                " raise its limit (ulimit -n)",
                asked=asked,
                allowed=allowed,
            )

    def _place_of_own_certificate(self) -> tuple[Path | None, str]:
        """The folder for the self-signed certificate, and the prefix of its file names; None: keep it in memory."""
        assert self.database is not None
        if self.config.tls_dir is not None:
            return self.config.tls_dir, ""
        file = self.database.file
        return (None, "") if file is None else (file.parent, f"{file.name}.")
