"""The queues that a receive reads: those of its topic in which its group has something to read, and its progress."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from popserver.catalog.progress import QueueToScan
from popserver.database.rows import RowStatement, encode_rows
from popserver.delivery.queues_to_read import ENOUGH_QUEUES, IS_MORE_OF_LITE, LITE_QUEUES, QUEUE_QUERIES
from popserver.model.group import Group
from popserver.model.topic import Topic
from tests.support.builders import in_order
from tests.support.open_store import SECOND, START_MS, OpenStore
from tests.support.progress import ORDERED, reset
from tests.support.pulls import trim

pytestmark = pytest.mark.timeout(14)  # a statement that waits for a lock has no end

COUNTS = (5, 3, 0, 4)  # messages in each queue
AT = (1, 3, 0, 2)  # the group's progress: nothing is left in the second and the third queue


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    made = store.topic(queues=4, accepts=ORDERED)
    for number, count in enumerate(COUNTS):
        if count:
            store.send(made, count, queue=number)
    return made


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    """Beside another group, and another topic, with other progress."""
    elsewhere = store.topic("elsewhere", queues=2)
    store.send(elsewhere, 7, queue=1)
    made, other = (store.group(name, meets=[topic, elsewhere]) for name in ("billing", "other"))
    for number, offset in enumerate(AT):
        reset(store, made, topic, offset, queue=number)
    reset(store, other, topic, 0)
    return made


@pytest.fixture
def tx(store: OpenStore, group: Group) -> Iterator[OpenStore]:
    store.database.begin(store.conn)
    yield store
    store.conn.exec_driver_sql("ROLLBACK")


def found(
    store: OpenStore, query: RowStatement[QueueToScan], group: Group, topic: Topic, **more: Any
) -> list[QueueToScan]:
    names = {"group_id": group.group_id, "topic_id": topic.topic_id, "ready_from": 0, "open_from": 0}
    return query.rows(store.conn, names | more)


def expected(group: Group, topic: Topic, numbers: Sequence[int], *, has_others: bool = False) -> list[QueueToScan]:
    return [
        QueueToScan(group.group_id, topic.queues[at].queue_id, AT[at], 0, 0, COUNTS[at], None, None, has_others)
        for at in numbers
    ]


def is_more(store: OpenStore, group: Group, topic: Topic, *, takes_groups: bool, **more: Any) -> bool:
    names = {"group_id": group.group_id, "topic_id": topic.topic_id, "ready_from": 0, "open_from": 0}
    query = QUEUE_QUERIES[takes_groups].of(store.conn).is_more
    return store.conn.execute(query, names | more).first() is not None


@pytest.mark.parametrize("takes_groups", [True, False])
def test_those_with_messages_after_the_progress(tx: OpenStore, group: Group, topic: Topic, takes_groups: bool) -> None:
    queries = QUEUE_QUERIES[takes_groups].of(tx.conn)
    for query in (queries.seen, queries.locked):
        assert found(tx, query, group, topic) == expected(group, topic, [0, 3])
    assert is_more(tx, group, topic, takes_groups=takes_groups)


def test_the_beginning_of_each_queue_is_told(store: OpenStore, group: Group, topic: Topic) -> None:
    trim(store, topic, 3, queue=3)
    store.conn.commit()
    queries = QUEUE_QUERIES[False].of(store.conn)
    for query in (queries.seen, queries.locked):
        assert [each.min_offset for each in found(store, query, group, topic)] == [0, 3]
        store.conn.commit()


@pytest.mark.parametrize("takes_groups", [True, False])
def test_in_the_order_of_their_numbers(tx: OpenStore, group: Group, topic: Topic, takes_groups: bool) -> None:
    for change in ("number + 10", "13 - number"):
        tx.conn.exec_driver_sql(f"UPDATE queue SET number = {change} WHERE topic_id = {topic.topic_id}")
    queries = QUEUE_QUERIES[takes_groups].of(tx.conn)
    for query in (queries.seen, queries.locked):
        assert found(tx, query, group, topic) == expected(group, topic, [3, 0])


@pytest.mark.parametrize("takes_groups", [True, False])
def test_nothing_is_left(store: OpenStore, group: Group, topic: Topic, takes_groups: bool) -> None:
    for number, count in enumerate(COUNTS):
        reset(store, group, topic, count, queue=number)
    queries = QUEUE_QUERIES[takes_groups].of(store.conn)
    for query in (queries.seen, queries.locked):
        assert found(store, query, group, topic) == []
    assert not is_more(store, group, topic, takes_groups=takes_groups)
    store.conn.commit()


@pytest.mark.parametrize("takes_groups", [True, False])
def test_messages_that_are_ready_again_are_more(
    store: OpenStore, group: Group, topic: Topic, takes_groups: bool
) -> None:
    for number, count in enumerate(COUNTS):
        reset(store, group, topic, max(0, count - 1), queue=number)
    held = store.receive(group, topic)
    assert len(held) == 3
    assert not is_more(store, group, topic, takes_groups=takes_groups)
    store.now_ms += SECOND
    store.change(group, held[0], 0, give_back=True)
    assert is_more(store, group, topic, takes_groups=takes_groups)
    assert not is_more(store, group, topic, takes_groups=takes_groups, ready_from=store.now_ms + 1)
    store.send(topic, 1, queue=1)
    (only,) = found(store, QUEUE_QUERIES[takes_groups].of(store.conn).seen, group, topic)
    assert (only.queue_id, only.ready_since_ms, only.open_since_ms) == (topic.queues[1].queue_id, store.now_ms, None)
    store.conn.commit()


def test_open_message_groups_are_more_for_those_who_take_them(store: OpenStore, group: Group, topic: Topic) -> None:
    store.send(topic, in_order("g", 3))
    while store.receive(group, topic):
        pass
    store.end_due(after_ms=30 * SECOND)
    for takes_groups in (True, False):
        seen = found(store, QUEUE_QUERIES[takes_groups].of(store.conn).seen, group, topic)
        assert len(seen) == (4 if takes_groups else 0), "in which queue the open one is, is not known yet"
        assert {each.open_since_ms for each in seen} == ({store.now_ms} if takes_groups else set())
    assert is_more(store, group, topic, takes_groups=True)
    store.database.begin(store.conn)
    store.conn.exec_driver_sql("DELETE FROM delivery WHERE message_group IS NULL")
    store.conn.exec_driver_sql("UPDATE message_group_progress SET open_since_ms = NULL")
    for takes_groups in (True, False):
        assert not is_more(store, group, topic, takes_groups=takes_groups)
    store.conn.exec_driver_sql("ROLLBACK")


class TestEnough:
    """On Postgres, of messages without message groups: as many queues as a search needs, in turn."""

    @pytest.fixture(autouse=True)
    def on_postgres(self, store: OpenStore) -> None:
        if store.database.is_sqlite:
            pytest.skip("SQLite has one writer, which may read all")

    @pytest.mark.parametrize(
        ("enough", "turn", "numbers", "has_others"),
        [
            (1, 0, [0], True), (4, 0, [0], True), (5, 0, [0, 3], True), (6, 0, [0, 3], False), (9, 0, [0, 3], False),
            (1, 1, [3], True), (2, 1, [3], True), (3, 1, [3, 0], True), (6, 1, [3, 0], False),
            (1, 2, [0], True), (1, 7, [3], True), (9, 7, [3, 0], False),
        ],
    )  # fmt: skip
    def test_by_what_waits_in_each(
        self,
        tx: OpenStore,
        group: Group,
        topic: Topic,
        enough: int,
        turn: int,
        numbers: list[int],
        has_others: bool,
    ) -> None:
        assert found(tx, ENOUGH_QUEUES, group, topic, enough=enough, turn=turn) == expected(
            group, topic, numbers, has_others=has_others
        )

    @pytest.mark.parametrize(("turn", "numbers"), [(0, [3, 0]), (1, [0, 3])])
    def test_in_the_order_of_their_numbers_whatever_their_ids(
        self, tx: OpenStore, group: Group, topic: Topic, turn: int, numbers: list[int]
    ) -> None:
        for change in ("number + 10", "13 - number"):
            tx.conn.exec_driver_sql(f"UPDATE queue SET number = {change} WHERE topic_id = {topic.topic_id}")
        assert found(tx, ENOUGH_QUEUES, group, topic, enough=9, turn=turn) == expected(group, topic, numbers)

    def test_what_retention_has_removed_does_not_wait(self, store: OpenStore, group: Group, topic: Topic) -> None:
        trim(store, topic, 4, queue=0)
        store.conn.commit()
        rows = found(store, ENOUGH_QUEUES, group, topic, enough=2, turn=0)
        assert [each.queue_id for each in rows] == [topic.queues[0].queue_id, topic.queues[3].queue_id]
        assert [(each.min_offset, each.has_others) for each in rows] == [(4, True), (0, True)]
        store.conn.commit()

    def test_a_queue_that_another_server_reads_is_left_out(self, store: OpenStore, group: Group, topic: Topic) -> None:
        with store.database.connect_writer() as other:
            store.database.begin(other)
            other.exec_driver_sql(
                f"SELECT 1 FROM progress WHERE group_id = {group.group_id} AND queue_id = {topic.queues[0].queue_id}"
                " FOR UPDATE"
            )
            # A send locks the queue, and hinders no reader.
            other.exec_driver_sql(f"SELECT 1 FROM queue WHERE queue_id = {topic.queues[3].queue_id} FOR UPDATE")
            store.database.begin(store.conn)
            assert found(store, ENOUGH_QUEUES, group, topic, enough=9, turn=0) == expected(group, topic, [3])
            for takes_groups in (True, False):
                queries = QUEUE_QUERIES[takes_groups].of(store.conn)
                assert found(store, queries.locked, group, topic) == expected(group, topic, [3])
                assert found(store, queries.seen, group, topic) == expected(group, topic, [0, 3])
            assert len(found(store, LITE_QUEUES, group, topic, subscribers=encode_rows([("c1",)]))) == 3
            store.conn.exec_driver_sql("ROLLBACK")
            other.exec_driver_sql("ROLLBACK")

    def test_only_what_is_read_is_locked(self, tx: OpenStore, group: Group, topic: Topic) -> None:
        found(tx, ENOUGH_QUEUES, group, topic, enough=1, turn=1)
        assert self._free(tx, group) == {topic.queues[number].queue_id for number in (0, 1, 2)}
        found(tx, QUEUE_QUERIES[False].of(tx.conn).locked, group, topic)
        assert self._free(tx, group) == {topic.queues[number].queue_id for number in (1, 2)}

    @staticmethod
    def _free(store: OpenStore, group: Group) -> set[int]:
        """The queues of the topic whose progress others may lock."""
        with store.database.connect_writer() as other:
            store.database.begin(other)
            query = (
                "SELECT p.queue_id FROM progress p JOIN queue q ON q.queue_id = p.queue_id JOIN topic t"
                " ON t.topic_id = q.topic_id WHERE t.name = 'orders'"
                f" AND p.group_id = {group.group_id} FOR UPDATE OF p SKIP LOCKED"
            )
            free = {row[0] for row in other.exec_driver_sql(query)}
            other.exec_driver_sql("ROLLBACK")
            return free


def is_more_of_lite(store: OpenStore, group: Group, topic: Topic, client_ids: Sequence[str]) -> bool:
    names = {
        "group_id": group.group_id,
        "topic_id": topic.topic_id,
        "ready_from": 0,
        "open_from": 0,
        "subscribers": encode_rows([(each,) for each in client_ids]),
    }
    return store.conn.execute(IS_MORE_OF_LITE, names).first() is not None


class TestLite:
    """In a topic of lite topics all queues are read."""

    def test_each_with_the_groups_progress(self, tx: OpenStore, group: Group, topic: Topic) -> None:
        rows = found(tx, LITE_QUEUES, group, topic, subscribers=encode_rows([("c1",)]))
        assert [each._replace(open_since_ms=None) for each in rows] == expected(group, topic, range(4))

    @pytest.mark.parametrize("client_ids", [["c1"], ["c2"], ["c2", "c1"]])
    def test_an_open_lite_topic_is_more_for_its_subscriber(
        self, store: OpenStore, group: Group, topic: Topic, client_ids: list[str]
    ) -> None:
        for number, count in enumerate(COUNTS):
            reset(store, group, topic, count, queue=number)

        def more() -> bool:
            return is_more_of_lite(store, group, topic, client_ids)

        store.database.begin(store.conn)
        assert not more()
        store.conn.exec_driver_sql(
            "INSERT INTO message_group_progress (group_id, queue_id, message_group, topic_id, next_offset,"
            f" open_since_ms, subscriber, is_single) VALUES ({group.group_id}, {topic.queues[0].queue_id}, 'a',"
            f" {topic.topic_id}, 0, {START_MS}, 'c1', 0)"
        )
        assert more() is ("c1" in client_ids)
        store.conn.exec_driver_sql("DELETE FROM message_group_progress")
        assert not more()
        store.conn.exec_driver_sql(
            f"UPDATE progress SET next_offset = 0 WHERE queue_id = {topic.queues[1].queue_id} AND group_id ="
            f" {group.group_id}"
        )
        assert more()
        store.conn.exec_driver_sql("ROLLBACK")

    def test_redriven_messages_are_more(self, store: OpenStore, group: Group, topic: Topic) -> None:
        for number, count in enumerate(COUNTS):
            reset(store, group, topic, max(0, count - 1), queue=number)
        held = store.receive(group, topic)
        assert not is_more_of_lite(store, group, topic, ["c1"])
        store.change(group, held[0], 0, give_back=True)
        assert is_more_of_lite(store, group, topic, ["c1"])
        store.conn.commit()
