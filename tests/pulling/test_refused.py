"""What is refused has changed nothing: no group is made for it, and none has its mode fixed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from popserver.filters import TagFilter
from popserver.model.errors import BadRequest, PopError
from popserver.model.names import Resource
from popserver.model.topic import QueueName
from popserver.pulling.flow import PullRequest
from popserver.pulling.offsets import NamedOffset
from popserver.pulling.send_back_flow import HandedBack
from tests.support.builders import GROUP, TOPIC
from tests.support.running_broker import RunningBroker, TestedBroker

HERE, NO_SUCH_QUEUE, NOWHERE = QueueName(TOPIC, 0), QueueName(TOPIC, 7), QueueName(Resource("", "nowhere"), 0)
END = 3
Act = Callable[[TestedBroker], Awaitable[object]]


async def commit(broker: TestedBroker, queue: QueueName, offset: int) -> None:
    for each in await broker.consuming.offsets.commit(GROUP, [NamedOffset(queue, offset)]):
        if each.refusal is not None:
            raise each.refusal


async def pull(broker: TestedBroker, commit_offset: int) -> None:
    await broker.consuming.pulls.pull(PullRequest(GROUP, TOPIC, 0, 0, 1, TagFilter(), 0, commit_offset))


async def send_back(broker: TestedBroker, queue: QueueName, offset: int) -> None:
    await broker.consuming.retries.send_back(GROUP, "c1", HandedBack(queue, offset))


LEAVE_NO_GROUP: dict[str, Act] = {
    "a commit in an unknown topic": lambda broker: commit(broker, NOWHERE, 1),
    "a commit in an unknown queue": lambda broker: commit(broker, NO_SUCH_QUEUE, 0),
    "a message of an unknown topic": lambda broker: broker.consuming.retries.send_back(
        GROUP, "c1", HandedBack(NOWHERE, 0)
    ),
    "a message of no offset": lambda broker: send_back(broker, HERE, -1),
    "progress in an unknown topic": lambda broker: broker.consuming.offsets.fetch(GROUP, [NOWHERE]),
    "a lock of an unknown queue": lambda broker: broker.sessions.queue_locks.lock(GROUP, "c1", [NO_SUCH_QUEUE]),
    "an unlock of an unknown queue": lambda broker: broker.sessions.queue_locks.unlock(GROUP, "c1", [NO_SUCH_QUEUE]),
    "an import beyond the end": lambda broker: broker.progress().import_offsets(GROUP, [NamedOffset(HERE, END + 1)]),
}
LEAVE_NO_MODE: dict[str, Act] = {
    "a commit beyond the end": lambda broker: commit(broker, HERE, END + 1),
    "a message that is not stored": lambda broker: broker.consuming.retries.send_back(
        GROUP, "c1", HandedBack(HERE, END)
    ),
}
FIX_THE_MODE: dict[str, Act] = {
    "a commit": lambda broker: commit(broker, HERE, 0),
    "a commit that rides along": lambda broker: pull(broker, 1),
    "a message handed back": lambda broker: broker.consuming.retries.send_back(GROUP, "c1", HandedBack(HERE, 1)),
    "a dead letter": lambda broker: broker.consuming.retries.send_back(GROUP, "c1", HandedBack(HERE, 1, -1)),
}


@pytest.fixture
async def filled(either_broker: RunningBroker) -> RunningBroker:
    await either_broker.topic()
    await either_broker.send(END)
    return either_broker


@pytest.mark.parametrize("act", LEAVE_NO_GROUP.values(), ids=LEAVE_NO_GROUP)
async def test_it_leaves_no_group(filled: RunningBroker, act: Act) -> None:
    with pytest.raises(PopError):
        await act(filled.broker)
    assert await filled.query("SELECT name FROM consumer_group") == []


@pytest.mark.row("K8")
@pytest.mark.parametrize("act", LEAVE_NO_MODE.values(), ids=LEAVE_NO_MODE)
async def test_it_fixes_no_mode(filled: RunningBroker, act: Act) -> None:
    with pytest.raises(PopError):
        await act(filled.broker)
    assert len(await filled.receive()) == END


@pytest.mark.row("K8")
async def test_what_rides_along_in_vain_fixes_no_mode(filled: RunningBroker) -> None:
    await pull(filled.broker, END + 1)
    assert len(await filled.receive()) == END


@pytest.mark.row("K8")
@pytest.mark.parametrize("act", FIX_THE_MODE.values(), ids=FIX_THE_MODE)
async def test_what_is_done_fixes_it(filled: RunningBroker, act: Act) -> None:
    await act(filled.broker)
    with pytest.raises(BadRequest, match="'billing' consumes in mode PULL"):
        await filled.receive()


@pytest.mark.row("K8")
@pytest.mark.parametrize("act", (LEAVE_NO_MODE | FIX_THE_MODE).values(), ids=LEAVE_NO_MODE | FIX_THE_MODE)
async def test_a_group_of_the_other_mode_keeps_it(filled: RunningBroker, act: Act) -> None:
    await filled.receive(1)
    try:
        await act(filled.broker)
    except BadRequest as refusal:
        assert "'billing' consumes in mode POP" in refusal.sentence
    assert [row.mode for row in await filled.query("SELECT mode FROM consumer_group")] == ["POP"]
    assert len(await filled.receive()) == END - 1
