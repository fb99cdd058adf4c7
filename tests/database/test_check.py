"""The audit finds what must not be; every other test of this room ends with it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from popserver.database.check import INVARIANTS, check_integrity
from popserver.database.database import Database
from popserver.database.invariants.queries import statement
from popserver.database.invariants.stuck import STUCK
from popserver.lite import subscriptions
from popserver.model.errors import StoreUnavailable
from popserver.model.group import LiteModel
from popserver.model.topic import MessageType
from tests.support.builders import in_order
from tests.support.emptied_database import emptied
from tests.support.lite_broker import lite_messages
from tests.support.open_store import HOUR, SECOND, OpenStore, open_store
from tests.support.plans import blocks_read
from tests.support.send_back import hand_back, pull_group

# How to break each of them by hand.
DAMAGE = {
    "a delivery without its message": "DELETE FROM message WHERE message_key = (SELECT MAX(message_key) FROM delivery)",
    "a delivery of a message the group has not reached": "UPDATE progress SET next_offset = 0",
    "a delivery that does not wait, of a group that owns whole queues": "UPDATE consumer_group SET mode = 'PULL'",
    "a message that waits though its retry is there": (
        "INSERT INTO delivery (group_id, message_key, topic_id, state, attempt, hold_id, visible_at_ms, holder,"
        " client_id) SELECT g.group_id, m.copy_of, 1, 'WAITING_RETRY', 1, 0, 1, 'PUSH', ''"
        " FROM message m, consumer_group g"
        " JOIN topic t ON t.topic_id = m.topic_id AND t.name = '%RETRY%' || g.name"
    ),
    "a message beyond its queue's end": "UPDATE queue SET next_offset = 2 WHERE next_offset > 2",
    "progress beyond its queue's end": "UPDATE progress SET next_offset = 99",
    "a dead letter without its copy": "DELETE FROM message WHERE copy_of IS NOT NULL",
    "a dead letter that is still being delivered": (
        "UPDATE dead_letter SET origin_key = (SELECT MAX(message_key) FROM delivery)"
    ),
    "a dead letter whose copy is being delivered to its group": (
        "INSERT INTO delivery (group_id, message_key, topic_id, state, attempt, hold_id, visible_at_ms, holder,"
        " client_id) SELECT group_id, copy_key, origin_topic_id, 'READY', 0, 0, 1, 'SIMPLE', '' FROM dead_letter"
    ),
    "a dead letter that was redriven, without the record of it": (
        "UPDATE dead_letter SET redrive_state = 'REDRIVEN', plan_id = 'p'"
    ),
    "a dead letter that was redriven twice": (
        "INSERT INTO redrive (plan_id, dead_letter_id, group_id, origin_key, origin_topic_id, message_id, attempt,"
        " dead_reason, dead_at_ms, state, change, reason) SELECT name, dead_letter_id, l.group_id, origin_key,"
        " origin_topic_id, x'01', attempt, reason, dead_at_ms, 'REDRIVEN', 'NONE', ''"
        " FROM dead_letter l, (SELECT 'p' AS name UNION SELECT 'q')"
    ),
    "a redrive plan that miscounts its messages": (
        "INSERT INTO redrive_plan (plan_id, group_id, state, reason, selection, created_by, created_at_ms,"
        " planned_up_to, planned) SELECT 'p', group_id, 'PLANNED', '', '{}', 'ops', 1, 1, 1 FROM dead_letter"
    ),
    "a message group beyond its queue's progress": "UPDATE message_group_progress SET next_offset = 99",
    "a message group that is neither locked nor open": "DELETE FROM delivery WHERE message_group = 'held'",
    "an open message group whose first message is held": "UPDATE message_group_progress SET open_since_ms = 1",
    "a message group whose first message is ready and that is not open": "DELETE FROM message_group_progress",
    "an entry of the index of keys without its message": "INSERT INTO keyed_message VALUES (1, 1, 1)",
    "an open message group that is paused": (
        "INSERT INTO pause SELECT group_id, topic_id, message_group, queue_id, 1, ''"
        " FROM message_group_progress WHERE open_since_ms IS NOT NULL"
    ),
    # SQLite's keys would refuse these.
    "a message that a group has twice": (
        "ALTER TABLE delivery RENAME TO one; CREATE TABLE delivery AS SELECT * FROM one UNION ALL SELECT * FROM one;"
        "UPDATE delivery SET uncounted = 1 WHERE rowid > (SELECT COUNT(*) / 2 FROM delivery)"
    ),
    "a message group with two positions": (
        "ALTER TABLE message_group_progress RENAME TO one;"
        "CREATE TABLE message_group_progress AS SELECT * FROM one UNION ALL SELECT * FROM one;"
        "UPDATE message_group_progress SET next_offset = next_offset + 1"
        " WHERE rowid > (SELECT COUNT(*) / 2 FROM message_group_progress)"
    ),
    "a paused message group without its position": (
        "INSERT INTO pause SELECT group_id, topic_id, 'other', queue_id, 1, '' FROM message_group_progress LIMIT 1"
    ),
    "a provisional ack with nothing before it": (
        "UPDATE delivery SET state = 'ACKED_PROVISIONALLY' WHERE state = 'READY'"
    ),
    "a delivery of a message its message group has not reached": "UPDATE message_group_progress SET next_offset = 0",
    "a delivery in a message group before its start": "UPDATE progress SET start_offset = 1",
    "a message group before its start": "UPDATE progress SET start_offset = next_offset",
    "a message before its queue's beginning": "UPDATE queue SET min_offset = next_offset WHERE next_offset > 2",
    "a queue that begins beyond its end": "UPDATE queue SET min_offset = 99",
    "a start beyond the progress": "UPDATE progress SET start_offset = 99",
    "a queue that a group of its topic does not read": (
        "INSERT INTO queue (topic_id, number, min_offset, next_offset)"
        " SELECT topic_id, 9, 0, 0 FROM topic WHERE name = 'ordered'"
    ),
    "a message group of another topic": "UPDATE message_group_progress SET topic_id = topic_id % 3 + 1",
    "a message group assigned as in a group of another kind": "UPDATE message_group_progress SET subscriber = 'c1'",
    "a message group with one message that has more": (
        "UPDATE message_group_progress SET is_single = 1, next_offset = 0"
    ),
    "a lite subscription without its client": "DELETE FROM lite_client",
    "a lite client of a group or topic that does not exist": "DELETE FROM consumer_group WHERE lite IS NOT NULL",
    "a lite topic of a topic that does not exist": "DELETE FROM topic WHERE lite_topics > 0",
    "a topic that miscounts its lite topics": "UPDATE topic SET lite_topics = 5 WHERE lite_topics > 0",
    "a message group assigned to a client that does not subscribe to it": "DELETE FROM lite_subscription",
    "a message group assigned to no client, though one subscribes to it": (
        "UPDATE message_group_progress SET subscriber = NULL WHERE subscriber <> ''"
    ),
}


@pytest.fixture
def filled(sqlite_url: str) -> Iterator[OpenStore]:
    """A sound store with a message held and one dead, a message group locked and one open; damaged, it is left
    uninspected."""
    opening = open_store(sqlite_url)
    store = opening.__enter__()
    _use_message_groups(store)
    _use_lite_topics(store)
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    dead, _held, _other = store.receive(group, topic, invisible_ms=HOUR)
    store.forward(group, dead)
    _retry(store)
    yield store
    store.conn.close()
    store.database.close()


def _retry(store: OpenStore) -> None:
    """A group that owns whole queues has handed a message back, and its retry is there."""
    topic = store.topic("pulled")
    group = pull_group(store, "puller")
    store.send(topic)
    hand_back(store, group, topic, delay_level=1)
    store.end_due(after_ms=SECOND)


def _use_message_groups(store: OpenStore) -> None:
    topic = store.topic("ordered", accepts=(MessageType.FIFO,))
    group = store.group("worker", meets=[topic])
    store.send(topic, [*in_order("held", 3, topic.name), *in_order("open", 1, topic.name)])
    store.receive(group, topic, 2, invisible_ms=HOUR)
    (held,) = store.receive(group, topic)
    store.change(group, held, 0, give_back=True)


def _use_lite_topics(store: OpenStore) -> None:
    topic = store.topic("sessions", accepts=(MessageType.LITE,))
    group = store.group("listener", meets=[topic], lite=LiteModel.SHARED)
    store.one(subscriptions.sync, subscriptions.SyncLite(group, topic, "c1", ["one", "two"]))
    store.send(topic, [*lite_messages("one", 2, topic.name), *lite_messages("two", 1, topic.name)])
    (held,) = store.receive(group, topic, 1)
    assert held.stored.message.message_group in ("one", "two")
    assert store.receive(group, topic, client_id="c2") == [], "it passes messages of the other client, which wait"


def test_every_invariant_can_be_broken() -> None:
    assert set(DAMAGE) == set(INVARIANTS)


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_a_broken_invariant_is_named(filled: OpenStore, invariant: str) -> None:
    check_integrity(filled.conn)
    for damage in DAMAGE[invariant].split(";"):
        filled.conn.exec_driver_sql(damage)
    broken = [name for name, query in INVARIANTS.items() if filled.conn.execute(statement(filled.conn, query)).scalar()]
    assert invariant in broken
    with pytest.raises(StoreUnavailable) as refusal:
        check_integrity(filled.conn)
    said = refusal.value.sentence
    assert all(re.search(rf"{name} \([1-9]\d*\)", said) for name in broken), "all of it at once"
    assert ("restore a backup" if {*broken} - {each.name for each in STUCK} else "popmq repair") in said


def test_a_check_reads_each_queue_of_a_group_once(postgres_database: Database) -> None:
    """Counted in blocks: 20 for each queue, and three for each pair of queues where each reads all others."""
    queues = 512
    with emptied(postgres_database) as store:
        store.group(meets=[store.topic(queues=queues)])
        store.conn.exec_driver_sql("ANALYZE")
        before = blocks_read(store)
        check_integrity(store.conn)
        assert blocks_read(store) - before <= 50 * queues


def test_a_check_reads_each_lite_topic_once(postgres_database: Database) -> None:
    """Counted in blocks: 31 for each, and 75 where each reads the index of all others. The statistics are older than
    the lite topics."""
    count = 10_000
    numbers = f"generate_series(1, {count}) n"
    with emptied(postgres_database) as store:
        topic = store.topic(accepts=(MessageType.LITE,))
        group = store.group(meets=[topic], lite=LiteModel.SHARED)
        store.conn.exec_driver_sql("ANALYZE")
        place = f"{group.group_id}, {topic.topic_id}"
        store.conn.exec_driver_sql(f"INSERT INTO lite_client VALUES ({place}, 'c', 1)")
        store.conn.exec_driver_sql(
            f"INSERT INTO lite_subscription SELECT {place}, 'l' || n, 'c', {topic.queues[0].queue_id} FROM {numbers}"
        )
        store.conn.exec_driver_sql(
            "INSERT INTO message_group_progress (group_id, topic_id, queue_id, message_group, next_offset, subscriber,"
            f" open_since_ms) SELECT {place}, {topic.queues[0].queue_id}, 'l' || n, 0, 'c', 1 FROM {numbers}"
        )
        before = blocks_read(store)
        check_integrity(store.conn)
        assert blocks_read(store) - before <= 50 * count
