"""Who may call what: every RPC of the server, by everybody, on an ordinary topic and on those that belong to a group.

`ROWS` says what each RPC asks for and `IDENTITIES` what each caller has; all cells are tried on one server. An RPC
without a row fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from popproto.v1 import admin_pb2, bulk_pb2, legacy_pb2, receiving_pb2
from popproto.v2 import admin_pb2 as rocketmq_admin_pb2
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as v2
from popserver.access.flow import Rules
from popserver.model.names import Resource
from tests.support.admin_server import REQUESTS
from tests.support.signed_server import ADMIN, SECRET, give
from tests.support.signing import signed
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, opened, receive_request

LETTERS = pb.Resource(name=f"%DLQ%{GROUP.name}")
RETRIES = pb.Resource(name=f"%RETRY%{GROUP.name}")
TARGETS = {"ordinary": TOPIC, "dead letters": LETTERS, "retries": RETRIES}

SERVED, UNAUTHORIZED, FORBIDDEN = "served", "UNAUTHORIZED", "FORBIDDEN"
# What an RPC may ask for. A right of several is asked for as a whole, but for EITHER.
PUB, SUB, BY_GROUP = {"PUB"}, {"SUB"}, {"GROUP"}
BOTH, EITHER, NOTHING, ADMINS = SUB | BY_GROUP, {"PUB or SUB"}, set[str](), {"ADMIN"}
_REFUSALS = {
    pb.UNAUTHORIZED: UNAUTHORIZED,
    pb.FORBIDDEN: FORBIDDEN,
    grpc.StatusCode.UNAUTHENTICATED: UNAUTHORIZED,
    grpc.StatusCode.PERMISSION_DENIED: FORBIDDEN,
    grpc.StatusCode.UNIMPLEMENTED: SERVED,  # to everybody alike
}


class Row(NamedTuple):
    """One RPC; `own`: what it asks for on a group's own topic, where that is something else."""

    method: str
    asks: set[str]
    request: Callable[[pb.Resource], Any]
    own: set[str] | None = None
    anyone: bool = False  # nobody need sign
    has_client_id: bool = True


def queue(topic: pb.Resource) -> pb.MessageQueue:
    return pb.MessageQueue(topic=topic)


def name(topic: pb.Resource) -> legacy_pb2.QueueName:
    return legacy_pb2.QueueName(topic=topic)


def settings(topic: pb.Resource, *, consumes: bool) -> v2.TelemetryCommand:
    if not consumes:
        return v2.TelemetryCommand(
            settings=pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[topic]))
        )
    entry = pb.SubscriptionEntry(topic=topic, expression=pb.FilterExpression(expression="*"))
    subscription = pb.Subscription(group=GROUP, subscriptions=[entry])
    return v2.TelemetryCommand(settings=pb.Settings(client_type=pb.SIMPLE_CONSUMER, subscription=subscription))


def row(method: str, asks: set[str], request_class: Any, own: set[str] | None = None, **fields: Any) -> Row:
    """A request with the topic, the queue or the group that its RPC asks about."""

    def request(topic: pb.Resource) -> Any:
        made = {key: value(topic) if callable(value) else value for key, value in fields.items()}
        return request_class(**made)

    return Row(method, asks, request, own)


def of_topic(topic: pb.Resource) -> pb.Resource:
    return topic


