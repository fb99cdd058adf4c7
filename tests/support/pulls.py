"""What the tests of pulls say in few words."""

from __future__ import annotations

from popserver.filters import Filter, TagFilter
from popserver.model.errors import PopError
from popserver.model.topic import Topic
from popserver.pulling import read as pulling_look
from popserver.pulling.rules import Pulled
from tests.support.open_store import OpenStore

EVERYTHING = TagFilter()


def look(
    store: OpenStore,
    topic: Topic,
    offset: int = 0,
    *,
    batch_size: int = 32,
    wanted: Filter = EVERYTHING,
    queue: int = 0,
) -> Pulled:
    (found,) = pulling_look.read_queues(
        store.conn, [pulling_look.QueueRead(topic, topic.queues[queue], offset, batch_size, wanted)]
    )
    if isinstance(found, PopError):
        raise found
    return found


def offsets(pulled: Pulled) -> list[int]:
    return [each.offset for each in pulled.messages]


def trim(store: OpenStore, topic: Topic, to_offset: int, *, queue: int = 0) -> None:
    """As retention does: the messages before that offset are gone."""
    queue_id = topic.queues[queue].queue_id
    store.conn.exec_driver_sql(f"DELETE FROM message WHERE message_key < {(queue_id << 40) + to_offset}")
    store.conn.exec_driver_sql(f"UPDATE queue SET min_offset = {to_offset} WHERE queue_id = {queue_id}")
