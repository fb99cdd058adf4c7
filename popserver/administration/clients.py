"""The calls of popmq.v1.Admin for clients: list connected clients, and let one reopen its session."""

from __future__ import annotations

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.clients import settings
from popserver.clients.clients import Client, Clients
from popserver.clients.commands import Commands, Reconnect
from popserver.model.errors import BadRequest
from popserver.producing.checks import Producers
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method

LISTED_MAX = 1_000


class ClientMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, clients: Clients, commands: Commands, producers: Producers) -> None:
        self._clients = clients
        self._commands = commands
        self._producers = producers
        self.methods: dict[str, AnyMethod] = {
            "ListClients": Method(self.list_clients, rights.admin),
            "ReconnectClient": Method(self.reconnect_client, rights.admin),
        }

    async def list_clients(self, request: wire.ListClientsRequest, caller: Caller) -> wire.ListClientsResponse:
        clients = self._clients.here()
        if request.HasField("group"):
            group = caller.resource(request.group)
            clients = [each for each in clients if each.role is not None and each.role.group == group]
        answer = wire.ListClientsResponse(status=status.OK, clients=map(self._client, clients[:LISTED_MAX]))
        if len(clients) > LISTED_MAX:
            answer.status.MergeFrom(
                pb.Status(code=pb.OK, message=f"the first {LISTED_MAX} of {len(clients)} clients; name a group")
            )
        return answer

    async def reconnect_client(
        self, request: wire.ReconnectClientRequest, _caller: Caller
    ) -> wire.ReconnectClientResponse:
        if not request.client_id:
            raise BadRequest("the request names no client; list connected clients with: popmq client list")
        await self._commands.send(request.client_id, Reconnect())
        return wire.ReconnectClientResponse(status=status.OK)

    def _client(self, client: Client) -> wire.Client:
        answer = wire.Client(
            client_id=client.client_id,
            connected=client.stream is not None,
            language=client.language,
            version=client.version,
        )
        if client.role is not None:
            answer.client_type = settings.client_type(client.role.kind)
            group = client.role.group
            answer.group.MergeFrom(convert.as_resource(group))
        elif self._producers.stream_of(client.client_id) is not None:
            answer.client_type = pb.PRODUCER
        convert.set_ms(answer.last_seen, client.last_seen_ms)
        return answer
