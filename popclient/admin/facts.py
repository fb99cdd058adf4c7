"""The facts that the administration returns: topics, groups and messages.

A fact is as it was when the server answered, and does not change.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from popclient.message import MessageView


@dataclass(frozen=True, slots=True)
class Queue:
    """A message queue: the offset of its oldest stored message, and the one the next message gets."""

    id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class Topic:
    """`message_count` is what is stored now; `queues` is filled by `get_topic` alone.

    lite_expiry: how long a lite topic lives after its last message; None: for ever.
    closed_because: why the topic refuses its producers; empty: it does not refuse them.
    """

    name: str
    namespace: str
    queue_count: int
    accept_message_types: tuple[str, ...]
    message_count: int
    created_at: datetime
    queues: tuple[Queue, ...]
    lite_topic_count: int = 0
    lite_expiry: timedelta | None = None
    closed_because: str = ""


@dataclass(frozen=True, slots=True)
class LiteTopic:
    """A lite topic of a topic; `newest` is when its last message was stored, None if it has none any more."""

    name: str
    queue_id: int
    first_offset: int
    created_at: datetime
    newest: datetime | None


@dataclass(frozen=True, slots=True)
class LiteTopicGroup:
    """What a group does with a lite topic: its messages in each state, counted up to 1,000, and who subscribes."""

    group: str
    lite: str
    ready: int
    inflight: int
    waiting_retry: int
    client_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LiteTopicFacts:
    """A lite topic, and the groups that read its topic."""

    lite_topic: LiteTopic
    groups: tuple[LiteTopicGroup, ...]


@dataclass(frozen=True, slots=True)
class GroupLag:
    """How far a group is behind in a topic, in messages.

    `oldest_ready` is when the oldest READY message was stored. `stored`: how many messages the topic has in
    the queues where the group has progress; `appended`: how many it ever stored. `namespace` is the group's.
    `topic` is empty for the dead letters of deleted topics, in `dead_elsewhere` of `Group` and `Status`.
    """

    group: str
    topic: str
    ready: int
    inflight: int
    waiting_retry: int
    dead_letters: int
    oldest_ready: datetime | None
    stored: int = 0
    appended: int = 0
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue, in messages; the units of `GroupLag`, for groups of either mode.

    The queue stores `min_offset` up to, not including, `max_offset`; `offset` is the group's progress: the next one not
    yet looked at, or in mode PULL not yet consumed. `client_id` has the queue's lock; empty if no client has it.
    `oldest_ready` is when the oldest READY message was stored.
    """

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    offset: int
    ready: int
    inflight: int
    waiting_retry: int
    client_id: str
    oldest_ready: datetime | None = None


@dataclass(frozen=True, slots=True)
class SkippedMessage:
    """The state that a skipped message had; if it was held: by which client, and until when it would have been."""

    from_state: str
    client_id: str
    held_until: datetime | None


@dataclass(frozen=True, slots=True)
class MovedOffset:
    """What an operator did to a group's progress in one queue; `from_offset` is -1 where there was none."""

    topic: str
    queue_id: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic that a consumer wants, by a filter: its kind is TAG or SQL."""

    topic: str
    kind: str
    expression: str


@dataclass(frozen=True, slots=True)
class Consumer:
    """A consumer of a group, as the server that answers knows it.

    kind: PUSH, SIMPLE or PULL. connected: it has an open stream. `more_subscriptions` of its topics are left out.
    language, version: of its library; empty if it has not said.
    """

    client_id: str
    kind: str
    last_seen: datetime
    connected: bool
    subscriptions: tuple[Subscription, ...]
    more_subscriptions: int
    language: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Redeliveries:
    """Of `deliveries` that the asked server handed out in the time `over`, `retries` were not a message's first."""

    deliveries: int
    retries: int
    over: timedelta

    @property
    def ratio(self) -> float:
        """0 to 1."""
        return self.retries / self.deliveries if self.deliveries else 0.0


@dataclass(frozen=True, slots=True)
class ExponentialBackoff:
    """Intervals that grow by the multiplier (1 to 100) from the initial one up to the longest (1 ms to 12 h)."""

    initial: timedelta = timedelta(seconds=5)
    longest: timedelta = timedelta(hours=2)
    multiplier: float = 2.0


