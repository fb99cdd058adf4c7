# Made by scripts/unasync.py from popclient/aio/admin/admin.py. Do not edit.
"""The administration of one server: the calls of all subjects in one client."""

from __future__ import annotations

from datetime import timedelta

from popclient._arguments import as_timedelta
from popclient._sync.admin.access import Access
from popclient._sync.admin.catalog import Clients, Groups, Topics
from popclient._sync.admin.dead_letters import DeadLetters, Redrives
from popclient._sync.admin.messages import Messages, Scheduled
from popclient._sync.admin.mirrors import Mirrors
from popclient._sync.admin.progress import Progress
from popclient.admin.answers import facts_of
from popclient.admin.server_facts import Alerts, Chart, Drain, Health, Status, StoreRepair
from popproto.v1 import admin_pb2 as wire

REPAIR_SECONDS = 300.0  # of a store with millions of rows


class Admin(Topics, Groups, Clients, Progress, Messages, Scheduled, DeadLetters, Redrives, Mirrors, Access):
    """The administration of one server. Safe in threads.

    endpoints: "host:port;host:port", a ClientConfig, or nothing (environment ROCKETMQ_ENDPOINTS).
    connect_timeout: seconds, or a timedelta, to wait for a server that has not answered yet; then Unreachable.
    transport: another way to the server than the endpoints.

    Every method raises a PopError: BadRequest, NotFound, Unreachable, UnsupportedByServer and so on.
    """

    __module__ = "popclient.admin"

    def status(self) -> Status:
        """Server statistics, as `popmq status` shows them."""
        answer = self._call(lambda link: link.admin.GetStatus, wire.GetStatusRequest())
        return facts_of(Status, answer)

    def health(self) -> Health:
        """Whether the server works and should get requests, and why. It answers too if its database does not."""
        answer = self._call(lambda link: link.admin.GetHealth, wire.GetHealthRequest())
        return facts_of(Health, answer)

    def alerts(self) -> Alerts:
        """What needs a person now, as the overview of the console shows it."""
        answer = self._call(lambda link: link.admin.ListAlerts, wire.ListAlertsRequest())
        return facts_of(Alerts, answer)

    def chart(self, *, group: str | None = None, topic: str | None = None, over: float | timedelta = 900.0) -> Chart:
        """How a group or a topic has done in the last `over` (seconds or a timedelta), at most seven days.

        Name either of them. The longer the time, the fewer points there are for an hour. Raises BadRequest for a longer
        time, and NotFound.
        """
        request = wire.GetChartRequest(group=self._named(group), topic=self._named(topic))
        request.over.FromTimedelta(as_timedelta("over", over))
        answer = self._call(lambda link: link.admin.GetChart, request)
        return facts_of(Chart, answer)

    def repair(self, *, dry_run: bool = False) -> StoreRepair:
        """Searches the store for defects that keep messages from being delivered, and repairs them; not with dry_run.

        A sound store has none. Safe under load: each row is checked again under its lock.
        """
        wanted = wire.RepairStoreRequest(dry_run=dry_run)
        answer = self._call(lambda link: link.admin.RepairStore, wanted, takes=REPAIR_SECONDS)
        return facts_of(StoreRepair, answer)

    def drain(self) -> Drain:
        """Takes the called server away: its clients go to the other servers of its database, then it stops.

        Until then it serves every call, and routes name only the others. Again: nothing more. Raises BadRequest if no
        other server runs.
        """
        answer = self._call(lambda link: link.admin.DrainServer, wire.DrainServerRequest())
        return facts_of(Drain, answer)

    def confirm_clock(self) -> str:
        """Confirms the server's system clock: retention then removes what is old by it. Returns what that changes.

        After a long stop, or when the clock was set ahead, the server waits for this, for an hour at most.
        """
        answer = self._call(lambda link: link.admin.ConfirmClock, wire.ConfirmClockRequest())
        return answer.sentence
