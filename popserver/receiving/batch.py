"""What receives ask for, the messages found for them, and what they get."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from popserver.delivery.queues_to_read import OpenFrom, ReadyFrom, ReadySearch
from popserver.delivery.ready import AgainRow, RedrivenRow
from popserver.engine.transaction import Phase, Request, Transaction
from popserver.fifo.positions import MessageGroupKey
from popserver.filters import Filter
from popserver.messages.by_key import Bodies, MessageRow, by_keys
from popserver.model.group import Group
from popserver.model.handles import Receipt
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.topic import Topic

# How a search shares its room among the sources of messages: those that are READY again, open message groups, and new
# ones. Half is for new messages (`half_of`), if some wait. Beside open message groups they keep this part of the room.
NEW_OF_ROOM = 8
# One of this many searches of a topic with priorities ignores them, so that urgent messages do not starve the rest.
FAIR_EVERY = 8
# A group gets at least this many messages together, if it has them: a group's cost does not depend on their number.
SHARE_MIN = 8
# A search of open groups reads this many messages for each one that it needs, because the filter may refuse some.
JUDGED_PER_WANTED = 8


def half_of(room: int, rotation: int) -> int:
    """Half of the room. Room for one message cannot be halved: searches alternate."""
    return room // 2 or rotation % 2


class KeyRange(NamedTuple):
    """A range of a queue that a SQL filter has judged. `wanted` are the keys of the messages it accepts, in order."""

    from_key: int
    to_key: int
    wanted: Sequence[int]

    def from_on(self, key: int) -> KeyRange | None:
        """The part of the range from this key on; None if the filter has not judged the message at this key."""
        if not self.from_key <= key <= self.to_key:
            return None
        return KeyRange(key, self.to_key, self.wanted[bisect_left(self.wanted, key) :])


class Judged(NamedTuple):
    """The results of a SQL filter for messages that a group may read next. They stay true: messages never change.

    `ranges` has a range per queue id; `behind` has messages that the scan has passed, by message key.
    """

    ranges: Mapping[int, KeyRange]
    behind: Mapping[int, bool]

    def range_of(self, queue_id: int, from_key: int) -> KeyRange | None:
        """The results for a queue from this key on."""
        known = self.ranges.get(queue_id)
        return None if known is None else known.from_on(from_key)


NOTHING_JUDGED = Judged({}, {})


class Received(NamedTuple):
    """The granted messages. `more`: messages may be left, so ask again, or wake the next poll."""

    deliveries: list[Delivery]
    more: bool


@dataclass(frozen=True, slots=True)
class Receive(Request[Received]):
    """A consumer's request for messages. `rotation` decides at which queue to start.

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


class ReceiveBatch(NamedTuple):
    """One search for all receives with the same group, topic and filter. `rotation` decides at which queue to start.

    `keeps_order` is false in a dead-letter topic: there, message groups are ignored.
    A SQL filter does not run during the search; `judged` has its results.
    """

    group: Group
    topic: Topic
    wanted: Filter
    room: int
    rotation: int
    keeps_order: bool
    takes_groups: bool  # the order of message groups matters in this search
    by_priority: bool  # the queues are read by priority, the highest first
    names: dict[str, int]  # of group and topic, for the search's statements
    bodies: Bodies = Bodies.SMALL
    judged: Judged = NOTHING_JUDGED


class Candidate(NamedTuple):
    """A message that may be granted; `attempt` will be its delivery attempt."""

    row: MessageRow
    attempt: int
    member: MessageGroupKey | None = None  # the message group that is locked by the grant
    has_delivery: bool = False  # it was granted before


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


class GroupRun(NamedTuple):
    """An open message group: its messages that may be granted, in order.

    `next_offset` is where the group continues after them. It is None if no message is left up to the scan's position:
    then the group's row goes, and the scan continues with the group. `stays_open` says whether more may be granted at
    once if no message of `found` is, because a filter refused all. `rest` has the keys and attempts of messages that
    may follow `found` if there is room.
    """

    member: MessageGroupKey
    found: list[Candidate]
    next_offset: int | None
    stays_open: bool
    rest: Sequence[tuple[int, int]] = ()


class Portion(NamedTuple):
    """Messages in the order of their grants, and the receives that may get them: those of one client, or all."""

    client_id: str
    receives: Sequence[Receive]
    found: Sequence[Candidate]


class Found(NamedTuple):
    """What a search found, and the open message groups that are part of it. `left_over`: messages may be left.

    `keep` is called with the messages that no receive took and that are in no run that goes on, each with its client,
    and with the grants: before the grants are written, it gives their message groups a row. `is_hidden` is asked if
    there are no grants: whether another server's locks hide messages.
    """

    portions: Sequence[Portion]
    runs: Sequence[GroupRun]
    left_over: bool
    keep: Callable[[Sequence[tuple[str, Candidate]], Sequence[Grant]], None]
    is_hidden: Callable[[], bool]


def search_bounds(tx: Transaction, batch: ReceiveBatch) -> dict[str, int]:
    """Lower time bounds of the index scans for messages that are READY again, and for open message groups. SQLite's
    indexes have no entries of the past."""
    search = ReadySearch(batch.group.group_id, batch.topic.topic_id)
    return {
        "ready_from": tx.remembered(ReadyFrom).of(search, tx.now_ms),
        "open_from": tx.remembered(OpenFrom).of(search, tx.now_ms) if batch.takes_groups else 0,
    }


def saw(tx: Transaction, batch: ReceiveBatch, kind: type[ReadyFrom | OpenFrom], first_ms: int | None) -> None:
    """Remember the first one once the transaction is committed: the transaction may grant it."""
    if tx.has_other_writers:
        search = ReadySearch(batch.group.group_id, batch.topic.topic_id)
        tx.after_commit.append(tx.remembered(kind).saw(search, first_ms, tx.now_ms))


def load_again(tx: Transaction, batch: ReceiveBatch, again: Sequence[AgainRow | RedrivenRow]) -> list[Candidate]:
    """The messages that are READY again."""
    attempts = {row.message_key: row.attempt + 1 for row in again}
    found = by_keys(tx.conn, attempts, batch.bodies)
    return [Candidate(row, attempts[key], has_delivery=True) for key, row in found.items()]
