"""What operators see of a server: metrics, health and console over HTTP, what is pushed: metrics, alerts; metrics of
clients.

The libraries of each are loaded only if the configuration asks for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from popport.addresses import is_loopback
from popserver import __version__
from popserver.access.flow import Access
from popserver.broker.broker import Broker
from popserver.certificates import own_client_of
from popserver.config import OFF, Config
from popserver.model.errors import CannotListen
from popserver.services.server import PopServer
from popserver.transport.listen import address_of, split_address
from popserver.transport.status import code_names

if TYPE_CHECKING:
    from popserver.alerts.watch import AlertWatch
    from popserver.client_metrics.numbers import ClientMeters
    from popserver.front.sockets import GivenSockets
    from popserver.metrics.exporter import Exporter
    from popserver.metrics.otlp import MetricPush
    from popserver.web.server import WebServer

# Addresses to listen on, and for each one at which this machine reaches it.
ANYWHERE = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not listened on
CLUSTER = "popmq"  # the label of all metrics

log = structlog.get_logger("popserver")


class Monitoring:
    """The parts that the configuration asks for; others are None."""

    def __init__(self, config: Config, broker: Broker, access: Access, worker: int) -> None:
        self._config = config
        self._broker = broker
        self._access = access
        self._worker = worker
        self.web: WebServer | None = None
        self.exporter: Exporter | None = None
        self.metric_push: MetricPush | None = None
        self.alert_watch: AlertWatch | None = None
        self.client_meters = self._client_meters()
        self.own_client = own_client_of(config)  # with which packages of the HTTP port reach the server

    def open_web(self, given: GivenSockets) -> WebServer | None:
        """The HTTP port, which does not answer yet; None if there is none.

        If another program has the default port, the server starts without HTTP, unless --http was given.
        """
        config = self._config
        if config.http == OFF:
            return None
        from popserver.web.server import HttpAddress, WebServer

        at = HttpAddress(*split_address(config.http, port_min=0))
        is_local, connections_max = is_loopback(at.host), config.max_http_connections
        try:
            self.web = WebServer(at, self._broker.engine.budgets, connections_max, given.http, is_local=is_local)
        except CannotListen as refusal:
            if "http" in config.model_fields_set:
                raise
            log.warning("no metrics, health and console over HTTP", reason=refusal.sentence)
        return self.web

    async def start(self, server: PopServer) -> None:
        """Answer over HTTP."""
        if self.web is None:
            return
        from popserver.web.mounts import MountContext
        from popserver.web.pages import HealthPages, MetricsPage
        from popserver.web.readers import Readers

        config = self._config
        host = split_address(config.admin, port_min=0)[0] if config.admin else config.host
        port = int(server.admin_address.rpartition(":")[2])
        reached = address_of(ANYWHERE.get(host, host), port)
        readers = Readers(config.metrics_token.get_secret_value(), trusts_all=config.insecure)
        metrics = MetricsPage(self._all_metrics(server), readers)
        own = [*metrics.routes, *HealthPages(server.readiness, readers).routes]
        if config.allow_host and not (config.auth or config.insecure or config.tls_client_ca):
            log.warning(
                "anybody can use the console",
                hosts=config.allow_host,
                reason="--allow-host lets others reach it, such as by a proxy, and the server has no users; let users"
                " sign (--auth), let the proxy authenticate callers, or give --insecure if only trusted people reach"
                " it",
            )
        names, asks = frozenset(config.allow_host), config.tls_client_ca is not None
        context = MountContext(reached, config.tls, config.auth, __version__, names, asks, self.own_client)
        await self.web.start(context, own, config.http_path)

    def push(self, server: PopServer) -> None:
        """Begin to push metrics."""
        config = self._config
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
        clock = self._broker.engine.clock
        source = Instance(self._node_id(server), __version__, clock.calendar_ms())
        self.metric_push = MetricPush(
            self._all_metrics(server), clock, config.otlp_endpoint, config.otlp_period / 1_000, source
        )

    def watch(self, server: PopServer) -> None:
        """Begin to tell the webhook what needs a person."""
        config, broker = self._config, self._broker
        if not config.alert_webhook:
            return
        from popserver.alerts.watch import AlertWatch
        from popserver.alerts.webhook import Receiver, Sender, Webhook

        engine = broker.engine
        own_console = "" if self.web is None else f"http://{self.web.address}{config.http_path}"
        sender = Sender(self._node_id(server), __version__, config.console_url.rstrip("/") or own_console)
        webhook = Webhook(Receiver(config.alert_webhook, config.alert_secret.get_secret_value()), sender)
        self.alert_watch = AlertWatch(
            broker.alerts, webhook, engine.reader, engine.writer, engine.clock, broker.servers
        )
        self.alert_watch.start()

    async def close(self) -> None:
        if self.alert_watch is not None:
            await self.alert_watch.close()
        if self.metric_push is not None:
            await self.metric_push.close()
        if self.web is not None:
            await self.web.stop()
        if self.exporter is not None:
            await self.exporter.close()

    def _all_metrics(self, server: PopServer) -> Exporter:
        """The exporter of all metrics, made at its first use."""
        from popserver.metrics.exporter import Exporter
        from popserver.metrics.families import Identity

        if self.exporter is None:
            self.exporter = Exporter(
                self._broker,
                self._access,
                server.readiness,
                Identity(CLUSTER, "broker", self._node_id(server)),
                codes=code_names(),
                version=__version__,
                series_max=self._config.max_metric_series,
                has_units=self._config.metric_unit_suffix,
                client_meters=self.client_meters,
            )
        return self.exporter

    def _node_id(self, server: PopServer) -> str:
        address = self._config.advertise or server.address
        return f"{address}/{self._worker}" if self._worker else address

    def _client_meters(self) -> ClientMeters | None:
        config, engine = self._config, self._broker.engine
        if not config.client_metrics:
            return None
        try:
            from popserver.client_metrics import rpc as _  # noqa: F401 - whether it can be loaded
            from popserver.client_metrics.numbers import ClientMeters, exported_max
        except ImportError as error:
            log.error(
                "metrics of clients are not received: --client-metrics needs OpenTelemetry; run pip install"
                " 'popmq[otlp]', or leave the option out",
                reason=str(error),
            )
            return None
        kept = engine.budgets.add(
            "client metrics", config.max_client_metric_series, "series", "max_client_metric_series"
        )
        exported = engine.budgets.add(
            "exported client metrics", exported_max(config.max_metric_series), "series", "max_metric_series"
        )
        return ClientMeters(kept, exported, engine.clock)
