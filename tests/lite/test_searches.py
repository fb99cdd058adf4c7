"""What a search of lite topics finds on the store: for each client, how many, in whose turn, and what is left over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from popserver.delivery.queues_to_read import ReadyFrom, ReadySearch
from popserver.maintenance import retention
from popserver.messages.by_key import DEFERRED, SMALL_BODY_BYTES
from popserver.model.group import Group, LiteModel
from popserver.model.message import Delivery
from popserver.model.topic import MessageType, Topic, offset_of, queue_of_group
from popserver.receiving import lite, lite_scan, receive
from popserver.receiving.batch import Found, Receive, Received
from popserver.receiving.lite import LiteFound
from tests.support.lite_broker import lite_messages, lite_topics_of, subscribe
from tests.support.locked_rows import locked
from tests.support.open_store import START_MS, OpenStore, a_receive
from tests.support.progress import offsets_of
from tests.support.redrive import give_up, redrive_all

LARGE = bytes(SMALL_BODY_BYTES + 1)


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(queues=2, accepts=(MessageType.LITE,))


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic], lite=LiteModel.SHARED)


@pytest.fixture
def other(store: OpenStore) -> Iterator[OpenStore]:
    """Another server on the same database, which holds locks."""
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    other = OpenStore(store.database)
    yield other
    other.conn.close()


def send(store: OpenStore, topic: Topic, *names: str, count: int = 1, body: bytes = b"x") -> None:
    store.send(topic, [each for name in names for each in lite_messages(name, count, topic.name, body=body)])


def passed(store: OpenStore, group: Group, topic: Topic, *names: str, count: int = 1, body: bytes = b"x") -> None:
    """New messages of these lite topics, which the scan passes while their client does not ask."""
    for name in names:
        store.now_ms += 1
        send(store, topic, name, count=count, body=body)
        assert store.receive(group, topic, client_id="nobody") == []


def redriven(store: OpenStore, group: Group, topic: Topic, client_id: str, name: str, count: int) -> list[Delivery]:
    send(store, topic, name, count=count)
    held = store.receive(group, topic, count, client_id=client_id)
    assert len(held) == count
    give_up(store, group, held)
    assert redrive_all(store, group) == (count, 0)
    return held


def found_behind(store: OpenStore, *several: Receive) -> LiteFound:
    """What a search finds of messages that the scan has passed."""
    batch = receive.receive_batch_of(several)
    with store.rolled_back() as tx:
        return lite.find(tx, batch, lite.clients_of(batch, several))


def found_by(store: OpenStore, *several: Receive) -> Found:
    """All that a search finds."""
    with store.rolled_back() as tx:
        return lite_scan.find(tx, receive.receive_batch_of(several), several)


def progress_of(store: OpenStore) -> int:
    """How many messages the scan has passed."""
    return int(store.one_value("SELECT SUM(next_offset) FROM progress"))


def lite_topics_found(found: LiteFound, client_id: str) -> list[tuple[str, int]]:
    """The lite topics that the client gets, and how many messages of each."""
    return [(each.group_key.message_group, len(each.found)) for each in found.open_groups.get(client_id, ())]


def received(store: OpenStore, request: Receive) -> tuple[int, bool]:
    """How many messages it gets, and whether some may be left."""
    answer = store.one(receive.receive, request)
    return len(answer.deliveries), answer.more


def locked_progress(topic: Topic, *lite_topics: str) -> str:
    """A statement that locks the groups' progress in the queues of these lite topics, or in all."""
    named = (queue_of_group(topic, name) for name in lite_topics) if lite_topics else topic.queues
    return f"SELECT 1 FROM progress WHERE queue_id IN ({', '.join(str(each.queue_id) for each in named)}) FOR UPDATE"


