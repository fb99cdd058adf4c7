"""The five ways in which home-made message groups fail in the field (complaint U13). They must never come back."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from popproto.v2 import definition_pb2 as pb
from popserver.model.group import Group
from popserver.model.message import Delivery
from popserver.model.retry import Holder
from popserver.model.topic import MessageType, Topic
from popserver.receiving import receive
from popserver.receiving.batch import Received
from tests.support import wire_server
from tests.support.builders import in_order
from tests.support.open_store import HOUR, SECOND, OpenStore, a_receive, bodies

pytestmark = pytest.mark.user("U13")
HOLD_MS = 30 * SECOND


def a_topic_of_groups(store: OpenStore, **more: Any) -> tuple[Topic, Group]:
    topic = store.topic(accepts=(MessageType.FIFO,))
    return topic, store.group(meets=[topic], **more)


def numbered(store: OpenStore, topic: Topic, message_group: str, *numbers: int) -> None:
    """Messages of one message group, with these numbers as bodies."""
    for number in numbers:
        store.send(topic, in_order(message_group, body=str(number).encode()))


def several(
    store: OpenStore, group: Group, topic: Topic, *batch_sizes: int, heads_only: bool = False
) -> list[list[Delivery]]:
    """What concurrent receives get: all in one transaction, each by a client of its own."""
    requests = [
        a_receive(group, topic, size, client_id=f"c{number}", heads_only=heads_only)
        for number, size in enumerate(batch_sizes)
    ]
    return [each.deliveries for each in store.do(receive.receive, *requests) if isinstance(each, Received)]


@pytest.mark.row("K5")
@pytest.mark.user("U10")
@pytest.mark.parametrize("heads_only", [False, True])
def test_concurrent_receives_never_split_a_message_group(store: OpenStore, heads_only: bool) -> None:
    topic, group = a_topic_of_groups(store)
    numbered(store, topic, "g", 1, 2, 3, 4)
    first, second, third = several(store, group, topic, 2, 2, 2, heads_only=heads_only)
    assert bodies(first) == ([b"1"] if heads_only else [b"1", b"2"])
    assert second == third == store.receive(group, topic) == []
    store.ack(group, *first)
    assert bodies(store.receive(group, topic)) == ([b"2", b"3", b"4"] if heads_only else [b"3", b"4"])


@pytest.mark.row("K5")
def test_sending_to_a_message_group_does_not_unlock_it(store: OpenStore) -> None:
    topic, group = a_topic_of_groups(store)
    numbered(store, topic, "g", 1)
    held = store.receive(group, topic)
    numbered(store, topic, "g", 2)
    assert store.receive(group, topic) == []
    numbered(store, topic, "g", 3)
    assert store.receive(group, topic) == []
    store.ack(group, *held)
    assert bodies(store.receive(group, topic)) == [b"2", b"3"]


@pytest.mark.row("L13")
@pytest.mark.parametrize("end", ["forwarded", "exhausted", "failed at last"])
def test_a_dead_letter_unlocks_its_message_group(store: OpenStore, end: str) -> None:
    topic, group = a_topic_of_groups(store, max_attempts=1)
    numbered(store, topic, "g", 1, 2)
    holder = Holder.PUSH if end == "failed at last" else Holder.SIMPLE
    (held,) = store.receive(group, topic, 1, holder=holder, invisible_ms=HOLD_MS)
    assert store.receive(group, topic) == []
    if end == "forwarded":
        store.forward(group, held)
    elif end == "exhausted":
        store.end_due(after_ms=HOLD_MS)
    else:
        store.change(group, held, SECOND)
    assert store.rings, "whoever waits for the group is woken"
    assert bodies(store.receive(group, topic)) == [b"2"]
    assert store.one_value("SELECT COUNT(*) FROM dead_letters") == 1


@pytest.mark.row("K5")
def test_a_message_whose_hold_is_extended_lets_no_later_one_pass(store: OpenStore) -> None:
    topic, group = a_topic_of_groups(store)
    numbered(store, topic, "g", 1, 2, 3)
    first, second = store.receive(group, topic, 2, invisible_ms=HOLD_MS)
    store.change(group, first, HOUR)
    store.end_due(after_ms=HOLD_MS)
    assert store.receive(group, topic) == [], "neither the second, which nobody holds, nor the third"
    store.end_due(after_ms=HOUR)
    again = store.receive(group, topic)
    assert bodies(again) == [b"1", b"2"]
    assert [each.attempt for each in again] == [2, 2]
    assert second.attempt == 1


@pytest.mark.row("K6")
def test_a_stuck_message_group_stops_no_other_of_its_queue(store: OpenStore) -> None:
    topic, group = a_topic_of_groups(store)
    numbered(store, topic, "stuck", 1, 2, 3)
    store.receive(group, topic, 1, invisible_ms=HOUR)
    for number in range(10, 15):
        numbered(store, topic, "flowing", number)
        numbered(store, topic, "stuck", -number)
        (flowing,) = store.receive(group, topic)
        assert flowing.stored.message.body == str(number).encode()
        store.ack(group, flowing)


@pytest.fixture(params=["sqlite", "postgres"])
async def either_wire_server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[wire_server.WireServer]:
    url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""
    async with wire_server.opened(tmp_path, postgres_url=url) as opened:
        yield opened


async def test_a_delayed_message_is_in_no_message_group(either_wire_server: wire_server.WireServer) -> None:
    """What is visible need not wait for what is not: such a message is refused, and nothing is stored."""
    message = wire_server.a_message(message_group="g")
    message.system_properties.delivery_timestamp.FromSeconds(4_000_000_000)
    before = await either_wire_server.broker.engine.reader.read(lambda conn: conn.exec_driver_sql(_EVERYTHING).one())
    answer = await either_wire_server.send(message)
    assert answer.status.code == pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE == 40014
    assert "delivery_timestamp and message_group exclude each other" in answer.status.message
    assert (
        await either_wire_server.broker.engine.reader.read(lambda conn: conn.exec_driver_sql(_EVERYTHING).one())
        == before
    )


_EVERYTHING = "SELECT (SELECT COUNT(*) FROM message), (SELECT COUNT(*) FROM pending), (SELECT COUNT(*) FROM topic)"
