"""RocketMQ's Admin for a tool that knows nothing of PopMQ: it learns the calls from the server, and makes all of them.

The stubs that official clients have published have one of the 16 calls, ChangeLogLevel.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

import popclient.cli
import popserver
from popclient import ClientConfig, ConsumeResult, PushConsumer, Tls
from popclient.admin import Admin
from popserver import EmbeddedBroker
from tests.support.certificates import Authority
from tests.support.waiting import soon

SERVICE = "apache.rocketmq.v2.Admin"
REFLECTION = "grpc.reflection.v1alpha.ServerReflection"
TOPIC, GROUP = {"name": "jobs"}, {"name": "workers"}


class ForeignStub:
    """Calls by name, with requests and answers as JSON documents, as grpcurl has them; from reflection alone."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        database = ProtoReflectionDescriptorDatabase(channel)
        self.services = set(database.get_services())
        pool = DescriptorPool(database)
        self.methods = pool.FindServiceByName(SERVICE).methods_by_name

    def __call__(self, method: str, **fields: Any) -> dict[str, Any]:
        described = self.methods[method]
        request, answer = GetMessageClass(described.input_type), GetMessageClass(described.output_type)
        call: Any = self._channel.unary_unary(
            f"/{SERVICE}/{method}", lambda made: made.SerializeToString(), answer.FromString
        )
        return MessageToDict(call(ParseDict(fields, request()), timeout=20), preserving_proto_field_name=True)


class Site(NamedTuple):
    """A server whose administration has a port of its own, with TLS, and a consumer of a topic there."""

    server: EmbeddedBroker
    authority: Authority
    client_id: str

    @property
    def tls(self) -> Tls:
        return Tls(ca=self.authority.ca)


@pytest.fixture
def site(authority: Authority) -> Iterator[Site]:
    pair = authority.issue("server")
    trust = Tls(ca=authority.ca)
    with popserver.embedded(admin="127.0.0.1:0", tls="tls", tls_cert=pair.cert, tls_key=pair.key) as server:
        config = ClientConfig(endpoints=server.endpoint, tls=trust)
        with (
            Admin(ClientConfig(endpoints=server.admin_endpoint, tls=trust)) as admin,
            PushConsumer(config, "workers", "jobs", lambda _: ConsumeResult.SUCCESS) as consumer,
        ):
            soon(lambda: len(admin.list_clients("workers")) == 1)
            yield Site(server, authority, consumer.client_id)


@pytest.fixture
def channel(site: Site) -> Iterator[grpc.Channel]:
    credentials = grpc.ssl_channel_credentials(site.authority.ca.read_bytes())
    with grpc.secure_channel(site.server.admin_endpoint, credentials) as opened:
        yield opened


def test_all_calls(site: Site, channel: grpc.Channel) -> None:
    ask = ForeignStub(channel)
    made: set[str] = set()

    def ok(method: str, **fields: Any) -> dict[str, Any]:
        made.add(method)
        answer = ask(method, **fields)
        assert answer.pop("status")["code"] == "OK", answer
        return answer

    message_id = ok("AdminSendMessage", topic=TOPIC, tag="A", body="b25l")["message_id"]
    assert ok("QueryMessage", topic=TOPIC, message_id=message_id)["messages"][0]["body"] == "b25l"
    assert "types=" in ok("DescribeTopicStatus", topic=TOPIC)["description"]
    assert "brokerDatas" in ok("GetTopicRoute", topic=TOPIC)["topic_route_data"]
    (listed,) = ok("ListSubscription", group=GROUP)["subscription_info"]
    (described,) = ok("DescribeSubscription", topic=TOPIC)["client_subscription_info"]
    (connected,) = ok("ListConsumerConnection", group=GROUP)["client_info"]
    assert (listed["online"], described["client_info"], connected["client_id"]) == (True, connected, site.client_id)
    assert "jobs" in ok("DescribeGroupAccumulation", group=GROUP)["topic_accumulation"]
    assert len(ok("QueryTimeSpan", group=GROUP, topics=[TOPIC])["queue_time_span_list"]) == 8
    ok("ResetGroupOffset", group=GROUP, topic=TOPIC, reset_timestamp="2100-01-01T00:00:00Z")
    client = {"client_id": site.client_id, "group": GROUP}
    assert "MainThread" in ok("PrintThreadStackTrace", **client)["thread_stack_trace"]
    assert ok("VerifyMessage", **client, topic=TOPIC, message_id=message_id) == {}
    running = ok("GetConsumerRunningInfo", **client)["consumer_running_info"]
    assert (running["properties"]["PROP_CONSUME_TYPE"], list(running["subscriptions"])) == (
        "CONSUME_PASSIVELY",
        ["jobs"],
    )
    assert ok("GetProxyRuntimeStats")["consumers"] == "1"
    in_use = ask("DeleteSubscription", group=GROUP, topic=TOPIC)["status"]
    assert in_use["code"] == "BAD_REQUEST", "a connected consumer has it"
    assert "another program" in ask("ChangeLogLevel", level="INFO")["remark"]
    assert made | {"DeleteSubscription", "ChangeLogLevel"} == set(ask.methods)
    assert len(ask.methods) == 16
    assert ask.services == {SERVICE, "popmq.v1.Admin", "grpc.health.v1.Health", REFLECTION}


def test_the_command_line_on_the_port(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    def run(endpoint: str, *words: str) -> tuple[int, str]:
        status = popclient.cli.main(["--endpoint", endpoint, "--ca", str(site.authority.ca), *words])
        said = capsys.readouterr()
        return status, said.out + said.err

    assert run(site.server.admin_endpoint, "topic", "list")[0] == 0
    status, said = run(site.server.admin_endpoint, "client", "list")
    assert (status, site.client_id in said) == (0, True)
    status, said = run(site.server.endpoint, "topic", "list")
    assert (status, "--admin" in said) == (1, True), said
