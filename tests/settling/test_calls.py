"""What acks, changes and forwards of clients ask of the store."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.engine.transaction import Request
from popserver.model.errors import InvalidReceiptHandle
from popserver.model.topic import MessageType
from popserver.settling.ack import Ack, PlainAck
from popserver.settling.change import ChangeInvisible, Forward
from tests.support.builders import GROUP, TOPIC, a_message, a_new_topic
from tests.support.running_broker import RunningBroker

pytestmark = pytest.mark.timeout(14)


@pytest.fixture
def asked(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> list[Request[Any]]:
    """The requests of the room, as they come to the writer."""
    writer, asked = broker.broker.engine.writer, list[Request[Any]]()
    submit = writer.submit

    def noting(request: Request[Any], **more: Any) -> Any:
        if isinstance(request, (Ack, PlainAck, ChangeInvisible, Forward)):
            asked.append(request)
        return submit(request, **more)

    monkeypatch.setattr(writer, "submit", noting)
    return asked


async def test_only_acks_of_message_groups_name_what_they_lock(
    broker: RunningBroker, asked: list[Request[Any]]
) -> None:
    await broker.send([a_message(), a_message(message_group="g", message_type=MessageType.FIFO)])
    held = {each.stored.message.message_group: each for each in await broker.receive()}
    assert await broker.ack(held[None]) == [None]
    assert await broker.ack(held["g"]) == [None]
    assert [type(each) for each in asked] == [PlainAck, Ack]


async def test_an_ack_without_a_handle_that_is_one_asks_nothing(
    broker: RunningBroker, asked: list[Request[Any]]
) -> None:
    await broker.send()
    await broker.receive()
    (refused,) = await broker.broker.ack(GROUP, TOPIC, ["no handle"])
    assert isinstance(refused, InvalidReceiptHandle)
    assert asked == []


async def test_a_handle_is_refused_with_the_id_of_another_message(
    broker: RunningBroker, asked: list[Request[Any]]
) -> None:
    await broker.send(2)
    one, other = await broker.receive()
    handles = [each.receipt_handle for each in (one, other)]
    outcomes = await broker.broker.ack(GROUP, TOPIC, handles, [one.stored.message.message_id, "of another"])
    assert outcomes[0] is None
    assert "was not given with message 'of another'" in str(outcomes[1])


@pytest.mark.parametrize("is_lite", [False, True])
@pytest.mark.parametrize("suspend", [None, False, True])
@pytest.mark.parametrize("give_back", [False, True])
async def test_only_a_lite_topic_is_suspended_and_only_if_nothing_is_given_back(
    broker: RunningBroker, asked: list[Request[Any]], is_lite: bool, suspend: bool | None, give_back: bool
) -> None:
    kind = MessageType.LITE if is_lite else MessageType.NORMAL
    await broker.broker.catalog.create_topic(a_new_topic(accepts=(kind,)))
    await broker.send([a_message(message_group="l" if is_lite else None, message_type=kind)])
    (held,) = await broker.receive()
    more: dict[str, Any] = {} if suspend is None else {"suspend": suspend}
    settling = broker.broker.consuming.settling
    await settling.change_invisible(GROUP, TOPIC, held.receipt_handle, 1_000, give_back=give_back, **more)
    (change,) = asked
    assert isinstance(change, ChangeInvisible)
    assert (change.suspend, change.give_back, change.reason) == (
        bool(suspend) and is_lite and not give_back,
        give_back,
        "",
    )


@pytest.mark.parametrize("reason", [None, "no seat"])
async def test_the_reason_of_a_forward_is_its_holders(
    broker: RunningBroker, asked: list[Request[Any]], reason: str | None
) -> None:
    await broker.send()
    (held,) = await broker.receive()
    settling = broker.broker.consuming.settling
    await settling.forward(GROUP, TOPIC, held.receipt_handle, **({} if reason is None else {"reason": reason}))
    (forward,) = asked
    assert isinstance(forward, Forward)
    assert forward.reason == (reason or "")
