"""A redriven message in a bulk receive is what it is in any receive: one of its topic, with its plan."""

from __future__ import annotations

from popserver.bulk import attempts, pages
from popserver.bulk.rules import columns_named, sources_of
from popserver.model.message import REDRIVE_PLAN
from popserver.model.topic import offset_of, queue_of
from tests.support.open_store import OpenStore, a_receive
from tests.support.redrive import die, redrive_all


def test_it_is_told_as_a_message_of_its_first_place(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    group = store.group(meets=[topic])
    dead = die(store, group, topic, 2, queue=1, properties={"p": "v"})
    redrive_all(store, group)
    store.send(topic, 1, queue=0)
    answer = store.one(attempts.receive, attempts.ReceiveAttempt(a_receive(group, topic, 10, attempt_id="a")))
    assert [each.attempt for each in answer.held] == [1, 1, 1]
    keys = [each.message_key for each in answer.held]
    page, left = pages.first_of(store.conn, topic, keys, sources_of(columns_named([]), topic.name.name))
    found, standard = page.columns, store.receive(group, topic, attempt_id="a")
    assert left == []
    assert {*dead} < {*found.values["message_id"]}
    told = zip(found.values["message_id"], found.shown_keys, found.values["properties"], strict=True)
    assert [(name, page.numbers[queue_of(key)], offset_of(key), properties) for name, key, properties in told] == [
        (each.stored.message.message_id, each.stored.queue_number, each.stored.offset, each.stored.message.properties)
        for each in standard
    ]
    plans = [properties.get(REDRIVE_PLAN) for properties in found.values["properties"]]
    assert sorted(map(str, plans)) == ["None", "p1", "p1"]
