"""Consumer groups: made, changed, removed, listed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from popclient._arguments import as_timedelta
from popclient.admin.answers import group_of
from popclient.admin.calls import Calls
from popclient.admin.facts import ExponentialBackoff, Group
from popproto.v1 import admin_pb2 as wire


class Groups(Calls):
    """The calls about consumer groups."""

    def create_group(
        self,
        name: str,
        *,
        max_attempts: int = 0,
        retry_intervals: Iterable[float | timedelta] | ExponentialBackoff = (),
        fifo_retry_interval: float | timedelta | None = None,
        consume_from: str = "",
        history: str = "",
    ) -> Group:
        """What is not given is the server's default. Intervals are seconds or timedeltas, or exponential."""
        request = wire.CreateGroupRequest(
            group=self._named(name), max_attempts=max_attempts, consume_from=consume_from, history=history
        )
        _set_intervals(request, retry_intervals)
        _set_interval(request, fifo_retry_interval)
        return group_of(self._call(lambda link: link.admin.CreateGroup, request).group)

    def update_group(
        self,
        name: str,
        *,
        max_attempts: int | None = None,
        retry_intervals: Iterable[float | timedelta] | ExponentialBackoff = (),
        fifo_retry_interval: float | timedelta | None = None,
        history: str | None = None,
    ) -> Group:
        """What is not given stays as it is."""
        request = wire.UpdateGroupRequest(group=self._named(name), max_attempts=max_attempts, history=history)
        _set_intervals(request, retry_intervals)
        _set_interval(request, fifo_retry_interval)
        return group_of(self._call(lambda link: link.admin.UpdateGroup, request).group)

    def delete_group(self, name: str) -> None:
        self._call(lambda link: link.admin.DeleteGroup, wire.DeleteGroupRequest(group=self._named(name)))

    def get_group(self, name: str) -> Group:
        return group_of(
            self._call(lambda link: link.admin.GetGroup, wire.GetGroupRequest(group=self._named(name))).group
        )

    def list_groups(self) -> list[Group]:
        """Those of the config's namespace; all of them without one. Servers bound the list."""
        return [
            group_of(each) for each in self._call(lambda link: link.admin.ListGroups, wire.ListGroupsRequest()).groups
        ]


def _set_intervals(request: Any, intervals: Iterable[float | timedelta] | ExponentialBackoff) -> None:
    if isinstance(intervals, ExponentialBackoff):
        backoff = request.exponential_retry
        backoff.initial.FromTimedelta(as_timedelta("initial", intervals.initial))
        backoff.max.FromTimedelta(as_timedelta("longest", intervals.longest))
        backoff.multiplier = intervals.multiplier
        return
    for interval in intervals:
        request.retry_intervals.add().FromTimedelta(as_timedelta("retry interval", interval))


def _set_interval(request: Any, interval: float | timedelta | None) -> None:
    if interval is not None:
        request.fifo_retry_interval.FromTimedelta(as_timedelta("retry interval in order", interval))
