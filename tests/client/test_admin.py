"""The administration's client where there is no administration, or no server at all."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from popclient import ClientConfig, Unreachable, UnsupportedByServer
from popclient.admin import Admin
from popclient.cli import REFUSED, main
from popproto.v1 import admin_pb2 as wire
from popproto.v1.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from popproto.v2 import admin_pb2 as rocketmq
from popproto.v2 import definition_pb2 as pb
from popproto.v2.admin_pb2_grpc import AdminServicer as RocketmqAdminServicer
from popproto.v2.admin_pb2_grpc import add_AdminServicer_to_server as add_rocketmq_admin
from popserver.clients.commands import ANSWER_WITHIN_S, VERIFIED_WITHIN_S
from tests.support.scripted_server import ServerThread


@pytest.mark.row("O9")
def test_a_rocketmq_server_has_no_administration(threaded: ServerThread) -> None:
    with Admin(threaded.endpoints) as admin, pytest.raises(UnsupportedByServer, match="only PopMQ offers it"):
        admin.status()


def test_nobody_there_is_told_fast() -> None:
    with ServerThread() as gone:
        endpoints = gone.endpoints
    config = ClientConfig(endpoints, request_timeout=600)
    began = time.monotonic()
    with Admin(config, connect_timeout=0.2) as admin, pytest.raises(Unreachable, match=endpoints):
        admin.status()
    assert time.monotonic() - began < 60


class _Present(AdminServicer):
    def GetStatus(self, request: wire.GetStatusRequest, context: object) -> wire.GetStatusResponse:  # noqa: N802
        return wire.GetStatusResponse(status=pb.Status(code=pb.OK), version="1")


class _PresentToo(RocketmqAdminServicer):
    def __init__(self) -> None:
        self.remaining: list[float] = []  # s, of the calls about a client

    def PrintThreadStackTrace(  # noqa: N802
        self, request: rocketmq.PrintThreadStackTraceRequest, context: grpc.ServicerContext
    ) -> rocketmq.PrintThreadStackTraceResponse:
        self.remaining.append(context.time_remaining())
        return rocketmq.PrintThreadStackTraceResponse(status=_NO_ANSWER)

    def VerifyMessage(  # noqa: N802
        self, request: rocketmq.VerifyMessageRequest, context: grpc.ServicerContext
    ) -> rocketmq.VerifyMessageResponse:
        self.remaining.append(context.time_remaining())
        return rocketmq.VerifyMessageResponse(status=_NO_ANSWER)


_NO_ANSWER = pb.Status(code=pb.REQUEST_TIMEOUT, message="client 'c' has not answered within 5 s")


@pytest.mark.parametrize(
    ("words", "server_waits_s"), [(("stack", "c"), ANSWER_WITHIN_S), (("verify", "c", "m"), VERIFIED_WITHIN_S)]
)
def test_the_first_call_of_an_operator_waits_longer_than_the_server(
    words: tuple[str, ...], server_waits_s: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server says that a client has not answered; an operator who gave up earlier would not read it."""
    present, server = _PresentToo(), grpc.server(ThreadPoolExecutor(1))
    add_rocketmq_admin(present, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert main(["--endpoint", f"127.0.0.1:{port}", "client", *words]) == REFUSED
    finally:
        server.stop(0).wait()
    assert "client 'c' has not answered within 5 s" in capsys.readouterr().err
    (remaining,) = present.remaining
    assert remaining > server_waits_s


def test_a_server_without_a_call_is_told_from_one_without_administration(capsys: pytest.CaptureFixture[str]) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    add_AdminServicer_to_server(_Present(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert main(["--endpoint", f"127.0.0.1:{port}", "client", "stack", "c"]) == REFUSED
    finally:
        server.stop(0).wait()
    assert "is an older PopMQ, which does not offer PrintThreadStackTrace; update the server" in capsys.readouterr().err


def test_whoever_listens_may_take_his_time() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    add_AdminServicer_to_server(_Present(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with Admin(ClientConfig(f"127.0.0.1:{port}", request_timeout=60), connect_timeout=30) as admin:
            assert admin._patience() == 60, "for the first call, as soon as there is a connection"
            assert admin.status().version == "1"
            assert admin._patience() == 60
    finally:
        server.stop(0).wait()
