"""What the group still has to do, for the query's progress."""

from __future__ import annotations

import time
from typing import Final

from popclient.admin import Admin
from popclient.errors import PopError
from popclient.spark.lease.options import LeaseOptions

# Spark asks at every trigger; the number need not be newer than this.
LOOK_EVERY_S: Final = 5.0


class LeaseBacklog:
    """Asks popmq.v1.Admin, now and then; a user who may not is told nothing."""

    def __init__(self, options: LeaseOptions) -> None:
        self._options = options
        self._facts: dict[str, int] | None = None
        self._looked_at = -LOOK_EVERY_S

    def facts(self) -> dict[str, int] | None:
        """`lag`: messages that are ready; `inflight`: those that somebody holds, this query among them."""
        if time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._facts = self._look()
        return self._facts

    def _look(self) -> dict[str, int] | None:
        try:
            with Admin(self._options.server) as admin:
                lags = admin.list_lag(self._options.group, self._options.topic)
        except PopError:
            return None
        return {"v": 1, "lag": sum(lag.ready for lag in lags), "inflight": sum(lag.inflight for lag in lags)}
