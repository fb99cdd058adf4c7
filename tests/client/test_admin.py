"""The administration's client where there is no administration, or no server at all."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from popclient import ClientConfig, Unreachable, UnsupportedByServer
from popclient.admin import Admin
from popproto.v1 import admin_pb2 as wire
from popproto.v1.admin_pb2_grpc import AdminServicer, add_AdminServicer_to_server
from popproto.v2 import definition_pb2 as pb
from tests.client.scripted import ServerThread


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
