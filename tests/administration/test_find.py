"""Messages are found by their keys, by an index, and by tag, condition and time."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection

from popproto.v2 import definition_pb2 as pb
from popserver.administration import filter_trial
from popserver.administration import find as administration_find
from popserver.catalog import topics
from popserver.catalog.queues import queue_rows
from popserver.filters import SqlFilter
from popserver.maintenance import purge, retention
from popserver.messages import keyed
from popserver.messages.keyed import SLOTS, IndexPosition, KeySearch, key_hash
from popserver.messages.ranges import Work
from popserver.model.topic import QUEUE_COUNT_MAX
from popserver.producing import enqueue, pending
from popserver.producing.enqueue import EnqueueDue
from popserver.producing.rules import CheckPolicy
from tests.support.admin_server import AdminServer, named
from tests.support.builders import a_message, an_id
from tests.support.open_store import HOUR, OpenStore


@pytest.fixture
def made(either_admin_server: AdminServer) -> AdminServer:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("orders"), queue_count=2)
    admin_server.send("orders", "m0", keys=["o-1"], tag="new", properties={"a": "1"})
    admin_server.send("orders", "m1", keys=["o-1", "customer-7"], tag="paid", properties={"a": "2"})
    admin_server.server.clock.advance("1h")
    admin_server.send("orders", "m2", keys=["o-2", "customer-7"], tag="new", properties={"a": "3"})
    admin_server.send("orders", "m3", tag="new", properties={"a": "4"})
    admin_server.send("letters", "m4", keys=["o-1"])
    return admin_server


def find(admin_server: AdminServer, **wish: Any) -> list[str]:
    answer = admin_server.call("FindMessages", **wish)
    assert answer.status.code == pb.OK, answer
    assert answer.complete
    assert answer.matched == len(answer.messages)
    return [each.system_properties.message_id for each in answer.messages]


def test_by_key(made: AdminServer) -> None:
    assert find(made, key="o-1")[0] == "m4", "the newest first, of all topics"
    assert sorted(find(made, key="o-1")) == ["m0", "m1", "m4"]
    assert sorted(find(made, key="o-1", topic=named("orders"))) == ["m0", "m1"]
    assert find(made, key="customer-7", tag="paid") == ["m1"]
    assert find(made, key="customer-7", where="a > 2") == ["m2"]
    assert find(made, key="o-1", where="a > 0 -- and nothing else", tag="new") == ["m0"]
    assert find(made, key="nobody") == []
    message = made.call("FindMessages", key="o-2").messages[0]
    assert (message.topic.name, list(message.system_properties.keys)) == ("orders", ["o-2", "customer-7"])
    assert (message.body, dict(message.user_properties)) == (b"", {"a": "3"})


def test_by_lite_topic(either_admin_server: AdminServer) -> None:
    admin_server, topic = either_admin_server, named("sessions")
    admin_server.call("CreateTopic", topic=topic, queue_count=2, accept_message_types=[pb.LITE])
    for number in range(4):
        for name in ("ada", "ben"):
            admin_server.send("sessions", f"{name}{number}", lite_topic=name, keys=[f"k{number}"], tag=f"t{number % 2}")
    assert find(admin_server, topic=topic, lite_topic="ada") == ["ada3", "ada2", "ada1", "ada0"]
    assert find(admin_server, topic=topic, lite_topic="ben", tag="t1") == ["ben3", "ben1"]
    assert find(admin_server, key="k2", lite_topic="ben") == ["ben2"]
    assert find(admin_server, key="k2", topic=topic, lite_topic="ada") == ["ada2"]
    assert find(admin_server, topic=topic, lite_topic="nobody") == []
    first = admin_server.call("FindMessages", topic=topic, lite_topic="ada", max=3)
    assert (first.examined, first.matched, first.complete) == (3, 3, False)
    assert find(admin_server, topic=topic, lite_topic="ada", max=3, page=first.next_page) == ["ada0"]
    admin_server.call("CreateTopic", topic=named("plain"))
    refused = admin_server.call("FindMessages", topic=named("plain"), lite_topic="ada").status
    assert (refused.code, "has no lite topics" in refused.message) == (pb.BAD_REQUEST, True)
    refused = admin_server.call("FindMessages", key="k", lite_topic="a b").status
    assert (refused.code, "has the character ' '" in refused.message) == (pb.ILLEGAL_LITE_TOPIC, True)


def test_by_time_tag_and_condition(made: AdminServer) -> None:
    since = datetime(2025, 1, 1, 0, 30, tzinfo=UTC)
    assert sorted(find(made, topic=named("orders"), since=since)) == ["m2", "m3"]
    assert find(made, key="o-1", topic=named("orders"), since=since) == []
    assert sorted(find(made, topic=named("orders"), until=since)) == ["m0", "m1"]
    assert find(made, key="customer-7", until=since) == ["m1"]
    assert find(made, topic=named("orders"), since=since, until=since) == []
    assert sorted(find(made, topic=named("orders"), tag="new")) == ["m0", "m2", "m3"]
    assert find(made, topic=named("orders"), tag="new", where="a > 1 AND a < 4") == ["m2"]
    assert find(made, topic=named("orders"), tag="it's") == []


def test_two_keys_with_one_checksum_are_told_apart(made: AdminServer) -> None:
    assert key_hash("plumless") == key_hash("buckeroo")
    made.send("orders", "m5", keys=["plumless"])
    made.send("orders", "m6", keys=["buckeroo"])
    assert find(made, key="plumless") == ["m5"]


def test_many_are_read_in_steps_and_the_rest_is_told(made: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration_find, "STEP_ROWS", 2)
    made.send("orders", *(f"n{number}" for number in range(7)), keys=["busy"])
    answer = made.call("FindMessages", key="busy")
    assert (answer.matched, len(answer.messages), answer.complete) == (7, 7, True)
    monkeypatch.setattr(administration_find, "EXAMINED_MAX", 4)
    answer = made.call("FindMessages", key="busy")
    assert (answer.examined, answer.complete) == (4, False)


def test_those_before_a_time_are_examined_first(made: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filter_trial, "EXAMINED_MAX", 4)  # two of each queue
    made.server.clock.advance("1h")
    made.send("orders", *(f"n{number}" for number in range(40)))
    answer = made.call("FindMessages", topic=named("orders"), until=datetime(2025, 1, 1, 1, 30, tzinfo=UTC), max=100)
    found = [each.system_properties.message_id for each in answer.messages]
    assert found and all(each.startswith("m") for each in found)
    assert answer.examined <= 4


def test_every_block_of_a_long_queue_is_searched(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = store.topic()
    for offset in (4_095, 20_000, 50_000):
        store.conn.exec_driver_sql(f"UPDATE queue SET next_offset = {offset}")
        store.now_ms += HOUR
        store.send(topic, 2, keys=("far",))
    queues = queue_rows(store.conn, topic.topic_id)
    blocks = list(keyed.blocks_of(keyed.spans_of(queues)))
    first = topic.queues[0].queue_id << 40
    assert [each.block - (first >> 12) for each in blocks] == list(range(12, -1, -1)), "the newest first"
    found = keyed.with_key(store.conn, "far", blocks[-6:], 10)
    assert [each.message_key - first for each in found] == [20_001, 20_000, 4_096, 4_095]
    while store.one(retention.retain, retention.Retain(store.now_ms - 1)).removed:
        pass
    store.conn.exec_driver_sql("UPDATE queue SET min_offset = 50000")
    assert list(keyed.blocks_of(keyed.spans_of(queue_rows(store.conn, topic.topic_id)))) == blocks[:1]


def pages(admin_server: AdminServer, **wish: Any) -> list[list[str]]:
    """The messages that each page finds, page by page."""
    found: list[list[str]] = []
    page = ""
    while not found or page:
        answer = admin_server.call("FindMessages", **wish, page=page)
        assert answer.complete == (not answer.next_page)
        found.append([each.system_properties.message_id for each in answer.messages])
        page = answer.next_page
    return found


@pytest.mark.parametrize("wish", [{"key": "o-1"}, {"key": "o-1", "where": "a > 0"}, {"topic": named("orders")}])
def test_one_request_does_a_limited_amount_of_work(
    made: AdminServer, monkeypatch: pytest.MonkeyPatch, wish: dict[str, Any]
) -> None:
    """A costly filter ends a page early, after at least one message; the pages find all."""
    everything = sorted(find(made, **wish))
    monkeypatch.setattr(administration_find, "UNITS_MAX", 1)
    monkeypatch.setattr(Work.__init__, "__defaults__", (1,))
    several = pages(made, **wish)
    assert len(several) > 1
    assert max(map(len, several)) == 1
    assert sorted(each for page in several for each in page) == everything


@pytest.mark.parametrize("wish", [{"key": "busy"}, {"topic": named("orders")}, {"topic": named("orders"), "tag": "x"}])
def test_all_pages_together_have_each_match_once(either_admin_server: AdminServer, wish: dict[str, Any]) -> None:
    """Also where many were stored at one time, and in a queue that has more than the others."""
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("orders"), queue_count=3, accept_message_types=[pb.NORMAL, pb.FIFO])
    sent = [f"m{number}" for number in range(304)]
    for first in range(0, 304, 16):
        group: dict[str, Any] = {"message_group": "g"} if first in (48, 64, 160) else {}
        admin_server.send("orders", *sent[first : first + 16], keys=["busy"], tag="x", **group)
        if first % 64 == 0:
            admin_server.server.clock.advance(1)
    found = pages(admin_server, **wish, max=100)
    assert list(map(len, found)) == [100, 100, 100, 4]
    assert sorted(each for page in found for each in page) == sorted(sent)


def test_the_pages_of_a_topic_go_from_new_to_old(
    either_admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the share of a queue ends a page."""
    monkeypatch.setattr(filter_trial, "EXAMINED_MAX", 6)
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("orders"), queue_count=4)
    sent = [f"m{number}" for number in range(30)]
    for each in sent:
        admin_server.send("orders", each, tag="odd" if int(each[1:]) % 2 else "even")
        admin_server.server.clock.advance(1)
    found = pages(
        admin_server, topic=named("orders"), tag="odd", max=2, until=datetime(2025, 1, 1, 0, 0, 0, 27_000, tzinfo=UTC)
    )
    assert [each for page in found for each in page] == sent[25::-2]
    assert max(map(len, found)) <= 2


