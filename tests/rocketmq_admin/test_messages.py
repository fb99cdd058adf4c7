"""apache.rocketmq.v2.Admin about messages: find stored ones, page by page, and send one."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named
from tests.support.builders import an_id
from tests.support.waiting import soon

TOPIC = named("jobs")
START_S = 1_735_689_600  # of the manual clock


@pytest.fixture
def admin_server(either_admin_server: AdminServer) -> AdminServer:
    return either_admin_server


@pytest.fixture
def ids(admin_server: AdminServer) -> list[str]:
    """Twelve messages in two queues, one each second; tag and key go round."""
    sent = [an_id() for _ in range(12)]
    assert admin_server.call("CreateTopic", topic=TOPIC, queue_count=2).status.code == pb.OK
    for number, each in enumerate(sent):
        admin_server.send("jobs", each, tag="ABC"[number % 3], keys=[f"order-{number % 4}"])
        admin_server.server.clock.advance("1s")
    return sent


def found(answer: Any) -> list[str]:
    assert answer.status.code == pb.OK, answer.status
    return [each.system_properties.message_id for each in answer.messages]


def everything(admin_server: AdminServer, **wish: Any) -> list[list[str]]:
    """All pages."""
    pages, scroll_id = [], ""
    while True:
        answer = admin_server.ask("QueryMessage", topic=TOPIC, scroll_id=scroll_id, **wish)
        pages.append(found(answer))
        if not (scroll_id := answer.scroll_id):
            return pages


def test_a_message_by_its_id(admin_server: AdminServer, ids: list[str]) -> None:
    answer = admin_server.ask("QueryMessage", topic=TOPIC, message_id=ids[3])
    (message,) = answer.messages
    assert (message.topic, message.body, message.user_properties) == (TOPIC, b"body", {"colour": "red"})
    assert (message.system_properties.tag, list(message.system_properties.keys)) == ("A", ["order-3"])
    assert not message.system_properties.receipt_handle
    for elsewhere in ({"queue_id": 0}, {"begin_timestamp": {"seconds": START_S + 4}}):
        status = admin_server.ask("QueryMessage", topic=TOPIC, message_id=ids[3], **elsewhere).status
        assert status.code == pb.MESSAGE_NOT_FOUND


def test_messages_by_key_the_newest_first(admin_server: AdminServer, ids: list[str]) -> None:
    assert found(admin_server.ask("QueryMessage", topic=TOPIC, message_key="order-1")) == [ids[9], ids[5], ids[1]]
    assert everything(admin_server, message_key="order-1", page_size=2) == [[ids[9], ids[5]], [ids[1]]]
    assert found(admin_server.ask("QueryMessage", topic=TOPIC, message_key="order-1", page_num=2, page_size=1)) == [
        ids[5]
    ]
    early = admin_server.ask("QueryMessage", topic=TOPIC, message_key="order-1", end_timestamp={"seconds": START_S + 5})
    assert found(early) == [ids[5], ids[1]]
    assert admin_server.ask("QueryMessage", topic=TOPIC, message_key="no such").status.code == pb.MESSAGE_NOT_FOUND


def test_pages_of_a_key_have_each_message_once(admin_server: AdminServer, ids: list[str]) -> None:
    key = {"message_key": "every"}
    both = [an_id() for _ in range(6)]
    for each in both:
        admin_server.send("jobs", each, keys=["every"])
        admin_server.server.clock.advance("1s")
    assert found(admin_server.ask("QueryMessage", topic=TOPIC, **key)) == both[::-1]
    for size in (1, 2, 4):
        pages = everything(admin_server, **key, page_size=size)
        assert (sorted(each for page in pages for each in page), len(pages[0])) == (sorted(both), size)
        numbered = [
            admin_server.ask("QueryMessage", topic=TOPIC, **key, page_size=size, page_num=each) for each in (1, 2)
        ]
        assert [found(each) for each in numbered] == pages[:2]
    assert everything(admin_server, **key, queue_id=0, page_size=2) == [both[4::-2][:2], [both[0]]]
    beyond = admin_server.ask("QueryMessage", topic=TOPIC, **key, page_size=6, page_num=3)
    assert (beyond.status, list(beyond.messages), beyond.scroll_id) == (pb.Status(code=pb.OK, message="OK"), [], "")


def test_a_search_by_key_ends_when_its_work_is_done(
    admin_server: AdminServer, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.administration.find.EXAMINED_MAX", 2)
    begin = {"seconds": START_S + 1}
    pages = everything(
        admin_server, message_key="order-1", end_timestamp={"seconds": START_S + 5}, begin_timestamp=begin
    )
    assert [each for page in pages for each in page] == [ids[5], ids[1]]
    assert len(pages) > 1
    status = admin_server.ask("QueryMessage", topic=TOPIC, message_key="order-1", page_size=3, page_num=2).status
    assert (status.code, "one request found 2 of them" in status.message) == (pb.BAD_REQUEST, True), status


def test_all_messages_by_queue_and_offset(admin_server: AdminServer, ids: list[str]) -> None:
    by_queue = [*ids[::2], *ids[1::2]]
    pages = everything(admin_server, max_message_nums=5)
    assert [len(page) for page in pages] == [5, 5, 2]
    assert [each for page in pages for each in page] == by_queue
    assert found(admin_server.ask("QueryMessage", topic=TOPIC, page_num=3, page_size=5)) == by_queue[10:]
    assert everything(admin_server, queue_id=1) == [ids[1::2]]


def test_messages_of_a_time_range(admin_server: AdminServer, ids: list[str]) -> None:
    span = {"begin_timestamp": {"seconds": START_S + 3}, "end_timestamp": {"seconds": START_S + 6}}
    assert everything(admin_server, **span) == [[ids[4], ids[6], ids[3], ids[5]]]
    assert everything(admin_server, **span, max_message_nums=1) == [[ids[4]], [ids[6]], [ids[3]], [ids[5]]]


def test_messages_that_a_subscription_wants(admin_server: AdminServer, ids: list[str]) -> None:
    assert everything(admin_server, subscription="A || C", page_size=3) == [
        [ids[0], ids[2], ids[6]],
        [ids[8], ids[3], ids[5]],
        [ids[9], ids[11]],
    ]
    assert everything(admin_server, subscription="nobody") == [[]]


def test_a_request_examines_so_many_messages(
    admin_server: AdminServer, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.rocketmq_admin.search.EXAMINED_MAX", 4)
    monkeypatch.setattr("popserver.rocketmq_admin.search.STEP_MESSAGES", 2)
    pages = everything(admin_server, subscription="A")
    assert len(pages) > 2
    assert [each for page in pages for each in page] == [ids[0], ids[6], ids[3], ids[9]]


def test_a_numbered_page_that_one_request_does_not_reach(
    admin_server: AdminServer, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("popserver.rocketmq_admin.search.EXAMINED_MAX", 4)
    monkeypatch.setattr("popserver.rocketmq_admin.search.STEP_MESSAGES", 2)
    numbered: dict[str, Any] = {"topic": TOPIC, "subscription": "A", "page_size": 1}
    second = admin_server.ask("QueryMessage", **numbered, page_num=2)
    assert (found(second), bool(second.scroll_id)) == ([ids[6]], True)
    third = admin_server.ask("QueryMessage", **numbered, page_num=3)
    assert found(third) == []
    rest: dict[str, Any] = {"topic": TOPIC, "subscription": "A", "page_size": 2}
    assert found(admin_server.ask("QueryMessage", **rest, scroll_id=third.scroll_id)) == [ids[3]]
    fourth = admin_server.ask("QueryMessage", **numbered, page_num=4).status
    assert (fourth.code, "after 3 messages, and one request found 2 of them" in fourth.message) == (
        pb.BAD_REQUEST,
        True,
    )


@pytest.mark.parametrize(
    ("body", "properties", "lengths"),
    [
        (b"x" * (3 << 19), {"colour": "red"}, [2, 2, 1]),  # 1.5 MiB each
        (b"x" * ((1 << 21) - 8_192), {"text": "ä" * 3_000}, [1, 1, 1, 1, 1]),  # the properties count too
    ],
)
def test_a_client_with_the_usual_limits_takes_each_answer(
    admin_server: AdminServer, body: bytes, properties: Any, lengths: list[int]
) -> None:
    sent = [an_id() for _ in range(5)]
    admin_server.call("CreateTopic", topic=TOPIC, queue_count=1)
    for each in sent:
        admin_server.send("jobs", each, body=body, properties=properties, tag="A", keys=["k"])
        admin_server.server.clock.advance("1s")
    for wish in ({}, {"subscription": "A"}, {"message_key": "k"}):
        pages = everything(admin_server, **wish)
        shown = [each for page in pages for each in page]
        assert shown == (sent if "message_key" not in wish else sent[::-1])
        assert [len(page) for page in pages] == lengths
    budget = next(each for each in admin_server.server.app.broker.engine.budgets if each.name == "undelivered")
    assert budget.peak >= lengths[0] * len(body)
    soon(lambda: budget.used == 0)


def test_shown_messages_are_counted_until_they_are_read(admin_server: AdminServer) -> None:
    admin_server.send("jobs", an_id(), body=b"x" * 1_000_000)
    assert len(admin_server.call("PeekMessages", topic=TOPIC, max=1).messages) == 1
    budget = next(each for each in admin_server.server.app.broker.engine.budgets if each.name == "undelivered")
    assert budget.peak >= 1_000_000
    soon(lambda: budget.used == 0)


def test_a_page_has_so_many_bytes(admin_server: AdminServer, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    (message,) = admin_server.ask("QueryMessage", topic=TOPIC, message_id=ids[0]).messages
    monkeypatch.setattr("popserver.rocketmq_admin.search.PAGE_BYTES_MAX", 5 * message.ByteSize() // 2)
    by_queue = [*ids[::2], *ids[1::2]]
    pages = everything(admin_server)
    assert max(len(page) for page in pages) == 2
    assert [each for page in pages for each in page] == by_queue
    by_key = everything(admin_server, message_key="order-1")
    # The first of three do not fit, so half as many are searched for.
    assert [each for page in by_key for each in page] == [ids[9], ids[5], ids[1]]


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({}, pb.ILLEGAL_TOPIC, "blank"),
        ({"topic": named("nowhere")}, pb.TOPIC_NOT_FOUND, "'nowhere'"),
        ({"topic": TOPIC, "message_id": ""}, pb.BAD_REQUEST, "message_id is empty"),
        ({"topic": TOPIC, "message_key": ""}, pb.BAD_REQUEST, "message_key is empty"),
        ({"topic": TOPIC, "message_id": "no such"}, pb.MESSAGE_NOT_FOUND, "no such"),
        ({"topic": TOPIC, "subscription": "||"}, pb.ILLEGAL_FILTER_EXPRESSION, "no tag"),
        ({"topic": TOPIC, "max_message_nums": 1_001}, pb.BAD_REQUEST, "max_message_nums is 1001"),
        ({"topic": TOPIC, "max_message_nums": -1}, pb.BAD_REQUEST, "max_message_nums is -1"),
        ({"topic": TOPIC, "page_size": 1_001}, pb.BAD_REQUEST, "page_size is 1001"),
        ({"topic": TOPIC, "page_num": 0}, pb.BAD_REQUEST, "count from 1"),
        ({"topic": TOPIC, "page_num": 11, "page_size": 1_000}, pb.BAD_REQUEST, "first 10000"),
        ({"topic": TOPIC, "page_num": 1, "scroll_id": "at:0:1"}, pb.BAD_REQUEST, "give one of them"),
        ({"topic": TOPIC, "scroll_id": "at:0"}, pb.BAD_REQUEST, "scroll id 'at:0'"),
        ({"topic": TOPIC, "scroll_id": "skip:1"}, pb.BAD_REQUEST, "scroll id 'skip:1'"),
        ({"topic": TOPIC, "scroll_id": f"at:0:{1 << 40}"}, pb.BAD_REQUEST, "scroll id"),
        ({"topic": TOPIC, "scroll_id": "at:0:-1"}, pb.BAD_REQUEST, "scroll id"),
        ({"topic": TOPIC, "message_key": "order-1", "scroll_id": "at:0:1"}, pb.BAD_REQUEST, "scroll id"),
        ({"topic": TOPIC, "message_key": "order-1", "scroll_id": "key:"}, pb.BAD_REQUEST, "scroll id"),
        ({"topic": TOPIC, "message_key": "order-1", "scroll_id": "key:1.2"}, pb.BAD_REQUEST, "'1.2' is not a page"),
        ({"topic": TOPIC, "queue_id": 2}, pb.BAD_REQUEST, "has no queue 2"),
        ({"topic": TOPIC, "begin_timestamp": {"seconds": 2}, "end_timestamp": {"seconds": 1}}, pb.BAD_REQUEST, "swap"),
        ({"topic": TOPIC, "begin_timestamp": {"seconds": 1 << 40}}, pb.BAD_REQUEST, "9999"),
    ],
)
def test_bad_queries(admin_server: AdminServer, ids: list[str], fields: Any, code: int, words: str) -> None:
    status = admin_server.ask("QueryMessage", **fields).status
    assert (status.code, words in status.message) == (code, True), status


def test_a_message_is_sent(admin_server: AdminServer) -> None:
    answer = admin_server.ask(
        "AdminSendMessage", topic=TOPIC, tag="A", key="order-1", body=b"hello", user_properties={"colour": "blue"}
    )
    assert (answer.status.code, len(answer.message_id)) == (pb.OK, 34)
    (message,) = admin_server.receive("workers", "jobs")
    system = message.system_properties
    assert (message.body, dict(message.user_properties)) == (b"hello", {"colour": "blue"})
    assert (system.message_id, system.tag, list(system.keys)) == (answer.message_id, "A", ["order-1"])
    assert system.message_type == pb.NORMAL


def test_a_message_is_sent_with_system_properties(admin_server: AdminServer) -> None:
    message_id = an_id()
    system = {"message_id": message_id, "message_group": "g", "tag": "A", "keys": ["k"]}
    answer = admin_server.ask("AdminSendMessage", topic=TOPIC, tag="A", key="k", body=b"x", system_properties=system)
    assert answer.message_id == message_id
    (message,) = admin_server.receive("workers", "jobs")
    assert (message.system_properties.message_type, message.system_properties.message_group) == (pb.FIFO, "g")
    assert list(message.system_properties.keys) == ["k"]


def test_a_delayed_message_is_sent(admin_server: AdminServer) -> None:
    admin_server.send("jobs", an_id())
    answer = admin_server.ask(
        "AdminSendMessage",
        topic=TOPIC,
        body=b"later",
        system_properties={"delivery_timestamp": {"seconds": START_S + 60}},
    )
    assert answer.status.code == pb.OK
    (pending,) = admin_server.call("ListScheduled", topic=TOPIC).messages
    assert pending.message.system_properties.message_id == answer.message_id


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"body": b"x"}, pb.ILLEGAL_TOPIC, "blank"),
        ({"topic": named("%DLQ%workers"), "body": b"x"}, pb.ILLEGAL_TOPIC, "only the server sends"),
        ({"topic": TOPIC}, pb.MESSAGE_BODY_EMPTY, "empty"),
        ({"topic": TOPIC, "body": b"x" * (4 * 1024 * 1024 + 1)}, pb.MESSAGE_BODY_TOO_LARGE, "4194304"),
        ({"topic": TOPIC, "body": b"x", "tag": "a|b"}, pb.ILLEGAL_MESSAGE_TAG, "'a|b'"),
        ({"topic": TOPIC, "body": b"x", "tag": "A", "system_properties": {"tag": "B"}}, pb.BAD_REQUEST, "once"),
        ({"topic": TOPIC, "body": b"x", "key": " "}, pb.ILLEGAL_MESSAGE_KEY, "blank"),
        (
            {"topic": TOPIC, "body": b"x", "user_properties": {"KEYS": "a"}},
            pb.ILLEGAL_MESSAGE_PROPERTY_KEY,
            "'KEYS' is reserved",
        ),
        (
            {"topic": TOPIC, "body": b"x", "user_properties": {str(each): "" for each in range(1_025)}},
            pb.BAD_REQUEST,
            "1024",
        ),
        ({"topic": TOPIC, "body": b"x", "ext_info": {str(each): "" for each in range(1_025)}}, pb.BAD_REQUEST, "1024"),
        (
            {"topic": TOPIC, "body": b"x", "system_properties": {"message_type": pb.TRANSACTION}},
            pb.BAD_REQUEST,
            "ends its transaction",
        ),
    ],
)
def test_messages_that_are_refused(admin_server: AdminServer, fields: Any, code: int, words: str) -> None:
    before = admin_server.digest()
    status = admin_server.ask("AdminSendMessage", **fields).status
    assert (status.code, words in status.message) == (code, True), status
    assert admin_server.digest() == before
