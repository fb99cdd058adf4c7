"""Who may transfer in bulk; and what becomes of an answer that nobody reads any more."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import AsyncMock

import pytest

from popproto.v1 import bulk_pb2 as wire
from popproto.v1.bulk_pb2_grpc import BulkStub
from popproto.v2 import definition_pb2 as pb
from popserver.access.flow import Access, Rules
from popserver.access.gate import ClientGate
from popserver.model.budget import Budgets
from popserver.services.clients import BULK, ClientServices
from popserver.transport import convert
from popserver.transport.calls import serve
from popserver.transport.incoming import Incoming
from popserver.transport.limits import CallLimits
from tests.support.signed_server import SECRET, give, guarded
from tests.support.signing import signed
from tests.support.wire_bulk import pull_bulk
from tests.support.wire_pull import make_topic
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message

MINUTE = pb.Settings().subscription.long_polling_timeout
convert.set_ms(MINUTE, 60_000)
REQUESTS = {
    "PullBulk": wire.PullBulkRequest(group=GROUP, topic=TOPIC, end_offset=9),
    "ReceiveBulk": wire.ReceiveBulkRequest(
        group=GROUP, topic=TOPIC, attempt_id="a", max_messages=9, invisible_duration=MINUTE
    ),
    "RenewAttempt": wire.RenewAttemptRequest(group=GROUP, topic=TOPIC, attempt_id="a", invisible_duration=MINUTE),
    "AckAttempt": wire.AckAttemptRequest(group=GROUP, topic=TOPIC, attempt_id="a"),
}


async def code_of(stub: Any, method: str, metadata: Any) -> int:
    call = getattr(stub, method)(REQUESTS[method], metadata=metadata)
    answer = await call.read() if BULK.methods_by_name[method].server_streaming else await call
    return int(answer.status.code)


async def test_every_verb_is_refused_without_each_of_its_rights(tmp_path: Path) -> None:
    assert list(REQUESTS) == [method.name for method in BULK.methods]
    cases: dict[str, tuple[list[str], bool]] = {
        "nothing": ([], False),
        "topic": (["ALLOW SUB topic:flights"], False),
        "group": (["ALLOW SUB group:counters"], False),
        "sender": (["ALLOW PUB topic:flights", "ALLOW SUB group:counters"], False),
        "both": (["ALLOW SUB topic:flights", "ALLOW SUB group:counters"], True),
    }
    async with guarded(tmp_path, users=tuple(cases), rules=Rules(auth=True)) as wire_server:
        await make_topic(wire_server)
        stub = BulkStub(wire_server.channel)
        for user, (policies, is_let_in) in cases.items():
            for policy in policies:
                await give(wire_server, policy, user)
            metadata = (("x-mq-client-id", "c"), *signed(user, SECRET).items())
            codes = {method: await code_of(stub, method, metadata) for method in REQUESTS}
            assert set(codes.values()) == {pb.OK if is_let_in else pb.FORBIDDEN}, user


@pytest.mark.parametrize("method", list(REQUESTS))
async def test_garbage_is_answered_in_words(wire_server: WireServer, method: str) -> None:
    shape: Any = (
        wire_server.channel.unary_stream if method in ("PullBulk", "ReceiveBulk") else wire_server.channel.unary_unary
    )
    call = shape(f"/{BULK.full_name}/{method}")(b"\xff\xff", metadata=(("x-mq-client-id", "c"),))
    data = await (call.read() if method in ("PullBulk", "ReceiveBulk") else call)
    answer = getattr(wire, f"{method}Response").FromString(data)
    assert answer.status.code == pb.BAD_REQUEST
    assert answer.status.message == f"the 2 bytes sent are no popmq.v1.{method}Request"


class BrokenOff:
    """A call whose connection is gone, which is noticed by the first frame that cannot be written."""

    headers: ClassVar = {"x-mq-client-id": "c"}
    peer, is_cancelled, Disconnected = "", False, BrokenPipeError

    def __init__(self) -> None:
        self.writes = 0

    def take(self) -> bytes:
        return REQUESTS["PullBulk"].SerializeToString()

    async def write(self, _frame: Any) -> None:
        self.writes += 1
        raise BrokenPipeError


async def test_a_reader_whose_connection_is_gone_is_no_failure_of_the_server(
    wire_server: WireServer, capsys: pytest.CaptureFixture[str]
) -> None:
    await make_topic(wire_server)
    await wire_server.send(a_message("m0"))
    assert (await pull_bulk(wire_server)).ids == ["m0"]
    call: Any = BrokenOff()
    limits = CallLimits()
    access = Access(wire_server.broker.engine.reader, wire_server.broker.engine.clock)
    gate = ClientGate(access, wire_server.broker.sessions.clients, wire_server.broker.engine.clock, AsyncMock())
    methods = ClientServices(wire_server.broker, limits, "", "", pb.Endpoints()).methods[BULK]
    service = serve(BULK, methods, gate, Incoming(Budgets(), limits))
    await service.routes["PullBulk"].handler(call)
    assert call.writes == 1, "nothing is written after that"
    assert "call failed" not in capsys.readouterr().out