def test_a_topic_with_many_queues_is_searched_in_pages(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=named("wide"), queue_count=QUEUE_COUNT_MAX)
    for number in range(8):
        admin_server.send("wide", *(f"m{number}-{each}" for each in range(32)))
        admin_server.server.clock.advance(1)
    first = admin_server.call("FindMessages", topic=named("wide"), max=100)
    assert 0 < len(first.next_page) <= 32
    second = admin_server.call("FindMessages", topic=named("wide"), max=100, page=first.next_page)
    found = [each.system_properties.message_id for answer in (first, second) for each in answer.messages]
    assert len(set(found)) == 200
    assert [each.partition("-")[0] for each in found] == sorted(
        (each.partition("-")[0] for each in found), reverse=True
    )


@pytest.mark.parametrize("limit", [100, 2])
def test_the_index_is_read_in_statements_of_limited_size(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """All in order, and the rows that are read are counted as work."""
    topic = store.topic(queues=2)
    for offset in range(0, 40_000, 4_096):
        store.conn.exec_driver_sql(f"UPDATE queue SET next_offset = {offset}")
        store.send(topic, 3, keys=("busy",), queue=offset)
    queues = queue_rows(store.conn, topic.topic_id)
    everything = keyed.with_key(store.conn, "busy", list(keyed.blocks_of(keyed.spans_of(queues))), 100)
    assert len(everything) == 30
    looked = []

    def recorded(conn: Connection, key: str, blocks: list[IndexPosition], limit: int) -> list[IndexPosition]:
        looked.append(len(blocks))
        return with_key(conn, key, blocks, limit)

    with_key = keyed.with_key
    monkeypatch.setattr(keyed, "with_key", recorded)
    monkeypatch.setattr(keyed, "BLOCKS_MAX", 6)
    search = KeySearch("busy", keyed.spans_of(queues), None)
    found: list[IndexPosition] = []
    while search.position is not None:
        before = search.units
        step = search.step(store.conn, limit)
        found += step
        assert search.units - before >= (looked[-1] * SLOTS if len(step) == limit else len(step))
    assert found == everything
    assert max(looked) <= 6 < sum(looked)
    assert looked[0] == 1, "a key that is in every message needs few blocks"


def test_reading_the_index_is_limited_work(made: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that finds nothing in the blocks that it may read goes on with a page too."""
    monkeypatch.setattr(administration_find, "UNITS_MAX", 1)
    assert pages(made, key="nobody") == [[]] * 3, "one for each block"
    monkeypatch.undo()
    assert find(made, key="nobody") == []


def test_a_search_goes_on_while_its_queues_grow(made: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration_find, "EXAMINED_MAX", 1)
    first = made.call("FindMessages", key="o-1")
    made.send("orders", "m5", keys=["o-1"])
    made.send("letters", "m6", keys=["o-1"])
    others = []
    page = first.next_page
    while page:
        answer = made.call("FindMessages", key="o-1", page=page)
        others += [each.system_properties.message_id for each in answer.messages]
        page = answer.next_page
    found = [each.system_properties.message_id for each in first.messages] + others
    assert sorted(set(found) & {"m0", "m1", "m4"}) == ["m0", "m1", "m4"]
    assert len(found) == len(set(found))


def test_a_search_leaves_nothing_out_when_a_queue_has_a_new_block(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    for number in range(2):
        store.send(topic, 2, keys=("k",), queue=number)
    blocks = list(keyed.blocks_of(keyed.spans_of(queue_rows(store.conn, topic.topic_id))))
    *_, place = keyed.with_key(store.conn, "k", blocks, 3)
    store.conn.exec_driver_sql("UPDATE queue SET next_offset = 5000")
    blocks = list(keyed.blocks_of(keyed.spans_of(queue_rows(store.conn, topic.topic_id)), place))
    assert keyed.with_key(store.conn, "k", blocks, 10)[-1].message_key == place.message_key - 1


@pytest.mark.parametrize("page", ["1.2.3", "0:", "0:1,", "-1:3:1", "1:99999:1", "1:2:3:4"])
def test_a_page_of_another_search_is_refused(made: AdminServer, page: str) -> None:
    status = made.call("FindMessages", topic=named("orders"), page=page).status
    assert status.code == pb.BAD_REQUEST
    assert f"'{page}' is not a page of a search without a key" in status.message


def test_filters_are_judged_in_the_threads_of_readers(made: AdminServer, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()
    verdict = SqlFilter.verdict

    def judged(self: SqlFilter, *message: Any) -> bool | None:
        threads.add(threading.current_thread().name)
        return verdict(self, *message)

    monkeypatch.setattr(SqlFilter, "verdict", judged)
    assert find(made, key="customer-7", where="a > 2") == ["m2"]
    assert {name.rpartition("_")[0] for name in threads} == {"popmq-reader"}


WRONG: list[tuple[dict[str, Any], pb.Code.ValueType, str]] = [
    ({}, pb.BAD_REQUEST, "name the topic, or give a key"),
    ({"topic": named("none"), "key": "k"}, pb.TOPIC_NOT_FOUND, "'none'"),
    ({"key": "k", "where": "a >"}, pb.ILLEGAL_FILTER_EXPRESSION, ""),
    ({"key": "k", "where": "a = 1) OR (a = 2"}, pb.ILLEGAL_FILTER_EXPRESSION, ""),
    ({"key": "k", "max": 101}, pb.BAD_REQUEST, "1 to 100 messages, not 101"),
    ({"key": "k", "page": "0:4"}, pb.BAD_REQUEST, "'0:4' is not a page of a search with a key"),
]


@pytest.mark.parametrize(("wish", "code", "said"), WRONG)
def test_what_cannot_be_searched(
    admin_server: AdminServer, wish: dict[str, Any], code: pb.Code.ValueType, said: str
) -> None:
    status = admin_server.call("FindMessages", **wish).status
    assert (pb.Code.Name(status.code), said in status.message) == (pb.Code.Name(code), True), status


def test_a_filter_for_keys_is_refused_with_the_way_to_find_them(made: AdminServer) -> None:
    status = made.call("TryFilter", topic=named("orders"), expression="KEYS = 'o-1'").status
    assert status.code == pb.BAD_REQUEST
    assert "popmq message find --key" in status.message


def indexed(store: OpenStore) -> int:
    return int(store.one_value("SELECT COUNT(*) FROM keyed_message"))


def test_the_index_goes_with_its_messages(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, [a_message(keys=("a", "b")), a_message(), a_message(keys=("a", "a"))])
    assert indexed(store) == 3, "one for each different key, none for a message without keys"
    store.now_ms += HOUR
    store.send(topic, 1, keys=("c",))
    store.one(retention.retain, retention.Retain(store.now_ms - 1))
    assert indexed(store) == 1
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.purge()
    assert indexed(store) == 0


def test_the_first_64_keys_of_a_message_are_indexed_and_all_are_stored(made: AdminServer) -> None:
    keys = [f"k-{number}" for number in range(1_000)]
    made.send("orders", "m5", keys=keys)
    assert find(made, key="k-63") == ["m5"]
    assert find(made, key="k-64") == []
    assert list(made.call("FindMessages", key="k-0").messages[0].system_properties.keys) == keys


def test_a_transaction_removes_a_limited_number_of_entries(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "REMOVED_MAX", 5)
    topic = store.topic()
    store.send(topic, [a_message(keys=("a", "b")) for _ in range(3)] + [a_message()])
    store.send(topic, [a_message(keys=tuple("abcdefg"))] + [a_message(keys=("a",)) for _ in range(6)])
    store.now_ms += HOUR
    left = [indexed(store)]
    while store.one(retention.retain, retention.Retain(store.now_ms - 1)).removed:
        left.append(indexed(store))
    assert left == [19, 15, 13, 6, 1, 0], "four entries, two, seven of one message, five, one"
    assert not store.one_value("SELECT COUNT(*) FROM message")
    store.send(topic, 4, keys=("a", "b"))
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    left = [indexed(store)]
    while store.one(purge.purge, purge.PurgeDeleted()):
        left.append(indexed(store))
    assert list(dict.fromkeys(left)) == [8, 4, 0]


def test_a_store_whose_messages_have_more_entries_loses_them_with_the_messages(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "INDEXED_MAX", 1_024)
    topic = store.topic()
    store.send(topic, 1, keys=tuple(map(str, range(100))))
    monkeypatch.undo()
    assert indexed(store) == 100
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.purge()
    assert indexed(store) == 0


def test_a_delayed_message_is_indexed_when_it_is_delivered(store: OpenStore) -> None:
    topic = store.topic()
    message = a_message(keys=("late",), deliver_at_ms=store.now_ms + HOUR, message_id=an_id())
    store.one(pending.store_pending, pending.StorePending(topic, [message], "", CheckPolicy()))
    assert indexed(store) == 0
    store.now_ms += HOUR
    store.one(enqueue.enqueue_due, EnqueueDue())
    assert indexed(store) == 1


def test_the_index_is_used(store: OpenStore) -> None:
    topic = store.topic()
    store.send(topic, 3, keys=("k",))
    if store.conn.dialect.name == "postgresql":
        store.conn.exec_driver_sql("SET enable_seqscan = off")
    blocks = list(keyed.blocks_of(keyed.spans_of(queue_rows(store.conn, topic.topic_id))))
    assert len(keyed.with_key(store.conn, "k", blocks, 10)) == 3
    explain = "EXPLAIN QUERY PLAN" if store.conn.dialect.name == "sqlite" else "EXPLAIN"
    plan = str(store.rows(f"{explain} SELECT slot FROM keyed_message WHERE block = 1 AND key_hash = 1"))
    assert "SCAN keyed_message" not in plan
