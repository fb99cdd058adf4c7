"""Every list of every request has a limit, which is asked before anything is done."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from popproto.v1 import admin_pb2, bulk_pb2, legacy_pb2
from popproto.v2 import admin_pb2 as rocketmq_admin
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as wire
from popserver.clients.settings import EXPRESSIONS_LENGTH_MAX
from popserver.model.errors import BadRequest
from popserver.transport import entry_limits
from popserver.transport.incoming import reader
from tests.support.wire_server import GROUP, TOPIC, WireServer, a_message

MODULES = (wire, rocketmq_admin, admin_pb2, bulk_pb2, legacy_pb2)


def methods() -> Iterator[tuple[str, Any, Any]]:
    for module in MODULES:
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                yield method.name, method.input_type, getattr(module, method.input_type.name)


LISTS = [
    pytest.param(name, kind, each, id=f"{name}.{each.name}")
    for name, descriptor, kind in methods()
    for each in entry_limits.lists_of(descriptor)
]


def filled(kind: Any, path: tuple[Any, ...], count: int) -> Any:
    """A request with so many entries in that list."""
    request = at = kind()
    for field in path[:-1]:
        at = getattr(at, field.name)
        if field.is_repeated:
            at = at.add()
        else:
            at.SetInParent()
    last = path[-1]
    entries = getattr(at, last.name)
    if last.message_type is None:
        entries.extend([type_of(last)] * count)
    elif last.message_type.GetOptions().map_entry:
        entries.update({str(number): "" for number in range(count)})
    else:
        for _ in range(count):
            entries.add()
    return request


def type_of(field: Any) -> Any:
    """A value of a list that holds no messages."""
    if field.enum_type is not None:
        return 1
    return 1 if field.type in {field.TYPE_INT64, field.TYPE_INT32, field.TYPE_UINT64, field.TYPE_UINT32} else "x"


def readable(request: Any) -> Any:
    if isinstance(request, BadRequest):
        raise request
    return request


@pytest.mark.parametrize(("method", "kind", "found"), LISTS)
def test_one_entry_more_than_its_limit_is_refused(method: str, kind: Any, found: entry_limits.ListField) -> None:
    """A list without a number in the table fails before: `lists_of` does not find it."""
    read = reader(kind, 2**30, entry_limits.check(method, kind.DESCRIPTOR))
    good = filled(kind, found.path, found.entries_max)
    assert readable(read(good.SerializeToString())) == good
    with pytest.raises(BadRequest) as refused:
        readable(read(filled(kind, found.path, found.entries_max + 1).SerializeToString()))
    said = refused.value.sentence
    assert said.startswith(f"{found.name} has {found.entries_max + 1} entries, at most {found.entries_max} are")
    assert method in said


def test_the_table_names_nothing_that_is_not_there() -> None:
    found = {
        f"{containing.name}.{each.path[-1].name}"
        for _, descriptor, _ in methods()
        for each in entry_limits.lists_of(descriptor)
        if (containing := each.path[-1].containing_type) is not None
    }
    assert found == set(entry_limits.ENTRIES_MAX)


async def test_too_much_is_refused_on_the_wire_and_changes_nothing(wire_server: WireServer) -> None:
    await wire_server.send(a_message())
    before = await wire_server.digest()
    request = wire.AckMessageRequest(group=GROUP, topic=TOPIC)
    for _ in range(5_000):
        request.entries.add()
    answer = await wire_server.call("AckMessage", request)
    assert answer.status.code == pb.BAD_REQUEST
    assert "entries has 5000 entries, at most 4096" in answer.status.message
    assert await wire_server.digest() == before


async def test_settings_have_so_many_characters_of_filters(wire_server: WireServer) -> None:
    sent = pb.Settings(client_type=pb.PUSH_CONSUMER)
    sent.subscription.group.CopyFrom(GROUP)
    count = EXPRESSIONS_LENGTH_MAX // 16_000 + 1
    for number in range(count):
        entry = sent.subscription.subscriptions.add()
        entry.topic.name = f"topic-{number}"
        entry.expression.expression = "x" * 16_000
    (refused,) = await wire_server.statuses("Telemetry", wire.TelemetryCommand(settings=sent))
    assert refused.code == pb.BAD_REQUEST
    assert f"{count * 16_000} characters together, at most {EXPRESSIONS_LENGTH_MAX}" in refused.message
