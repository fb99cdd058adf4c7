"""The lite topics of a bind topic: sends create them, up to a quota, and idle ones expire (docs/design/0021)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    ScalarSelect,
    Text,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    or_,
    select,
    tuple_,
)

from popserver.catalog import topics
from popserver.database.notifications import LITE_TOPICS
from popserver.database.rows import RowQuery, RowStatement, encode_column, encode_rows, rows_parameter
from popserver.database.schema import lite_topic
from popserver.engine.transaction import STEP_ROWS_MAX, Outdated, Transaction
from popserver.engine.upkeep import remove_step
from popserver.messages.seek import newest_in_message_group_ms
from popserver.model.errors import LiteTopicQuotaExceeded
from popserver.model.message import Message
from popserver.model.topic import Topic

EXPIRE_PERIOD_MS = 60_000  # how often expired lite topics are searched for
LITE_TOPICS_MAX = 1_000_000  # of a bind topic
# A lite topic without messages stays at least so long: retention may remove its first message at once.
_YOUNG_MS = 60_000
_REMEMBERED_MAX = 150_000  # lite topics of all topics: some 20 MB


@dataclass(slots=True)
class _Existing:
    """The existing lite topics of one topic, and the `lite_expired_offset` of each queue id when they were read."""

    names: set[str] = field(default_factory=set)
    expired_offsets: dict[int, int] = field(default_factory=dict)


class ExistingLiteTopics:
    """The lite topics that committed sends of this server have found, so that later sends need not search for them.

    An expiry moves `lite_expired_offset` of the queue, and a send reads this offset when it has locked the queue. While
    it equals the remembered offset, each remembered lite topic of the queue exists, whichever server removes expired
    lite topics.
    """

    def __init__(self) -> None:
        self._topics: dict[int, _Existing] = {}
        self._count = 0

    def names_of(self, topic_id: int) -> Set[str]:
        existing = self._topics.get(topic_id)
        return set() if existing is None else existing.names

    def is_outdated(self, topic_id: int, expired_offsets: Mapping[int, int]) -> bool:
        """Whether lite topics of these queues have expired since. Then it forgets all lite topics of the topic."""
        existing = self._topics.get(topic_id)
        if existing is None or all(
            existing.expired_offsets.get(queue_id, expired) == expired for queue_id, expired in expired_offsets.items()
        ):
            return False
        self._count -= len(self._topics.pop(topic_id).names)
        return True

    def add(self, topic_id: int, names: Set[str], expired_offsets: Mapping[int, int]) -> None:
        """Remember lite topics that a transaction has found, after its commit."""
        if self._count > _REMEMBERED_MAX:
            self._topics.clear()
            self._count = 0
        existing = self._topics.setdefault(topic_id, _Existing())
        before = len(existing.names)
        existing.names |= names
        existing.expired_offsets |= expired_offsets
        self._count += len(existing.names) - before


class LiteTopic(NamedTuple):
    """A lite topic, the key of its first message, and when its newest message was stored (None: no message is left)."""

    name: str
    first_key: int
    created_at_ms: int
    newest_ms: int | None


class ExpiringLiteTopic(NamedTuple):
    """A lite topic to which no producer has sent for a while."""

    topic_id: int
    first_key: int
    name: str


class NewLiteTopics:
    """The lite topics that the messages of one topic and transaction create."""

    def __init__(self, tx: Transaction, topic: Topic, batches: Sequence[Sequence[Message]]) -> None:
        self._tx = tx
        self._topic = topic
        self._remembered = tx.remembered(ExistingLiteTopics)
        names = {each.message_group for batch in batches for each in batch if each.message_group is not None}
        self._looked_up = names - self._remembered.names_of(topic.topic_id)
        self._missing = self._find_missing(self._looked_up)
        if self._missing and tx.has_other_writers:
            # Another server may create the same lite topics now, and each counts once.
            topics.lock_lite_topics(tx.conn, topic.topic_id)
            self._missing = self._find_missing(self._looked_up)
        self._created: set[str] = set()
        self._count: int = topics.count_lite_topics(tx.conn, topic.topic_id) if self._missing else 0

    def _find_missing(self, names: Set[str]) -> set[str]:
        if not names:
            return set()
        named = {"of_topic": self._topic.topic_id, "names": encode_column(sorted(names))}
        return set(self._tx.conn.execute(_MISSING, named).scalars())

    def refusal(self, batch: Iterable[Message]) -> LiteTopicQuotaExceeded | None:
        """Count the lite topics that the batch creates. Returns a refusal if the topic may not have so many."""
        new = {each.message_group for each in batch if each.message_group in self._missing}
        if not new:
            return None
        if self._count + len(new) > LITE_TOPICS_MAX:
            return LiteTopicQuotaExceeded(
                f"topic '{self._topic.name}' has {LITE_TOPICS_MAX} lite topics, and may have no more; use another"
                " topic, or let idle lite topics expire: popmq topic update NAME --lite-expires 1d"
            )
        # The next batch may name them too.
        self._missing -= new
        self._created |= new
        self._count += len(new)
        return None

    def store(self, first_keys: Mapping[str, int], expired_offsets: Mapping[int, int]) -> None:
        """Store the lite topics that the messages create.

        `first_keys`: the key of the first message of each lite topic. `expired_offsets`: the `lite_expired_offset` of
        each queue id; the queues are locked. Raises `Outdated` if a lite topic that was found has expired meanwhile.
        """
        topic_id = self._topic.topic_id
        if self._remembered.is_outdated(topic_id, expired_offsets):
            raise Outdated
        # Expiry locks the queues too. But before this transaction locked them, another server may have removed lite
        # topics that it had found.
        found = (self._looked_up & first_keys.keys()) - self._created
        if found and self._tx.has_other_writers and self._find_missing(found):
            raise Outdated
        new = sorted(self._created & first_keys.keys())
        if new:
            rows = encode_rows([(topic_id, first_keys[name], name) for name in new])
            self._tx.expect(LITE_TOPICS, self._tx.now_ms + EXPIRE_PERIOD_MS)
            self._tx.conn.execute(_INSERT, {"new": rows, "now_ms": self._tx.now_ms})
            topics.add_lite_topics(self._tx.conn, topic_id, len(new))
        if seen := self._looked_up & first_keys.keys():
            self._tx.after_commit.append(lambda: self._remembered.add(topic_id, seen, expired_offsets))


def find(conn: Connection, topic_id: int, name: str) -> LiteTopic | None:
    """The lite topic; None if there is none, or it has expired."""
    return _ONE.first(conn, {"of_topic": topic_id, "named": name})


def listed(conn: Connection, topic_id: int, prefix: str, after: str, limit: int) -> list[LiteTopic]:
    """The topic's next lite topics after this name, of those whose names begin with `prefix`."""
    names = {"of_topic": topic_id, "after": after, "limit": limit, "prefix": prefix, "length": len(prefix)}
    return _LISTED.rows(conn, names)


