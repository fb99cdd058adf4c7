"""Queue locks with the real server: its 60 s and the client's 30 s are counted on one clock.

Every member here wants every queue, as members with different views do. So nothing but the locks keeps two of them
from consuming one queue at the same time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest

from popclient import ClientConfig, ConsumeOrderlyStatus, Message, OrderlyListener, Unreachable, aio
from popclient._consume.process_queue import LOCK_EXPIRED_AFTER
from popclient._engine.runner import TaskRunner
from popclient._queue_push.core import QueuePushCore
from popclient._queue_push.pull_loop import PullLoop
from popclient._queues import calls
from popproto.v2 import service_pb2 as wire
from popproto.v2 import service_pb2_grpc
from popserver.app import App
from popserver.config import GivenConfig
from popserver.engine.clock import ManualClock as ServerClock
from popserver.members.locks import LAPSE_MS
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.queue_client.manual_clock import ManualClock
from tests.support.scripted_server import until

COUNT = 100
STEP_S = 1.5
WORK_S = 2.0  # for one message
LAPSE_S = LAPSE_MS / 1_000


class Work(NamedTuple):
    """A call of a listener, in seconds of the one clock."""

    member: str
    offset: int
    began: float
    ended: float


class Member:
    """A consumer with a clock that the stage moves. `freeze` stops its timers and leaves its time to run."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.name = name
        self.clock = ManualClock()
        self.asked: list[float] = []  # when it asked for locks and was answered
        self.is_cut_off: str = ""
        self._stage = stage
        self.is_frozen = False
        self._thaw = asyncio.Event()
        self._thaw.set()
        face = aio.QueuePushConsumer(
            ClientConfig(stage.app.endpoint, request_timeout=2),
            "g",
            "t",
            OrderlyListener(self._listen),
            consume_from="CONSUME_FROM_FIRST_OFFSET",
            allocate_strategy=lambda _group, _client_id, queues, _members: queues,
            pull_batch_size=8,
        )
        options = face._core.options
        self.core = QueuePushCore(face._config, options, TaskRunner, PullLoop(self.clock))

    async def _listen(self, messages: Any, _: object) -> ConsumeOrderlyStatus:
        [message] = messages
        began = self._stage.now()
        self._stage.begin(self.name)
        worked = asyncio.Event()
        self.clock.call_later(WORK_S, worked.set)
        await worked.wait()
        self._stage.end(Work(self.name, message.queue_offset, began, self._stage.now()))
        self.is_frozen = not self._thaw.is_set()
        await self._thaw.wait()
        return ConsumeOrderlyStatus.SUCCESS

    async def freeze(self) -> None:
        """When it has ended the work of the message that it is at; it does not know that yet."""
        self._thaw.clear()
        await self._stage.comes(lambda: self.is_frozen, 10)

    async def thaw(self) -> None:
        """It goes on where it stood; then everything that fell due meanwhile happens."""
        self.is_frozen = False
        self._thaw.set()
        await self.clock._settle()
        await self.clock.advance(0)

    async def advance(self, seconds: float) -> None:
        if self.is_frozen:
            self.clock._now += seconds
        else:
            await self.clock.advance(seconds)


class Stage:
    """A server, its members, and the clock of all of them."""

    def __init__(self, file: Path) -> None:
        self.clock = ServerClock()
        self.members: dict[str, Member] = {}
        self.work: list[Work] = []
        self.overlaps: list[tuple[str, str]] = []
        self._config: dict[str, Any] = {"database_url": f"sqlite:///{file}", "host": "127.0.0.1", "tls": "plaintext"}
        self._busy: list[str] = []
        self._start_ms = self.clock.now_ms()
        self._is_up = False
        self._port = 0
        self.app: App

    def now(self) -> float:
        return (self.clock.now_ms() - self._start_ms) / 1_000

    def begin(self, member: str) -> None:
        self.overlaps += [(other, member) for other in self._busy if other != member]
        self._busy.append(member)

    def end(self, work: Work) -> None:
        self._busy.remove(work.member)
        self.work.append(work)

    def by(self, member: str) -> list[Work]:
        return [each for each in self.work if each.member == member]

    async def up(self) -> None:
        self.app = App(GivenConfig(**self._config, port=self._port, drain_timeout=0), self.clock)
        await self.app.start()
        self._port = int(self.app.endpoint.rpartition(":")[2])
        self._is_up = True

    async def down(self) -> None:
        self._is_up = False
        await self.app.stop()

    async def join(self, name: str) -> Member:
        member = self.members[name] = Member(self, name)
        await member.core.start()
        return member

    async def pass_(self, seconds: float) -> None:
        end = self.now() + seconds
        while self.now() < end:
            await self._step()

    async def comes(self, fact: Callable[[], Any], within: float) -> None:
        end = self.now() + within
        while not fact():
            assert self.now() < end, f"it did not come true within {within:g} s"
            await self._step()

    async def _step(self) -> None:
        settle = self.app.broker.settle if self._is_up else _nothing
        await self.clock.advance(round(STEP_S * 1_000), settle)
        for member in self.members.values():
            await member.advance(STEP_S)
        if self._is_up:
            await self._breathe()

    async def _breathe(self) -> None:
        """Real time for real calls; the beats of the members' sessions are no business of the manual clock."""
        for _ in range(2):
            for member in self.members.values():
                if not member.is_frozen:
                    await member.core.session.heartbeats.send()
        async with grpc.aio.insecure_channel(self.app.endpoint) as channel:
            stub = service_pb2_grpc.MessagingServiceStub(channel)
            await stub.Heartbeat(wire.HeartbeatRequest(), metadata=(("x-mq-client-id", "stage"),))

    async def close(self) -> None:
        for member in self.members.values():
            await member.thaw()
            member.is_cut_off = ""
            await member.core.close()
        if self._is_up:
            await self.down()


