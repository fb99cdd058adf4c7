"""The administration of one server, all its subjects together."""

from __future__ import annotations

from popclient.admin.access import Access
from popclient.admin.answers import status_of
from popclient.admin.clients import Clients
from popclient.admin.dead_letters import DeadLetters
from popclient.admin.facts import Status
from popclient.admin.groups import Groups
from popclient.admin.messages import Messages
from popclient.admin.progress import Progress
from popclient.admin.redrives import Redrives
from popclient.admin.scheduled import Scheduled
from popclient.admin.topics import Topics
from popproto.v1 import admin_pb2 as wire


class Admin(Topics, Groups, Clients, Progress, Messages, Scheduled, DeadLetters, Redrives, Access):
    """The administration of one server.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    connect_timeout: seconds to wait for a server that has not answered yet; then Unreachable.
    transport: another way to the server than the endpoints.

    Every method raises a PopError: BadRequest, NotFound, Unreachable, UnsupportedByServer and so on.
    """

    def status(self) -> Status:
        return status_of(self._call(lambda link: link.admin.GetStatus, wire.GetStatusRequest()))

    def confirm_clock(self) -> str:
        """Says that the server's system clock is right, so that what is old by it is removed; what that changes.

        After a long stop, or when the clock was set ahead, the server waits for this, for an hour at most.
        """
        return self._call(lambda link: link.admin.ConfirmClock, wire.ConfirmClockRequest()).sentence
