"""What a receive asks for, how its holds are written, and how large its answer may be."""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

from popserver.database.notifications import DUE
from popserver.database.rows import encode_rows
from popserver.delivery import deliveries
from popserver.delivery.history import Moved, record
from popserver.engine.transaction import Phase, Request, Transaction
from popserver.filters import Filter
from popserver.messages import by_key
from popserver.messages.by_key import DEFERRED, by_keys
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.states import Event, State, target
from popserver.model.topic import Topic
from popserver.receiving.batch import NOTHING_JUDGED, Candidate, Judged, ReceiveBatch
from popserver.settling import release


class Received(NamedTuple):
    """The granted messages. `more` says that messages may be left: ask again, or wake the next poll."""

    deliveries: list[Delivery]
    more: bool


@dataclass(frozen=True, slots=True)
class Receive(Request[Received]):
    """A consumer's request for messages. `rotation` says at which queue to start.

    `attempt_id` names the receive: a repetition gets the messages that it holds. With `heads_only` at most one message
    of a message group is granted at a time, because the consumer would not process several in order. `in_one_frame`
    says how the answer is sent. With a SQL filter a first grant needs a message that the filter accepted in `judged`
    (`receiving.filter_fetch`). With `is_paused` the receive gets only what it holds already. `shares`: other clients of
    the group subscribe to some of the same lite topics.
    """

    phase: ClassVar = Phase.RECEIVE
    group: Group
    topic: Topic
    wanted: Filter
    batch_size: int
    invisible_ms: int
    holder: Holder
    client_id: str
    rotation: int
    attempt_id: str | None = None
    heads_only: bool = False
    in_one_frame: bool = False
    judged: Judged = NOTHING_JUDGED
    is_paused: bool = False
    shares: bool = False


class Grant(NamedTuple):
    """A message that a receive gets."""

    found: Candidate
    receipt: Receipt
    request: Receive


@dataclass(slots=True)
class ReceiveSlot:
    """One receive of a search: the room it has left, and its grants so far."""

    request: Receive
    room: int
    grants: list[Grant]


def new_holds(count: int) -> list[int]:
    """Random hold ids. They must be secret: a receipt handle proves a hold by its id."""
    # 63 bits: the databases' integers are signed.
    return [bits >> 1 for bits in struct.unpack(f"{count}Q", os.urandom(8 * count))]


def write_grants(tx: Transaction, batch: ReceiveBatch, grants: Sequence[Grant]) -> None:
    """Write the holds. A message that was granted before has a delivery row already."""
    again = [grant for grant in grants if grant.found.has_delivery]
    new = [grant for grant in grants if not grant.found.has_delivery]
    if again:
        deliveries.grant_again(tx, _as_holds(again))
    if new:
        deliveries.add(tx, _as_rows(new, batch.topic.topic_id))
    if grants:
        ends_at_ms = min(grant.receipt.ends_at_ms for grant in grants)
        tx.due[DUE] = min(ends_at_ms, tx.due.get(DUE, ends_at_ms))
    if Event.RECEIVE not in batch.group.history.kept:
        return
    for client_id, several in groupby(grants, key=lambda grant: grant.request.client_id):
        moved = (Moved(each.receipt.message_key, State.READY, each.found.attempt, client_id) for each in several)
        record(tx, batch.group, Event.RECEIVE, moved)


def _as_rows(grants: Sequence[Grant], topic_id: int) -> list[tuple[Any, ...]]:
    """New rows of the table `delivery`."""
    return [
        (
            receipt.group_id,
            receipt.message_key,
            topic_id,
            _GRANTED,
            1,
            receipt.hold_id,
            receipt.ends_at_ms,
            request.holder._value_,
            request.client_id,
            found.member and found.member.message_group,
            request.attempt_id,
        )
        for found, receipt, request in grants
    ]


def _as_holds(grants: Sequence[Grant]) -> str:
    return encode_rows(
        [
            (
                *grant.receipt[:4],
                grant.request.holder.value,
                grant.request.client_id,
                grant.found.member and grant.found.member.message_group,
                grant.request.attempt_id,
            )
            for grant in grants
        ]
    )


_GRANTED = target(Event.RECEIVE).value


# The size of answers: a receive gets no more bodies than one answer, and one transaction, may have.

# Bytes of bodies in one answer; a single message may be larger.
RECEIVE_BYTES_MAX = 4 * 1024 * 1024


def keep_within_bytes(tx: Transaction, slots: Sequence[ReceiveSlot]) -> bool:
    """Give back grants that exceed the size of an answer, and fetch the bodies of the rest.

    Returns whether any were given back. An answer has at least one message while this transaction may grant any.
    """
    excess: list[Receipt] = []
    sizes = by_key.sizes(tx.conn, [grant.receipt.message_key for slot in slots for grant in slot.grants])
    for slot in slots:
        kept = _fitting(tx, [sizes[grant.receipt.message_key] for grant in slot.grants])
        excess += [grant.receipt for grant in slot.grants[kept:]]
        del slot.grants[kept:]
    if excess:
        release.cancel_delivery(tx, [release.CancelDelivery(excess)])
    for slot in slots:
        _fetch_bodies(tx, slot)
    return bool(excess)


def _fitting(tx: Transaction, sizes: Sequence[int]) -> int:
    """How many of the first messages with these sizes (in bytes) fit into one answer."""
    room = RECEIVE_BYTES_MAX
    for kept, size in enumerate(sizes):
        if tx.answer_bytes <= 0 or (kept and size > min(room, tx.answer_bytes)):
            return kept
        room -= size
        tx.answer_bytes -= size
    return len(sizes)


def _fetch_bodies(tx: Transaction, slot: ReceiveSlot) -> None:
    large = [grant.receipt.message_key for grant in slot.grants if grant.found.row.body is DEFERRED]
    if not large:
        return
    bodies = {key: row.body for key, row in by_keys(tx.conn, large).items()}
    slot.grants = [
        grant._replace(found=grant.found._replace(row=grant.found.row._replace(body=bodies[grant.receipt.message_key])))
        if grant.receipt.message_key in bodies
        else grant
        for grant in slot.grants
    ]
