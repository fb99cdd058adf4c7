"""What another server of the same Postgres leaves behind when it is gone: duties, and clients with push holds."""

from __future__ import annotations

from popserver.clients.clients import Clients
from popserver.cluster.servers import Servers
from popserver.cluster.sql import unattended_push_clients
from popserver.engine.reader import Reader
from popserver.engine.timers import BackgroundTasks
from popserver.maintenance.flow import Maintenance
from popserver.settling.flow import HoldRelease

_TAKE_UP = object()  # an errand's name that is no client's


class Takeover:
    """Takes up what they leave."""

    def __init__(
        self,
        reader: Reader,
        background: BackgroundTasks,
        maintenance: Maintenance,
        members: Servers,
        clients: Clients,
        orphans: HoldRelease,
    ) -> None:
        self._reader = reader
        self._background = background
        self._maintenance = maintenance
        self._members = members
        self._clients = clients
        self._orphans = orphans

    def take_up(self) -> None:
        """A server is gone: what it was at, and the holds of whom it alone has heard of, are anybody's now."""
        self._maintenance.purge()
        self._background.submit(_TAKE_UP, self._expect_the_unattended)

    def inherit(self, client_id: str) -> None:
        """The client's server was killed: it is here by now, or gone."""
        if self._clients.has(client_id):
            # Though it may have done nothing here yet, this server answers for its holds from now on.
            self._clients.expect(client_id)
            self._background.submit(client_id, lambda: self._members.attach(client_id, inherits=True))
        else:
            self._background.submit(client_id, lambda: self._orphans.abandon_client(client_id, False, inherits=True))

    async def _expect_the_unattended(self) -> None:
        for client_id in await self._reader.read(unattended_push_clients):
            self._clients.expect(client_id)
