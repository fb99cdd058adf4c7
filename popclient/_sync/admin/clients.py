# Made by scripts/unasync.py from popclient/aio/admin/clients.py. Do not edit.
"""Clients: the list of them, and requests of an operator to one."""

from __future__ import annotations

from typing import Final

from popclient._sync.admin.calls import Calls
from popclient.admin.answers import client_facts_of, trial_of
from popclient.admin.facts import ClientFacts, Trial
from popproto.v1 import admin_pb2 as wire

# The server waits for the client's answer 5 s, and 15 s where a listener consumes a message.
PATIENCE: Final = 8.0
TRIAL_PATIENCE: Final = 20.0


class Clients(Calls):
    """The calls about clients. Each of several servers knows the clients that have a session with it."""

    def list_clients(self, group: str | None = None) -> list[ClientFacts]:
        """The connected clients by id, at most 1,000; with a group only its consumers."""
        request = wire.ListClientsRequest(group=None if group is None else self._named(group))
        answer = self._call(lambda link: link.admin.ListClients, request)
        return list(map(client_facts_of, answer.clients))

    def print_threads(self, client_id: str) -> str:
        """The stack traces of the client's threads, as it wrote them; at most 256 Ki characters.

        Raises NotFound for a client without a session here, RequestTimeout where it has not answered within 5 s.
        """
        request = wire.PrintThreadsRequest(client_id=client_id)
        answer = self._call(lambda link: link.admin.PrintThreads, request, PATIENCE)
        return answer.stack_trace

    def verify_message(self, client_id: str, message_id: str, topic: str | None = None) -> Trial:
        """Lets a push consumer's listener consume a stored message as a trial. The state of its group does not change.

        The listener consumes it like any message. Without a topic, the server searches all topics. Raises as
        `print_threads`, but after 15 s.
        """
        request = wire.VerifyMessageRequest(
            client_id=client_id, message_id=message_id, topic=None if topic is None else self._named(topic)
        )
        answer = self._call(lambda link: link.admin.VerifyMessage, request, TRIAL_PATIENCE)
        return trial_of(answer)

    def reconnect_client(self, client_id: str) -> None:
        """Makes the client open a new session; returns when the server has sent the request. Raises NotFound."""
        request = wire.ReconnectClientRequest(client_id=client_id)
        self._call(lambda link: link.admin.ReconnectClient, request, PATIENCE)
