"""Leases: receives the messages of a batch, renews their holds, returns them again, and acks them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from popclient.errors import PopError, UnsupportedByServer
from popclient.spark import bulk
from popclient.spark.bulk import BULK, HeldMessages
from popclient.spark.checkpoint import VERSION, numbers_of
from popclient.spark.lease.options import LeaseOptions
from popclient.spark.link import ServerLink, link_to

log = logging.getLogger(__name__)


class Lease(NamedTuple):
    """The messages of one batch, by their attempt ids. It is the stream's offset.

    seq: counts batches with messages; 0 is the beginning, without messages. parts: the number of receives.
    messages: of all receives together.
    """

    seq: int = 0
    parts: int = 0
    messages: int = 0

    @classmethod
    def of(cls, offset: dict[str, Any]) -> Lease:
        """Raises `ValueError` for the offset of another source."""
        return cls(**numbers_of(offset, "leases", cls(12, 2, 1_500)._asdict()))

    def offset(self) -> dict[str, Any]:
        return {"v": VERSION, **self._asdict()}

    def attempt_ids(self, owner: str) -> list[str]:
        """The attempt ids under which its messages are held."""
        return [attempt_id(owner, self.seq, part) for part in range(self.parts)]


def attempt_id(owner: str, seq: int, part: int) -> str:
    """Unique for owner, batch and part."""
    return f"{owner}/{seq}/{part}"


# The server's limit for one receive.
RECEIVE_MESSAGES_MAX: Final = 1_000


class LeaseCalls:
    """Calls for the messages held under attempt ids; each may be repeated, and raises a PopError.

    columns: the fields of a message to ask for.
    """

    def __init__(self, options: LeaseOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns

    def receive(self, attempt_id: str, max_messages: int) -> HeldMessages:
        """The messages held under the attempt id; if none, up to `max_messages` new ones."""
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
        """Extends the holds by the whole duration; returns how many messages are still held."""
        return bulk.renew(self._link(), self._options.topic, attempt_id, self._invisible)

    def ack(self, attempt_id: str) -> None:
        """Acks the messages held under the attempt id, if there still are any."""
        bulk.ack(self._link(), self._options.topic, attempt_id)

    @property
    def _invisible(self) -> timedelta:
        return timedelta(milliseconds=self._options.invisible_ms)

    def _link(self) -> ServerLink:
        link = link_to(self._options.server, self._options.group)
        if not link.offers(BULK):
            raise UnsupportedByServer(
                f"option mode='lease' needs a PopMQ server with popmq.v1.Bulk, and {link.config.endpoints} does not"
                " offer it; use mode='journal', which works with any RocketMQ 5 server, or install popmq[fast] there"
            )
        return link


class Renewal:
    """A thread that renews the holds of some attempt ids every third of their duration, while a batch runs."""

    def __init__(self, holds: LeaseCalls, invisible_ms: int) -> None:
        self._holds = holds
        self._pause_s = invisible_ms / 3_000
        self._attempt_ids: tuple[str, ...] = ()
        self._is_stopped = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def keep(self, attempt_ids: Sequence[str]) -> None:
        """From now on renews these attempt ids alone."""
        with self._changed:
            self._attempt_ids = tuple(attempt_ids)
            self._changed.notify()
        if attempt_ids and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="popmq-lease", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._attempt_ids, self._is_stopped = (), True
            self._changed.notify()

    def _run(self) -> None:
        while not self._is_stopped:
            with self._changed:
                if self._changed.wait(self._pause_s if self._attempt_ids else None):
                    continue  # the attempt ids have changed
                attempt_ids = self._attempt_ids
            for attempt_id in attempt_ids:
                if attempt_id in self._attempt_ids:
                    self._renew(attempt_id)

    def _renew(self, attempt_id: str) -> None:
        try:
            self._holds.renew(attempt_id)
        except PopError as failure:  # two more tries fit into the duration
            log.warning("the lease %s was not renewed yet, it is tried again: %s", attempt_id, failure)


class LeaseLost(RuntimeError):
    """Messages of a batch are no longer held: other consumers may have received them."""


class LeaseTaken(RuntimeError):
    """Another query receives under this one's option leaseOwner."""