MESSAGING = [
    row("QueryRoute", EITHER, v2.QueryRouteRequest, own=SUB, topic=of_topic),
    row("Heartbeat", BY_GROUP, v2.HeartbeatRequest, group=GROUP, client_type=pb.SIMPLE_CONSUMER),
    Row("Heartbeat", NOTHING, lambda _: v2.HeartbeatRequest(), anyone=True, has_client_id=False),
    row("SendMessage", PUB, v2.SendMessageRequest, messages=lambda topic: [a_message("new", topic=topic)]),
    row("QueryAssignment", BOTH, v2.QueryAssignmentRequest, topic=of_topic, group=GROUP),
    Row("ReceiveMessage", BOTH, lambda topic: receive_request(topic=topic)),
    Row("ReceiveMessage", BOTH, lambda topic: receive_request(topic=topic, push=True)),
    row("AckMessage", BOTH, v2.AckMessageRequest, topic=of_topic, group=GROUP),
    row(
        "ForwardMessageToDeadLetterQueue", BOTH, v2.ForwardMessageToDeadLetterQueueRequest, topic=of_topic, group=GROUP
    ),
    row("PullMessage", BOTH, v2.PullMessageRequest, message_queue=queue, group=GROUP),
    row("UpdateOffset", BOTH, v2.UpdateOffsetRequest, message_queue=queue, group=GROUP),
    row("GetOffset", BOTH, v2.GetOffsetRequest, message_queue=queue, group=GROUP),
    row("QueryOffset", SUB, v2.QueryOffsetRequest, message_queue=queue),
    row("EndTransaction", PUB, v2.EndTransactionRequest, topic=of_topic),
    Row("Telemetry", PUB, lambda topic: settings(topic, consumes=False)),
    Row("Telemetry", BOTH, lambda topic: settings(topic, consumes=True)),
    row("NotifyClientTermination", NOTHING, v2.NotifyClientTerminationRequest, group=GROUP),
    row("ChangeInvisibleDuration", BOTH, v2.ChangeInvisibleDurationRequest, topic=of_topic, group=GROUP),
    row("RecallMessage", PUB, v2.RecallMessageRequest, topic=of_topic),
    row("SyncLiteSubscription", BOTH, v2.SyncLiteSubscriptionRequest, topic=of_topic, group=GROUP),
]
LEGACY = [
    row("ListMembers", BY_GROUP, legacy_pb2.ListMembersRequest, group=GROUP),
    row("LockQueues", BOTH, legacy_pb2.LockQueuesRequest, group=GROUP, queues=lambda topic: [name(topic)]),
    row("UnlockQueues", BOTH, legacy_pb2.UnlockQueuesRequest, group=GROUP, queues=lambda topic: [name(topic)]),
    row("FetchOffsets", BOTH, legacy_pb2.FetchOffsetsRequest, group=GROUP, queues=lambda topic: [name(topic)]),
    row(
        "CommitOffsets",
        BOTH,
        legacy_pb2.CommitOffsetsRequest,
        group=GROUP,
        offsets=lambda topic: [legacy_pb2.QueueOffset(queue=name(topic))],
    ),
    row("SendBack", BOTH, legacy_pb2.SendBackRequest, group=GROUP, queue=name),
    row("PullBatch", BOTH, legacy_pb2.PullBatchRequest, group=GROUP, queue=name),
]
RECEIVING = [
    Row("ReceiveBatch", BOTH, lambda topic: receive_request(topic=topic)),
    Row("ReceiveBatch", BOTH, lambda topic: receive_request(topic=topic, push=True)),
]
BULK = [
    row("PullBulk", BOTH, bulk_pb2.PullBulkRequest, topic=of_topic, group=GROUP),
    row("ReceiveBulk", BOTH, bulk_pb2.ReceiveBulkRequest, topic=of_topic, group=GROUP),
    row("RenewAttempt", BOTH, bulk_pb2.RenewAttemptRequest, topic=of_topic, group=GROUP),
    row("AckAttempt", BOTH, bulk_pb2.AckAttemptRequest, topic=of_topic, group=GROUP),
]
# Each with an empty request: refused for what it lacks, but not before it was let in.
ADMIN_METHODS = """
    CreateTopic UpdateTopic DeleteTopic GetTopic ListTopics CreateGroup UpdateGroup DeleteGroup GetGroup ListGroups
    PeekMessages GetMessage ListScheduled CancelScheduled Why TryFilter ListDeadLetters GetDeadLetter PurgeDeadLetters
    FindMessages GetLiteTopic ListLiteTopics ListHolds ListLockedMessageGroups
    PlanRedrive RunRedrive CancelRedrive RedriveDeadLetters ListRedrivePlans ListRedrives ListLag ResetOffsets
    SkipMessage PauseGroup ResumeGroup CloneOffsets ImportOffsets ImportMessages CreateUser UpdateUser DeleteUser
    ListUsers AddPolicy RemovePolicy ConfirmClock ListPolicies ExplainAccess ListClients ReconnectClient
    GetStatus GetHealth RepairStore GetChart ListAlerts ReportMirror ListMirrors ForgetMirror DrainServer
""".split()
ADMINISTRATION = [row(method, ADMINS, getattr(admin_pb2, f"{method}Request")) for method in ADMIN_METHODS]
ROCKETMQ_METHODS = """
    ChangeLogLevel DescribeTopicStatus ListSubscription DescribeSubscription DeleteSubscription
    DescribeGroupAccumulation ListConsumerConnection ResetGroupOffset QueryMessage PrintThreadStackTrace VerifyMessage
    AdminSendMessage GetConsumerRunningInfo GetTopicRoute QueryTimeSpan GetProxyRuntimeStats
""".split()
ROCKETMQ_ADMINISTRATION = [
    row(method, ADMINS, getattr(rocketmq_admin_pb2, REQUESTS.get(method, f"{method}Request")))
    for method in ROCKETMQ_METHODS
]
HEALTH = [
    Row("Check", NOTHING, lambda _: health_pb2.HealthCheckRequest(), anyone=True),
    Row("Watch", NOTHING, lambda _: health_pb2.HealthCheckRequest(), anyone=True),
    Row("List", NOTHING, lambda _: health_pb2.HealthListRequest(), anyone=True),
]
_LISTED = reflection_pb2.ServerReflectionRequest(list_services="")
REFLECTION = [Row("ServerReflectionInfo", NOTHING, lambda _: _LISTED, anyone=True)]
# By service: how its methods are described, and a row or more for each of them.
ROWS: dict[str, tuple[Any, Sequence[Row]]] = {
    "apache.rocketmq.v2.MessagingService": (v2, MESSAGING),
    "popmq.v1.Legacy": (legacy_pb2, LEGACY),
    "popmq.v1.Receiving": (receiving_pb2, RECEIVING),
    "popmq.v1.Bulk": (bulk_pb2, BULK),
    "popmq.v1.Admin": (admin_pb2, ADMINISTRATION),
    "apache.rocketmq.v2.Admin": (rocketmq_admin_pb2, ROCKETMQ_ADMINISTRATION),
    "grpc.health.v1.Health": (health_pb2, HEALTH),
    "grpc.reflection.v1alpha.ServerReflection": (reflection_pb2, REFLECTION),
}

