"""What is written for a message that dies: facts, a copy, a step of the history; once for each message and group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from popserver.catalog import topics
from popserver.dead_letters.rules import RedriveItem, Repair
from popserver.delivery import dead_letter_topic
from popserver.delivery.dead_letter_topic import DeadLetterCandidate, ImportedLetter, NewDeadLetters, Origin
from popserver.engine import transaction
from popserver.engine.transaction import Transaction
from popserver.model.group import Group, HistoryLevel
from popserver.model.message import REDRIVE_OF, REDRIVE_PLAN, Delivery
from popserver.model.names import dead_letter_topic as name_of
from popserver.model.states import CopyKind, Event
from popserver.model.topic import SYSTEM_QUEUES, Topic, message_key
from tests.support.builders import a_message
from tests.support.open_store import OpenStore, receipt_of
from tests.support.plans import Plans
from tests.support.progress import states_by_offset
from tests.support.redrive import order, redrive_all


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    store.topic("another")
    made = store.topic()
    store.send(made, [a_message(made.name, properties={"n": str(number)}, tag="A") for number in range(6)])
    return made


@pytest.fixture
def groups(store: OpenStore, topic: Topic) -> list[Group]:
    return [store.group(name, meets=[topic], history=HistoryLevel.ALL) for name in ("a", "b")]


@pytest.fixture
def tx(store: OpenStore, groups: list[Group]) -> Iterator[Transaction]:
    """A transaction that commits after the test."""
    assert groups, "they are there before it begins"
    store.now_ms += 9
    store.database.begin(store.conn)
    opened = Transaction.at(store.conn, store.now_ms)
    yield opened
    store.conn.exec_driver_sql("COMMIT")


def key_of(topic: Topic, offset: int) -> int:
    return message_key(topic.queues[0].queue_id, offset)


def died(topic: Topic, *offsets: int) -> list[DeadLetterCandidate]:
    return [DeadLetterCandidate(key_of(topic, each), topic.topic_id, each + 1, f"c{each}") for each in offsets]


def facts(store: OpenStore) -> list[tuple[Any, ...]]:
    columns = "group_id, origin_key, origin_topic_id, attempt, reason, dead_at_ms, redrive_state, plan_id"
    return [tuple(row) for row in store.rows(f"SELECT {columns} FROM dead_letter ORDER BY dead_letter_id")]


def copies(store: OpenStore, group: Group) -> list[Any]:
    query = (
        "SELECT m.copy_of, m.copy_kind, m.tag, m.properties, m.message_key, m.topic_id FROM message m JOIN topic t"
        " ON t.topic_id = m.topic_id WHERE t.name = :name ORDER BY m.message_key"
    )
    return store.rows(query, name=name_of(group.name).name)


@pytest.mark.parametrize("rows_max", [2, 1_000])
def test_each_has_its_facts_its_copy_and_its_step(
    store: OpenStore,
    topic: Topic,
    groups: list[Group],
    tx: Transaction,
    monkeypatch: pytest.MonkeyPatch,
    rows_max: int,
) -> None:
    monkeypatch.setattr(transaction, "STEP_ROWS_MAX", rows_max)
    for group, offsets in ((groups[1], (4, 0)), (groups[0], (1,)), (groups[1], (2, 3, 1))):
        dead_letter_topic.move_to_dead_letters(tx, group, died(topic, *offsets), Event.EXHAUST, f"why {offsets[0]}")
    assert facts(store) == [], "they are written at the end"
    tx.finish()
    whys = {(0, 1): 1, (1, 0): 4, (1, 1): 2, (1, 2): 2, (1, 3): 2, (1, 4): 4}
    assert facts(store) == [
        (groups[of].group_id, key_of(topic, at), topic.topic_id, at + 1, f"why {why}", store.now_ms, None, None)
        for (of, at), why in whys.items()
    ], "by group and message"
    for group, expected in ((groups[0], [1]), (groups[1], [0, 1, 2, 3, 4])):
        rows = copies(store, group)
        assert [row.copy_of for row in rows] == [key_of(topic, at) for at in expected]
        assert [(row.copy_kind, row.tag) for row in rows] == [(CopyKind.DEAD_LETTER, "A")] * len(expected)
        assert [row.properties for row in rows] == [f'{{"n": "{at}"}}' for at in expected]
        linked = "SELECT copy_key FROM dead_letter WHERE group_id = :id ORDER BY origin_key"
        assert [row.message_key for row in rows] == [row[0] for row in store.rows(linked, id=group.group_id)]
        assert rows[0].topic_id in tx.ready_topics
    steps = store.rows(
        "SELECT group_id, message_key, event, attempt, client_id, reason FROM history ORDER BY history_id"
    )
    assert [tuple(row) for row in steps] == [
        (group.group_id, key_of(topic, at), "EXHAUST", at + 1, f"c{at}", f"why {offsets[0]}")
        for group, offsets in ((groups[1], (4, 0)), (groups[0], (1,)), (groups[1], (2, 3, 1)))
        for at in offsets
    ]


def test_one_that_dies_again_keeps_its_copy(store: OpenStore, topic: Topic, groups: list[Group]) -> None:
    for reason in ("first", "second"):
        store.database.begin(store.conn)
        tx = Transaction.at(store.conn, store.now_ms)
        offsets = (1,) if reason == "first" else (0, 1, 2)
        dead_letter_topic.move_to_dead_letters(tx, groups[0], died(topic, *offsets), Event.EXHAUST, reason)
        tx.finish()
        store.conn.exec_driver_sql("COMMIT")
        store.now_ms += 1
    assert [row.copy_of for row in copies(store, groups[0])] == [key_of(topic, at) for at in (1, 0, 2)]
    assert sorted((row[1], row[4]) for row in facts(store)) == [(key_of(topic, at), "second") for at in (0, 1, 2)]
    keys = dict(tuple(row) for row in store.rows("SELECT origin_key, copy_key FROM dead_letter"))
    assert [keys[row.copy_of] for row in copies(store, groups[0])] == [
        row.message_key for row in copies(store, groups[0])
    ]


def test_twice_in_one_transaction_the_last_one_counts(
    store: OpenStore, topic: Topic, groups: list[Group], tx: Transaction
) -> None:
    for reason in ("first", "second"):
        dead_letter_topic.move_to_dead_letters(tx, groups[0], died(topic, 1), Event.FORWARD_TO_DLQ, reason)
    tx.finish()
    assert [row[4] for row in facts(store)] == ["second"]
    assert len(copies(store, groups[0])) == 1


def test_one_message_that_dies_in_two_groups_at_once(
    store: OpenStore, topic: Topic, groups: list[Group], tx: Transaction
) -> None:
    for group in groups:
        dead_letter_topic.move_to_dead_letters(tx, group, died(topic, 1), Event.EXHAUST, group.name.name)
    tx.finish()
    assert [(row[0], row[4]) for row in facts(store)] == [(each.group_id, each.name.name) for each in groups]
    assert [len(copies(store, each)) for each in groups] == [1, 1]


def test_a_candidate_knows_where_it_comes_from(topic: Topic) -> None:
    (plain,) = died(topic, 2)
    assert (plain.origin_key, plain.origin_topic_id) == (key_of(topic, 2), topic.topic_id)
    moved = plain._replace(origin=Origin(77, 88, None))
    assert (moved.origin_key, moved.origin_topic_id) == (77, 88)


def test_the_properties_of_an_origin_are_those_of_the_copy(
    store: OpenStore, topic: Topic, groups: list[Group], tx: Transaction
) -> None:
    (one, other) = died(topic, 0, 1)
    several = [
        one._replace(origin=Origin(key_of(topic, 4), topic.topic_id, '{"own": "yes"}')),
        other._replace(origin=Origin(key_of(topic, 5), topic.topic_id, None)),
    ]
    dead_letter_topic.move_to_dead_letters(tx, groups[0], several, Event.EXHAUST, "")
    tx.finish()
    assert [row[1] for row in facts(store)] == [key_of(topic, 4), key_of(topic, 5)]
    assert [row.properties for row in copies(store, groups[0])] == ['{"own": "yes"}', None]


def redriven(store: OpenStore, group: Group, topic: Topic) -> Delivery:
    """The message of offset 3, which has another key now."""
    (again,) = [each for each in store.receive(group, topic) if receipt_of(each).message_key != key_of(topic, 3)]
    return again


def test_a_redriven_message_dies_where_it_came_from_first(store: OpenStore, topic: Topic, groups: list[Group]) -> None:
    group = groups[0]
    held = store.receive(group, topic)
    assert store.forward(group, held[3]) is None
    redrive_all(store, group)
    again = redriven(store, group, topic)
    assert store.forward(group, again) is None
    assert store.forward(group, held[4]) is None
    assert states_by_offset(store, group, topic) == "IIIDDI"
    assert sorted(row[1] for row in facts(store)) == [key_of(topic, 3), key_of(topic, 4)]
    assert store.rows("SELECT 1 FROM delivery WHERE message_key = :key", key=receipt_of(again).message_key) == []


def test_a_new_copy_of_a_redriven_message_has_no_property_of_its_retry(
    store: OpenStore, topic: Topic, groups: list[Group]
) -> None:
    """The topic of its dead letter and of the first copy was deleted meanwhile."""
    group = groups[0]
    held = store.receive(group, topic)
    assert store.forward(group, held[3]) is None
    (row,) = store.rows("SELECT dead_letter_id FROM dead_letter")
    order(store, group, [RedriveItem(row.dead_letter_id, repair=Repair(b"whole"))])
    store.one(topics.delete_topic, topics.DeleteTopic(name_of(group.name)))
    store.purge()
    again = redriven(store, group, topic)
    assert store.forward(group, again) is None
    (copy,) = copies(store, group)
    assert json.loads(copy.properties).keys() == {"n", REDRIVE_OF, REDRIVE_PLAN}


def test_a_redriven_message_dies_beside_one_with_an_origin_of_its_own(
    store: OpenStore, topic: Topic, groups: list[Group]
) -> None:
    group = groups[0]
    held = store.receive(group, topic)
    assert store.forward(group, held[3]) is None
    redrive_all(store, group)
    again = redriven(store, group, topic)
    store.database.begin(store.conn)
    tx = Transaction.at(store.conn, store.now_ms)
    one = DeadLetterCandidate(receipt_of(again).message_key, topic.topic_id, 1, "c1")
    copied = died(topic, 0)[0]._replace(origin=Origin(key_of(topic, 4), topic.topic_id, None))
    dead_letter_topic.move_to_dead_letters(tx, group, [one, copied], Event.EXHAUST, "")
    tx.finish()
    dead = sorted(row[1] for row in facts(store))
    store.conn.exec_driver_sql("ROLLBACK")
    assert dead == [key_of(topic, 3), key_of(topic, 4)]


@pytest.mark.parametrize("kind", ["own", "imported", "none"])
def test_whoever_writes_dead_letters_locks_the_order_of_their_ids(
    store: OpenStore, topic: Topic, groups: list[Group], tx: Transaction, kind: str
) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    letter = ImportedLetter(a_message(name_of(groups[0].name)), topic.topic_id, 1, "", 1)
    if kind == "own":
        dead_letter_topic.move_to_dead_letters(tx, groups[0], died(topic, 0), Event.EXHAUST, "")
    tx.at_end(NewDeadLetters).imported += [(groups[0], [letter])] if kind == "imported" else []
    tx.finish()
    locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
    assert store.one_value(locks) == (0 if kind == "none" else 1)


def test_letters_of_one_group_are_written_together(store: OpenStore, topic: Topic, groups: list[Group]) -> None:
    counts = []
    for offsets in ((0,), (1, 2, 3)):
        store.database.begin(store.conn)
        tx = Transaction.at(store.conn, store.now_ms)
        dead_letter_topic.move_to_dead_letters(tx, groups[0], died(topic, *offsets), Event.EXHAUST, "")
        plans = Plans(store)
        with plans.caught():
            tx.finish()
        store.conn.exec_driver_sql("COMMIT")
        counts.append(plans.count)
    assert counts[1] <= counts[0], "the first one makes the topic"


def test_letters_of_another_broker_are_their_own_copies(
    store: OpenStore, topic: Topic, groups: list[Group], tx: Transaction
) -> None:
    group = groups[1]
    batch = [a_message(name_of(group.name), body=str(number).encode()) for number in range(3)]
    letters = [ImportedLetter(each, topic.topic_id, at + 4, f"no {at}", 100 + at) for at, each in enumerate(batch)]
    dead_letter_topic.move_to_dead_letters(tx, group, died(topic, 0), Event.EXHAUST, "own")
    tx.at_end(NewDeadLetters).imported += [(group, letters[:2]), (groups[0], letters[2:])]
    tx.finish()
    rows = store.rows(
        "SELECT d.group_id, d.origin_key, d.copy_key, d.origin_topic_id, d.attempt, d.reason, d.dead_at_ms, m.body"
        " FROM dead_letter d JOIN message m ON m.message_key = d.copy_key ORDER BY d.dead_letter_id"
    )
    own, *imported = rows
    assert own.reason == "own"
    assert [(row.group_id, *row[3:7], bytes(row.body)) for row in imported] == [
        (of.group_id, topic.topic_id, at + 4, f"no {at}", 100 + at, str(at).encode())
        for of, at in ((group, 0), (group, 1), (groups[0], 2))
    ]
    assert [row.origin_key for row in imported] == [row.copy_key for row in imported]
    assert imported[0].copy_key == own.copy_key + 1
    queues = "SELECT number FROM queue JOIN topic ON topic.topic_id = queue.topic_id WHERE topic.name = :name"
    assert len(store.rows(queues, name=name_of(groups[0].name).name)) == SYSTEM_QUEUES
    for each in groups:
        assert {row.topic_id for row in copies(store, each)} <= tx.ready_topics


def test_without_any_nothing_is_written(store: OpenStore, tx: Transaction) -> None:
    before = store.digest()
    tx.at_end(NewDeadLetters)
    tx.finish()
    assert store.digest() == before
    assert tx.ready_topics == set()
