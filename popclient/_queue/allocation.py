"""Which queues belong to which member (mission rows J3 to J5).

Every member sorts the same queues and the same member ids and runs the same pure function, so all come to shares that
are disjoint and together are everything, and nobody has to ask anybody. While members see different views, two may own
a queue for a while: messages repeat, none is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from popclient._queue.message_queue import MessageQueue


class AllocateStrategy(Protocol):
    """Any callable of this shape. Views come sorted and without doubles, and `client_id` is among the members."""

    def __call__(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> Sequence[MessageQueue]: ...
