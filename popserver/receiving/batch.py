"""Receives, the messages that a search finds for them, the shares of its sources, and the grants."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import ClassVar, NamedTuple

from popserver.delivery.queues_to_read import OpenFrom, ReadyFrom, ReadySearch
from popserver.delivery.ready import ReadyRow, RedrivenRow
from popserver.engine.transaction import Phase, Request, Transaction
from popserver.fifo.positions import MessageGroupKey
from popserver.filters import Filter
from popserver.messages.by_key import Bodies, MessageRow, by_keys
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.topic import Topic

# Beside open message groups, one of this many messages of a search is a new one (`SourceShares`).
NEW_DIVISOR = 8
# One of this many searches of a topic with priorities ignores them, so that urgent messages do not starve the rest.
FAIR_EVERY = 8
# A message group gets at least this many messages together, if it has them: its cost does not depend on their number.
SHARE_MIN = 8
# A search of open message groups reads this many messages for each one that it needs: the filter may refuse some.
JUDGED_PER_NEEDED = 8
PAIRS_MAX = 10_000  # of a group and a topic, whose receives are numbered; beyond that all numbers begin anew


class Rotations(dict[tuple[int, int], Iterator[int]]):
    """The numbers of the receives of each group from each topic, by their ids.

    A group has numbers of its own: if two groups received in turn, each would get only even numbers, or only odd ones.
    """

    def __missing__(self, pair: tuple[int, int]) -> Iterator[int]:
        if len(self) >= PAIRS_MAX:
            self.clear()
        self[pair] = numbers = count()
        return numbers


def half_of(capacity: int, rotation: int) -> int:
    """Half of the capacity. The half of 1 is 0 or 1: searches alternate."""
    return capacity // 2 if capacity != 1 else rotation % 2


class SourceShares(NamedTuple):
    """How many messages a search takes from each of its sources, in a topic without lite topics.

    Old messages are those that are READY again, and those of open message groups. If new messages wait, the old ones
    get half of the capacity. Open message groups may exceed this half: they get what the minimum for READY again and
    an eighth for new messages leave.
    """

    capacity: int
    old: int
    again_found: int  # messages that are READY again and in no message group
    again_min: int
    repeats_max: int  # messages of open message groups that were granted before
    groups_max: int  # all messages of open message groups

    @staticmethod
    def of(capacity: int, rotation: int, again_found: int, *, new_waits: bool) -> SourceShares:
        """`new_waits`: a queue has messages after the group's progress."""
        old = half_of(capacity, rotation) if new_waits else capacity
        # Another bit than that of `old`: with a capacity of 1 neither READY again nor message groups get all of it.
        again_min = min(again_found, half_of(old, rotation >> 1))
        new_min = max(1, capacity // NEW_DIVISOR) if old < capacity else 0
        return SourceShares(
            capacity,
            old,
            again_found,
            again_min,
            repeats_max=max(old - again_found, (old + 1) // 2),
            groups_max=capacity - again_min - new_min,
        )

    def new_max(self, in_groups: int, unused: int) -> int:
        """The limit of new messages, beside `in_groups` messages of open message groups.

        `unused` of the messages that are READY again were given back unused. They count as new ones; otherwise their
        number would grow with each search.
        """
        again = max(self.again_min, unused, min(self.again_found, self.old - in_groups))
        return max(0, self.capacity - in_groups - again)


class KeyRange(NamedTuple):
    """A range of a queue that a SQL filter has judged, and the keys of the messages that it accepts, in order."""

    from_key: int
    to_key: int
    accepted: Sequence[int]

    def from_on(self, key: int) -> KeyRange | None:
        """The part of the range from this key on; None if the filter has not judged the message at this key."""
        if not self.from_key <= key <= self.to_key:
            return None
        return KeyRange(key, self.to_key, self.accepted[bisect_left(self.accepted, key) :])


class Judged(NamedTuple):
    """The results of a SQL filter for messages that a group may read next. Messages never change, nor do the results.

    `ranges` has a range per queue id. `behind` has, by message key, whether the filter accepts a message that the scan
    has passed.
    """

    ranges: Mapping[int, KeyRange]
    behind: Mapping[int, bool]

    def range_of(self, queue_id: int, from_key: int) -> KeyRange | None:
        """The results for a queue from this key on."""
        known = self.ranges.get(queue_id)
        return None if known is None else known.from_on(from_key)


NOTHING_JUDGED = Judged({}, {})


class Received(NamedTuple):
    """The granted messages. `more`: messages may be left, so the receive is repeated, or the next poll is woken.
    `is_locked`: another server's receive has locked them."""

    deliveries: list[Delivery]
    more: bool
    is_locked: bool = False


@dataclass(frozen=True, slots=True)
class Receive(Request[Received]):
    """A consumer's request for messages.

    `rotation` numbers the receives, `searches` counts the ended searches of this one. Both decide at which queue a
    search starts, which searches ignore priorities, and which source gets a capacity of one (`half_of`). `attempt_id`
    names the receive: a repetition gets the messages that it holds. With `heads_only` at most one message of a message
    group is granted at a time, because the consumer would not process several in order. `in_one_frame`: the answer is
    one frame, not a frame per message. With a SQL filter, a message is granted for the first time only if the filter
    accepted it in `judged` (`receiving.filter_fetch`). With `is_paused` the receive gets only what it holds already.
    `overlaps`: other clients of the group subscribe to some of the same lite topics.
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
    overlaps: bool = False
    searches: int = 0


class ReceiveBatch(NamedTuple):
    """One search for all receives with the same group, topic and filter. `rotation` numbers the searches.

    `capacity`: how many messages the receives may get together.
    `keeps_order` is false in a dead-letter topic: there, message groups are ignored.
    A SQL filter does not run during the search; `judged` has its results.
    """

    group: Group
    topic: Topic
    wanted: Filter
    capacity: int
    rotation: int
    keeps_order: bool
    takes_groups: bool  # the order of message groups matters in this search
    by_priority: bool  # the queues are read by priority, the highest first
    parameters: dict[str, int]  # of group and topic, for the search's statements
    bodies: Bodies = Bodies.SMALL
    judged: Judged = NOTHING_JUDGED


class Candidate(NamedTuple):
    """A message that may be granted; `attempt` will be its delivery attempt."""

    row: MessageRow
    attempt: int
    group_key: MessageGroupKey | None = None  # the message group that is blocked by the grant
    has_delivery: bool = False  # the message was granted before


class Grant(NamedTuple):
    """A message that a receive gets."""

    found: Candidate
    receipt: Receipt
    request: Receive


@dataclass(slots=True)
class ReceiveSlot:
    """One receive of a search: how many more messages it may get, and its grants so far."""

    request: Receive
    capacity: int
    grants: list[Grant]


class OpenGroup(NamedTuple):
    """An open message group: its messages that may be granted, in order.

    `next_offset` is where the message group continues after them. It is None if no message is left up to the scan's
    position: then the group's row is deleted, and the scan continues with the group. `stays_open`: if none of `found`
    is granted, because a filter refused all, later messages may be granted at once. `rest` has the keys and attempts of
    messages that may follow `found` if the capacity allows it.
    """

    group_key: MessageGroupKey
    found: list[Candidate]
    next_offset: int | None
    stays_open: bool
    rest: Sequence[tuple[int, int]] = ()


class Portion(NamedTuple):
    """Messages in the order of their grants, and the receives that may get them: of one client, or of all clients."""

    client_id: str
    receives: Sequence[Receive]
    found: Sequence[Candidate]


class Found(NamedTuple):
    """What a search found, and the open message groups that it read. `left_over`: messages may be left.

    Before the grants are written, `store_left_over` adds positions for the message groups of messages that were not
    granted. Its arguments are these messages, each with its client, without those whose message group has a position;
    and the grants. `is_locked_elsewhere` is called if there are no grants: whether another server has locked messages.
    """

    portions: Sequence[Portion]
    open_groups: Sequence[OpenGroup]
    left_over: bool
    store_left_over: Callable[[Sequence[tuple[str, Candidate]], Sequence[Grant]], None]
    is_locked_elsewhere: Callable[[], bool]


def search_bounds(tx: Transaction, batch: ReceiveBatch) -> dict[str, int]:
    """Lower time bounds of the index scans for messages that are READY again, and for open message groups.

    Only on Postgres: there, an index keeps entries of rows that have changed.
    """
    search = ReadySearch(batch.group.group_id, batch.topic.topic_id)
    return {
        "ready_from": tx.remembered(ReadyFrom).of(search, tx.now_ms),
        "open_from": tx.remembered(OpenFrom).of(search, tx.now_ms) if batch.takes_groups else 0,
    }


def remember_first(
    tx: Transaction, batch: ReceiveBatch, kind: type[ReadyFrom | OpenFrom], first_ms: int | None
) -> None:
    """After the commit, remember when the first message became READY, or group opened: the next search's bound.

    Not before the commit: this transaction may grant the message.
    """
    if tx.has_other_writers:
        search = ReadySearch(batch.group.group_id, batch.topic.topic_id)
        tx.after_commit.append(tx.remembered(kind).saw(search, first_ms, tx.now_ms))


def load_again(tx: Transaction, batch: ReceiveBatch, again: Sequence[ReadyRow | RedrivenRow]) -> list[Candidate]:
    """The messages that are READY again."""
    attempts = {row.message_key: row.attempt + 1 for row in again}
    found = by_keys(tx.conn, attempts, batch.bodies)
    return [Candidate(row, attempts[key], has_delivery=True) for key, row in found.items()]