def first_key(conn: Connection, topic_id: int, name: str) -> int | None:
    """The key of the first message of the lite topic; None if it has expired. Messages before this key are consumed."""
    return conn.execute(_FIRST_KEY, {"of_topic": topic_id, "named": name}).scalar()


def first_key_of(topic_id: ColumnElement[int], name: ColumnElement[Any]) -> ScalarSelect[int]:
    """The same as a subquery, for rows with names of lite topics."""
    of_name = lite_topic.c.topic_id == topic_id, lite_topic.c.name == name
    return select(lite_topic.c.first_key).where(*of_name).scalar_subquery()


def has_lite_topics(conn: Connection) -> bool:
    """Whether any topic has a lite topic."""
    return conn.execute(select(lite_topic.c.name).limit(1)).first() is not None


def expiring(conn: Connection, now_ms: int, after: tuple[int, str] = (0, "")) -> list[ExpiringLiteTopic]:
    """The next 1,000 lite topics at most that have expired, after this topic id and name."""
    names = {"now_ms": now_ms, "after_topic": after[0], "after_name": after[1], "limit": STEP_ROWS_MAX}
    return _EXPIRING.rows(conn, names)


def expired_among(conn: Connection, topic_id: int, names: Collection[str], now_ms: int) -> set[str]:
    """Those of these lite topics that have expired now."""
    return set(
        conn.execute(
            _EXPIRED, {"of_topic": topic_id, "names": encode_column(sorted(names)), "now_ms": now_ms}
        ).scalars()
    )


