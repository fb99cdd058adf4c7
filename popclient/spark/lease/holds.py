"""What a group holds of a topic under attempt ids; every call may be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from popclient.errors import UnsupportedByServer
from popclient.spark import bulk
from popclient.spark.bulk import BULK, HeldMessages
from popclient.spark.lease.options import LeaseOptions
from popclient.spark.link import ServerLink, link_to

# The server's limit for one receive.
RECEIVE_MESSAGES_MAX: Final = 1_000


class LeaseCalls:
    """columns: of a message, the ones that are wanted. Every call raises a PopError, UnsupportedByServer among them."""

    def __init__(self, options: LeaseOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def receive(self, attempt_id: str, max_messages: int) -> HeldMessages:
        """What is held under the attempt id; where that is nothing, up to so many new messages. 0: nothing new."""
        return bulk.receive(
            self._link(),
            self._options.topic,
            attempt_id,
            max_messages=max_messages,
            invisible=self._invisible,
            expression=self._options.expression,
            columns=self._columns,
        )

    def renew(self, attempt_id: str) -> int:
        """How many messages are still held; from now on for the whole duration."""
        return bulk.renew(self._link(), self._options.topic, attempt_id, self._invisible)

    def ack(self, attempt_id: str) -> None:
        """What is held under the attempt id is done; nothing, where that was said before."""
        bulk.ack(self._link(), self._options.topic, attempt_id)

    @property
    def _invisible(self) -> timedelta:
        return timedelta(milliseconds=self._options.invisible_ms)

    def _link(self) -> ServerLink:
        link = link_to(self._options.server, self._options.group)
        if not link.offers(BULK):
            raise UnsupportedByServer(
                f"option mode='lease' needs a PopMQ server that offers popmq.v1.Bulk, and {link.config.endpoints} does"
                " not; use mode='journal', which works with any RocketMQ 5 server, or install popmq[fast] there"
            )
        return link