# The services whose methods are asked about topics.
WITH_TOPICS = ("apache.rocketmq.v2.MessagingService", "popmq.v1.Legacy", "popmq.v1.Receiving", "popmq.v1.Bulk")


class Identity(NamedTuple):
    """A caller: the policies of its user, and the rights that these are worth; a user without a name signs nothing."""

    policies: Sequence[str] = ()
    plain: set[str] = NOTHING  # on the ordinary topic and the group
    own: set[str] = NOTHING  # on the topics that belong to the group, and on the group


ALL = PUB | SUB | BY_GROUP
EVERYTHING = ("ALLOW PUB,SUB topic:*", "ALLOW SUB group:*")
# On a group's own topic SUB is the right on the group, whatever is said of topics.
IDENTITIES: dict[str, Identity] = {
    "nothing": Identity(),
    "pub": Identity(["ALLOW PUB topic:flights"], PUB),
    "sub-topic": Identity(["ALLOW SUB topic:flights"], SUB),
    "sub-group": Identity(["ALLOW SUB group:counters"], BY_GROUP, BOTH),
    "sub-both": Identity(["ALLOW SUB topic:flights", "ALLOW SUB group:counters"], BOTH, BOTH),
    "pub-and-sub": Identity(["ALLOW PUB,SUB topic:flights", "ALLOW SUB group:counters"], ALL, BOTH),
    "everything": Identity(EVERYTHING, ALL, ALL),
    "all-topics": Identity(["ALLOW PUB,SUB topic:*"], PUB | SUB, PUB),
    "prefixes": Identity(["ALLOW PUB,SUB topic:fl*", "ALLOW SUB group:count*"], ALL, BOTH),
    "others": Identity(["ALLOW PUB,SUB topic:trains", "ALLOW SUB group:others"]),
    "letters-by-name": Identity(["ALLOW SUB topic:%DLQ%counters", "ALLOW SUB topic:%RETRY%*"]),
    "denied-pub": Identity([*EVERYTHING, "DENY PUB topic:fl*"], BOTH, ALL),
    "denied-topic": Identity([*EVERYTHING, "DENY SUB topic:flights"], PUB | BY_GROUP, ALL),
    "denied-letters": Identity([*EVERYTHING, "DENY SUB topic:%*"], ALL, PUB | BY_GROUP),
    "denied-group": Identity([*EVERYTHING, "DENY SUB group:counters"], PUB | SUB, PUB),
    "elsewhere": Identity(["ALLOW PUB,SUB topic:* eu", "ALLOW SUB group:* eu"]),
}
STRANGERS: dict[str, dict[str, str]] = {
    "unsigned": {},
    "wrong secret": signed("everything", "wrong-secret"),
    "another date": signed("everything", SECRET) | {"x-mq-date-time": "20250101T000001Z"},
    "unknown user": signed("nobody", SECRET),
    "disabled user": signed("disabled", SECRET),
    "disabled admin": signed("disabled-admin", SECRET),
}


class Cell(NamedTuple):
    service: str
    row: Row
    target: str
    caller: str


