"""How far the group is behind: for the query's progress, and for the end of an availableNow query."""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from popclient.admin import Admin
from popclient.admin.facts import QueueLag
from popclient.errors import NotFound, PopError
from popclient.spark.checkpoint import VERSION
from popclient.spark.lease.options import LeaseOptions

log = logging.getLogger(__name__)

# Spark asks at every trigger; older numbers are asked for again.
QUERY_EVERY_S: Final = 5.0


class LeaseBacklog:
    """Asks popmq.v1.Admin every LOOK_EVERY_S. For a user without that right it has the names alone."""

    def __init__(self, options: LeaseOptions) -> None:
        self._options = options
        self._names = {"v": VERSION, "group": options.group, "topic": options.topic}
        self._facts: dict[str, Any] = self._names
        self._queried_at = -QUERY_EVERY_S

    def facts(self) -> dict[str, Any]:
        """`group` and `topic`; `lag`: messages that are ready; `inflight`: messages that this query or another consumer
        holds."""
        if time.monotonic() - self._queried_at >= QUERY_EVERY_S:
            self._queried_at = time.monotonic()
            self._facts = self._query()
        return self._facts

    def _query(self) -> dict[str, Any]:
        try:
            with Admin(self._options.server) as admin:
                lags = admin.list_lag(self._options.group, self._options.topic)
        except PopError:
            return self._names
        return {
            **self._names,
            "lag": sum(lag.ready for lag in lags),
            "inflight": sum(lag.inflight for lag in lags),
        }


class AvailableNowEnd:
    """The ends of a topic's queues when an availableNow query starts. It does not wait for queues added later.

    Asks popmq.v1.Admin. For a user without that right, the query ends at a receive without messages.
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
                "the end of topic %s is not known, so it is read until it is empty: %s", self._options.topic, refusal
            )

    def is_passed(self) -> bool:
        """Has the group received all messages up to the ends, and is no earlier one ready again?"""
        if self._ends is None:
            return False
        try:
            with self._admin() as admin:
                lags = {lag.queue_id: lag for lag in admin.list_lag(self._options.group, self._options.topic)}
        except NotFound:  # the first receive creates the group
            return False
        return all(queue_id in lags and _is_done(lags[queue_id], end) for queue_id, end in self._ends.items())

    def _admin(self) -> Admin:
        return Admin(self._options.server, connect_timeout=self._options.server.request_timeout)


def _is_done(lag: QueueLag, end: int) -> bool:
    came_back = lag.ready - (lag.max_offset - max(lag.offset, lag.min_offset))
    return lag.offset >= end and came_back <= 0
