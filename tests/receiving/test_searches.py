"""What a search remembers, what it reads of bodies, and which messages it leaves alone."""

from __future__ import annotations

import pytest

from popserver.catalog import topics
from popserver.dead_letters.rules import RedriveItem
from popserver.delivery.queues_to_read import OpenFrom, ReadyFrom
from popserver.engine.transaction import Transaction
from popserver.filters import sql
from popserver.messages.by_key import DEFERRED, SMALL_BODY_BYTES
from popserver.model.names import dead_letter_topic
from popserver.model.topic import MessageType, message_key
from popserver.receiving import message_groups, receive, scan
from popserver.receiving.batch import Judged, KeyRange, remember_first, search_bounds
from tests.support.builders import in_order, messages_of
from tests.support.open_store import START_MS, OpenStore, a_receive, receipt_of
from tests.support.progress import ORDERED, offsets_of
from tests.support.redrive import die, letter_ids, order


def test_the_next_search_begins_where_the_last_one_found_something(store: OpenStore) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer, and its indexes have no old entries")
    topic, other = store.topic(accepts=ORDERED), store.topic("other", accepts=ORDERED)
    group = store.group(meets=[topic, other])
    tx = Transaction.at(store.conn, START_MS)
    batch = receive.receive_batch_of([a_receive(group, topic)])
    elsewhere = receive.receive_batch_of([a_receive(group, other)])
    for each in (batch, elsewhere):
        assert search_bounds(tx, each) == {"ready_from": 0, "open_from": 0}
    remember_first(tx, batch, ReadyFrom, START_MS - 5_000)
    remember_first(tx, batch, OpenFrom, START_MS - 7_000)
    for done in tx.after_commit:
        done()
    assert search_bounds(tx, batch) == {"ready_from": START_MS - 5_000, "open_from": START_MS - 7_000}
    assert search_bounds(tx, batch._replace(takes_groups=False))["open_from"] == 0
    assert search_bounds(tx, elsewhere) == {"ready_from": 0, "open_from": 0}


def test_large_bodies_of_open_message_groups_are_read_when_they_are_granted(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    store.send(topic, [each._replace(body=bytes(SMALL_BODY_BYTES + 1)) for each in in_order("g", 4)])
    (held,) = store.receive(group, topic, 1)
    assert store.receive(group, topic) == []
    store.ack(group, held)
    batch = receive.receive_batch_of([a_receive(group, topic)])
    with store.rolled_back() as tx:
        queues = scan.lock_queues(tx, batch)
        found, is_all = message_groups.find(tx, batch, queues, repeats_max=32, limit=32, heads_only=False)
    assert [each.row.body for open_group in found for each in open_group.found] == [DEFERRED] * 3
    assert is_all


def test_nothing_is_granted_before_an_urgent_message_that_the_filter_has_not_judged(store: OpenStore) -> None:
    topic = store.topic(queues=4, accepts=(MessageType.PRIORITY,))
    group = store.group(meets=[topic])
    for priority in (0, 9):
        store.send(topic, messages_of(1, priority=priority, message_type=MessageType.PRIORITY))
    queue_of = {row.queue_id: row.number for row in store.rows("SELECT queue_id, number FROM queue")}
    rows = store.rows("SELECT message_key FROM message ORDER BY message_key")
    low, urgent = sorted((row.message_key for row in rows), key=lambda key: queue_of[key >> 40])
    ranges = {key >> 40: KeyRange(key, key + 1, [key]) for key in (low, urgent)}
    wanted = sql.parse("a = 1")
    only_low = Judged({low >> 40: ranges[low >> 40]}, {})
    received = store.one(receive.receive, a_receive(group, topic, wanted=wanted, judged=only_low))
    assert (received.deliveries, received.more) == ([], True)
    received = store.one(receive.receive, a_receive(group, topic, wanted=wanted, judged=Judged(ranges, {})))
    assert len(received.deliveries) == 2


def test_of_its_own_dead_letters_a_group_reads_those_that_were_not_sent_back_to_it(store: OpenStore) -> None:
    """What was sent back has a delivery already, at the key of the dead letter."""
    topic = store.topic()
    group, other = store.group(meets=[topic]), store.group("other", meets=[topic])
    die(store, group, topic, 3)
    order(store, group, [RedriveItem(letter_ids(store, group)[1])])
    letters = topics.find_topic(store.conn, dead_letter_topic(group.name))
    assert letters is not None
    for each in (group, other):
        store.meet(each, letters)
    assert offsets_of(store.receive(group, letters)) == [0, 2]
    assert offsets_of(store.receive(other, letters)) == [0, 1, 2]
    (back,) = store.receive(group, topic)
    assert receipt_of(back).message_key == message_key(letters.queues[0].queue_id, 1)
    assert store.ack(group, back) == [None]
