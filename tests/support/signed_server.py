"""A server whose callers sign, its users, and one request of each method."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.access.flow import Rules
from popserver.model.acl import Action, Effect, ResourceKind
from popserver.model.names import Resource
from tests.support.signing import signed
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message, opened, receive_request

SECRET = "correct-horse"


ADMIN = ("root", "root-has-a-secret")


QUEUE = pb.MessageQueue(topic=TOPIC)


REQUESTS: dict[str, Any] = {
    "QueryRoute": wire.QueryRouteRequest(topic=TOPIC),
    "Heartbeat": wire.HeartbeatRequest(group=GROUP, client_type=pb.SIMPLE_CONSUMER),
    "SendMessage": wire.SendMessageRequest(messages=[a_message("new")]),
    "QueryAssignment": wire.QueryAssignmentRequest(topic=TOPIC, group=GROUP),
    "ReceiveMessage": receive_request(),
    "AckMessage": wire.AckMessageRequest(
        group=GROUP, topic=TOPIC, entries=[wire.AckMessageEntry(message_id="m", receipt_handle="h")]
    ),
    "ForwardMessageToDeadLetterQueue": wire.ForwardMessageToDeadLetterQueueRequest(
        group=GROUP, topic=TOPIC, receipt_handle="h"
    ),
    "PullMessage": wire.PullMessageRequest(group=GROUP, message_queue=QUEUE),
    "UpdateOffset": wire.UpdateOffsetRequest(group=GROUP, message_queue=QUEUE),
    "GetOffset": wire.GetOffsetRequest(group=GROUP, message_queue=QUEUE),
    "QueryOffset": wire.QueryOffsetRequest(message_queue=QUEUE),
    "EndTransaction": wire.EndTransactionRequest(topic=TOPIC, message_id="m", transaction_id="t"),
    "Telemetry": wire.TelemetryCommand(
        settings=pb.Settings(client_type=pb.PRODUCER, publishing=pb.Publishing(topics=[TOPIC]))
    ),
    "NotifyClientTermination": wire.NotifyClientTerminationRequest(group=GROUP),
    "ChangeInvisibleDuration": wire.ChangeInvisibleDurationRequest(group=GROUP, topic=TOPIC, receipt_handle="h"),
    "RecallMessage": wire.RecallMessageRequest(topic=TOPIC, recall_handle="h"),
    "SyncLiteSubscription": wire.SyncLiteSubscriptionRequest(topic=TOPIC, group=GROUP),
}


@asynccontextmanager
async def guarded(tmp_path: Path, *, users: tuple[str, ...] = ("alice",), **options: Any) -> AsyncIterator[WireServer]:
    rules = options.pop("rules", Rules(auth=True))
    async with opened(tmp_path, rules=rules, admin=ADMIN, **options) as wire_server:
        for name in users:
            await wire_server.users.add(name, SECRET, is_admin=False)
        yield wire_server


async def give(wire_server: WireServer, policy: str, access_key: str = "alice") -> int:
    effect, actions, resource, *namespace = policy.split()
    kind, _, pattern = resource.partition(":")
    made = await wire_server.users.add_policy(
        access_key,
        Effect(effect),
        tuple(map(Action, actions.split(","))),
        ResourceKind(kind.upper()),
        Resource("".join(namespace), pattern),
    )
    return made.policy_id


async def give_everything(wire_server: WireServer, access_key: str = "alice") -> None:
    for policy in ("ALLOW PUB,SUB topic:*", "ALLOW SUB group:*"):
        await give(wire_server, policy, access_key)


def as_(access_key: str, secret: str = SECRET, **more: str) -> dict[str, str]:
    return signed(access_key, secret) | more
