"""A cluster of RocketMQ: its name servers, its masters, and a connection to each of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from popclient.errors import PopError, Unreachable
from popclient.remoting import answers, requests
from popclient.remoting.connection import RemotingConnection
from popclient.remoting.frames import Frame
from popclient.remoting.requests import RemotingRequest
from popclient.remoting.signatures import AccessKey


class ClusterConnections:
    """Connections are opened when they are needed, and stay open. The masters are looked up for each call of `masters`,
    because one may fail, and another one may be added."""

    def __init__(
        self, name_servers: str, credentials: AccessKey, timeout: float, cluster: str, brokers: Iterable[str] = ()
    ) -> None:
        addresses = [each.strip() for each in name_servers.replace(",", ";").split(";") if each.strip()]
        if not addresses:
            raise ValueError(f"name_servers is {name_servers!r}; name one, or several: 'host1:9876;host2:9876'")
        self.name_servers: Final = addresses
        self._credentials, self._timeout, self._cluster = credentials, timeout, cluster
        self._seen = set(brokers)  # their names
        self._connections = {address: self._connection(address) for address in addresses}

    def __str__(self) -> str:
        return f"the cluster at {';'.join(self.name_servers)}"

    async def masters(self) -> list[Master]:
        """Of all brokers, in the order of their names.

        Raises Unreachable if one has no master now, or if one is gone that was there before: a name server forgets a
        broker that is down, and what the others know is not all.
        """
        address, frame = await self._ask_a_name_server(requests.cluster_info())
        found = answers.masters(address, frame.body, self._cluster)
        for name, master in found.items():
            if master is None:
                raise Unreachable(f"broker {name!r} has no master now; repeat it when RocketMQ has chosen one")
        if gone := self._seen - found.keys():
            raise Unreachable(
                f"name server {address} does not know broker {min(gone)!r} any more; start the broker again, or, if it "
                "was taken away for good, make a new RocketMQAdmin"
            )
        self._seen |= found.keys()
        if not found:
            raise Unreachable(f"name server {address} knows no broker; start the brokers, or repeat it a little later")
        return [Master(self._connection_to(at), name) for name, at in found.items() if at is not None]

    async def tell_name_servers(self, request: RemotingRequest) -> None:
        """Raises what the last one that did not do it raised; the others have done it."""
        failure: PopError | None = None
        for address in self.name_servers:
            try:
                await self._connections[address].call(request)
            except PopError as each:
                failure = each
        if failure is not None:
            raise failure

    async def close(self) -> None:
        for connection in self._connections.values():
            with suppress(TimeoutError):
                await connection.close()

    async def _ask_a_name_server(self, request: RemotingRequest) -> tuple[str, Frame]:
        """All know the same; the first one that answers is enough."""
        failures: list[Unreachable] = []
        for address in self.name_servers:
            try:
                return address, await self._connections[address].call(request)
            except Unreachable as failure:
                failures.append(failure)
        if len(failures) == 1:
            raise failures[0]
        raise Unreachable("no name server answers: " + "; ".join(failure.sentence for failure in failures))

    def _connection_to(self, address: str) -> RemotingConnection:
        if address not in self._connections:
            self._connections[address] = self._connection(address)
        return self._connections[address]

    def _connection(self, address: str) -> RemotingConnection:
        return RemotingConnection(address, self._credentials, self._timeout)


class Master:
    """A broker that takes changes."""

    def __init__(self, connection: RemotingConnection, name: str) -> None:
        self._connection = connection
        self.name = name
        self.address = connection.address

    async def ask(self, request: RemotingRequest) -> Frame:
        """Raises as `RemotingConnection.call`."""
        return await self._connection.call(request)
