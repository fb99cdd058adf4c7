"""Whatever is wrong gets its code and a sentence with the value and the limit, and changes nothing."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named, opened


def group_request(*intervals: timedelta, **fields: Any) -> admin.CreateGroupRequest:
    request = admin.CreateGroupRequest(group=named("new"), **fields)
    for interval in intervals:
        request.retry_intervals.add().FromTimedelta(interval)
    return request


TOPIC, GROUP = named("flights"), named("counters")
NOWHERE, NOBODY = named("nowhere"), named("nobody")
OF_GROUP, OF_NOBODY = admin.DeadLetterSelection(group=GROUP), admin.DeadLetterSelection(group=NOBODY)
OF_NOWHERE = admin.DeadLetterSelection(group=GROUP, topic=NOWHERE)
S = timedelta(seconds=1)
TOO_LONG = timedelta(hours=12, seconds=1)


def try_filter_request(last: timedelta) -> admin.TryFilterRequest:
    request = admin.TryFilterRequest(topic=TOPIC, expression="a > 3")
    request.last.FromTimedelta(last)
    return request


CASES: list[tuple[str, Any, int, tuple[str, ...]]] = [
    # Names.
    ("CreateTopic", admin.CreateTopicRequest(), pb.ILLEGAL_TOPIC, ("blank", "127")),
    ("CreateTopic", admin.CreateTopicRequest(topic=named("a b")), pb.ILLEGAL_TOPIC, ("'a b'",)),
    ("CreateTopic", admin.CreateTopicRequest(topic=named("x" * 128)), pb.ILLEGAL_TOPIC, ("128", "127")),
    ("CreateTopic", admin.CreateTopicRequest(topic=named("TBW102")), pb.ILLEGAL_TOPIC, ("reserved",)),
    ("CreateTopic", admin.CreateTopicRequest(topic=named("%DLQ%new")), pb.ILLEGAL_TOPIC, ("%DLQ%new",)),
    ("CreateGroup", admin.CreateGroupRequest(), pb.ILLEGAL_CONSUMER_GROUP, ("blank", "120")),
    ("CreateGroup", admin.CreateGroupRequest(group=named("a:b")), pb.ILLEGAL_CONSUMER_GROUP, ("'a:b'",)),
    ("CreateGroup", admin.CreateGroupRequest(group=named("x" * 121)), pb.ILLEGAL_CONSUMER_GROUP, ("121", "120")),
    # Filters.
    ("TryFilter", admin.TryFilterRequest(expression="a > 3"), pb.ILLEGAL_TOPIC, ("blank",)),
    ("TryFilter", admin.TryFilterRequest(topic=NOWHERE, expression="a > 3"), pb.TOPIC_NOT_FOUND, ("'nowhere'",)),
    ("TryFilter", admin.TryFilterRequest(topic=TOPIC), pb.ILLEGAL_FILTER_EXPRESSION, ("no condition",)),
    (
        "TryFilter",
        admin.TryFilterRequest(topic=TOPIC, expression="a > 'x'"),
        pb.ILLEGAL_FILTER_EXPRESSION,
        ("line 1, column 5", "^'x'"),
    ),
    (
        "TryFilter",
        admin.TryFilterRequest(topic=TOPIC, expression="a > 3", max=101),
        pb.BAD_REQUEST,
        ("101", "1 to 100"),
    ),
    ("TryFilter", admin.TryFilterRequest(topic=TOPIC, expression="a > 3", max=-1), pb.BAD_REQUEST, ("-1", "1 to 100")),
    ("TryFilter", try_filter_request(last=timedelta(0)), pb.BAD_REQUEST, ("0 ms",)),
    ("TryFilter", try_filter_request(last=-S), pb.BAD_REQUEST, ("-1000 ms",)),
    # What exists already.
    ("CreateTopic", admin.CreateTopicRequest(topic=TOPIC), pb.BAD_REQUEST, ("'flights'", "popmq topic update")),
    ("CreateGroup", admin.CreateGroupRequest(group=GROUP), pb.BAD_REQUEST, ("'counters'", "popmq group update")),
    # Limits of a topic.
    ("CreateTopic", admin.CreateTopicRequest(topic=named("new"), queue_count=-1), pb.BAD_REQUEST, ("-1", "1024")),
    ("CreateTopic", admin.CreateTopicRequest(topic=named("new"), queue_count=1025), pb.BAD_REQUEST, ("1025", "1024")),
    (
        "CreateTopic",
        admin.CreateTopicRequest(topic=named("new"), accept_message_types=[pb.LITE, pb.FIFO]),
        pb.BAD_REQUEST,
        ("LITE and FIFO", "LITE messages only"),
    ),
    (
        "CreateTopic",
        admin.CreateTopicRequest(topic=named("new"), accept_message_types=[77]),  # type: ignore[list-item]
        pb.BAD_REQUEST,
        ("77", "NORMAL (1)"),
    ),
    ("UpdateTopic", admin.UpdateTopicRequest(topic=TOPIC, queue_count=0), pb.BAD_REQUEST, ("not 0", "1024")),
    ("UpdateTopic", admin.UpdateTopicRequest(topic=TOPIC, queue_count=1), pb.BAD_REQUEST, ("2 queues", "only grows")),
    ("UpdateTopic", admin.UpdateTopicRequest(topic=TOPIC, queue_count=5_000), pb.BAD_REQUEST, ("5000", "1024")),
    (
        "UpdateTopic",
        admin.UpdateTopicRequest(topic=NOWHERE),
        pb.TOPIC_NOT_FOUND,
        ("popmq topic create nowhere",),
    ),
    (
        "UpdateTopic",
        admin.UpdateTopicRequest(topic=named("%DLQ%counters"), queue_count=4),
        pb.FORBIDDEN,
        ("popmq group delete counters",),
    ),
    ("DeleteTopic", admin.DeleteTopicRequest(topic=NOWHERE), pb.TOPIC_NOT_FOUND, ("popmq topic create nowhere",)),
    ("DeleteTopic", admin.DeleteTopicRequest(topic=named("%DLQ%counters")), pb.FORBIDDEN, ("popmq group delete",)),
    ("GetTopic", admin.GetTopicRequest(topic=NOWHERE), pb.TOPIC_NOT_FOUND, ("popmq topic create nowhere",)),
    # Limits of a group.
    ("CreateGroup", group_request(max_attempts=-1), pb.BAD_REQUEST, ("-1", "1000")),
    ("CreateGroup", group_request(max_attempts=1001), pb.BAD_REQUEST, ("1001", "1000")),
    ("CreateGroup", group_request(*[S] * 65), pb.BAD_REQUEST, ("65", "64")),
    ("CreateGroup", group_request(-S), pb.BAD_REQUEST, ("-1000 ms", "12 h")),
    ("CreateGroup", group_request(S, 43_201 * S), pb.BAD_REQUEST, ("12 h 1 s", "0 s to 12 h")),
    ("CreateGroup", group_request(fifo_retry_interval=TOO_LONG), pb.BAD_REQUEST, ("12 h 1 s", "0 s to 12 h")),
    (
        "UpdateGroup",
        admin.UpdateGroupRequest(group=GROUP, fifo_retry_interval=cast("Any", -S)),
        pb.BAD_REQUEST,
        ("-1000 ms", "12 h"),
    ),
    ("CreateGroup", group_request(consume_from="MIDDLE"), pb.BAD_REQUEST, ("'MIDDLE'", "EARLIEST, LATEST")),
    ("CreateGroup", group_request(history="some"), pb.BAD_REQUEST, ("'some'", "none, errors, all")),
    ("UpdateGroup", admin.UpdateGroupRequest(group=GROUP, max_attempts=0), pb.BAD_REQUEST, ("not 0", "1000")),
    ("UpdateGroup", admin.UpdateGroupRequest(group=GROUP, history="some"), pb.BAD_REQUEST, ("'some'",)),
    (
        "UpdateGroup",
        admin.UpdateGroupRequest(group=NOBODY),
        pb.CONSUMER_GROUP_NOT_FOUND,
        ("popmq group create nobody",),
    ),
    (
        "DeleteGroup",
        admin.DeleteGroupRequest(group=NOBODY),
        pb.CONSUMER_GROUP_NOT_FOUND,
        ("popmq group create nobody",),
    ),
    ("GetGroup", admin.GetGroupRequest(group=NOBODY), pb.CONSUMER_GROUP_NOT_FOUND, ("popmq group create nobody",)),
    # Messages.
    # Messages in no queue yet.
    ("ListScheduled", admin.ListScheduledRequest(), pb.ILLEGAL_TOPIC, ("blank",)),
    ("ListScheduled", admin.ListScheduledRequest(topic=NOWHERE), pb.TOPIC_NOT_FOUND, ("popmq topic create nowhere",)),
    ("ListScheduled", admin.ListScheduledRequest(topic=TOPIC, max=1001), pb.BAD_REQUEST, ("1001", "1000")),
    ("CancelScheduled", admin.CancelScheduledRequest(topic=TOPIC), pb.BAD_REQUEST, ("either message ids or a key",)),
    (
        "CancelScheduled",
        admin.CancelScheduledRequest(topic=TOPIC, message_ids=["m"], key="k"),
        pb.BAD_REQUEST,
        ("either message ids or a key",),
    ),
    (
        "CancelScheduled",
        admin.CancelScheduledRequest(topic=TOPIC, message_ids=["m"] * 1001),
        pb.BAD_REQUEST,
        ("1000", "1001"),
    ),
    (
        "CancelScheduled",
        admin.CancelScheduledRequest(topic=TOPIC, message_ids=[" "]),
        pb.ILLEGAL_MESSAGE_ID,
        ("blank",),
    ),
    (
        "CancelScheduled",
        admin.CancelScheduledRequest(topic=NOWHERE, message_ids=["m"]),
        pb.TOPIC_NOT_FOUND,
        ("popmq topic create nowhere",),
    ),
    (
        "CancelScheduled",
        admin.CancelScheduledRequest(topic=NOWHERE, key="k"),
        pb.TOPIC_NOT_FOUND,
        ("popmq topic create nowhere",),
    ),
    ("PeekMessages", admin.PeekMessagesRequest(topic=NOWHERE), pb.TOPIC_NOT_FOUND, ("popmq topic create nowhere",)),
    ("PeekMessages", admin.PeekMessagesRequest(topic=TOPIC, max=-1), pb.BAD_REQUEST, ("-1", "1000")),
    ("PeekMessages", admin.PeekMessagesRequest(topic=TOPIC, max=1001), pb.BAD_REQUEST, ("1001", "1000")),
    ("PeekMessages", admin.PeekMessagesRequest(topic=TOPIC, queue_id=2), pb.BAD_REQUEST, ("0 to 1", "not 2")),
    ("PeekMessages", admin.PeekMessagesRequest(topic=TOPIC, queue_id=-1), pb.BAD_REQUEST, ("not -1",)),
    ("PeekMessages", admin.PeekMessagesRequest(topic=TOPIC, from_offset=3), pb.BAD_REQUEST, ("offset 3", "queue")),
    (
        "PeekMessages",
        admin.PeekMessagesRequest(topic=TOPIC, queue_id=0, from_offset=-3),
        pb.BAD_REQUEST,
        ("-3",),
    ),
    (
        "PeekMessages",
        admin.PeekMessagesRequest(topic=TOPIC, queue_id=0, from_offset=2**63 - 1),
        pb.BAD_REQUEST,
        (str(2**63 - 1), str(2**40 - 1)),
    ),
    ("GetMessage", admin.GetMessageRequest(), pb.ILLEGAL_MESSAGE_ID, ("blank",)),
    ("GetMessage", admin.GetMessageRequest(message_id="nope"), pb.MESSAGE_NOT_FOUND, ("'nope'", "any topic")),
    ("GetMessage", admin.GetMessageRequest(message_id="x" * 300), pb.MESSAGE_NOT_FOUND, ("xxx…",)),
    ("GetMessage", admin.GetMessageRequest(message_id="\x00"), pb.MESSAGE_NOT_FOUND, ()),
    (
        "GetMessage",
        admin.GetMessageRequest(topic=TOPIC, message_id="nope"),
        pb.MESSAGE_NOT_FOUND,
        ("topic 'flights'",),
    ),
    ("GetMessage", admin.GetMessageRequest(topic=NOWHERE, message_id="m1"), pb.TOPIC_NOT_FOUND, ("'nowhere'",)),
    # Dead letters.
    (
        "ListDeadLetters",
        admin.ListDeadLettersRequest(selection=OF_NOBODY),
        pb.CONSUMER_GROUP_NOT_FOUND,
        ("popmq group create nobody",),
    ),
    (
        "ListDeadLetters",
        admin.ListDeadLettersRequest(selection=OF_GROUP, max=1001),
        pb.BAD_REQUEST,
        ("1001", "1000"),
    ),
    (
        "ListDeadLetters",
        admin.ListDeadLettersRequest(selection=OF_NOWHERE),
        pb.TOPIC_NOT_FOUND,
        ("'nowhere'",),
    ),
    ("GetDeadLetter", admin.GetDeadLetterRequest(group=GROUP), pb.ILLEGAL_MESSAGE_ID, ("blank",)),
    (
        "GetDeadLetter",
        admin.GetDeadLetterRequest(group=GROUP, message_id="m1"),
        pb.MESSAGE_NOT_FOUND,
        ("'m1'", "popmq dlq list --group counters"),
    ),
    (
        "GetDeadLetter",
        admin.GetDeadLetterRequest(group=NOBODY, message_id="m1"),
        pb.CONSUMER_GROUP_NOT_FOUND,
        ("'nobody'",),
    ),
]


@pytest.fixture(scope="module")
def furnished() -> Any:
    with opened() as admin_server:
        admin_server.call("CreateTopic", topic=TOPIC, queue_count=2)
        admin_server.make_group("counters")
        admin_server.send("flights", "m1")
        admin_server.receive("counters", "flights")
        yield admin_server


@pytest.mark.parametrize(
    ("method", "request_", "code", "words"), CASES, ids=[f"{case[0]}-{index}" for index, case in enumerate(CASES)]
)
def test_a_refusal_is_precise_and_changes_nothing(
    furnished: AdminServer, method: str, request_: Any, code: pb.Code.ValueType, words: tuple[str, ...]
) -> None:
    before = furnished.digest()
    status = getattr(furnished.admin, method)(request_).status
    assert pb.Code.Name(status.code) == pb.Code.Name(code), status
    for word in words:
        assert word in status.message
    assert "\n" not in status.message
    assert furnished.digest() == before


def test_bytes_that_are_no_request_are_a_bad_request(admin_server: AdminServer) -> None:
    import grpc

    with grpc.insecure_channel(admin_server.server.endpoint) as channel:
        call: Any = channel.unary_unary("/popmq.v1.Admin/CreateTopic")
        answer = admin.CreateTopicResponse.FromString(call(b"\xff\xff\xff"))
    assert answer.status.code == pb.BAD_REQUEST
