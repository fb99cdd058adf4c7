"""The composition root: puts a server together, starts it and stops it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import structlog

from popserver import __version__, certificates
from popserver.access.flow import Access, Rules
from popserver.access.users import Users
from popserver.administration.readiness import Readiness
from popserver.broker.broker import Broker
from popserver.config import OFF, Config, check_exposure, check_http_exposure
from popserver.database import migrate
from popserver.database.database import Database
from popserver.engine.clock import ManualClock, SystemClock
from popserver.front.sockets import NONE_GIVEN, GivenSockets
from popserver.logs import set_level
from popserver.model import budget
from popserver.monitoring import ANYWHERE, Monitoring
from popserver.postgres import starting
from popserver.producing.rules import CheckPolicy
from popserver.services.server import PopServer, build
from popserver.transport.limits import CallLimits
from popserver.transport.listen import split_address

READABLE_BY_OTHERS = 0o044
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
        self.database: Database | None = None
        self.broker: Broker
        self.access: Access
        self.server: PopServer
        self.monitoring: Monitoring

    @property
    def readiness(self) -> Readiness:
        return self.server.readiness

    @property
    def http_endpoint(self) -> str:
        """The address of metrics, health and console: `HOST:PORT`; empty without HTTP."""
        web = self.monitoring.web
        return "" if web is None else web.address

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
        self.database = database = Database(
            config.database_url, durability=config.durability, own_process=self.own_process
        )
        waiting_log = asyncio.create_task(starting.log_wait(database.connections)) if database.is_shared else None
        try:
            if database.is_shared:
                await starting.check(database.connections, database.name)
            # In a thread: a commit may wait for a standby without end, and the event loop must handle signals.
            await asyncio.to_thread(migrate.upgrade if self._upgrades else migrate.check_unchanged, database)
            self.broker = self._make_broker(database)
            await self._start_broker(database)
        except BaseException:
            database.close()
            raise
        finally:
            if waiting_log is not None:
                waiting_log.cancel()

    def stop_accepting(self) -> None:
        """Accept no more connections, for a successor has the sockets too. Open ones are served."""
        self.server.stop_accepting()
        if self.monitoring.web is not None:
            self.monitoring.web.stop_accepting()

    async def hand_over(self) -> None:
        """Let clients go to other servers while this one serves on, for `handover`. Without other servers: nothing."""
        servers, handover_ms = self.broker.servers, self.config.handover
        if not servers.can_hand_over:
            log.info("no other server can take the clients over, so this one stops now")
            return
        log.info("clients are handed over to other servers; then this one stops", within_s=handover_ms / 1_000)
        await servers.leave()
        await self.server.send_away()
        await asyncio.sleep(handover_ms / 1_000)

    async def stop(self) -> None:
        """Let routes name other servers, let running calls finish, complete waiting work, close the store."""
        await self.broker.servers.leave()
        await self.server.drain(self.config.drain_timeout / 1_000)
        await self.monitoring.close()
        await self.access.close()
        await self.broker.stop()
        if self.database is not None:
            self.database.close()

    def _begin_drain(self) -> int:
        """Let this server, with all its workers, hand over and stop. Returns for how long it hands over, in ms."""
        os.kill(os.getppid() if self.worker else os.getpid(), signal.SIGUSR1)
        return self.config.handover

    def _make_broker(self, database: Database) -> Broker:
        config = self.config
        return Broker(
            database,
            self.clock,
            auto_create=config.auto_create_enabled,
            retention_ms=config.retention,
            clock_jump_ms_max=config.max_clock_jump,
            key_window_ms=config.idempotency_window,
            delay_ms_max=config.max_delay,
            checks=CheckPolicy(
                config.transaction_timeout, config.transaction_check_interval, config.transaction_checks
            ),
            long_polling=config.long_polling,
            # A manual clock cannot follow the database's clock, so it allows no other servers.
            shared=database.is_shared and isinstance(self.clock, SystemClock),
            worker=self.worker,
            chart_series_max=config.max_chart_series,
            has_webhook=bool(config.alert_webhook),
            limits=budget.BrokerLimits(
                send_backlog_bytes=config.send_backlog * MIB,
                filter_bytes=config.max_filter_memory * MIB,
                undelivered_bytes=config.max_undelivered * MIB,
                lite_subscriptions=config.max_lite_subscriptions,
            ),
        )

    async def _start_broker(self, database: Database) -> None:
        config, broker = self.config, self.broker
        broker.engine.writer.start()
        opened: list[Callable[[], None]] = []
        try:
            await broker.timekeeper.start()
            await broker.start()
            await self._open_access(database)
            self.monitoring = Monitoring(config, broker, self.access, self.worker)
            listening = certificates.listening_of(config, database, self.monitoring.own_client)
            self.server = build(
                broker,
                host=config.host,
                port=config.port,
                limits=CallLimits(
                    invisible_ms_min=config.min_invisible,
                    incoming_bytes_max=config.max_incoming * MIB,
                    watches_max=config.max_watches,
                    connections_max=config.max_connections,
                    connections_per_address_max=config.max_connections_per_address,
                    admin_connections_max=config.max_admin_connections,
                ),
                version=__version__,
                is_administered=True,
                admin_at=split_address(config.admin, port_min=0) if config.admin else None,
                listening=listening,
                access=self.access,
                client_meters=self.monitoring.client_meters,
                set_log_level=set_level if self.own_process else None,
                drain=self._begin_drain if self.own_process else None,
                given=self._given,
                engine=config.grpc_engine,
            )
            opened.append(self.server.close)
            if (web := self.monitoring.open_web(self._given)) is not None:
                opened.append(web.close)
            # Clients cannot connect to a wildcard address.
            own_address = "" if config.host in ANYWHERE else self.server.address
            await broker.servers.list_at(config.advertise or own_address)
            await self.server.start()
            await self.monitoring.start(self.server)
            certificates.announce(listening)
            self._log_lowered_limit(self.server.connections_max)
            self.monitoring.push(self.server)
            self.monitoring.watch(self.server)
        except BaseException:
            for close in opened:
                close()
            await broker.stop()
            raise

    async def _open_access(self, database: Database) -> None:
        config, engine = self.config, self.broker.engine
        rules = Rules(config.auth, config.auth_max_age, config.max_send_rate, config.max_request_rate)
        self.access = Access(engine.reader, self.clock, rules, is_shared=database.is_shared)
        if config.auth and config.admin_access_key:
            users, secret = Users(engine.writer, engine.reader, self.access), config.admin_secret.get_secret_value()
            if not await users.ensure_admin(config.admin_access_key, secret):
                log.warning("the admin's stored secret differs from the configured one; the stored one is used")
        await self.access.start()
        self.broker.users_changed = self.access.reload_soon
        file = database.file
        if config.auth and file is not None and file.stat().st_mode & READABLE_BY_OTHERS:
            log.warning("the database has secrets, and other users may read its file: chmod 600", file=str(file))

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
