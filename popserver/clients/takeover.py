"""When another server on the same Postgres is gone: take over its background work, and its clients' holds."""

from __future__ import annotations

from popserver.clients.clients import Clients
from popserver.cluster.servers import Servers
from popserver.delivery.holds import unattended_push_clients
from popserver.engine.background import BackgroundTasks
from popserver.engine.reader import Reader
from popserver.maintenance.flow import Maintenance
from popserver.settling.hold_release import HoldRelease

_TAKE_OVER = object()  # a task's name that differs from all client ids


class Takeover:
    """Takes over work and clients of servers that are gone."""

    def __init__(
        self,
        reader: Reader,
        background: BackgroundTasks,
        maintenance: Maintenance,
        servers: Servers,
        clients: Clients,
        hold_release: HoldRelease,
    ) -> None:
        self._reader = reader
        self._background = background
        self._maintenance = maintenance
        self._servers = servers
        self._clients = clients
        self._hold_release = hold_release

    def take_over(self) -> None:
        """A server is gone: take over its background work and the holds of clients that only it knew."""
        self._maintenance.purge()
        self._background.submit(_TAKE_OVER, self._expect_unattended)

    def take_over_client(self, client_id: str) -> None:
        """The client's server was killed: the client is connected here by now, or gone."""
        if self._clients.has(client_id):
            # The client may not have connected here yet, but this server watches its holds from now on.
            self._clients.expect(client_id)
            self._background.submit(client_id, lambda: self._servers.attach(client_id, inherits=True))
        else:
            self._background.submit(
                client_id, lambda: self._hold_release.abandon_client(client_id, False, inherits=True)
            )

    async def _expect_unattended(self) -> None:
        for client_id in await self._reader.read(unattended_push_clients):
            self._clients.expect(client_id)
