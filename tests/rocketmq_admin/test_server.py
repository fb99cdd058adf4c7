"""apache.rocketmq.v2.Admin about topics and the server itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
import structlog

from popproto.v2 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2.admin_pb2_grpc import AdminStub
from popserver import logs
from popserver.access.flow import Rules
from popserver.engine.clock import ManualClock
from popserver.engine.meters import Meters
from popserver.model.topic import MessageType
from popserver.rocketmq_admin.traffic import Traffic
from popserver.services.administration import ROCKETMQ_ADMIN
from tests.support.admin_server import AdminServer, named
from tests.support.builders import an_id
from tests.support.signed_server import ADMIN, SECRET, as_
from tests.support.wire_server import opened

TOPIC = named("jobs")


def test_every_method_is_served_and_answers(admin_server: AdminServer) -> None:
    assert len(ROCKETMQ_ADMIN.methods) == 16
    for method in ROCKETMQ_ADMIN.methods:
        answer = admin_server.ask(method.name)
        assert method.name == "ChangeLogLevel" or answer.status.code, method.name


def test_a_topic_is_described(either_admin_server: AdminServer) -> None:
    admin_server = either_admin_server
    admin_server.call("CreateTopic", topic=TOPIC, queue_count=3, accept_message_types=[pb.FIFO])
    admin_server.send("jobs", an_id(), message_group="g")
    answer = admin_server.ask("DescribeTopicStatus", topic=TOPIC)
    assert (answer.status.code, answer.topic_message_type) == (pb.OK, pb.FIFO)
    assert answer.description == "queues=3, types=FIFO, messages=1"
    assert answer.create_timestamp.ToMilliseconds() == admin_server.server.clock.now_ms()
    assert not answer.tags


def test_a_topic_of_several_types_has_none(admin_server: AdminServer) -> None:
    admin_server.send("jobs", an_id())
    answer = admin_server.ask("DescribeTopicStatus", topic=TOPIC)
    assert answer.topic_message_type == pb.MESSAGE_TYPE_UNSPECIFIED
    assert "types=NORMAL,FIFO,DELAY,TRANSACTION" in answer.description


@pytest.mark.parametrize("method", ["DescribeTopicStatus", "GetTopicRoute"])
def test_topics_that_are_not_there(admin_server: AdminServer, method: str) -> None:
    for name, code in (("", pb.ILLEGAL_TOPIC), ("nowhere", pb.TOPIC_NOT_FOUND), ("a b", pb.ILLEGAL_TOPIC)):
        assert admin_server.ask(method, topic=named(name)).status.code == code
    assert not admin_server.call("ListTopics").topics


def test_the_namespace_of_the_header_counts(admin_server: AdminServer) -> None:
    admin_server.send("eu/jobs", an_id())
    assert admin_server.ask("DescribeTopicStatus", topic=TOPIC, namespace="eu").status.code == pb.OK
    assert admin_server.ask("DescribeTopicStatus", topic=TOPIC).status.code == pb.TOPIC_NOT_FOUND


def test_the_deployment_is_ignored(admin_server: AdminServer) -> None:
    admin_server.send("jobs", an_id())
    assert admin_server.ask("DescribeTopicStatus", topic=TOPIC, deployment_name="another").status.code == pb.OK


def test_a_route_is_json(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=TOPIC, queue_count=3)
    route = json.loads(admin_server.ask("GetTopicRoute", topic=TOPIC).topic_route_data)
    assert route == {
        "brokerDatas": [
            {"brokerAddrs": {"0": admin_server.server.endpoint}, "brokerName": "popmq", "cluster": "popmq"}
        ],
        "filterServerTable": {},
        "queueDatas": [{"brokerName": "popmq", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0, "writeQueueNums": 3}],
    }


def test_the_server_in_numbers(admin_server: AdminServer) -> None:
    admin_server.send("jobs", an_id(), an_id())
    admin_server.server.clock.advance("2s")
    stats = admin_server.ask("GetProxyRuntimeStats")
    assert stats.status.code == pb.OK
    assert (stats.proxy_name, stats.in_tps, stats.out_tps) == (admin_server.server.endpoint, 1.0, 0.0)
    assert (stats.connections, stats.producers, stats.consumers) == (1, 0, 0)
    assert stats.version


async def nothing() -> None:
    """No work becomes due."""


async def test_the_throughput_is_that_of_the_last_minute() -> None:
    clock, meters = ManualClock(), Meters()
    traffic = Traffic(meters, clock)
    assert traffic.now() == (0.0, 0.0)
    for seconds, messages, expected in ((10, 20, 2.0), (20, 40, 2.0), (30, 0, 1.0), (60, 0, 0.0)):
        for _ in range(messages):
            meters.sent[1, MessageType.NORMAL].sizes.add(1)
        await clock.advance(seconds * 1_000, nothing)
        assert traffic.now().taken == expected


def test_a_server_in_another_program_leaves_the_log_alone(admin_server: AdminServer) -> None:
    before = structlog.get_config()["wrapper_class"]
    answer = admin_server.ask("ChangeLogLevel", level=admin.ChangeLogLevelRequest.DEBUG)
    assert answer.remark.startswith("unchanged: this server runs inside another program")
    assert structlog.get_config()["wrapper_class"] is before


@pytest.fixture
def configured() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


async def test_the_log_level_is_changed(tmp_path: Path, configured: None, capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    async with opened(tmp_path, administered=True, set_log_level=logs.set_level) as wire_server:
        change, log = AdminStub(wire_server.channel).ChangeLogLevel, structlog.get_logger("popserver")
        for level, said, is_shown in (("TRACE", "debug", True), ("WARN", "warning", False), ("ERROR", "error", False)):
            number = admin.ChangeLogLevelRequest.Level.Value(level)
            answer = await change(admin.ChangeLogLevelRequest(level=number))
            assert f"is {said} now" in answer.remark
            capsys.readouterr()
            log.info("a line")
            assert ("a line" in capsys.readouterr().err) == is_shown


async def test_an_answer_without_a_status_is_refused_by_grpc(tmp_path: Path) -> None:
    """Official clients of ChangeLogLevel have no other place where they could look."""
    async with opened(tmp_path, administered=True, rules=Rules(auth=True), admin=ADMIN) as wire_server:
        await wire_server.users.add("alice", SECRET, is_admin=False)
        change, request = AdminStub(wire_server.channel).ChangeLogLevel, admin.ChangeLogLevelRequest()
        for headers, code, words in (
            ({}, grpc.StatusCode.UNAUTHENTICATED, "sign"),
            (as_("alice"), grpc.StatusCode.PERMISSION_DENIED, "it is for admins"),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await change(request, metadata=tuple(headers.items()))
            assert (refused.value.code(), words in (refused.value.details() or "")) == (code, True)
        unknown = admin.ChangeLogLevelRequest.FromString(b"\x08\x09")
        with pytest.raises(grpc.aio.AioRpcError, match="log level 9 is not known"):
            await change(unknown, metadata=tuple(as_(*ADMIN).items()))
