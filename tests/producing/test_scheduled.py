"""What is in no queue yet, on the admin service."""

from __future__ import annotations

from typing import Any

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from tests.support.admin_server import AdminServer, named

ALL = [pb.NORMAL, pb.DELAY, pb.TRANSACTION]


def schedule(admin_server: AdminServer, *message_ids: str, after_s: int = 3_600, **system: Any) -> None:
    due: Any = {"seconds": admin_server.server.clock.now_ms() // 1_000 + after_s}
    admin_server.send("orders", *message_ids, delivery_timestamp=due, **system)


def listed(admin_server: AdminServer, **fields: Any) -> list[admin.ScheduledMessage]:
    answer = admin_server.call("ListScheduled", topic=named("orders"), **fields)
    assert answer.status.code == pb.OK
    return list(answer.messages)


def ids(found: list[admin.ScheduledMessage]) -> list[str]:
    return [each.message.system_properties.message_id for each in found]


def test_the_schedule_by_due_time_page_by_page(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("orders"), accept_message_types=ALL)
    schedule(admin_server, "b", "c", after_s=60, keys=["k"], tag="A")
    schedule(admin_server, "a", after_s=30)
    schedule(admin_server, "d", after_s=90)
    admin_server.send("orders", "half", message_type=pb.TRANSACTION)
    found = listed(admin_server)
    assert ids(found) == ["half", "a", "b", "c", "d"]
    half, _, second, *_ = found
    assert (half.kind, bool(half.transaction_id), half.checks) == ("HALF", True, 0)
    assert (second.kind, second.message.body, second.message.system_properties.tag) == ("DELAY", b"body", "A")
    assert second.due_at == second.message.system_properties.delivery_timestamp
    page: list[admin.ScheduledMessage] = []
    seen: list[str] = []
    while page := listed(
        admin_server, max=2, **({"after_due_at": page[-1].due_at, "after_id": page[-1].id} if page else {})
    ):
        seen += ids(page)
    assert seen == ids(found)


def test_what_is_cancelled_never_comes(admin_server: AdminServer) -> None:
    admin_server.call("CreateTopic", topic=named("orders"), accept_message_types=ALL)
    schedule(admin_server, "a", "b", "c", keys=["k"])
    schedule(admin_server, "kept")
    admin_server.send("orders", "half", message_type=pb.TRANSACTION)
    answer = admin_server.call("CancelScheduled", topic=named("orders"), message_ids=["a", "unknown", "half"])
    assert (answer.status.code, list(answer.message_ids)) == (pb.OK, ["a", "half"])
    answer = admin_server.call("CancelScheduled", topic=named("orders"), key="k")
    assert (answer.status.code, list(answer.message_ids)) == (pb.OK, ["b", "c"])
    assert list(admin_server.call("CancelScheduled", topic=named("orders"), key="k").message_ids) == []
    admin_server.server.clock.advance("1h")
    assert [each.system_properties.message_id for each in admin_server.receive("billing", "orders")] == ["kept"]


def test_the_status_counts_what_was_discarded(admin_server: AdminServer) -> None:
    assert admin_server.call("GetStatus").discarded_transactions == 0
