"""A queue push consumer's life: its states, its threads, what cannot start, and a process that just ends."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from popclient import (
    ClientClosed,
    ConsumeConcurrentlyStatus,
    Forbidden,
    MessageQueue,
    PreconditionFailed,
    QueuePushConsumer,
    UnsupportedByServer,
    aio,
)
from popclient._progress.local import LocalFileOffsetStore
from popclient._queue_push.pull_loop import PullLoop, ServiceState, _of_loop
from popclient.offset_file import read_offset_file
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.queue_client.queue_consumers import Q, QueueConsumers
from tests.support.client_program import AT_ONCE_S, run
from tests.support.group_server import GroupServer
from tests.support.scripted_server import ScriptedServer, ServerThread, status, until, until_in_thread

SUCCESS = ConsumeConcurrentlyStatus.CONSUME_SUCCESS
FIRST = "CONSUME_FROM_FIRST_OFFSET"


class GroupServerThread(ServerThread):
    server: GroupServer

    def __init__(self) -> None:
        super().__init__()
        self.server = GroupServer()


@pytest.fixture
def threaded() -> Iterator[GroupServerThread]:
    with GroupServerThread() as thread:
        yield thread


def fill(threaded: GroupServerThread, count: int) -> None:
    threaded.run(threaded.server.fill(Q, map(str, range(count))))


def done(_: Any, __: Any) -> ConsumeConcurrentlyStatus:
    return SUCCESS


# ---- States ----


@pytest.mark.row("J15")
async def test_a_consumer_goes_through_its_states_and_never_back(consumers: QueueConsumers) -> None:
    core = consumers.make()
    assert core.state is ServiceState.CREATE_JUST
    await core.start()
    assert core.state is ServiceState.RUNNING
    await core.start()  # twice is no more than once
    assert len(consumers.pull_loop._consumers) == 1
    await core.close()
    assert core.state is ServiceState.SHUTDOWN_ALREADY
    await core.close()
    with pytest.raises(ClientClosed):
        await core.start()


@pytest.mark.row("J15")
async def test_a_start_that_has_failed_is_not_repeated(consumers: QueueConsumers) -> None:
    routes = consumers.server.answers.pop("QueryRoute")
    consumers.server.answers["QueryRoute"] = lambda _: rpc.QueryRouteResponse(status=status(pb.FORBIDDEN))
    core = consumers.make()
    with pytest.raises(Forbidden):
        await core.start()
    assert core.state is ServiceState.START_FAILED
    consumers.server.answers["QueryRoute"] = routes
    with pytest.raises(PreconditionFailed, match="'g' is START_FAILED: its start has failed before; make a new one"):
        await core.start()
    assert not consumers.pull_loop._consumers
    await core.close()


@pytest.mark.row("J15")
@pytest.mark.row("G1")
async def test_who_could_not_start_is_no_member_and_keeps_no_queue_from_the_others(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 4
    routes = consumers.server.answers["QueryRoute"]

    def refuse(request: rpc.QueryRouteRequest) -> rpc.QueryRouteResponse:
        return rpc.QueryRouteResponse(status=status(pb.FORBIDDEN)) if request.topic.name == "no" else routes(request)

    consumers.server.answers["QueryRoute"] = refuse
    ghost = consumers.make(topics=["t", "no"], pull_loop=PullLoop(consumers.clock))
    with pytest.raises(Forbidden):
        await ghost.start()
    assert not ghost.session.healthy
    await until(lambda: not consumers.server.members)
    core = await consumers.start()
    await consumers.owns(core, 0, 1, 2, 3)
    await ghost.close()


@pytest.mark.row("J15")
async def test_what_is_started_first_is_what_the_rest_needs(
    consumers: QueueConsumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = consumers.make()
    order: list[str] = []

    def noted(of: Any, name: str, step: str) -> None:
        real = getattr(of, name)

        def call(*given: Any) -> Any:
            assert core.session.healthy, "the channel is open, and the server knows the consumer"
            order.append(step)
            return real(*given)

        monkeypatch.setattr(of, name, call)

    noted(core.session, "route", "topics")
    noted(core.parts.offset_store, "load", "progress")
    noted(core._periodic, "every", "periodic work")
    noted(consumers.pull_loop.pulls, "start", "pulls")
    noted(core._rebalancing, "start", "rebalancing")
    await core.start()
    steps = [step for step, _ in itertools.groupby(order[: order.index("rebalancing") + 1])]
    assert steps == ["topics", "progress", "topics", "periodic work", "pulls", "rebalancing"]


@pytest.mark.row("J15")
@pytest.mark.user("U23")
@pytest.mark.parametrize("work", ["pass", "time.sleep(60)"])
def test_a_process_that_forgets_to_close_ends_at_once(threaded: GroupServerThread, work: str) -> None:
    fill(threaded, 5)
    script = f"""
        import sys, threading, time
        from popclient import ConsumeConcurrentlyStatus, QueuePushConsumer
        begun = threading.Event()
        def listener(messages, context):
            begun.set()
            {work}
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        consumer = QueuePushConsumer(sys.argv[1], "g", "t", listener, consume_from="{FIRST}", consume_threads=1)
        consumer.start()
        begun.wait(60)
        print(time.time())
    """
    ended, took = run(script, threaded.endpoints)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert took < AT_ONCE_S
    until_in_thread(lambda: threaded.server.requests("NotifyClientTermination"))


@pytest.mark.user("U23")
@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
def test_a_process_that_forgets_to_close_keeps_its_progress(
    threaded: GroupServerThread, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fill(threaded, 5)
    script = f"""
        import sys, threading, time
        from popclient import ConsumeConcurrentlyStatus, QueuePushConsumer
        seen, all_seen = [], threading.Event()
        def listener(messages, context):
            seen.extend(messages)
            if len(seen) == 5:
                all_seen.set()
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS
        consumer = QueuePushConsumer(
            sys.argv[1], "g", "t", listener, consume_from="{FIRST}", consume_threads=1, model="{model}"
        )
        consumer.start()
        all_seen.wait(60)
        while any(not pq.is_empty for _, pq in consumer._core.parts.owned()):
            time.sleep(0.01)
    """
    ended, _ = run(script, threaded.endpoints)
    assert (ended.returncode, ended.stderr) == (0, "")
    if model == "CLUSTERING":
        assert threaded.server.progress[Q] == 5
    else:
        store = LocalFileOffsetStore("DEFAULT", "g")
        assert read_offset_file(store.path) == ({"t@g": {0: 5}}, {})


def test_an_event_loop_that_has_ended_is_not_kept(threaded: GroupServerThread) -> None:
    async def live() -> None:
        async with aio.QueuePushConsumer(threaded.endpoints, "g", "t", _content):
            assert asyncio.get_running_loop() in _of_loop

    for _ in range(2):
        asyncio.run(live())
    assert not [loop for loop in _of_loop if loop.is_closed()]


# ---- Threads ----


@pytest.mark.row("E1")
def test_twenty_daemon_threads_named_after_the_group_share_the_work(threaded: GroupServerThread) -> None:
    fill(threaded, 200)
    seen: list[str] = []
    names: set[str] = set()
    together = threading.Barrier(20)

    def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        if len(names) < 20:
            names.add(threading.current_thread().name)
            together.wait(60)
        seen.extend(message.text for message in messages)
        return SUCCESS

    with QueuePushConsumer(threaded.endpoints, "g", "t", listener, consume_from=FIRST) as consumer:
        until_in_thread(lambda: len(seen) == 200)
        assert (consumer.healthy, consumer.group, consumer.state) == (True, "g", "RUNNING")
        assert repr(consumer) == f"<QueuePushConsumer {threaded.endpoints} group='g' RUNNING>"
        assert consumer.client_id
        workers = [thread for thread in threading.enumerate() if thread.name.startswith("ConsumeMessageThread_g_")]
        assert len(workers) == 20 and all(thread.daemon for thread in workers)
    assert names == {f"ConsumeMessageThread_g_{number}" for number in range(1, 21)}
    assert sorted(seen, key=int) == [str(number) for number in range(200)]
    assert threaded.server.progress[Q] == 200
    until_in_thread(lambda: not any(worker.is_alive() for worker in workers))


def test_a_listener_that_ends_its_thread_ends_only_its_call(threaded: GroupServerThread) -> None:
    fill(threaded, 2)
    failed: list[str] = []

    def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        if messages[0].text == "0":
            failed.append("0")
            raise SystemExit
        return SUCCESS

    with QueuePushConsumer(threaded.endpoints, "g", "t", listener, consume_from=FIRST, consume_threads=1):
        until_in_thread(lambda: threaded.server.sent_back and failed == ["0"])


def test_topics_come_and_go_while_it_runs(threaded: GroupServerThread) -> None:
    seen: list[str] = []

    def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        seen.extend(message.text for message in messages)
        return SUCCESS

    threaded.run(threaded.server.fill(MessageQueue("u", 1), ["wanted"], tag="a"))
    threaded.run(threaded.server.fill(MessageQueue("u", 2), ["other"], tag="b"))
    with QueuePushConsumer(threaded.endpoints, "g", "t", listener, consume_from=FIRST) as consumer:
        consumer.subscribe("u", "a")
        until_in_thread(lambda: seen == ["wanted"])
        consumer.unsubscribe("u")
        until_in_thread(lambda: {mq.topic for mq in consumer.message_queues} == {"t", "%RETRY%g"})
        consumer.suspend()
        consumer.resume()
        with pytest.raises(TypeError, match="is 5; give a tag expression"):
            consumer.subscribe("v", 5)  # type: ignore[arg-type]


def test_run_ends_at_sigterm_and_leaves_the_handlers_as_they_were(threaded: GroupServerThread) -> None:
    fill(threaded, 1)
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    def listener(_: Any, __: Any) -> ConsumeConcurrentlyStatus:
        os.kill(os.getpid(), signal.SIGTERM)
        return SUCCESS

    QueuePushConsumer(threaded.endpoints, "g", "t", listener, consume_from=FIRST).run()
    assert threaded.server.progress[Q] == 1
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


async def test_the_asyncio_face_has_the_same_words(consumers: QueueConsumers) -> None:
    words = {name for name in vars(QueuePushConsumer) if not name.startswith("_")}
    assert words == {name for name in vars(aio.QueuePushConsumer) if not name.startswith("_")}
    await consumers.server.fill(Q, "ab")
    async with aio.QueuePushConsumer(
        consumers.server.endpoints, "g", "t", consumers.succeed, consume_from=FIRST
    ) as consumer:
        await until(lambda: len(consumers.seen) == 2)
        assert consumer.statistics()["t"].consume_failed_msgs == 0
        assert consumer.message_queues[-1] == Q
        assert "RUNNING" in repr(consumer)
        await consumer.subscribe("u")
        await until(lambda: {mq.topic for mq in consumer.message_queues} >= {"u"})
        consumer.suspend()
        consumer.resume()
        await consumer.unsubscribe("u")
    assert consumers.server.progress[Q] == 2


async def test_the_listener_may_close_its_consumer(consumers: QueueConsumers) -> None:
    async def listener(messages: Any, _: Any) -> ConsumeConcurrentlyStatus:
        await consumer.close()
        return SUCCESS

    await consumers.server.fill(Q, "ab")
    consumer = aio.QueuePushConsumer(
        consumers.server.endpoints, "g", "t", listener, consume_from=FIRST, consume_threads=1
    )
    await consumer.run()
    assert consumers.server.progress[Q] == 1


# ---- What cannot work ----


@pytest.mark.row("O9")
@pytest.mark.parametrize("model", ["CLUSTERING", "BROADCASTING"])
async def test_a_server_without_queue_granularity_is_told_at_once(
    model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))

    def rejects(reply: rpc.TelemetryCommand) -> rpc.TelemetryCommand:
        return rpc.TelemetryCommand(status=status(pb.UNRECOGNIZED_CLIENT_TYPE, "PULL_CONSUMER is not supported"))

    async with ScriptedServer("") as proxy:
        proxy.answers["Telemetry"] = rejects
        consumer = aio.QueuePushConsumer(proxy.endpoints, "g", "t", _content, model=model)
        with pytest.raises(UnsupportedByServer, match="consume there with SimpleConsumer or PushConsumer"):
            await consumer.start()
        await consumer.close()


async def _content(_: Any, __: Any) -> ConsumeConcurrentlyStatus:
    return SUCCESS


@pytest.mark.row("N8")
@pytest.mark.parametrize(
    "wrong, error, says",
    [
        ({"group": ""}, ValueError, "group is ''"),
        ({"topics": []}, ValueError, "at least one topic"),
        ({"listener": None}, TypeError, "listener is None"),
        ({"model": "ANYCAST"}, ValueError, "model is 'ANYCAST'; it must be one of CLUSTERING, BROADCASTING"),
        ({"consume_from": "NOWHERE"}, ValueError, "consume_from is 'NOWHERE'"),
        ({"allocate_strategy": "MINE"}, ValueError, "allocate_strategy is 'MINE'"),
        ({"consume_threads": 0}, ValueError, "consume_threads is 0"),
        ({"consume_message_batch_max_size": 1_025}, ValueError, "consume_message_batch_max_size is 1025"),
        ({"pull_batch_size": 0}, ValueError, "pull_batch_size is 0"),
        ({"consume_timeout": 0}, ValueError, "consume_timeout is 0"),
        ({"suspend_current_queue_time": 31}, ValueError, "suspend_current_queue_time is 31"),
        ({"offset_store": "mine"}, TypeError, "offset_store is 'mine'; derive it from OffsetStore"),
    ],
)
@pytest.mark.parametrize("face", [QueuePushConsumer, aio.QueuePushConsumer])
def test_what_cannot_work_is_refused_at_once(
    face: Any, wrong: dict[str, Any], error: type[Exception], says: str
) -> None:
    listener = _content if face is aio.QueuePushConsumer else done
    given = {"endpoints": "127.0.0.1:1", "group": "g", "topics": "t", "listener": listener, **wrong}
    with pytest.raises(error, match=says):
        face(**given)
