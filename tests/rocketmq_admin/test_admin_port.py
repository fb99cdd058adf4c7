"""A port for the administration alone: what is served there, and what on the port for clients then."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import product
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub
from pydantic import ValidationError

import popserver
from popclient import ClientConfig, Forbidden, Message, Producer, UnsupportedByServer
from popclient.admin import Admin
from popproto.v1 import admin_pb2 as ours
from popproto.v1.admin_pb2_grpc import AdminStub
from popproto.v2 import admin_pb2 as rocketmq
from popproto.v2 import definition_pb2 as pb
from popproto.v2.admin_pb2_grpc import AdminStub as RocketmqAdminStub
from popserver import EmbeddedBroker
from popserver.config import GivenConfig
from popserver.model.errors import CannotListen
from popserver.services.administration import ADMIN, ROCKETMQ_ADMIN
from popserver.services.clients import MESSAGING
from tests.support.admin_server import REQUESTS, opened
from tests.support.builders import START
from tests.support.http_client import get
from tests.support.signing import signed
from tests.support.waiting import soon


@pytest.fixture
def server() -> Iterator[EmbeddedBroker]:
    with popserver.embedded(admin="127.0.0.1:0") as running:
        yield running


def test_the_administration_is_on_its_port_alone(server: EmbeddedBroker) -> None:
    assert server.admin_endpoint != server.endpoint
    with Producer(server.endpoint) as producer:
        message_id = producer.send("jobs", "one").message_id
    with Admin(server.admin_endpoint) as admin:
        assert admin.get_message(message_id).message.text == "one"
        with pytest.raises(Exception, match="client 'ghost' has no session"):
            admin.print_threads("ghost")
    with Admin(server.endpoint) as admin, pytest.raises(Forbidden, match=r"--admin.*--endpoint HOST:PORT"):
        admin.status()


@pytest.mark.parametrize(("service", "module"), [(ADMIN, ours), (ROCKETMQ_ADMIN, rocketmq)])
def test_the_port_for_clients_refuses_each_call(server: EmbeddedBroker, service: Any, module: Any) -> None:
    stub: Any = AdminStub if module is ours else RocketmqAdminStub
    with grpc.insecure_channel(server.endpoint) as channel:
        for method in service.methods:
            request = getattr(module, REQUESTS.get(method.name, f"{method.name}Request"))()
            call = getattr(stub(channel), method.name)
            if method.name == "ChangeLogLevel":
                with pytest.raises(grpc.RpcError, match="PERMISSION_DENIED"):
                    call(request)
            else:
                status = call(request).status
                assert (status.code, "--admin" in status.message) == (pb.FORBIDDEN, True), method.name


@pytest.mark.parametrize(("service", "module"), [(ADMIN, ours), (ROCKETMQ_ADMIN, rocketmq)])
def test_with_users_each_call_on_the_port_is_for_admins(service: Any, module: Any) -> None:
    stub: Any = AdminStub if module is ours else RocketmqAdminStub
    root, worker = ("root", "root-has-a-secret"), ("worker", "worker-has-a-secret")
    options: dict[str, Any] = {"auth": True, "admin_access_key": root[0], "admin_secret": root[1]}
    with popserver.embedded(manual_clock=START, admin="127.0.0.1:0", **options) as server:
        with Admin(ClientConfig(server.admin_endpoint, access_key=root[0], access_secret=root[1])) as admin:
            admin.create_user(*worker)
        date = datetime.fromtimestamp(server.clock.now_ms() / 1_000, UTC).strftime("%Y%m%dT%H%M%SZ")
        callers: list[tuple[dict[str, str], int, grpc.StatusCode]] = [
            ({}, pb.UNAUTHORIZED, grpc.StatusCode.UNAUTHENTICATED),
            (signed(*worker, date), pb.FORBIDDEN, grpc.StatusCode.PERMISSION_DENIED),
        ]
        with grpc.insecure_channel(server.admin_endpoint) as channel:
            for method, (headers, code, ended) in product(service.methods, callers):
                request = getattr(module, REQUESTS.get(method.name, f"{method.name}Request"))()
                call = getattr(stub(channel), method.name)
                if method.name == "ChangeLogLevel":
                    with pytest.raises(grpc.RpcError) as refused:
                        call(request, metadata=tuple(headers.items()))
                    assert refused.value.code() is ended
                else:
                    assert call(request, metadata=tuple(headers.items())).status.code == code, method.name


def test_the_port_of_the_administration_serves_no_messages(server: EmbeddedBroker) -> None:
    with pytest.raises(UnsupportedByServer), Producer(server.admin_endpoint) as producer:
        producer.send(Message("jobs", "one"))
    with grpc.insecure_channel(server.admin_endpoint) as channel:
        answer = HealthStub(channel).Check(HealthCheckRequest())
    assert answer.status == HealthCheckResponse.SERVING


def test_health_knows_what_each_port_serves(server: EmbeddedBroker) -> None:
    known: dict[str, set[str]] = {}
    names = [each.full_name for each in (MESSAGING, ADMIN, ROCKETMQ_ADMIN)]
    for endpoint in (server.endpoint, server.admin_endpoint):
        with grpc.insecure_channel(endpoint) as channel:
            for name in names:
                try:
                    answer = HealthStub(channel).Check(HealthCheckRequest(service=name))
                except grpc.RpcError as refused:
                    assert refused.code() is grpc.StatusCode.NOT_FOUND
                else:
                    assert answer.status == HealthCheckResponse.SERVING
                    known.setdefault(endpoint, set()).add(name)
    assert known == {server.endpoint: set(names[:1]), server.admin_endpoint: set(names[1:])}


def test_its_connections_have_a_limit_of_their_own(server: EmbeddedBroker) -> None:
    with Admin(server.admin_endpoint) as admin:
        budgets = {each.name: each for each in admin.status().budgets}
    assert (budgets["admin connections"].limit, budgets["admin connections"].used) == (256, 1)
    assert budgets["admin connections"].option == "max_admin_connections"
    assert budgets["connections"].used == 0


def test_one_address_gets_half_of_its_connections() -> None:
    with ExitStack() as stack:
        server = stack.enter_context(popserver.embedded(admin="127.0.0.1:0", max_admin_connections=4))
        host, _, port = server.admin_endpoint.rpartition(":")

        def connect(source: str) -> socket.socket:
            made = socket.create_connection((host, int(port)), source_address=(source, 0), timeout=20)
            return stack.enter_context(made)

        stays = [connect("127.0.0.1") for _ in range(2)]
        assert connect("127.0.0.1").recv(1) == b"", "the third has no place"
        other = connect("127.0.0.2")
        budgets = {each.name: each for each in server.app.broker.engine.budgets}
        soon(lambda: budgets["admin connections"].used == 3)
        share = budgets["admin connections of one address"]
        assert (share.limit, share.used, share.refused, share.option) == (2, 2, 1, "max_admin_connections")
        assert budgets["connections"].used == 0
        for each in (*stays, other):
            each.close()
        soon(lambda: budgets["admin connections"].used == 0)


@pytest.mark.parametrize("option", ["admin", "http"])
def test_a_taken_address_frees_the_port_for_clients_at_once(option: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as probe:
        at = "{}:{}".format(*taken.getsockname())
        options: dict[str, Any] = {option: at}
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        with (
            pytest.raises(CannotListen, match=rf"{at}.*another (port|address) with --{option}") as refused,
            popserver.embedded(port=port, **options),
        ):
            pass
        # What the error keeps alive would keep a forgotten socket open.
        assert refused.tb is not None
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_without_the_option_both_are_one_port() -> None:
    with opened() as admin_server:
        assert admin_server.server.admin_endpoint == admin_server.server.endpoint
        assert admin_server.call("GetStatus").status.code == pb.OK
        assert admin_server.ask("GetProxyRuntimeStats").status.code == pb.OK


def test_the_console_finds_the_port() -> None:
    with popserver.embedded(admin="127.0.0.1:0", http="127.0.0.1:0") as server:
        with Producer(server.endpoint) as producer:
            producer.send("jobs", "one")
        assert "jobs" in asyncio.run(get(server.app.http_endpoint, "/topics")).text


def test_a_public_port_needs_users() -> None:
    with pytest.raises(CannotListen, match=r"will not listen on 0\.0\.0\.0"), popserver.embedded(admin="0.0.0.0:0"):
        pass


def test_a_wrong_address_is_told() -> None:
    with pytest.raises(ValidationError, match="'8088' is not HOST:PORT"):
        GivenConfig(admin="8088")
