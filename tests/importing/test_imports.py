"""Messages of another broker, stored for one group alone: once, in every mode, alive and dead; and every refusal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named

TOPIC, GROUP, OTHER = "orders", "billing", "audit"


@pytest.fixture
def server(either_admin_server: AdminServer) -> AdminServer:
    either_admin_server.call("CreateTopic", topic=named(TOPIC), queue_count=2)
    for name in (GROUP, OTHER):
        either_admin_server.make_group(name, max_attempts=3, intervals_s=(1,))
    return either_admin_server


def a_message(message_id: str, body: bytes = b"tea", **system: Any) -> pb.Message:
    values = {"message_id": message_id, "body_encoding": pb.IDENTITY, "tag": "hot", "keys": ["k1"], **system}
    found = pb.Message(body=body, user_properties={"colour": "red"}, system_properties=pb.SystemProperties(**values))
    found.system_properties.born_timestamp.FromMilliseconds(1_600_000_000_000)
    found.system_properties.born_host = "10.0.0.7"
    return found


def an_import(message_id: str, attempt: int = 0, reason: str | None = None, **system: Any) -> admin.ImportedMessage:
    given = admin.ImportedMessage(message=a_message(message_id, **system), delivery_attempt=attempt)
    if reason is not None:
        given.death.reason = reason
        given.death.dead_at.FromMilliseconds(1_700_000_000_000)
    return given


def imported(server: AdminServer, given: Sequence[admin.ImportedMessage], group: str = GROUP) -> list[tuple[int, bool]]:
    answer = server.call("ImportMessages", group=named(group), topic=named(TOPIC), messages=given)
    assert answer.status.code == pb.OK, answer
    return [(each.status.code, each.is_repeated) for each in answer.results]


def left(server: AdminServer, group: str = GROUP) -> int:
    """How many messages the group has not done; a receive would wait for one."""
    lags = server.call("GetGroup", group=named(group)).group.lag
    return sum(each.ready + each.inflight + each.waiting_retry for each in lags)


def refusal(server: AdminServer, given: Sequence[admin.ImportedMessage], **names: str) -> pb.Status:
    group, topic = named(names.get("group", GROUP)), named(names.get("topic", TOPIC))
    answer = server.call("ImportMessages", messages=given, group=group, topic=topic)
    return answer.status if answer.status.code != pb.OK else answer.results[0].status


NEW, STORED = (pb.OK, False), (pb.OK, True)


def test_a_message_comes_to_its_group_alone_as_it_was(server: AdminServer) -> None:
    assert imported(server, [an_import("m1")]) == [NEW]
    (found,) = server.receive(GROUP, TOPIC)
    system = found.system_properties
    assert (found.topic.name, system.message_id, found.body, system.tag) == (TOPIC, "m1", b"tea", "hot")
    assert ([*system.keys], found.user_properties["colour"]) == (["k1"], "red")
    assert (system.born_timestamp.ToMilliseconds(), system.born_host) == (1_600_000_000_000, "10.0.0.7")
    assert system.delivery_attempt == 1
    assert left(server, OTHER) == 0
    server.ack(GROUP, TOPIC, found)
    assert left(server) == 0


def test_a_repeated_import_stores_nothing_even_after_the_ack(server: AdminServer) -> None:
    assert imported(server, [an_import("m1"), an_import("m2")]) == [NEW, NEW]
    assert imported(server, [an_import("m2"), an_import("m3")]) == [STORED, NEW]
    for each in server.receive(GROUP, TOPIC):
        server.ack(GROUP, TOPIC, each)
    assert imported(server, [an_import("m1"), an_import("m3")]) == [STORED, STORED]
    assert left(server) == 0


def test_two_groups_get_the_same_message_each_by_its_own_import(server: AdminServer) -> None:
    assert imported(server, [an_import("m1")]) == [NEW]
    assert imported(server, [an_import("m1")], OTHER) == [NEW]
    assert [len(server.receive(each, TOPIC)) for each in (GROUP, OTHER)] == [1, 1]


def test_its_attempts_go_on_but_one_is_left(server: AdminServer) -> None:
    assert imported(server, [an_import("m2", attempt=2), an_import("m9", attempt=9)]) == [NEW, NEW]
    attempts = {
        each.system_properties.message_id: each.system_properties.delivery_attempt
        for each in server.receive(GROUP, TOPIC)
    }
    assert attempts == {"m2": 2, "m9": 3}


def test_it_is_retried_and_dies_as_a_message_of_its_topic(server: AdminServer) -> None:
    imported(server, [an_import("m1")])
    (found,) = server.receive(GROUP, TOPIC)
    server.give_up(GROUP, TOPIC, found)
    (letter,) = server.call("ListDeadLetters", selection={"group": named(GROUP)}).dead_letters
    assert (letter.topic.name, letter.origin_message_id, letter.delivery_attempt) == (TOPIC, "m1", 1)
    assert letter.message.user_properties == {"colour": "red"}
    plan = server.call("PlanRedrive", selection={"group": named(GROUP)}, reason="again").plan
    assert server.call("RunRedrive", plan_id=plan.plan_id).redriven == 1
    (again,) = server.receive(GROUP, TOPIC)
    assert (again.topic.name, again.system_properties.message_id) == (TOPIC, "m1")


def test_a_dead_letter_is_one_with_its_facts(server: AdminServer) -> None:
    given = [an_import("d1", attempt=17, reason="no such flight"), an_import("m1"), an_import("d2", reason="")]
    assert imported(server, given) == [NEW, NEW, NEW]
    assert imported(server, given) == [STORED, STORED, STORED]
    first, second = server.call("ListDeadLetters", selection={"group": named(GROUP)}).dead_letters
    assert (first.origin_message_id, first.reason, first.delivery_attempt) == ("d1", "no such flight", 17)
    assert (first.topic.name, first.dead_at.ToMilliseconds()) == (TOPIC, 1_700_000_000_000)
    assert (second.origin_message_id, second.reason, second.delivery_attempt) == (
        "d2",
        "it was a dead letter at another broker",
        1,
    )
    assert [each.system_properties.message_id for each in server.receive(GROUP, TOPIC)] == ["m1"]


def test_an_imported_dead_letter_goes_back_to_its_group_and_may_die_again(server: AdminServer) -> None:
    imported(server, [an_import("d1", reason="no such flight")])
    plan = server.call("PlanRedrive", selection={"group": named(GROUP)}, reason="mended").plan
    assert server.call("RunRedrive", plan_id=plan.plan_id).redriven == 1
    (again,) = server.receive(GROUP, TOPIC)
    assert (again.topic.name, again.system_properties.message_id) == (TOPIC, "d1")
    assert left(server, OTHER) == 0
    server.give_up(GROUP, TOPIC, again)
    (letter,) = server.call("ListDeadLetters", selection={"group": named(GROUP)}).dead_letters
    assert (letter.origin_message_id, letter.redrive_state) == ("d1", "")


def test_a_dead_letter_keeps_its_message_group(server: AdminServer) -> None:
    assert imported(server, [an_import("d1", reason="no", message_group="ada")]) == [NEW]
    (letter,) = server.call("ListDeadLetters", selection={"group": named(GROUP)}).dead_letters
    assert letter.message.system_properties.message_group == "ada"


def test_operators_can_find_it(server: AdminServer) -> None:
    imported(server, [an_import("m1"), an_import("d1", reason="no")])
    for message_id, state in (("m1", "READY"), ("d1", "DLQ")):
        why = server.call("Why", message_id=message_id, group=named(GROUP))
        assert (why.status.code, state in str(why)) == (pb.OK, True), why
    assert server.call("GetMessage", message_id="m1").status.code == pb.OK
    (lag,) = {each.topic.name: each for each in server.call("ListLag", group=named(GROUP)).queues}.values()
    assert lag.topic.name == TOPIC


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ([], pb.BAD_REQUEST, "1 to 1000 messages, not 0"),
        ([an_import(f"m{each}") for each in range(1_001)], pb.BAD_REQUEST, "1 to 1000 messages, not 1001"),
        ([an_import("")], pb.ILLEGAL_MESSAGE_ID, "message id"),
        ([an_import("m1", attempt=-1)], pb.BAD_REQUEST, "-1 attempts"),
        ([an_import("m1", message_group="ada")], pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "'ada'.*send it to the topic"),
        ([an_import("m1", lite_topic="ada")], pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, "'ada'.*send it to its topic"),
        ([an_import("m1", body=b"")], pb.MESSAGE_BODY_EMPTY, ""),
        ([an_import("m1", reason="x" * 1_025)], pb.BAD_REQUEST, "1025 characters, at most 1024"),
        ([an_import("m1", body_encoding=7)], pb.MESSAGE_CORRUPTED, "encoding 7"),
    ],
)
def test_what_is_refused_changes_nothing(
    server: AdminServer, given: list[admin.ImportedMessage], code: int, said: str
) -> None:
    before = server.digest()
    status = refusal(server, given)
    assert status.code == code, status
    assert re.search(said, status.message)
    assert server.digest() == before


def test_unknown_names_are_refused_and_not_made(server: AdminServer) -> None:
    before = server.digest()
    assert refusal(server, [an_import("m1")], group="nobody").code == pb.CONSUMER_GROUP_NOT_FOUND
    assert refusal(server, [an_import("m1")], topic="nothing").code == pb.TOPIC_NOT_FOUND
    assert server.digest() == before


def test_a_bad_message_is_refused_alone(server: AdminServer) -> None:
    given = [an_import("m1"), an_import("m1"), an_import("m2", message_group="ada"), an_import("m3")]
    answer = server.call("ImportMessages", group=named(GROUP), topic=named(TOPIC), messages=given)
    codes = [each.status.code for each in answer.results]
    assert codes == [pb.OK, pb.BAD_REQUEST, pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, pb.OK]
    assert sorted(each.system_properties.message_id for each in server.receive(GROUP, TOPIC)) == ["m1", "m3"]