async def _nothing() -> None:
    pass


@pytest.fixture
async def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path / "popmq.db")
    lock_queues, unlock_queues = calls.lock_queues, calls.unlock_queues

    def member_of(session: Any) -> Member:
        [member] = [each for each in stage.members.values() if each.core.session is session]
        return member

    async def give_up(session: Any, group: str, mqs: Any) -> None:
        if member_of(session).is_cut_off:
            raise Unreachable("lost on its way")
        await unlock_queues(session, group, mqs)

    async def ask(session: Any, group: str, mqs: Any) -> calls.Locked:
        member = member_of(session)
        if member.is_cut_off == "the request is lost":
            raise Unreachable("lost on its way")
        asked = stage.now()
        locked = await lock_queues(session, group, mqs)
        if member.is_cut_off == "the answer is lost":
            raise Unreachable("lost on its way back")
        member.asked += [asked] if any(mq.topic == "t" for mq in locked.queues) else []
        return locked

    monkeypatch.setattr(calls, "lock_queues", ask)
    monkeypatch.setattr(calls, "unlock_queues", give_up)
    await stage.up()
    await stage.app.broker.catalog.create_topic(NewTopic(Resource("", "t"), 1, (MessageType.NORMAL,)))
    async with aio.Producer(stage.app.endpoint) as producer:
        await producer.send_many([Message("t", str(number)) for number in range(COUNT)])
    yield stage
    await stage.close()
    assert stage.overlaps == []
    new = list(dict.fromkeys(each.offset for each in stage.work))
    assert new == list(range(len(new))), "in order, and none left out"


async def two(stage: Stage) -> tuple[Member, Member]:
    """One has the lock and works, the other wants it."""
    one = await stage.join("one")
    await stage.comes(lambda: len(stage.work) >= 3, 30)
    other = await stage.join("other")
    await stage.pass_(5)
    assert not stage.by("other")
    return one, other


@pytest.mark.row("F3")
async def test_an_owner_whose_renewals_are_lost_stops_long_before_another_begins(stage: Stage) -> None:
    one, _ = await two(stage)
    one.is_cut_off = "the request is lost"
    lost_at = one.asked[-1]
    await stage.comes(lambda: stage.by("other"), 70)
    last, first = stage.by("one")[-1], stage.by("other")[0]
    assert last.began <= lost_at + LOCK_EXPIRED_AFTER + STEP_S
    assert first.began >= lost_at + LAPSE_S
    one.is_cut_off = ""
    await stage.pass_(25)
    assert stage.by("one")[-1] == last, "the other one renews"


@pytest.mark.row("F3")
async def test_an_owner_that_hears_no_answer_stops_though_the_server_has_renewed(stage: Stage) -> None:
    one, _ = await two(stage)
    one.is_cut_off = "the answer is lost"
    lost_at = one.asked[-1]
    await stage.pass_(LAPSE_S + 15)
    assert stage.by("one")[-1].began <= lost_at + LOCK_EXPIRED_AFTER + STEP_S
    assert not stage.by("other"), "on the server the lock is renewed"
    one.is_cut_off = ""
    seen = len(stage.work)
    await stage.comes(lambda: len(stage.work) > seen, 25)
    assert not stage.by("other")


@pytest.mark.row("F3")
@pytest.mark.row("F4")
@pytest.mark.parametrize("seconds", [LOCK_EXPIRED_AFTER + 10, LAPSE_S + 25])
async def test_an_owner_that_stood_still_does_not_go_on_with_what_it_has_cached(stage: Stage, seconds: float) -> None:
    one, _ = await two(stage)
    await one.freeze()
    await stage.pass_(seconds)
    cached = sum(pq.cached.messages for mq, pq in one.core.parts.owned() if mq.topic == "t")
    assert cached > 1
    before, others = len(stage.by("one")), len(stage.by("other"))
    assert bool(others) is (seconds > LAPSE_S)
    await one.thaw()
    seen = len(stage.work)
    await stage.comes(lambda: len(stage.work) > seen + 5, 25)  # whoever has it now
    if others:
        assert len(stage.by("one")) == before, "it is the other one's queue"


@pytest.mark.row("F2")
@pytest.mark.row("F3")
@pytest.mark.parametrize("seconds", [6, LAPSE_S + 10])
async def test_a_restart_of_the_server_forgets_no_lock(stage: Stage, seconds: float) -> None:
    one, other = await two(stage)
    owned_at = one.asked[-1]
    await stage.down()
    await stage.pass_(seconds)
    seen = len(stage.work)
    await stage.up()
    await until(lambda: one.core.session.healthy and other.core.session.healthy)
    await stage.comes(lambda: len(stage.work) > seen, 60)
    for each in stage.by("other"):
        assert each.began >= owned_at + LAPSE_S
    if seconds < LOCK_EXPIRED_AFTER:
        assert not stage.by("other")
