"""The composition root: what a running server is made of, and the order in which it comes and goes."""

from __future__ import annotations

from popserver import __version__
from popserver.broker.broker import Broker
from popserver.broker.clock import ManualClock, SystemClock
from popserver.config import Config
from popserver.rpc import admin
from popserver.rpc.limits import Limits
from popserver.rpc.server import PopServer, build
from popserver.store import Database, migrate, reading
from popserver.store.messages import newest_stored_at_ms


class App:
    """One broker behind one port. `start` and `stop` in the same event loop."""

    def __init__(self, config: Config, clock: SystemClock | ManualClock | None = None) -> None:
        self.config = config
        self.clock = clock or SystemClock()
        self.database: Database | None = None
        self.broker: Broker
        self.server: PopServer

    @property
    def endpoint(self) -> str:
        """Where clients reach it: `HOST:PORT`, an IPv6 host in brackets."""
        return self.server.address

    async def start(self) -> None:
        """Open the store, bring its schema up to date, take up what is due, then listen.

        Raises a `PopError` that says what is in the way.
        """
        self.database = Database(self.config.database_url, durability=self.config.durability)
        try:
            migrate.upgrade(self.database)
            self.broker = Broker(
                self.database,
                self.clock,
                auto_create=self.config.creates_on_the_way,
                retention_ms=self.config.retention,
            )
            await self._start_broker()
        except BaseException:
            self.database.close()
            raise

    async def stop(self) -> None:
        """Let clients finish, do what waits, close the store."""
        await self.server.drain(self.config.drain_timeout / 1_000)
        await self.broker.stop()
        if self.database is not None:
            self.database.close()

    async def _start_broker(self) -> None:
        self.broker.writer.start()
        try:
            # Asked in the writer: a server that may not write this database must not call itself ready.
            self.clock.start_at_least(await self.broker.writer.submit(reading.read, newest_stored_at_ms))
            await self.broker.start()
            self.server = build(
                self.broker,
                host=self.config.host,
                port=self.config.port,
                limits=Limits(invisible_ms_min=self.config.min_invisible),
                version=__version__,
                extra=[admin.service(self.broker, __version__)],
            )
            await self.server.start()
        except BaseException:
            await self.broker.stop()
            raise