def end(conn: Connection, topic_id: int, names: Collection[str]) -> int:
    """Remove these lite topics and subtract them from the topic's count; returns how many. The topic is locked."""
    removed = conn.execute(_END, {"of_topic": topic_id, "names": encode_column(sorted(names))}).rowcount
    topics.add_lite_topics(conn, topic_id, -removed)
    return removed


def forget_topic(conn: Connection, topic_id: int) -> int:
    """Remove a step of the lite topics of a deleted topic; returns how many."""
    return remove_step(conn, lite_topic.c.name, lite_topic.c.topic_id == topic_id)


_NAMES = rows_parameter("names", text=("name",))
_MISSING = select(_NAMES.c.name).where(
    ~select(lite_topic.c.name)
    .where(lite_topic.c.topic_id == bindparam("of_topic"), lite_topic.c.name == _NAMES.c.name)
    .exists()
)
_NEW = rows_parameter("new", "topic_id", "first_key", text=("name",))
_INSERT = insert(lite_topic).from_select(
    ["topic_id", "name", "first_key", "created_at_ms"],
    select(_NEW.c.topic_id, _NEW.c.name, _NEW.c.first_key, bindparam("now_ms", type_=BigInteger)),
)
_OF_TOPIC = lite_topic.c.topic_id == bindparam("of_topic")
_IS_NAMED = lite_topic.c.name.in_(select(_NAMES.c.name))
_END = delete(lite_topic).where(_OF_TOPIC, _IS_NAMED)
_FIRST_KEY = select(lite_topic.c.first_key).where(_OF_TOPIC, lite_topic.c.name == bindparam("named"))
_NEWEST_MS = newest_in_message_group_ms(lite_topic.c.name, lite_topic.c.first_key).correlate(lite_topic)
_columns = select(lite_topic.c.name, lite_topic.c.first_key, lite_topic.c.created_at_ms, _NEWEST_MS.label("newest_ms"))
_ONE = RowStatement(LiteTopic, _columns.where(_OF_TOPIC, lite_topic.c.name == bindparam("named")))
_LISTED = RowStatement(
    LiteTopic,
    _columns.where(
        _OF_TOPIC,
        lite_topic.c.name >= bindparam("prefix"),
        lite_topic.c.name > bindparam("after"),
        func.substr(lite_topic.c.name, literal_column("1"), bindparam("length")) == bindparam("prefix"),
    )
    .order_by(lite_topic.c.name)
    .limit(bindparam("limit")),
)
_with_topic = lite_topic.join(topics.EXISTING, topics.EXISTING.c.topic_id == lite_topic.c.topic_id)
_IS_OLD = and_(
    lite_topic.c.created_at_ms < bindparam("now_ms") - _YOUNG_MS,
    or_(
        # If the topic has no `lite_expires_ms`, only lite topics without messages are old.
        func.coalesce(_NEWEST_MS, 0) == 0,
        func.coalesce(_NEWEST_MS, 0) < bindparam("now_ms") - topics.EXISTING.c.lite_expires_ms,
    ),
)
_EXPIRED = select(lite_topic.c.name).select_from(_with_topic).where(_OF_TOPIC, _IS_NAMED, _IS_OLD)
_EXPIRING = RowQuery(
    ExpiringLiteTopic,
    select(lite_topic.c.topic_id, lite_topic.c.first_key, lite_topic.c.name)
    .select_from(_with_topic)
    .where(
        _IS_OLD,
        tuple_(lite_topic.c.topic_id, lite_topic.c.name)
        > tuple_(bindparam("after_topic", type_=BigInteger), bindparam("after_name", type_=Text)),
    )
    .order_by(lite_topic.c.topic_id, lite_topic.c.name)
    .limit(bindparam("limit")),
)
