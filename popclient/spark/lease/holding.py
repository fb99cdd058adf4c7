"""The lease that a process holds: received, kept alive, given again, acked."""

from __future__ import annotations

import logging

from popclient.spark.bulk import HeldMessages
from popclient.spark.lease.holds import RECEIVE_MESSAGES_MAX, LeaseCalls
from popclient.spark.lease.offset import Lease, attempt_id
from popclient.spark.lease.options import LeaseOptions
from popclient.spark.lease.renewal import Renewal

log = logging.getLogger(__name__)


class LeaseLost(RuntimeError):
    """Messages of a batch are not held any more: others may have got them."""


class LeaseTaken(RuntimeError):
    """Another query receives under this one's option leaseOwner."""


class LeaseKeeper:
    """The lease that this process holds; none at its beginning, whatever an earlier process has left behind."""

    def __init__(self, options: LeaseOptions, holds: LeaseCalls) -> None:
        self.lease = Lease()
        self._options = options
        self._holds = holds
        self._renewal = Renewal(holds, options.invisible_ms)
        self._received: list[HeldMessages] = []
        self._settled = 0
        self._is_first = True

    def settle(self, done: Lease) -> None:
        """Spark has committed it: what is held of it is acked. What is not may come again, which is told."""
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
            self._lost(done, lost, "they were processed, and may come again")

    def receive(self, seq: int, most: int, *, new: bool) -> Lease:
        """What a crash has left behind of this batch, or new messages; `messages` is 0 if there are none."""
        self._received = self._left_behind(seq)
        if not self._received and new:
            self._received = self._new(seq, most)
        self._is_first = False
        lease = Lease(seq, len(self._received), sum(each.messages for each in self._received))
        if lease.messages:
            self._keep(lease)
        return lease

    def chunks(self, lease: Lease) -> tuple[bytes, ...]:
        """Of the batch that is held, or that an earlier process has held."""
        if self.lease.seq != lease.seq:
            self._take_up(lease)
        return tuple(chunk for each in self._received for chunk in each.chunks)

    def close(self) -> None:
        """What is held ends when its duration has passed."""
        self._renewal.stop()

    def _left_behind(self, seq: int) -> list[HeldMessages]:
        found: list[HeldMessages] = []
        while (held := self._holds.receive(attempt_id(self._options.owner, seq, len(found)), 0)).messages:
            found.append(held)
        if found and not self._is_first:
            raise LeaseTaken(
                f"batch {seq} of option leaseOwner={self._options.owner!r} is held already, and this query has not"
                " received it: another one has the same leaseOwner; give each query its own, and start this one again"
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
        """After a restart, in the midst of a batch."""
        attempt_ids = lease.attempt_ids(self._options.owner)
        for each in attempt_ids:
            self._holds.renew(each)
        self._received = [self._holds.receive(each, 0) for each in attempt_ids]
        there = sum(each.messages for each in self._received)
        self._keep(lease._replace(messages=there))
        if there < lease.messages:
            self._lost(lease, lease.messages - there, "the batch is replayed without them, others may have got them")

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
