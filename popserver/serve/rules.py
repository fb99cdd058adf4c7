"""Rules for several workers: what each may use, and when one that has ended is started again. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from popserver.config import Config

# Settings that limit what all clients may use, and the least that a worker needs of each, in the setting's unit. MiB
# are enough for the largest request, 32 MiB, of which requests have three quarters.
_DIVIDED = {
    "max_incoming": 43,
    "send_backlog": 32,
    "max_undelivered": 8,
    "max_filter_memory": 8,
    "max_connections": 2,
    "max_connections_per_address": 1,
    "max_watches": 2,
    "max_lite_subscriptions": 1,
    "max_client_metric_series": 1,
}

STEADY_S = 60.0  # a worker that has served for so long has not failed to start
PAUSE_S_MAX = 30.0
FAILURES_MAX = 5


def share_of(config: Config) -> Config:
    """The settings of one worker: of what clients may use, each of the workers has an equal share."""
    shares = {}
    for name, least in _DIVIDED.items():
        whole = getattr(config, name)
        shares[name] = min(whole, max(least, math.ceil(whole / config.workers)))
    shared = config.model_copy(update=shares)
    shared.model_fields_set.intersection_update(config.model_fields_set)  # shares are not the operator's
    return shared


class Restarts:
    """Counts how often one worker after the other failed in the same slot."""

    def __init__(self) -> None:
        self.failures = 0

    def ended(self, served_s: float) -> float:
        """A worker ended that had served for so long. Returns the seconds until the next one starts: 0, 1, 2, 4 …"""
        if served_s >= STEADY_S:
            self.failures = 0
        self.failures += 1
        return 0.0 if self.failures == 1 else min(PAUSE_S_MAX, 2.0 ** (self.failures - 2))

    @property
    def has_given_up(self) -> bool:
        return self.failures >= FAILURES_MAX
