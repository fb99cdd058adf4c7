"""What an operator asks the store: counts, lag, one message's states. It reads, and changes nothing.

No look costs more for a larger backlog: counts are offset arithmetic, lists are pages, and one answer carries at most
`PAGE_BYTES_MAX` of bodies (always at least one message).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, func, select, text

from popserver.domain.delivery import State
from popserver.domain.errors import BadRequest, MessageNotFound
from popserver.domain.group import Group
from popserver.domain.message import StoredMessage, id_to_bytes
from popserver.domain.names import Resource
from popserver.domain.topic import MessageQueue, Topic, message_key
from popserver.store import catalog, due, entering, redriven
from popserver.store.given import encode_rows
from popserver.store.message_look import BY_KEY, Bodies
from popserver.store.messages import stored_messages
from popserver.store.schema import consumer_group, dead_letter, history, message, queue
from popserver.store.schema import topic as topic_table

PAGE_BYTES_MAX = 16 * 1024 * 1024
_HISTORY_MAX = 1_000


class QueueRange(NamedTuple):
    """What one queue stores: offsets from `min_offset` up to, not including, `next_offset`."""

    number: int
    min_offset: int
    next_offset: int


class PlaceRow(NamedTuple):
    """Where a message stands, and the name of its topic."""

    message_key: int
    origin_key: int
    stored_at_ms: int
    namespace: str
    name: str


class _SizeRow(NamedTuple):
    message_key: int
    stored_at_ms: int
    size: int


class TopicFacts(NamedTuple):
    """A topic, with what its queues store now."""

    topic: Topic
    ranges: tuple[QueueRange, ...]

    @property
    def message_count(self) -> int:
        return sum(each.next_offset - each.min_offset for each in self.ranges)


class Lag(NamedTuple):
    """How far a group is behind in one topic, in messages.

    `oldest_ready_ms`: when the oldest of those it has never received was stored; what came back is not asked.
    """

    group: Resource
    topic: Resource
    ready: int
    inflight: int
    waiting_retry: int
    dead_letters: int
    oldest_ready_ms: int | None


class Standing(NamedTuple):
    """Where one message stands in one group; `attempt` is 0 where no delivery of it is remembered."""

    group: Resource
    state: State
    attempt: int
    visible_at_ms: int | None
    client_id: str


class Step(NamedTuple):
    """One step of a message in one group, as far as the group keeps a history."""

    at_ms: int
    group: Resource
    event: str
    from_state: str
    to_state: str
    attempt: int
    client_id: str
    reason: str


class FoundMessage(NamedTuple):
    """A message by its id, with its life in every group that has met its topic."""

    stored: StoredMessage
    standings: Sequence[Standing]
    steps: Sequence[Step]


class Counts(NamedTuple):
    """How much the store holds, the revision of its schema, and when the first thing that waits is due."""

    topics: int
    groups: int
    messages: int
    dead_letters: int
    revision: str
    next_due_ms: int | None


def topic_facts(conn: Connection, name: Resource) -> TopicFacts:
    """One topic; raises `TopicNotFound`."""
    topic = _topic(conn, name)
    return TopicFacts(topic, _ranges(conn, [topic]).get(topic.topic_id, ()))


def list_topics(conn: Connection, namespace: str | None, limit: int) -> tuple[list[TopicFacts], int]:
    """The first `limit` topics by name, of one namespace or (None) of all; and how many there are."""
    topics = [each for each in catalog.list_topics(conn) if namespace is None or each.name.namespace == namespace]
    ranges = _ranges(conn, topics[:limit])
    return [TopicFacts(each, ranges.get(each.topic_id, ())) for each in topics[:limit]], len(topics)


def group(conn: Connection, name: Resource) -> Group:
    """One group; raises `ConsumerGroupNotFound`."""
    found = catalog.find_group(conn, name)
    if found is None:
        raise catalog.group_not_found(name)
    return found


def list_groups(conn: Connection, namespace: str | None, limit: int) -> tuple[list[Group], int]:
    """The first `limit` groups by name, of one namespace or (None) of all; and how many there are."""
    groups = [each for each in catalog.list_groups(conn) if namespace is None or each.name.namespace == namespace]
    return groups[:limit], len(groups)


def groups_by_id(conn: Connection, group_ids: Sequence[int], limit: int) -> list[Group]:
    """The first `limit` of these groups by name; a deleted one is left out."""
    found = [each.group for each in catalog.groups_by_id(conn, group_ids).values() if not each.is_deleted]
    return sorted(found, key=lambda each: each.name)[:limit]


def group_lag(conn: Connection, group_id: int | None, limit: int) -> list[Lag]:
    """Lag per group and topic, of one group or (None) of all."""
    rows = conn.execute(_LAG if group_id is None else _LAG_OF_GROUP, {"group_id": group_id, "limit": limit})
    return [
        Lag(
            Resource(row.group_namespace, row.consumer_group),
            Resource(row.topic_namespace, row.topic),
            # Postgres sums integers to decimals.
            int(row.ready),
            int(row.inflight),
            int(row.waiting_retry),
            int(row.dead_letters),
            row.oldest_ready_ms,
        )
        for row in rows
    ]


def peek(
    conn: Connection, name: Resource, queue_number: int | None, from_offset: int | None, limit: int
) -> list[StoredMessage]:
    """The oldest `limit` messages of a topic or of one of its queues, by the time they were stored.

    Raises `TopicNotFound`, and `BadRequest` for a queue the topic does not have.
    """
    topic = _topic(conn, name)
    queues = topic.queues if queue_number is None else (_queue(topic, queue_number),)
    oldest = [row for each in queues for row in _head(conn, each, from_offset or 0, limit)]
    oldest.sort(key=lambda row: (row.stored_at_ms, row.message_key))
    return load(conn, topic, within_a_page((row.message_key, row.size) for row in oldest[:limit]))


def find_message(conn: Connection, topic_name: Resource | None, message_id: str) -> FoundMessage:
    """One message by id, in one topic or (None) in whichever has it; raises `MessageNotFound`.

    The message itself comes before its copies, dead ones and retries. Where several topics hold the id, `BadRequest`
    asks for one.
    """
    place = find_place(conn, topic_name, message_id)
    topic = _topic(conn, Resource(place.namespace, place.name))
    (stored,) = load(conn, topic, [place.message_key])
    keys = {place.message_key, *redriven.places_of(conn, place.message_key)}
    return FoundMessage(stored, _standings(conn, place.message_key), steps(conn, keys))


def counts(conn: Connection) -> Counts:
    topics = conn.execute(_COUNT_TOPICS).scalar_one()
    groups = conn.execute(_COUNT_GROUPS).scalar_one()
    messages = conn.execute(_COUNT_MESSAGES).scalar_one()
    dead_letters = conn.execute(_COUNT_DEAD_LETTERS).scalar_one()
    revision = conn.execute(text("SELECT version_num FROM alembic_version")).scalar_one()
    next_ms = [each for each in (due.next_due_ms(conn), entering.next_due_ms(conn)) if each is not None]
    return Counts(topics, groups, int(messages), dead_letters, revision, min(next_ms, default=None))


def _topic(conn: Connection, name: Resource) -> Topic:
    found = catalog.find_topic(conn, name)
    if found is None:
        raise catalog.topic_not_found(name)
    return found


def _queue(topic: Topic, number: int) -> MessageQueue:
    for each in topic.queues:
        if each.number == number:
            return each
    raise BadRequest(f"topic '{topic.name}' has the queues 0 to {len(topic.queues) - 1}, not {number}")


def _ranges(conn: Connection, topics: Iterable[Topic]) -> dict[int, tuple[QueueRange, ...]]:
    columns = queue.c.topic_id, queue.c.number, queue.c.min_offset, queue.c.next_offset
    ids = [each.topic_id for each in topics]
    ranges: dict[int, tuple[QueueRange, ...]] = {}
    for row in conn.execute(select(*columns).where(queue.c.topic_id.in_(ids)).order_by(queue.c.number)):
        ranges[row.topic_id] = (*ranges.get(row.topic_id, ()), QueueRange(row.number, row.min_offset, row.next_offset))
    return ranges


def _head(conn: Connection, place: MessageQueue, from_offset: int, limit: int) -> list[_SizeRow]:
    first, end = message_key(place.queue_id, from_offset), message_key(place.queue_id + 1, 0)
    inside = message.c.message_key >= first, message.c.message_key < end
    rows = conn.execute(_SIZES.where(*inside).order_by(message.c.message_key).limit(limit))
    return [_SizeRow(*row) for row in rows]


def within_a_page(sizes: Iterable[tuple[int, int]]) -> list[int]:
    """The keys of as many leading messages as one answer may carry; `sizes`: (key, size of the body) of each."""
    keys: list[int] = []
    total = 0
    for key, size in sizes:
        total += size
        if keys and total > PAGE_BYTES_MAX:
            break
        keys.append(key)
    return keys


def load(conn: Connection, topic: Topic, keys: Sequence[int], *, bodies: bool = True) -> list[StoredMessage]:
    """Messages of one topic, in the order of their keys; a key that is gone is left out."""
    rows = BY_KEY.rows(
        conn, {"keys": encode_rows((key,) for key in keys)}, bodies=Bodies.ALL if bodies else Bodies.NONE
    )
    by_key = {each.message_key: each for each in stored_messages(conn, rows, topic)}
    return [by_key[key] for key in keys if key in by_key]


def find_place(conn: Connection, topic_name: Resource | None, message_id: str) -> PlaceRow:
    """Where a message stands; raises as `find_message` does."""
    query = _PLACES.where(message.c.message_id == id_to_bytes(message_id))
    if topic_name is not None:
        query = query.where(message.c.topic_id == _topic(conn, topic_name).topic_id)
    places = [PlaceRow(*row) for row in conn.execute(query)]
    if not places:
        where = "any topic" if topic_name is None else f"topic '{topic_name}'"
        raise MessageNotFound(f"message '{short(message_id)}' is not in {where}")
    originals = [each for each in places if not each.origin_key]
    if len(originals) > 1:
        names = ", ".join(f"'{Resource(each.namespace, each.name)}'" for each in originals)
        raise BadRequest(f"message id '{short(message_id)}' is in the topics {names}; name one of them")
    # Of copies the newest: what a group retries, it copies again at every failure.
    return originals[0] if originals else max(places, key=lambda each: (each.stored_at_ms, each.message_key))


def _standings(conn: Connection, key: int) -> list[Standing]:
    return [
        Standing(
            Resource(row.group_namespace, row.consumer_group),
            State(row.state),
            row.attempt or 0,
            row.visible_at_ms if row.state in {State.INFLIGHT, State.WAITING_RETRY} else None,
            row.client_id if row.state == State.INFLIGHT else "",
        )
        for row in conn.execute(_STANDINGS, {"message_key": key})
    ]


def steps(conn: Connection, keys: Collection[int]) -> list[Step]:
    """The steps of one message in all groups, oldest first, at most 1,000; `keys` are the places where it has stood."""
    return [
        Step(
            row.at_ms,
            Resource(row.namespace, row.name),
            row.event,
            row.from_state,
            row.to_state,
            row.attempt,
            row.client_id,
            row.reason,
        )
        for row in conn.execute(_STEPS.where(history.c.message_key.in_(keys)))
    ]


def short(message_id: str) -> str:
    return message_id if len(message_id) <= 64 else f"{message_id[:64]}…"


_SIZES = select(message.c.message_key, message.c.stored_at_ms, func.length(message.c.body).label("size"))
_PLACES = (
    select(
        message.c.message_key, message.c.origin_key, message.c.stored_at_ms, topic_table.c.namespace, topic_table.c.name
    )
    .join(topic_table, topic_table.c.topic_id == message.c.topic_id)
    .where(topic_table.c.deleted_at_ms.is_(None))
    .order_by(message.c.message_key)
)
_STEPS = (
    select(history, consumer_group.c.namespace, consumer_group.c.name)
    .join(consumer_group, consumer_group.c.group_id == history.c.group_id)
    .where(consumer_group.c.deleted_at_ms.is_(None))
    .order_by(history.c.history_id)
    .limit(_HISTORY_MAX)
)
_LAG_ORDER = "ORDER BY group_namespace, consumer_group, topic_namespace, topic LIMIT :limit"
_LAG = text(f"SELECT * FROM group_lag {_LAG_ORDER}")  # noqa: S608
_LAG_OF_GROUP = text(f"SELECT * FROM group_lag WHERE group_id = :group_id {_LAG_ORDER}")  # noqa: S608
_STANDINGS = text(
    "SELECT group_namespace, consumer_group, state, attempt, visible_at_ms, client_id FROM message_state"
    " WHERE message_key = :message_key ORDER BY group_namespace, consumer_group"
)
_COUNT_TOPICS = select(func.count()).select_from(topic_table).where(topic_table.c.deleted_at_ms.is_(None))
_COUNT_GROUPS = select(func.count()).select_from(consumer_group).where(consumer_group.c.deleted_at_ms.is_(None))
_COUNT_MESSAGES = (
    select(func.coalesce(func.sum(queue.c.next_offset - queue.c.min_offset), 0))
    .join(topic_table, topic_table.c.topic_id == queue.c.topic_id)
    .where(topic_table.c.deleted_at_ms.is_(None))
)
_COUNT_DEAD_LETTERS = (
    select(func.count(dead_letter.c.dead_letter_id))
    .join(consumer_group, consumer_group.c.group_id == dead_letter.c.group_id)
    .where(consumer_group.c.deleted_at_ms.is_(None), dead_letter.c.redrive_state.is_(None))
)