class LeaseKeeper:
    """The lease of this process; it begins without one, even if an earlier process has left a lease."""

    def __init__(self, options: LeaseOptions, holds: LeaseCalls) -> None:
        self.lease = Lease()
        self._options = options
        self._holds = holds
        self._renewal = Renewal(holds, options.invisible_ms)
        self._received: list[HeldMessages] = []
        self._settled = 0
        self._is_first = True

    def settle(self, done: Lease) -> None:
        """Acks the messages of a batch that Spark has committed. Reports those that are no longer held."""
        if done.seq == self._settled:
            return
        attempt_ids = done.attempt_ids(self._options.owner)
        lost = 0
        if self.lease.seq == done.seq:
            lost = self.lease.messages - sum(map(self._holds.renew, attempt_ids))
            self._renewal.keep(())
            self.lease, self._received = Lease(), []
        for each in attempt_ids:
            self._holds.ack(each)
        self._settled = done.seq
        if lost > 0:
            self._lost(done, lost, "they were processed, and may be delivered again")

    def receive(self, seq: int, most: int, *, new: bool) -> Lease:
        """The messages of this batch from before a crash, or new ones; `messages` is 0 if there are none."""
        self._received = self._left_behind(seq)
        if not self._received and new:
            self._received = self._new(seq, most)
        self._is_first = False
        lease = Lease(seq, len(self._received), sum(each.messages for each in self._received))
        if lease.messages:
            self._keep(lease)
        return lease

    def chunks(self, lease: Lease) -> tuple[bytes, ...]:
        """The messages of the batch, of this process or an earlier one."""
        if self.lease.seq != lease.seq:
            self._take_up(lease)
        return tuple(chunk for each in self._received for chunk in each.chunks)

    def close(self) -> None:
        """Stops renewing: the holds end after their duration."""
        self._renewal.stop()

    def _left_behind(self, seq: int) -> list[HeldMessages]:
        found: list[HeldMessages] = []
        while (held := self._holds.receive(attempt_id(self._options.owner, seq, len(found)), 0)).messages:
            found.append(held)
        if found and not self._is_first:
            raise LeaseTaken(
                f"batch {seq} of option leaseOwner={self._options.owner!r} is held already, but not by this query:"
                " another query has the same leaseOwner; give each query its own, and start this one again"
            )
        return found

    def _new(self, seq: int, most: int) -> list[HeldMessages]:
        found: list[HeldMessages] = []
        while (wanted := most - sum(each.messages for each in found)) > 0:
            named = attempt_id(self._options.owner, seq, len(found))
            received = self._holds.receive(named, min(wanted, RECEIVE_MESSAGES_MAX))
            if not received.messages:
                break
            found.append(received)
            if sum(len(chunk) for each in found for chunk in each.chunks) >= self._options.max_bytes:
                break
        return found

    def _take_up(self, lease: Lease) -> None:
        """Continues a batch after a restart."""
        attempt_ids = lease.attempt_ids(self._options.owner)
        for each in attempt_ids:
            self._holds.renew(each)
        self._received = [self._holds.receive(each, 0) for each in attempt_ids]
        there = sum(each.messages for each in self._received)
        self._keep(lease._replace(messages=there))
        if there < lease.messages:
            self._lost(
                lease, lease.messages - there, "the batch is replayed without them; other consumers may get them"
            )

    def _keep(self, lease: Lease) -> None:
        self.lease = lease
        self._renewal.keep(lease.attempt_ids(self._options.owner))

    def _lost(self, lease: Lease, lost: int, what: str) -> None:
        sentence = (
            f"batch {lease.seq} of option leaseOwner={self._options.owner!r} has lost {lost} of {lease.messages}"
            f" messages of topic {self._options.topic}: their holds have ended; {what}"
        )
        if self._options.fail_on_lease_loss:
            raise LeaseLost(
                f"{sentence}; failOnLeaseLoss=false would go on, a longer invisibleDuration would hold them"
            )
        log.warning("%s; the option invisibleDuration says how long they are held", sentence)
