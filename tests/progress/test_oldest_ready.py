"""When the oldest READY message was stored: unread, READY again, or behind in a message group; in the view and in the
lag of each queue."""

from __future__ import annotations

from popserver.model.group import Group
from popserver.model.retry import Holder
from popserver.model.topic import MessageType, Topic
from popserver.progress.lag import queue_lag
from tests.support.builders import in_order
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore
from tests.support.progress import commit, pull_group


def oldest(store: OpenStore, group: Group) -> int | None:
    """Minutes after the start; both ways must agree."""
    queues, _ = queue_lag(store.conn, group, None, store.now_ms, 100)
    times = [each.oldest_ready_ms for each in queues if each.oldest_ready_ms is not None]
    shown = store.lag(group).oldest_ready_ms
    assert min(times, default=None) == shown
    return None if shown is None else (shown - START_MS) // MINUTE


def send_each_minute(store: OpenStore, topic: Topic, count: int) -> None:
    for _ in range(count):
        store.send(topic)
        store.now_ms += MINUTE


def test_of_unread_messages(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    group = store.group(meets=[topic])
    assert oldest(store, group) is None
    store.send(topic, queue=1)
    store.now_ms += MINUTE
    store.send(topic, queue=0)
    assert oldest(store, group) == 0
    held = store.receive(group, topic, 1, rotation=1)
    assert oldest(store, group) == 1
    store.receive(group, topic, 1)
    assert oldest(store, group) is None, "what is held is not ready"
    store.ack(group, *held)


def test_a_message_that_came_back_is_seen(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    send_each_minute(store, topic, 3)
    first, *_ = store.receive(group, topic, 3, invisible_ms=HOUR)
    assert oldest(store, group) is None
    store.change(group, first, SECOND)
    store.end_due(after_ms=SECOND)
    assert oldest(store, group) == 0
    send_each_minute(store, topic, 1)
    assert oldest(store, group) == 0, "an alert must see the one that is stuck"


def test_what_waits_for_its_retry_is_not_ready(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], intervals_ms=(HOUR,))
    send_each_minute(store, topic, 2)
    first, _ = store.receive(group, topic, 2, holder=Holder.PUSH, invisible_ms=HOUR)
    store.change(group, first, HOUR)
    assert oldest(store, group) is None
    store.end_due(after_ms=HOUR)
    assert oldest(store, group) == 0


def test_messages_behind_in_a_message_group(store: OpenStore) -> None:
    topic = store.topic(accepts=(MessageType.FIFO,))
    group = store.group(meets=[topic])
    for name in ("A", "B", "A", "B"):
        store.send(topic, in_order(name))
        store.now_ms += MINUTE
    held, _ = store.receive(group, topic, 2, heads_only=True, invisible_ms=HOUR)
    assert [each.stored.message.message_group for each in (held, _)] == ["A", "B"]
    assert oldest(store, group) == 2
    store.receive(group, topic, 2, heads_only=True)
    assert oldest(store, group) == 2, "the scan has passed it"


def test_holes_do_not_hide_it(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    send_each_minute(store, topic, 3)
    store.conn.exec_driver_sql("DELETE FROM message WHERE message_key = (SELECT MIN(message_key) FROM message)")
    assert oldest(store, group) == 1


def test_of_a_group_that_owns_whole_queues(store: OpenStore) -> None:
    topic = store.topic()
    group = pull_group(store)
    send_each_minute(store, topic, 3)
    commit(store, group, topic, 2)
    assert oldest(store, group) == 2
    commit(store, group, topic, 3)
    assert oldest(store, group) is None