def expected(cell: Cell) -> str:
    asked = cell.row
    if asked.anyone or cell.caller == "admin":
        return SERVED
    if cell.caller in STRANGERS:
        return UNAUTHORIZED
    is_own = cell.target != "ordinary"
    asks = asked.asks if asked.own is None or not is_own else asked.own
    has = IDENTITIES[cell.caller].own if is_own else IDENTITIES[cell.caller].plain
    is_let_in = bool(has & (PUB | SUB)) if asks is EITHER else asks <= has
    return SERVED if is_let_in else FORBIDDEN


def cells() -> list[Cell]:
    callers = [*STRANGERS, *IDENTITIES, "admin"]
    return [
        Cell(service, each, target, caller)
        for service, (_, rows) in ROWS.items()
        for each in rows
        for target in (TARGETS if service in WITH_TOPICS else ["ordinary"])
        for caller in callers
    ]


@pytest.fixture
async def guard(tmp_path: Path) -> AsyncIterator[WireServer]:
    async with opened(tmp_path, rules=Rules(auth=True), admin=ADMIN, administered=True) as wire_server:
        for user, identity in IDENTITIES.items():
            await wire_server.users.add(user, SECRET, is_admin=False)
            for policy in identity.policies:
                await give(wire_server, policy, user)
        for user in ("disabled", "disabled-admin"):
            await wire_server.users.add(user, SECRET, is_admin=user == "disabled-admin")
            await give(wire_server, "ALLOW PUB,SUB topic:*", user)
            await wire_server.users.set_disabled(user, True)
        for topic in TARGETS.values():
            await wire_server.broker.catalog.subscription(Resource("", GROUP.name), Resource("", topic.name))
        yield wire_server


async def outcome(wire_server: WireServer, cell: Cell) -> str:
    """The answer of the server: the refusal, or that the caller was served, be it with another refusal."""
    module, _ = ROWS[cell.service]
    method = module.DESCRIPTOR.services_by_name[cell.service.rpartition(".")[2]].methods_by_name[cell.row.method]
    headers = dict(STRANGERS.get(cell.caller) or {})
    if cell.caller not in STRANGERS:
        headers = signed(*ADMIN) if cell.caller == "admin" else signed(cell.caller, SECRET)
    if cell.row.has_client_id:
        headers["x-mq-client-id"] = "client"
    try:
        answer = await _first_answer(wire_server.channel, module, method, cell, headers)
    except grpc.aio.AioRpcError as error:
        return _REFUSALS.get(error.code(), str(error.code()))
    status: Any = getattr(answer, "status", None)
    assert not hasattr(status, "code") or status.code != pb.INTERNAL_SERVER_ERROR, (cell, status)
    return _REFUSALS.get(getattr(status, "code", None), SERVED)


async def _first_answer(channel: Any, module: Any, method: Any, cell: Cell, headers: Mapping[str, str]) -> Any:
    path = f"/{cell.service}/{method.name}"
    response_class = getattr(module, method.output_type.name)
    coders = {
        "request_serializer": lambda it: it.SerializeToString(),
        "response_deserializer": response_class.FromString,
    }
    request, metadata = cell.row.request(TARGETS[cell.target]), tuple(headers.items())
    if method.client_streaming:
        stream = channel.stream_stream(path, **coders)(metadata=metadata)
        await stream.write(request)
    elif method.server_streaming:
        stream = channel.unary_stream(path, **coders)(request, metadata=metadata)
    else:
        return await channel.unary_unary(path, **coders)(request, metadata=metadata)
    try:
        return await stream.read()
    finally:
        stream.cancel()


async def test_every_cell(guard: WireServer) -> None:
    tried = cells()
    assert len(tried) >= 500
    room = asyncio.Semaphore(32)

    async def differs(cell: Cell) -> tuple[Any, ...] | None:
        async with room:
            found = await outcome(guard, cell)
        wanted = expected(cell)
        return None if found == wanted else (cell.row.method, cell.target, cell.caller, found, "instead of", wanted)

    assert [each for each in await asyncio.gather(*map(differs, tried)) if each] == []


async def test_no_rpc_is_without_a_row(guard: WireServer) -> None:
    listed: Any = guard.channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        request_serializer=lambda it: it.SerializeToString(),
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )()
    await listed.write(_LISTED)
    answer = await listed.read()
    listed.cancel()
    assert {each.name for each in answer.list_services_response.service} == set(ROWS)
    for service, (module, rows) in ROWS.items():
        methods = module.DESCRIPTOR.services_by_name[service.rpartition(".")[2]].methods
        assert {method.name for method in methods} == {each.method for each in rows}, service