@dataclass(frozen=True, slots=True)
class ClientFacts:
    """A connected client, as the server that answers knows it.

    client_id: with users `USER/ID`. client_type: such as PRODUCER; empty for one that has not told its settings.
    group: of a consumer, else empty. connected: it has a session (a Telemetry stream) with this server.
    """

    client_id: str
    client_type: str
    group: str
    last_seen: datetime
    connected: bool
    language: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class Trial:
    """How a client's listener ended that consumed a message on trial.

    outcome: OK, FAILED_TO_CONSUME_MESSAGE, NOT_IMPLEMENTED or VERIFY_FIFO_MESSAGE_UNSUPPORTED. sentence: the client's
    own words, or empty.
    """

    outcome: str
    sentence: str

    @property
    def succeeded(self) -> bool:
        """Did the listener consume it?"""
        return self.outcome == "OK"


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause of a group: in `topic`, or in all topics (None); of one `message_group` only, or of all messages (None).

    `paused_by` is the access key of the user, empty if the server has no users.
    """

    topic: str | None
    message_group: str | None
    paused_at: datetime
    paused_by: str


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group.

    max_attempts: the first delivery included. retry_intervals: before each further attempt; the last one repeats;
    or, empty then, retry_backoff.
    fifo_retry_interval: the same for a message of a message group, whose group waits with it.
    consume_from: EARLIEST or LATEST. history: none, errors or all. mode: POP or PULL, empty until first use.
    lite: SHARED, EXCLUSIVE or WILDCARD, which lite topics its clients get; empty: it has ordinary consumers.
    Filled by `get_group` alone: lite_clients, how many clients subscribe to lite topics, and lite_subscriptions, to how
    many, added up; lag, per topic; dead_elsewhere, the dead letters that lag does not count, of deleted topics and of
    topics that it was removed from; consumers, who works for it with the asked server; redeliveries; hints, a sentence
    for each thing that needs attention. pauses, by `get_group` and `list_groups`: what operators have paused, at most
    1,000 and 10 pauses; more_pauses: how many others there are.
    """

    name: str
    namespace: str
    max_attempts: int
    retry_intervals: tuple[timedelta, ...]
    consume_from: str
    history: str
    mode: str
    created_at: datetime
    lag: tuple[GroupLag, ...]
    fifo_retry_interval: timedelta
    consumers: tuple[Consumer, ...]
    redeliveries: Redeliveries
    hints: tuple[str, ...]
    retry_backoff: ExponentialBackoff | None = None
    pauses: tuple[Pause, ...] = ()
    more_pauses: int = 0
    lite: str = ""
    lite_clients: int = 0
    lite_subscriptions: int = 0
    dead_elsewhere: tuple[GroupLag, ...] = ()


@dataclass(frozen=True, slots=True)
class MessageState:
    """Where a message stands in a group; `visible_at` is when a hold or back-off ends, `client_id` who holds it."""

    group: str
    state: str
    delivery_attempt: int
    visible_at: datetime | None
    client_id: str


@dataclass(frozen=True, slots=True)
class Hold:
    """A message that is INFLIGHT or WAITING_RETRY in a group, until `visible_at`.

    client_id: who holds it, or has made the last attempt; empty if it is gone. holder: SIMPLE, PUSH, or ORPHAN for a
    push consumer that is gone; push consumers hold as long as they are connected. message_group: empty for none.
    """

    topic: str
    message_id: str
    queue_id: int
    queue_offset: int
    state: str
    delivery_attempt: int
    visible_at: datetime
    client_id: str
    message_group: str
    holder: str


@dataclass(frozen=True, slots=True)
class LockedMessageGroup:
    """A message group that is delivered no further until its first message is done.

    stored_at: of the first message. behind: the messages behind it in its queue, counted up to 1,000.
    """

    message_group: str
    first: Hold
    stored_at: datetime
    behind: int


@dataclass(frozen=True, slots=True)
class LockedMessageGroups:
    """Locked message groups of a group, those with the most attempts first.

    more: how many others are locked; the server looks at no more than 10,000 message groups.
    """

    message_groups: tuple[LockedMessageGroup, ...]
    more: int = 0


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One step of a message in a group, and why it was taken."""

    at: datetime
    group: str
    event: str
    from_state: str
    to_state: str
    delivery_attempt: int
    client_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """A message, its state in each group, and as much of its history as each group keeps, oldest first."""

    message: MessageView
    states: tuple[MessageState, ...]
    history: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class Why:
    """Why a message is where it is in a group: one sentence, what it rests on, and the group's history of it."""

    sentence: str
    evidence: dict[str, str]
    history: tuple[HistoryEntry, ...]


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """One page of a search: of `examined` messages `matched` match; unless `complete`, there are others.

    messages: those that match, newest first, without their bodies. next_page: leads `find_messages` to the others.
    """

    examined: int
    matched: int
    complete: bool
    messages: tuple[MessageView, ...]
    next_page: str = ""


@dataclass(frozen=True, slots=True)
class FilterTrial:
    """What a SQL filter says of stored messages: of `examined` ones `matched` are wanted.

    `incomparable` more are not, because a property is not what the expression takes it for. Not `complete`: older
    messages were left out. `newest` are some of the matches, newest first, without their bodies.
    """

    examined: int
    matched: int
    incomparable: int
    complete: bool
    newest: tuple[MessageView, ...]


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """A message in no queue yet.

    kind: DELAY, or HALF of a transaction. due_at: when it enters its queue, or when its producers are asked next.
    checks: how often they were asked. id: its place among those that are due at the same time.
    """

    id: int
    message: MessageView
    kind: str
    due_at: datetime
    checks: int
    transaction_id: str