class TestRedrivenMessages:
    def test_are_half_of_what_a_client_wants(self, store: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", "a")
        redriven(store, group, topic, "one", "a", 4)
        found = found_behind(store, a_receive(group, topic, 5, client_id="one"))
        assert len(found.again["one"]) == 2
        assert (found.capacities, found.left_over) == ({"one": 3}, True)

    def test_come_in_each_second_search_for_one_message(self, store: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", "a")
        redriven(store, group, topic, "one", "a", 1)
        for rotation in range(4):
            found = found_behind(store, a_receive(group, topic, 1, client_id="one", rotation=rotation))
            assert len(found.again["one"]) == rotation % 2
            assert found.left_over

    def test_go_to_one_client_of_those_that_subscribe(self, store: OpenStore, topic: Topic, group: Group) -> None:
        for client_id in ("one", "two"):
            subscribe(store, group, topic, client_id, "a")
        redriven(store, group, topic, "one", "a", 3)
        both = [a_receive(group, topic, 2, client_id=client_id) for client_id in ("one", "two")]
        again = found_behind(store, *both).again
        assert {client_id: len(rows) for client_id, rows in again.items()} == {"one": 1, "two": 1}
        keys = [row.message_key for rows in again.values() for row in rows]
        assert len(set(keys)) == 2

    def test_are_where_the_next_search_begins(self, store: OpenStore, topic: Topic, group: Group) -> None:
        if store.database.is_sqlite:
            pytest.skip("SQLite has one writer, and its indexes have no old entries")
        subscribe(store, group, topic, "one", "a")
        redriven(store, group, topic, "one", "a", 1)
        store.now_ms += 10_000
        assert store.receive(group, topic, client_id="nobody") == []
        assert store.memory[ReadyFrom].of(ReadySearch(group.group_id, topic.topic_id), store.now_ms) == START_MS


class TestOpenLiteTopics:
    def test_with_one_message_come_first(self, store: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", *"abcd")
        passed(store, group, topic, "a", count=20)
        passed(store, group, topic, "b", "c", "d")
        found = found_behind(store, a_receive(group, topic, 8, client_id="one"))
        assert lite_topics_found(found, "one") == [("b", 1), ("c", 1), ("d", 1), ("a", 4)]
        assert (found.capacities, found.left_over) == ({"one": 1}, False)

    def test_with_many_messages_share_what_is_wanted(self, store: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", *"abc")
        passed(store, group, topic, *"abc", count=20)
        found = found_behind(store, a_receive(group, topic, 16, client_id="one"))
        assert lite_topics_found(found, "one") == [("a", 8), ("b", 8)]
        assert found.capacities == {"one": 0}

    def test_with_few_messages_leave_room_for_others(self, store: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", *"abcd")
        passed(store, group, topic, *"abcd", count=2)
        found = found_behind(store, a_receive(group, topic, 16, client_id="one"))
        assert lite_topics_found(found, "one") == [("a", 2), ("b", 2), ("c", 2), ("d", 2)]
        assert (found.capacities, found.left_over) == ({"one": 8}, False)

    def test_may_be_left_if_a_client_gets_as_many_as_it_wants(
        self, store: OpenStore, topic: Topic, group: Group
    ) -> None:
        subscribe(store, group, topic, "one", *"abc")
        passed(store, group, topic, *"abc")
        for wanted, is_left in ((2, True), (3, True), (4, False)):
            assert found_behind(store, a_receive(group, topic, wanted, client_id="one")).left_over is is_left

    def test_of_several_clients_are_granted_for_the_first_time(
        self, store: OpenStore, topic: Topic, group: Group
    ) -> None:
        subscribe(store, group, topic, "one", "a")
        subscribe(store, group, topic, "two", "b", "c")
        passed(store, group, topic, "a", "b", body=LARGE)
        passed(store, group, topic, "c", count=2)
        both = [a_receive(group, topic, 4, client_id=client_id) for client_id in ("one", "two")]
        found = found_behind(store, *both)
        assert lite_topics_found(found, "one") == [("a", 1)]
        assert lite_topics_found(found, "two") == [("b", 1), ("c", 2)]
        assert found.capacities == {"one": 3, "two": 1}
        single = [found.open_groups["one"][0].found[0], found.open_groups["two"][0].found[0]]
        assert [(each.attempt, each.has_delivery) for each in single] == [(1, False)] * 2
        assert [each.row.body for each in single] == [DEFERRED] * 2, "read when they are granted"
        for each in store.do(receive.receive, *both):
            assert isinstance(each, Received)
            assert [delivery.attempt for delivery in each.deliveries] in ([1], [1, 1, 1])

    def test_whose_message_retention_has_removed_are_open_no_more(
        self, store: OpenStore, topic: Topic, group: Group
    ) -> None:
        subscribe(store, group, topic, "one", "a")
        passed(store, group, topic, "a")
        store.now_ms += 10_000
        store.one(retention.retain, retention.Retain(store.now_ms - 1))
        found = found_behind(store, a_receive(group, topic, client_id="one"))
        assert lite_topics_found(found, "one") == [("a", 0)]
        assert received(store, a_receive(group, topic, client_id="one")) == (0, False)
        assert store.rows("SELECT 1 FROM message_group_progress") == []


class TestNewMessages:
    @pytest.mark.parametrize(("sent", "is_left"), [((1, 0), False), ((2, 0), True), ((1, 1), True), ((0, 0), False)])
    def test_may_be_left_if_a_client_gets_as_many_as_it_wants(
        self, store: OpenStore, topic: Topic, group: Group, sent: tuple[int, int], is_left: bool
    ) -> None:
        names = one_of_each_queue(topic)
        subscribe(store, group, topic, "one", *names)
        for name, count in zip(names, sent, strict=True):
            store.send(topic, lite_messages(name, count, topic.name))
        found = found_by(store, a_receive(group, topic, 1, client_id="one"))
        assert len(found.portions[0].found) == min(1, sum(sent))
        assert found.left_over is is_left

    @pytest.mark.parametrize(("most", "read"), [(1, 2), (2, 2), (3, 3), (4, 4), (9, 4)])
    def test_of_others_are_read_up_to_a_maximum(
        self, store: OpenStore, monkeypatch: pytest.MonkeyPatch, most: int, read: int
    ) -> None:
        """Between two queues the search may end."""
        monkeypatch.setattr(lite_scan, "_SCANNED_MAX", most)
        topic = store.topic(queues=3, accepts=(MessageType.LITE,))
        group = store.group(meets=[topic], lite=LiteModel.SHARED)
        for name, count in zip(one_of_each_queue(topic), (2, 1, 1), strict=True):
            send(store, topic, name, count=count)
        assert received(store, a_receive(group, topic, client_id="one")) == (0, read < 4)
        assert progress_of(store) == read

    @pytest.mark.parametrize(("wanted", "read"), [(1, 64), (64, 64), (65, 65), (70, 70)])
    def test_of_others_are_read_in_steps(
        self, store: OpenStore, topic: Topic, group: Group, wanted: int, read: int
    ) -> None:
        send(store, topic, "a", count=71)
        assert received(store, a_receive(group, topic, wanted, client_id="one")) == (0, True)
        assert progress_of(store) == read

    def test_that_retention_has_removed_are_passed(self, store: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", "a")
        send(store, topic, "a", count=2)
        store.now_ms += 10_000
        store.one(retention.retain, retention.Retain(store.now_ms - 1))
        assert received(store, a_receive(group, topic, client_id="one")) == (0, False)
        send(store, topic, "a")
        assert received(store, a_receive(group, topic, client_id="one")) == (1, False)

    def test_that_a_receive_cannot_take_wait_before_later_ones(
        self, store: OpenStore, topic: Topic, group: Group
    ) -> None:
        """A lite topic goes to one receive of a client, so the second one leaves the second message."""
        subscribe(store, group, topic, "one", "a")
        send(store, topic, "a", count=4)
        several = [a_receive(group, topic, size, client_id=each) for each, size in (("one", 1), ("one", 1), ("two", 9))]
        answers = [each for each in store.do(receive.receive, *several) if isinstance(each, Received)]
        assert [len(each.deliveries) for each in answers] == [1, 0, 0]
        store.ack(group, *answers[0].deliveries)
        rest = store.receive(group, topic, client_id="one")
        assert offsets_of(rest) == [1, 2, 3]

    def test_are_found_in_the_order_of_their_keys(self, store: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", "a")
        send(store, topic, "a", count=4)
        request = a_receive(group, topic, client_id="one")
        with store.without_indexes() as tx:
            if not store.database.is_sqlite:
                first = "(SELECT MIN(message_key) FROM message)"
                tx.conn.exec_driver_sql(f"UPDATE message SET tag = 'moved to the end' WHERE message_key = {first}")
            (portion,) = lite_scan.find(tx, receive.receive_batch_of([request]), [request]).portions
            assert [offset_of(each.row.message_key) for each in portion.found] == [0, 1, 2, 3]

    def test_with_large_bodies_are_read_when_they_are_granted(
        self, store: OpenStore, topic: Topic, group: Group
    ) -> None:
        subscribe(store, group, topic, "one", "a")
        send(store, topic, "a", body=LARGE)
        request = a_receive(group, topic, client_id="one")
        assert [each.row.body for each in found_by(store, request).portions[0].found] == [DEFERRED]
        (held,) = store.receive(group, topic, client_id="one")
        assert (held.stored.message.body, held.attempt) == (LARGE, 1)

    def test_do_not_wait_for_another_group(self, store: OpenStore, topic: Topic, group: Group) -> None:
        """It holds messages of one lite topic, and has not read those of another one."""
        other = store.group("other", meets=[topic], lite=LiteModel.SHARED)
        subscribe(store, other, topic, "theirs", "a", "b")
        subscribe(store, group, topic, "one", "a", "b")
        send(store, topic, "a")
        assert lite_topics_of(store.receive(other, topic, client_id="theirs")) == ["a"]
        passed(store, other, topic, "b")
        held = store.receive(group, topic, client_id="one")
        assert sorted(map(str, lite_topics_of(held))) == ["a", "b"]
        assert lite_topics_of(store.receive(other, topic, client_id="theirs")) == ["b"]

    def test_do_not_wait_for_a_lite_topic_of_the_same_name(self, store: OpenStore, topic: Topic, group: Group) -> None:
        """In another topic the group holds messages of one, and has not read those of the other one."""
        other = store.topic("other", queues=2, accepts=(MessageType.LITE,))
        store.meet(group, other)
        for each in (topic, other):
            subscribe(store, group, each, "one", "a", "b")
        send(store, other, "a")
        assert lite_topics_of(store.receive(group, other, client_id="one")) == ["a"]
        passed(store, group, other, "b")
        send(store, topic, "a", "b")
        assert sorted(map(str, lite_topics_of(store.receive(group, topic, client_id="one")))) == ["a", "b"]

    def test_wait_for_those_that_are_held_or_behind(self, store: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", "a", "b")
        send(store, topic, "a")
        (held,) = store.receive(group, topic, client_id="one")
        passed(store, group, topic, "b")
        send(store, topic, "a", "b")
        assert store.receive(group, topic, client_id="nobody") == []
        got = store.receive(group, topic, client_id="one")
        assert lite_topics_of(got) == ["b", "b"]
        assert store.ack(group, held) == [None]
        assert lite_topics_of(store.receive(group, topic, client_id="one")) == ["a"]


def test_each_receive_gets_what_is_for_its_client(store: OpenStore, topic: Topic, group: Group) -> None:
    subscribe(store, group, topic, "one", "a", "c")
    subscribe(store, group, topic, "two", "b")
    send(store, topic, "a", "b", "c")
    several = [a_receive(group, topic, 1, client_id=each) for each in ("one", "two", "one")]
    answers = [each for each in store.do(receive.receive, *several) if isinstance(each, Received)]
    first, second, third = (lite_topics_of(each.deliveries) for each in answers)
    assert (sorted(map(str, first + third)), second) == (["a", "c"], ["b"])


class TestQueuesOfAnotherServer:
    def test_have_messages_left(self, store: OpenStore, other: OpenStore, topic: Topic, group: Group) -> None:
        subscribe(store, group, topic, "one", "a")
        request = a_receive(group, topic, client_id="one")
        with locked(other, locked_progress(topic)):
            assert received(store, request) == (0, False)
        send(store, topic, "a")
        with locked(other, locked_progress(topic)):
            assert received(store, request) == (0, True)
        assert received(store, request) == (1, False)

    def test_are_left_over_beside_those_that_are_read(
        self, store: OpenStore, other: OpenStore, topic: Topic, group: Group
    ) -> None:
        names = one_of_each_queue(topic)
        subscribe(store, group, topic, "one", *names)
        request = a_receive(group, topic, client_id="one")
        with locked(other, locked_progress(topic, names[0])):
            assert received(store, request) == (0, False)
            send(store, topic, *names)
            assert found_behind(store, request).left_over
            assert received(store, request) == (1, True)
        assert received(store, request) == (1, False)

    def test_keep_their_open_lite_topics(self, store: OpenStore, other: OpenStore, topic: Topic, group: Group) -> None:
        names = one_of_each_queue(topic)
        subscribe(store, group, topic, "one", *names)
        passed(store, group, topic, *names)
        with locked(other, locked_progress(topic, names[0])):
            found = found_behind(store, a_receive(group, topic, client_id="one"))
            assert (lite_topics_found(found, "one"), found.left_over) == ([(names[1], 1)], True)
        found = found_behind(store, a_receive(group, topic, client_id="one"))
        assert (lite_topics_found(found, "one"), found.left_over) == ([(name, 1) for name in names], False)


def one_of_each_queue(topic: Topic) -> Sequence[str]:
    """A lite topic of each queue of the topic."""
    by_queue = {queue_of_group(topic, name).queue_id: name for name in "abcdefghijkl"}
    return [by_queue[queue.queue_id] for queue in topic.queues]
