"""A dead letter of a lite topic goes back to its lite topic."""

from __future__ import annotations

import pytest

from popserver.lite import subscriptions
from popserver.lite.subscriptions import SyncLite
from popserver.model.group import Group, LiteModel
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic
from tests.support.lite_broker import lite_messages, subscribe
from tests.support.open_store import OpenStore, ids
from tests.support.redrive import give_up, letters, redrive_all


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(queues=2, accepts=(MessageType.LITE,))


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic], lite=LiteModel.SHARED)


def test_it_comes_to_who_subscribes_to_its_lite_topic(store: OpenStore, topic: Topic, group: Group) -> None:
    subscribe(store, group, topic, "one", "a")
    subscribe(store, group, topic, "two", "b")
    store.send(topic, [*lite_messages("a", 2, topic.name), *lite_messages("b", 1, topic.name)])
    held = store.receive(group, topic, 1, client_id="one")
    give_up(store, group, held)
    (letter,) = letters(store, group)
    assert (letter.lite_topic, letter.message_type, letter.message_group) == ("a", "LITE", None)
    assert redrive_all(store, group) == (1, 0)
    assert store.states(group)[ids(held)[0]] == State.READY
    of_two = store.receive(group, topic, client_id="two")
    assert [each.stored.message.message_group for each in of_two] == ["b"]
    back = [each for _ in range(2) for each in store.receive(group, topic, client_id="one")]
    assert set(ids(back)) > set(ids(held)) and len(back) == 2
    for each in back:
        message = each.stored.message
        assert (message.message_type, message.message_group, message.topic) == (MessageType.LITE, "a", topic.name)
        assert store.ack(group, each) == [None]
    assert store.receive(group, topic, client_id="one") == []


def test_what_nobody_subscribes_to_waits(store: OpenStore, topic: Topic, group: Group) -> None:
    subscribe(store, group, topic, "one", "a")
    store.send(topic, lite_messages("a", 1, topic.name))
    held = store.receive(group, topic, 1, client_id="one")
    give_up(store, group, held)
    store.one(subscriptions.sync, SyncLite(group, topic, "one", (), remove=["a"]))
    assert redrive_all(store, group) == (1, 0)
    assert store.receive(group, topic, client_id="one") == []
    subscribe(store, group, topic, "two", "a")
    assert ids(store.receive(group, topic, client_id="two")) == ids(held)
