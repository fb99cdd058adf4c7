"""How far an availableNow query goes: to where the queues ended when it began."""

from __future__ import annotations

import logging

from popclient.admin import Admin
from popclient.admin.facts import QueueLag
from popclient.errors import NotFound, PopError
from popclient.spark.lease.options import LeaseOptions

log = logging.getLogger(__name__)


class AvailableNowEnd:
    """The ends of a topic's queues at one moment. A queue that is added later is not waited for.

    Asks popmq.v1.Admin. A user who may not: then only a receive that brings nothing ends the query.
    """

    def __init__(self, options: LeaseOptions) -> None:
        self._options = options
        self._ends: dict[int, int] | None = None

    def note(self) -> None:
        try:
            with self._admin() as admin:
                self._ends = {queue.id: queue.max_offset for queue in admin.get_topic(self._options.topic).queues}
        except PopError as refusal:
            log.warning(
                "how far topic %s goes is not known, it is read until it is empty: %s", self._options.topic, refusal
            )

    def is_passed(self) -> bool:
        """Has the group looked at all that was there, and has it nothing that came back?"""
        if self._ends is None:
            return False
        try:
            with self._admin() as admin:
                lags = {lag.queue_id: lag for lag in admin.list_lag(self._options.group, self._options.topic)}
        except NotFound:  # the first receive makes the group
            return False
        return all(queue_id in lags and _is_done(lags[queue_id], end) for queue_id, end in self._ends.items())

    def _admin(self) -> Admin:
        return Admin(self._options.server, connect_timeout=self._options.server.request_timeout)


def _is_done(lag: QueueLag, end: int) -> bool:
    came_back = lag.ready - (lag.max_offset - max(lag.offset, lag.min_offset))
    return lag.offset >= end and came_back <= 0
