"""What becomes of holds whose client left this server, came back, or never got the answer."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.model.retry import ORPHAN_DELAY_MS, PUSH_HOLD_MS_MAX
from popserver.settling.hold_release import HoldRelease
from tests.support.running_broker import RunningBroker


def of(broker: RunningBroker) -> HoldRelease:
    return broker.broker.sessions.hold_release


async def rows(broker: RunningBroker) -> list[tuple[str, str, int, int]]:
    """State, holder, attempt and the time until then, of each message."""
    found = await broker.query("SELECT state, holder, attempt, visible_at_ms FROM delivery ORDER BY message_key")
    return [(*row[:3], row[3] - broker.clock.now_ms()) for row in found]


async def test_a_client_that_left_and_came_back(either_broker: RunningBroker) -> None:
    await either_broker.send(2)
    for client_id in ("c1", "c2"):
        await either_broker.receive(1, push=True, client_id=client_id)
    await either_broker.advance(7)
    kept = ("INFLIGHT", "PUSH", 1, PUSH_HOLD_MS_MAX - 7)
    await of(either_broker).abandon_client("c1", True)
    assert await rows(either_broker) == [("INFLIGHT", "ORPHAN", 1, ORPHAN_DELAY_MS), kept]
    await of(either_broker).extend_client_holds("c1")
    assert await rows(either_broker) == [("INFLIGHT", "PUSH", 1, PUSH_HOLD_MS_MAX), kept]


async def test_an_answer_that_was_not_sent_or_broke_off(either_broker: RunningBroker) -> None:
    await either_broker.send(3)
    unsent, broken, kept = await either_broker.receive(push=True)
    of(either_broker).cancel_delivery([unsent])
    of(either_broker).abandon_holds([broken.receipt_handle])
    await either_broker.broker.settle()
    assert await rows(either_broker) == [
        ("READY", "PUSH", 0, 0),
        ("INFLIGHT", "ORPHAN", 1, ORPHAN_DELAY_MS),
        ("INFLIGHT", "PUSH", 1, PUSH_HOLD_MS_MAX),
    ]
    assert await either_broker.ack(kept) == [None]


async def test_nothing_is_asked_for_no_message(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(broker.broker.engine.background, "submit", lambda *of: asked.append(of))
    of(broker).cancel_delivery([])
    of(broker).abandon_holds([])
    assert asked == []
    await broker.send()
    (held,) = await broker.receive()
    of(broker).cancel_delivery([held])
    of(broker).abandon_holds([held.receipt_handle])
    keys = {each[0] for each in asked}
    assert len(asked) == 2
    assert len(keys) == 1, "what is asked for the same message is done in turn"
    assert None not in keys


@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("said_goodbye", [True, False])
@pytest.mark.parametrize("inherits", [None, True, False])
async def test_the_holds_end_when_no_server_has_the_client(
    broker: RunningBroker,
    monkeypatch: pytest.MonkeyPatch,
    is_last: bool,
    said_goodbye: bool,
    inherits: bool | None,
) -> None:
    asked: list[Any] = []

    async def detach(client_id: str, **more: bool) -> bool:
        asked.append((client_id, more))
        return is_last

    monkeypatch.setattr(broker.broker.servers, "detach", detach)
    await broker.send()
    await broker.receive(push=True)
    await of(broker).abandon_client("c1", said_goodbye, **({} if inherits is None else {"inherits": inherits}))
    assert asked == [("c1", {"inherits": bool(inherits), "everywhere": said_goodbye})]
    assert await rows(broker) == [
        ("INFLIGHT", "ORPHAN", 1, ORPHAN_DELAY_MS) if is_last else ("INFLIGHT", "PUSH", 1, PUSH_HOLD_MS_MAX)
    ]


async def test_the_other_servers_are_told_who_came_back(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def attach(client_id: str) -> None:
        asked.append(client_id)

    monkeypatch.setattr(broker.broker.servers, "attach", attach)
    await of(broker).extend_client_holds("c7")
    assert asked == ["c7"]
