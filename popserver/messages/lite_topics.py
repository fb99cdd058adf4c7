"""The lite topics of a bind topic: a send creates those that it names, up to a quota (docs/design/0021)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from sqlalchemy import BigInteger, Connection, bindparam, insert, select, update

from popserver.database.notifications import LITE_TOPICS
from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import lite_topic
from popserver.database.schema import topic as topic_table
from popserver.engine.transaction import Outdated, Transaction
from popserver.engine.upkeep import remove_step
from popserver.model.errors import LiteTopicQuotaExceeded
from popserver.model.message import Message
from popserver.model.topic import Topic

EXPIRE_PERIOD_MS = 60_000  # how often expired lite topics are looked for
LITE_TOPICS_MAX = 1_000_000  # of a bind topic
_REMEMBERED_MAX = 150_000  # lite topics of all topics: some 20 MB


@dataclass(slots=True)
class _Existing:
    """Lite topics of one topic that exist, and how far those of each queue (by id) had expired when that was seen."""

    names: set[str] = field(default_factory=set)
    expired_offsets: dict[int, int] = field(default_factory=dict)


class ExistingLiteTopics:
    """What committed sends of this server have seen of lite topics, so that later sends need not look for them.

    An expiry moves `lite_expired_offset` of the queue, and a send reads that when it has locked the queue. While it is
    the remembered one, each remembered lite topic of the queue exists, whichever server removes expired ones.
    """

    def __init__(self) -> None:
        self._topics: dict[int, _Existing] = {}
        self._count = 0

    def names_of(self, topic_id: int) -> Set[str]:
        existing = self._topics.get(topic_id)
        return set() if existing is None else existing.names

    def is_outdated(self, topic_id: int, expired_offsets: Mapping[int, int]) -> bool:
        """Whether lite topics of these queues have expired since. Then all of the topic are forgotten."""
        existing = self._topics.get(topic_id)
        if existing is None or all(
            existing.expired_offsets.get(queue_id, expired) == expired for queue_id, expired in expired_offsets.items()
        ):
            return False
        self._count -= len(self._topics.pop(topic_id).names)
        return True

    def add(self, topic_id: int, names: Set[str], expired_offsets: Mapping[int, int]) -> None:
        """These were seen in a transaction that is committed now."""
        if self._count > _REMEMBERED_MAX:
            self._topics.clear()
            self._count = 0
        existing = self._topics.setdefault(topic_id, _Existing())
        before = len(existing.names)
        existing.names |= names
        existing.expired_offsets |= expired_offsets
        self._count += len(existing.names) - before


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
            # Another server may create them now, and each counts once.
            tx.conn.execute(_LOCK_TOPIC, {"of_topic": topic.topic_id})
            self._missing = self._find_missing(self._looked_up)
        self._created: set[str] = set()
        self._count: int = tx.conn.execute(_COUNT, {"of_topic": topic.topic_id}).scalar() or 0 if self._missing else 0

    def _find_missing(self, names: Set[str]) -> set[str]:
        if not names:
            return set()
        named = encode_rows([(each,) for each in sorted(names)])
        return set(self._tx.conn.execute(_MISSING, {"of_topic": self._topic.topic_id, "names": named}).scalars())

    def refusal(self, batch: Iterable[Message]) -> LiteTopicQuotaExceeded | None:
        """Count the lite topics that the batch creates; a refusal if the topic may not have so many."""
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
        """Store those of the lite topics that the messages create.

        `first_keys` has the first message of each lite topic, `expired_offsets` is of the queues, by id; they are
        locked. Raises `Outdated` if a lite topic that was there has expired meanwhile.
        """
        topic_id = self._topic.topic_id
        if self._remembered.is_outdated(topic_id, expired_offsets):
            raise Outdated
        # Expiry locks the queues too. Before that, another server may have removed lite topics that were found.
        found = (self._looked_up & first_keys.keys()) - self._created
        if found and self._tx.has_other_writers and self._find_missing(found):
            raise Outdated
        new = sorted(self._created & first_keys.keys())
        if new:
            rows = encode_rows([(topic_id, first_keys[name], name) for name in new])
            self._tx.expect(LITE_TOPICS, self._tx.now_ms + EXPIRE_PERIOD_MS)
            self._tx.conn.execute(_INSERT, {"new": rows, "now_ms": self._tx.now_ms})
            self._tx.conn.execute(_ADD, {"of_topic": topic_id, "added": len(new)})
        if seen := self._looked_up & first_keys.keys():
            self._tx.after_commit.append(lambda: self._remembered.add(topic_id, seen, expired_offsets))


def forget_topic(conn: Connection, topic_id: int) -> int:
    """Remove a step of the lite topics of a deleted topic; returns how many."""
    return remove_step(conn, lite_topic.c.name, lite_topic.c.topic_id == topic_id)


_NAMES = rows_parameter("names", text=("name",))
_MISSING = select(_NAMES.c.name).where(
    ~select(lite_topic.c.name)
    .where(lite_topic.c.topic_id == bindparam("of_topic"), lite_topic.c.name == _NAMES.c.name)
    .exists()
)
_IS_TOPIC = topic_table.c.topic_id == bindparam("of_topic")
_LOCK_TOPIC = select(topic_table.c.topic_id).where(_IS_TOPIC).with_for_update()
_COUNT = select(topic_table.c.lite_topics).where(_IS_TOPIC)
_ADD = update(topic_table).where(_IS_TOPIC).values(lite_topics=topic_table.c.lite_topics + bindparam("added"))
_NEW = rows_parameter("new", "topic_id", "first_key", text=("name",))


_INSERT = insert(lite_topic).from_select(
    ["topic_id", "name", "first_key", "created_at_ms"],
    select(_NEW.c.topic_id, _NEW.c.name, _NEW.c.first_key, bindparam("now_ms", type_=BigInteger)),
)
