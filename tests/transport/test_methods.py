"""Every method of every service has its rights beside it, and one module alone knows the library that carries calls."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from google.protobuf.message_factory import GetMessageClass

import popserver
from popproto.v2 import definition_pb2 as pb
from popserver.access import rights
from popserver.access.flow import Access
from popserver.access.gate import AdminElsewhere
from popserver.model.budget import Budgets
from popserver.rocketmq_admin.rpc import ServerFacts
from popserver.services.administration import ADMIN, ROCKETMQ_ADMIN, admin_methods
from popserver.services.clients import ClientServices
from popserver.transport import calls
from popserver.transport.call import Call
from popserver.transport.calls import AnyMethod, Caller, ConversationMethod
from popserver.transport.incoming import Incoming
from tests.support.wire_server import LIMITS, WireServer

# These ask for nothing by themselves: a client says goodbye for itself, and each frame of Telemetry is asked about.
WITHOUT_RIGHTS = {"NotifyClientTermination", "Telemetry"}


@pytest.fixture
def tables(wire_server: WireServer) -> dict[Any, Mapping[str, AnyMethod]]:
    """The methods by service."""
    broker, access = wire_server.broker, Access(wire_server.broker.engine.reader, wire_server.broker.engine.clock)
    made = ClientServices(broker, LIMITS, "", "", pb.Endpoints())
    facts = ServerFacts("", "", lambda: 0, None)
    return {**made.methods, **admin_methods(broker, access, wire_server.server.readiness, facts, LIMITS)}


async def test_every_method_has_rights(tables: dict[Any, Mapping[str, AnyMethod]]) -> None:
    caller = Caller(cast("Call", SimpleNamespace(headers={})))
    without = set()
    for service, methods in tables.items():
        assert set(methods) == set(service.methods_by_name)
        for name, method in methods.items():
            if isinstance(method, ConversationMethod) or method.rights is cast("Any", rights.own_client):
                without.add(name)
            elif service in (ADMIN, ROCKETMQ_ADMIN):
                assert method.rights is cast("Any", rights.admin), name
            else:
                assert method.rights is not cast("Any", rights.admin), name
                request = GetMessageClass(service.methods_by_name[name].input_type)()
                if "group" in request.DESCRIPTOR.fields_by_name:
                    cast("Any", request).group.name = "a"
                if name == "SendMessage":
                    cast("Any", request).messages.add().topic.name = "a"
                assert method.rights(cast("Any", request), caller), name
    assert without == WITHOUT_RIGHTS


async def test_a_missing_method_stops_the_start(tables: dict[Any, Mapping[str, AnyMethod]]) -> None:
    methods = dict(tables[ADMIN])
    del methods["GetStatus"]
    with pytest.raises(ValueError, match="GetStatus"):
        calls.serve(ADMIN, methods, AdminElsewhere(), Incoming(Budgets(), LIMITS))
    methods |= {"GetStatus": tables[ADMIN]["GetStatus"], "GetStars": tables[ADMIN]["GetStatus"]}
    with pytest.raises(ValueError, match="GetStars"):
        calls.serve(ADMIN, methods, AdminElsewhere(), Incoming(Budgets(), LIMITS))


def test_only_one_room_knows_grpc() -> None:
    root = Path(popserver.__file__).parent
    named = {
        path.name
        for path in root.rglob("*.py")
        if path.parent.name != "grpcio"
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.Import) and any(each.name.split(".")[0] == "grpc" for each in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "grpc")
    }
    assert not named
