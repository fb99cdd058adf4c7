"""Keeps a lease alive while its batch runs, however long that takes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from popclient.errors import PopError
from popclient.spark.lease.holds import LeaseCalls

log = logging.getLogger(__name__)


class Renewal:
    """A thread that renews what is held under some attempt ids, every third of its duration."""

    def __init__(self, holds: LeaseCalls, invisible_ms: int) -> None:
        self._holds = holds
        self._pause_s = invisible_ms / 3_000
        self._attempt_ids: tuple[str, ...] = ()
        self._is_stopped = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, attempt_ids: Sequence[str]) -> None:
        """From now on these, and no others."""
        with self._changed:
            self._attempt_ids = tuple(attempt_ids)
            self._changed.notify()
        if attempt_ids and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="popmq-lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """None from now on, and the thread ends."""
        with self._changed:
            self._attempt_ids, self._is_stopped = (), True
            self._changed.notify()

    def _run(self) -> None:
        while not self._is_stopped:
            with self._changed:
                if self._changed.wait(self._pause_s if self._attempt_ids else None):
                    continue  # others, which were received just now, or none
                attempt_ids = self._attempt_ids
            for attempt_id in attempt_ids:
                if attempt_id in self._attempt_ids:
                    self._renew(attempt_id)

    def _renew(self, attempt_id: str) -> None:
        try:
            self._holds.renew(attempt_id)
        except PopError as failure:  # two more tries fit into the duration
            log.warning("the lease %s is not renewed, which is tried again: %s", attempt_id, failure)
