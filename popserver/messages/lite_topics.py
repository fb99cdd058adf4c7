"""The lite topics of a bind topic: a send creates those that it names, up to a quota (docs/design/0021)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import BigInteger, bindparam, insert, select, update

from popserver.database.notifications import LITE_TOPICS
from popserver.database.rows import encode_rows, rows_parameter
from popserver.database.schema import lite_topic
from popserver.database.schema import topic as topic_table
from popserver.engine.transaction import Outdated, Transaction
from popserver.model.errors import LiteTopicQuotaExceeded
from popserver.model.message import Message
from popserver.model.topic import Topic

EXPIRE_PERIOD_MS = 60_000  # how often expired lite topics are looked for
LITE_TOPICS_MAX = 1_000_000  # of a bind topic


class NewLiteTopics:
    """The lite topics that the messages of one topic and transaction create."""

    def __init__(self, tx: Transaction, topic: Topic, batches: Sequence[Sequence[Message]]) -> None:
        self._tx = tx
        self._topic = topic
        names = sorted({each.message_group for batch in batches for each in batch if each.message_group is not None})
        self._missing = self._find_missing(names)
        if self._missing and tx.has_other_writers:
            # Another server may create them now, and each counts once.
            tx.conn.execute(_LOCK_TOPIC, {"of_topic": topic.topic_id})
            self._missing = self._find_missing(names)
        self._created: set[str | None] = set()
        self._count: int = tx.conn.execute(_COUNT, {"of_topic": topic.topic_id}).scalar() or 0 if self._missing else 0

    def _find_missing(self, names: Iterable[str]) -> set[str | None]:
        found = self._tx.conn.execute(_MISSING, {"of_topic": self._topic.topic_id, "names": _as_rows(names)})
        return set(found.scalars())

    def refusal(self, batch: Iterable[Message]) -> LiteTopicQuotaExceeded | None:
        """Count the lite topics that the batch creates; a refusal if the topic may not have so many."""
        new = {each.message_group for each in batch} & self._missing
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

    def store(self, first_key: int, batch: Iterable[Message]) -> None:
        """Store those of the lite topics that messages of the batch create. Its keys begin with `first_key`, and their
        queue is locked. Raises `Outdated` if a lite topic that was there has expired meanwhile."""
        first: dict[str, int] = {}
        for key, each in enumerate(batch, start=first_key):
            if each.message_group is not None:
                first.setdefault(each.message_group, key)
        # Expiry locks the queue too. Before that, another server may have removed lite topics that were found.
        found = sorted(first.keys() - self._created)
        if found and self._tx.has_other_writers and self._find_missing(found):
            raise Outdated
        new = sorted(first.keys() & self._created)
        if new:
            rows = encode_rows([(self._topic.topic_id, first[name], name) for name in new])
            self._tx.expect(LITE_TOPICS, self._tx.now_ms + EXPIRE_PERIOD_MS)
            self._tx.conn.execute(_INSERT, {"new": rows, "now_ms": self._tx.now_ms})
            self._tx.conn.execute(_ADD, {"of_topic": self._topic.topic_id, "added": len(new)})


def _as_rows(names: Iterable[str]) -> str:
    return encode_rows([(each,) for each in names])


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
