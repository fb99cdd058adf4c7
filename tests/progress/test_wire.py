"""popmq.v1.Admin's section Progress, as raw requests: whatever comes in, the answer is precise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb
from popserver.administration import flow as administration_flow
from tests.support.admin_server import AdminServer, named
from tests.support.builders import an_id
from tests.support.waiting import soon

GROUP, TOPIC = named("workers"), named("jobs")


@pytest.fixture
def ids(admin_server: AdminServer) -> list[str]:
    """Ten messages in the one queue of the topic; the group has three of them in hand."""
    sent = [an_id() for _ in range(10)]
    admin_server.call("CreateTopic", topic=TOPIC, queue_count=1)
    admin_server.make_group("workers")
    admin_server.send("jobs", *sent)
    assert len(admin_server.receive("workers", "jobs", 3)) == 3
    return sent


def moved(answer: Any) -> list[tuple[str, int, int, int]]:
    assert answer.status.code == pb.OK, answer.status
    return [(each.topic.name, each.queue_id, each.from_offset, each.to_offset) for each in answer.moved]


def test_lag(admin_server: AdminServer, ids: list[str]) -> None:
    answer = admin_server.call("ListLag", group=GROUP)
    assert answer.status == pb.Status(code=pb.OK, message="OK")
    expected = wire.QueueLag(topic=TOPIC, queue_id=0, max_offset=10, offset=3, ready=7, inflight=3)
    expected.oldest_ready.FromMilliseconds(1_735_689_600_000)
    assert list(answer.queues) == [expected]
    assert list(admin_server.call("ListLag", group=GROUP, topic=TOPIC).queues) == [expected]
    admin_server.call("CreateTopic", topic=named("other"))
    assert list(admin_server.call("ListLag", group=GROUP, topic=named("other")).queues) == []


@pytest.mark.row("H13")
def test_resets(admin_server: AdminServer, ids: list[str]) -> None:
    assert moved(admin_server.call("ResetOffsets", group=GROUP, topic=TOPIC, policy=pb.END, dry_run=True)) == [
        ("jobs", 0, 3, 10)
    ]
    assert moved(admin_server.call("ResetOffsets", group=GROUP, topic=TOPIC, queue_id=0, offset=5)) == [
        ("jobs", 0, 3, 5)
    ]
    assert [each.system_properties.message_id for each in admin_server.receive("workers", "jobs", 1)] == [ids[5]]
    assert moved(admin_server.call("ResetOffsets", group=GROUP, topic=TOPIC, policy=pb.BEGINNING)) == [
        ("jobs", 0, 6, 0)
    ]
    assert moved(admin_server.call("ResetOffsets", group=GROUP, topic=TOPIC, timestamp={"seconds": 4_000_000_000})) == [
        ("jobs", 0, 0, 10)
    ]
    assert moved(admin_server.call("ResetOffsets", group=GROUP, topic=TOPIC, timestamp={"seconds": -1})) == [
        ("jobs", 0, 10, 0)
    ]


def test_a_handle_from_before_the_reset_is_refused(admin_server: AdminServer, ids: list[str]) -> None:
    (held,) = admin_server.receive("workers", "jobs", 1)
    admin_server.call("ResetOffsets", group=GROUP, topic=TOPIC, policy=pb.BEGINNING)
    with pytest.raises(AssertionError, match="INVALID_RECEIPT_HANDLE"):
        admin_server.give_up("workers", "jobs", held)


def test_skips_and_clones(admin_server: AdminServer, ids: list[str]) -> None:
    answer = admin_server.call("SkipMessage", group=GROUP, message_id=ids[3])
    assert (answer.status.code, answer.from_state) == (pb.OK, "READY")
    assert moved(admin_server.call("CloneOffsets", source=GROUP, group=named("copy"))) == [("jobs", 0, -1, 0)]
    assert len(admin_server.receive("copy", "jobs")) == 10


def test_imports(admin_server: AdminServer, ids: list[str]) -> None:
    offsets = [wire.MovedOffset(topic=TOPIC, queue_id=0, from_offset=77, to_offset=8)]
    assert moved(admin_server.call("ImportOffsets", group=named("fresh"), offsets=offsets)) == [("jobs", 0, -1, 8)]
    assert len(admin_server.receive("fresh", "jobs")) == 2, "a new group may still consume message by message"
    refused = admin_server.call("ImportOffsets", group=GROUP, offsets=offsets)
    assert refused.status.code == pb.BAD_REQUEST
    assert "consumes in mode POP" in refused.status.message


WRONG: list[tuple[str, dict[str, Any], int, str]] = [
    ("ListLag", {}, pb.ILLEGAL_CONSUMER_GROUP, "the consumer group's name is blank"),
    ("ListLag", {"group": named("nobody")}, pb.CONSUMER_GROUP_NOT_FOUND, "'nobody'"),
    ("ListLag", {"group": GROUP, "topic": named("none")}, pb.TOPIC_NOT_FOUND, "'none'"),
    ("ResetOffsets", {"group": GROUP, "topic": TOPIC}, pb.BAD_REQUEST, "the request has no target"),
    ("ResetOffsets", {"group": GROUP, "topic": TOPIC, "offset": 3}, pb.BAD_REQUEST, "name the queue as well"),
    ("ResetOffsets", {"group": GROUP, "topic": TOPIC, "policy": pb.TIMESTAMP}, pb.BAD_REQUEST, "is not allowed"),
    ("ResetOffsets", {"group": GROUP, "topic": TOPIC, "policy": 99}, pb.BAD_REQUEST, "policy 99 is not allowed"),
    (
        "ResetOffsets",
        {"group": GROUP, "topic": TOPIC, "policy": pb.END, "queue_id": -1},
        pb.BAD_REQUEST,
        "topic 'jobs' has no queue -1; it has 1, numbered 0 to 0",
    ),
    (
        "ResetOffsets",
        {"group": GROUP, "topic": TOPIC, "offset": 11, "queue_id": 0},
        pb.ILLEGAL_OFFSET,
        "offset 11 is not in queue 0 of topic 'jobs', which stores 0 to 10",
    ),
    ("ResetOffsets", {"group": GROUP, "policy": pb.END}, pb.ILLEGAL_TOPIC, "blank"),
    ("ResetOffsets", {"topic": TOPIC, "policy": pb.END}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
    ("ResetOffsets", {"group": named("x"), "topic": TOPIC, "policy": pb.END}, pb.CONSUMER_GROUP_NOT_FOUND, "'x'"),
    ("ResetOffsets", {"group": GROUP, "topic": named("x"), "policy": pb.END}, pb.TOPIC_NOT_FOUND, "'x'"),
    ("SkipMessage", {"group": GROUP}, pb.ILLEGAL_MESSAGE_ID, "blank"),
    ("SkipMessage", {"group": GROUP, "message_id": "nonsense"}, pb.MESSAGE_NOT_FOUND, "'nonsense'"),
    ("SkipMessage", {"group": GROUP, "message_id": "é" * 9, "topic": TOPIC}, pb.MESSAGE_NOT_FOUND, "topic 'jobs'"),
    ("SkipMessage", {"group": named("x"), "message_id": "a"}, pb.CONSUMER_GROUP_NOT_FOUND, "'x'"),
    ("PauseGroup", {}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
    ("PauseGroup", {"group": named("x")}, pb.CONSUMER_GROUP_NOT_FOUND, "'x'"),
    ("PauseGroup", {"group": GROUP, "topic": named("x")}, pb.TOPIC_NOT_FOUND, "'x'"),
    ("PauseGroup", {"group": GROUP, "message_group": " "}, pb.ILLEGAL_MESSAGE_GROUP, "blank"),
    ("PauseGroup", {"group": GROUP, "message_group": "m"}, pb.BAD_REQUEST, "any topic with message groups"),
    ("ResumeGroup", {"group": named("x")}, pb.CONSUMER_GROUP_NOT_FOUND, "'x'"),
    ("CloneOffsets", {"source": named("x"), "group": GROUP}, pb.CONSUMER_GROUP_NOT_FOUND, "'x'"),
    ("CloneOffsets", {"source": GROUP, "group": GROUP}, pb.BAD_REQUEST, "has progress in topic 'jobs' already"),
    ("CloneOffsets", {"source": GROUP, "group": named(" ")}, pb.ILLEGAL_CONSUMER_GROUP, "blank"),
    ("ImportOffsets", {"group": GROUP}, pb.BAD_REQUEST, "one request imports 1 to 4096 offsets, not 0"),
    ("ImportOffsets", {"group": GROUP, "offsets": [wire.MovedOffset(topic=named("x"))]}, pb.TOPIC_NOT_FOUND, "'x'"),
    (
        "ImportOffsets",
        {"group": GROUP, "offsets": [wire.MovedOffset(topic=TOPIC, queue_id=4)]},
        pb.BAD_REQUEST,
        "topic 'jobs' has no queue 4",
    ),
]


@pytest.mark.parametrize(("method", "request_fields", "code", "said"), WRONG)
def test_bad_input_is_named_and_changes_nothing(
    admin_server: AdminServer,
    ids: list[str],
    method: str,
    request_fields: dict[str, Any],
    code: pb.Code.ValueType,
    said: str,
) -> None:
    before = admin_server.digest()
    status = admin_server.call(method, **request_fields).status
    assert (pb.Code.Name(status.code), said in status.message) == (pb.Code.Name(code), True), status
    assert admin_server.digest() == before


def test_a_held_message_names_its_holder_and_the_end_of_its_hold(admin_server: AdminServer, ids: list[str]) -> None:
    status = admin_server.call("SkipMessage", group=GROUP, message_id=ids[0]).status
    assert status.code == pb.BAD_REQUEST
    assert f"message '{ids[0]}' is not skipped for group 'workers': it is INFLIGHT: client 'worker-1'" in status.message
    assert "(in 10 s); wait until its holder acks it" in status.message


def test_one_import_names_no_queue_twice(admin_server: AdminServer, ids: list[str]) -> None:
    admin_server.make_group("fresh")
    before = admin_server.digest()
    offsets = [wire.MovedOffset(topic=TOPIC, queue_id=0, to_offset=each) for each in (1, 2)]
    status = admin_server.call("ImportOffsets", group=named("fresh"), offsets=offsets).status
    assert status.code == pb.BAD_REQUEST
    assert "queue 0 of topic 'jobs' is named 2 times" in status.message
    assert admin_server.digest() == before


def test_pauses_and_resumes(admin_server: AdminServer, ids: list[str]) -> None:
    assert admin_server.call("PauseGroup", group=GROUP, topic=TOPIC).status.code == pb.OK
    with ThreadPoolExecutor() as threads:
        receiving = threads.submit(admin_server.receive, "workers", "jobs")
        soon(lambda: admin_server.call("GetStatus").parked_polls == 1)
        _check_pause(admin_server)
        assert not receiving.done()
        assert admin_server.call("ResumeGroup", group=GROUP, topic=TOPIC).status.code == pb.OK
        assert len(receiving.result()) == 7


def _check_pause(admin_server: AdminServer) -> None:
    (pause,) = admin_server.call("GetGroup", group=GROUP).group.pauses
    assert (pause.topic.name, pause.HasField("message_group"), pause.paused_by) == ("jobs", False, "")
    listed = admin_server.call("ListGroups").groups
    assert [(each.group.name, len(each.pauses)) for each in listed] == [("workers", 1)]


def test_many_pauses_are_counted_and_some_are_shown(
    either_admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin_server = either_admin_server
    names = [f"topic-{number:02}" for number in range(15)]
    for group in ("a", "b", "c"):
        admin_server.make_group(group)
    for name in names:
        admin_server.call("CreateTopic", topic=named(name))
        assert admin_server.call("PauseGroup", group=named("a"), topic=named(name)).status.code == pb.OK
    admin_server.call("PauseGroup", group=named("b"))
    listed = {each.group.name: each for each in admin_server.call("ListGroups").groups}
    assert [each.topic.name for each in listed["a"].pauses] == names[:10]
    assert {name: (len(each.pauses), each.more_pauses) for name, each in listed.items()} == {
        "a": (10, 5),
        "b": (1, 0),
        "c": (0, 0),
    }
    found = admin_server.call("GetGroup", group=named("a")).group
    assert ([each.topic.name for each in found.pauses], found.more_pauses) == (names, 0)
    monkeypatch.setattr(administration_flow, "PAGE_MAX", 12)
    found = admin_server.call("GetGroup", group=named("a")).group
    assert ([each.topic.name for each in found.pauses], found.more_pauses) == (names[:12], 3)
    admin_server.call("PauseGroup", group=named("a"))
    first = admin_server.call("GetGroup", group=named("a")).group.pauses[0]
    assert not first.HasField("topic"), "the widest pause comes first"


def test_a_topic_that_the_group_has_not_read_is_reset_only_by_force(admin_server: AdminServer, ids: list[str]) -> None:
    admin_server.send("tables", "t0")
    before = admin_server.digest()
    for dry_run in (True, False):
        refused = admin_server.call(
            "ResetOffsets", group=GROUP, topic=named("tables"), policy=pb.BEGINNING, dry_run=dry_run
        )
        assert refused.status.code == pb.BAD_REQUEST
        assert (
            "'workers' has not read topic 'tables'; check the names, or let it begin there with the field force of"
            " popmq.v1.Admin/ResetOffsets (popmq group reset --force)"
        ) in refused.status.message
    assert admin_server.digest() == before, "no lag that nobody works off"
    forced = admin_server.call("ResetOffsets", group=GROUP, topic=named("tables"), policy=pb.END, force=True)
    assert {each[2] for each in moved(forced)} == {-1}
    admin_server.send("tables", "t1")
    assert [each.system_properties.message_id for each in admin_server.receive("workers", "tables")] == ["t1"]
