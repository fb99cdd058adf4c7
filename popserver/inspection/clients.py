"""The calls of popmq.v1.Admin for clients: list connected clients, and send commands to them."""

from __future__ import annotations

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.clients import settings
from popserver.clients.clients import Client, Clients
from popserver.clients.commands import (
    ANSWER_WITHIN_S,
    VERIFIED_WITHIN_S,
    Commands,
    Outcome,
    PrintThreads,
    Reconnect,
    TryMessage,
)
from popserver.inspection.flow import Inspection
from popserver.model.errors import BadRequest
from popserver.producing.checks import Producers
from popserver.transport import convert, status
from popserver.transport.calls import AnyMethod, Caller, Method

LISTED_MAX = 1_000


class ClientMethods:
    """One method per RPC, in the proto's order."""

    def __init__(self, clients: Clients, commands: Commands, producers: Producers, operations: Inspection) -> None:
        self._clients = clients
        self._commands = commands
        self._producers = producers
        self._operations = operations
        self.methods: dict[str, AnyMethod] = {
            "ListClients": Method(self.list_clients, rights.admin),
            "PrintThreads": Method(self.print_threads, rights.admin),
            "VerifyMessage": Method(self.verify_message, rights.admin),
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

    async def print_threads(self, request: wire.PrintThreadsRequest, _caller: Caller) -> wire.PrintThreadsResponse:
        trace = await self._commands.ask(_named(request), PrintThreads(), ANSWER_WITHIN_S)
        return wire.PrintThreadsResponse(status=status.OK, stack_trace=str(trace))

    async def verify_message(self, request: wire.VerifyMessageRequest, caller: Caller) -> wire.VerifyMessageResponse:
        topic = caller.resource(request.topic) if request.HasField("topic") else None
        client_id = _named(request)
        found = await self._operations.message(topic, request.message_id)
        outcome = await self._commands.ask(client_id, TryMessage(found.stored), VERIFIED_WITHIN_S)
        if not isinstance(outcome, Outcome):
            raise BadRequest(f"client '{client_id}' answered with stack traces instead of a result; repeat the request")
        return wire.VerifyMessageResponse(
            status=status.OK,
            outcome=pb.Status(code=outcome.code, message=outcome.sentence),  # type: ignore[arg-type]
        )

    async def reconnect_client(
        self, request: wire.ReconnectClientRequest, _caller: Caller
    ) -> wire.ReconnectClientResponse:
        await self._commands.send(_named(request), Reconnect())
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


def _named(
    request: wire.PrintThreadsRequest | wire.VerifyMessageRequest | wire.ReconnectClientRequest,
) -> str:
    if not request.client_id:
        raise BadRequest("the request names no client; list connected clients with: popmq client list")
    return request.client_id
