"""The push consumer without order: what the listener says is what the server hears, and no more comes than fits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import grpc
import pytest

from popclient import (
    ClientClosed,
    ClientConfig,
    ConsumeResult,
    ConsumeStatus,
    Consumption,
    FilterExpression,
    Forbidden,
    Interceptor,
    MessageView,
    NotFound,
    PopError,
    TooManyRequests,
    aio,
)
from popclient._session import transport
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.client.push_consumers import acked, consumer_of, failed, given_back
from tests.support.scripted_server import OK, ScriptedServer, put, status, until

SUCCESS, FAILURE = ConsumeResult.SUCCESS, ConsumeResult.FAILURE


class Seen:
    """A listener that remembers; `answer` says what it returns."""

    def __init__(self, answer: Callable[[MessageView], Any] = lambda _: SUCCESS) -> None:
        self.texts: list[str] = []
        self.attempts: list[int] = []
        self.answer = answer

    async def __call__(self, message: MessageView) -> Any:
        self.texts.append(message.text.strip())
        self.attempts.append(message.delivery_attempt)
        answer = self.answer(message)
        return await answer if isinstance(answer, asyncio.Future) else answer


# ---- What is asked ----


@pytest.mark.row("A2")
async def test_messages_come_with_receives_alone_and_done_ones_are_acked(server: ScriptedServer) -> None:
    put(server, 40)
    seen = Seen()
    async with consumer_of(server, seen) as consumer:
        await until(lambda: len(acked(server)) == 40)
        await until(lambda: consumer.cached == (0, 0))
        assert consumer.healthy
    assert sorted(seen.texts, key=int) == [str(number) for number in range(40)]
    assert not server.held
    assert {name for name, _ in server.calls} == {
        *("QueryRoute", "Telemetry", "Heartbeat", "QueryAssignment"),
        *("ReceiveMessage", "AckMessage", "NotifyClientTermination"),
    }
    assert len(server.requests("AckMessage")) < 20  # they travel together


@pytest.mark.user("U7")
async def test_a_poll_asks_as_a_push_consumer_does(server: ScriptedServer) -> None:
    put(server, 1)
    async with consumer_of(server, Seen(), {"t": FilterExpression.sql("a > 3")}):
        await until(lambda: len(server.requests("ReceiveMessage")) == 2)
    first, second, *_ = server.requests("ReceiveMessage")
    [sent] = server.settings
    assert (sent.client_type, sent.subscription.group.name) == (pb.PUSH_CONSUMER, "push")
    assert (first.auto_renew, first.batch_size, first.message_queue.id) == (True, 32, -1)
    assert abs(first.long_polling_timeout.ToTimedelta() - timedelta(seconds=20)) < timedelta(milliseconds=50)
    assert first.invisible_duration.ToTimedelta() == timedelta(seconds=60)
    assert (first.filter_expression.type, first.filter_expression.expression) == (pb.SQL, "a > 3")
    assert first.attempt_id != second.attempt_id


async def test_several_topics_and_a_dead_letter_queue(server: ScriptedServer) -> None:
    for topic in ("t", "u", "%DLQ%push"):
        put(server, 2, topic)
    seen = Seen(lambda message: (SUCCESS, message.topic)[0])
    async with consumer_of(server, seen, ["t", "u", "%DLQ%push"]):
        await until(lambda: len(acked(server)) == 6)
    assert sorted(acked(server)) == ["%DLQ%push-0", "%DLQ%push-1", "t-0", "t-1", "u-0", "u-1"]


async def test_what_is_wrong_at_the_start_is_raised_there(server: ScriptedServer) -> None:
    server.answers["QueryRoute"] = lambda _: rpc.QueryRouteResponse(status=status(pb.TOPIC_NOT_FOUND))
    with pytest.raises(NotFound):
        await consumer_of(server, Seen()).start()
    del server.answers["QueryRoute"]
    server.answers["QueryAssignment"] = lambda _: rpc.QueryAssignmentResponse(status=status(pb.FORBIDDEN))
    consumer = consumer_of(server, Seen())
    with pytest.raises(Forbidden):
        await consumer.start()
    assert not server.requests("ReceiveMessage")
    del server.answers["QueryAssignment"]
    async with consumer:  # put right, it starts
        await until(lambda: server.requests("ReceiveMessage"))
    server.answers["QueryAssignment"] = lambda _: rpc.QueryAssignmentResponse(status=status(pb.FORBIDDEN))
    with pytest.raises(Forbidden):
        async with consumer_of(server, Seen()):
            raise AssertionError("it must not get here")


async def test_assignments_come_and_go(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient._push.assignments.SCAN_INTERVAL", 0.01)
    queues = [0, 1]

    def assign(request: rpc.QueryAssignmentRequest) -> rpc.QueryAssignmentResponse:
        if not queues:
            return rpc.QueryAssignmentResponse(status=status(pb.INTERNAL_SERVER_ERROR))
        return rpc.QueryAssignmentResponse(
            status=OK,
            assignments=[pb.Assignment(message_queue=pb.MessageQueue(topic=request.topic, id=i)) for i in queues],
        )

    def polled() -> list[int]:
        return sorted({request.message_queue.id for request in server.requests("ReceiveMessage")})

    server.answers["QueryAssignment"] = assign
    seen = Seen()
    async with consumer_of(server, seen) as consumer:
        await until(lambda: polled() == [0, 1])
        queues[:] = [1, 2]
        await until(lambda: polled() == [0, 1, 2])
        assert len(consumer._core._polling._assignments) == 2
        queues.clear()  # a server in trouble takes nothing away
        before = len(server.requests("QueryAssignment"))
        await until(lambda: len(server.requests("QueryAssignment")) > before + 2)
        put(server, 1)
        await until(lambda: acked(server) == ["t-0"])


# ---- What the listener says ----


class Statuses(Interceptor):
    def __init__(self) -> None:
        self.found: list[tuple[list[str], str]] = []
        self.errors: list[BaseException | None] = []

    def after_consume(self, messages: Sequence[MessageView], consumption: Consumption, /) -> None:
        self.found.append(([message.text.strip() for message in messages], consumption.status.value))
        self.errors.append(consumption.error)
        assert consumption.seconds >= 0


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.row("L4")
@pytest.mark.row("E7")
@pytest.mark.parametrize(
    "answer, found",
    [
        (lambda _: SUCCESS, ConsumeStatus.SUCCESS),
        (lambda _: FAILURE, ConsumeStatus.FAILED),
        (lambda _: None, ConsumeStatus.RETURNNULL),
        (lambda _: True, ConsumeStatus.FAILED),
        (lambda _: _raise(KeyError("x")), ConsumeStatus.EXCEPTION),
        (lambda _: _raise(asyncio.CancelledError()), ConsumeStatus.EXCEPTION),
    ],
)
async def test_all_but_success_comes_again_after_the_interval(
    server: ScriptedServer, answer: Callable[[MessageView], Any], found: ConsumeStatus
) -> None:
    server.retry_intervals = (10, 30)
    server.attempts["t-0"] = 2
    put(server, 1)
    statuses = Statuses()
    async with consumer_of(server, Seen(answer), interceptors=[statuses]) as consumer:
        await until(lambda: acked(server) or failed(server))
        await until(lambda: consumer.cached == (0, 0))
    assert statuses.found == [(["0"], found)]
    assert acked(server) == (["t-0"] if found is ConsumeStatus.SUCCESS else [])
    assert failed(server) == ([] if found is ConsumeStatus.SUCCESS else [("t-0", 30.0)])
    assert (statuses.errors != [None]) is (found is ConsumeStatus.EXCEPTION)


@pytest.mark.row("L4")
@pytest.mark.row("D10")
async def test_a_listener_that_takes_too_long_is_cancelled_and_its_late_success_is_not_acked(
    server: ScriptedServer,
) -> None:
    put(server, 1)
    statuses = Statuses()

    async def listener(_: MessageView) -> ConsumeResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return SUCCESS  # late
        return FAILURE

    async with consumer_of(server, listener, consumption_timeout=0.05, interceptors=[statuses]):
        await until(lambda: failed(server) == [("t-0", 10.0)])
        await until(lambda: statuses.found == [(["0"], "TIMEOUT")])
    assert acked(server) == []


@pytest.mark.row("L4")
async def test_a_listener_has_fifteen_minutes(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, passed = asyncio.get_running_loop(), 0.0
    real = loop.time
    monkeypatch.setattr(loop, "time", lambda: real() + passed)
    monkeypatch.setattr(transport, "FORGOTTEN_AFTER", 1_000.0)  # the jumps are no silence of the server
    put(server, 1)
    begun, statuses = asyncio.Event(), Statuses()

    async def listener(_: MessageView) -> ConsumeResult:
        if not begun.is_set():
            begun.set()
            await asyncio.Event().wait()
        return SUCCESS

    async with consumer_of(server, listener, interceptors=[statuses]):
        await begun.wait()
        passed = 895.0
        put(server, 1, first=1)  # what comes later is done, so all timers that are due by now have fired
        await until(lambda: acked(server))
        assert statuses.found == [(["1"], "SUCCESS")]
        passed = 900.0
        await until(lambda: failed(server) == [("t-0", 10.0)], 8)
    assert statuses.found == [(["1"], "SUCCESS"), (["0"], "TIMEOUT")]


@pytest.mark.row("L4")
async def test_the_time_in_the_queue_counts_and_what_gets_no_turn_is_given_back_unused(server: ScriptedServer) -> None:
    put(server, 3)
    took: list[float] = []
    seen: list[str] = []

    class Times(Interceptor):
        def after_consume(self, _: Sequence[MessageView], consumption: Consumption, /) -> None:
            took.append(consumption.seconds)

    async def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        others_have_waited = message.text == "0" and until(lambda: consumer._core._dispatcher._waits.longest > 0.1)
        await (others_have_waited or asyncio.Event().wait())
        return SUCCESS

    given: dict[str, Any] = {"concurrency": 1, "consumption_timeout": 0.4, "interceptors": [Times()]}
    consumer = consumer_of(server, listener, **given)
    async with consumer:
        await until(lambda: given_back(server) == ["t-2"])
        polls = len(server.requests("ReceiveMessage"))
        await until(lambda: failed(server) == [("t-1", 10.0)])
        assert len(server.requests("ReceiveMessage")) == polls, "who does not keep up asks for no more"
        await until(lambda: len(took) == 2)
    assert acked(server) == ["t-0"]
    assert seen[:2] == ["0", "1"]
    assert took[1] < 0.35


async def test_a_batch_is_late_as_one(server: ScriptedServer) -> None:
    put(server, 3)

    async def listener(_: Sequence[MessageView]) -> ConsumeResult:
        await asyncio.Event().wait()
        return SUCCESS

    async with consumer_of(server, listener, batch_size=3, consumption_timeout=0.05):
        await until(lambda: sorted(failed(server)) == [("t-0", 10.0), ("t-1", 10.0), ("t-2", 10.0)])
    assert acked(server) == []


@pytest.mark.row("E4")
async def test_a_batch_has_one_result(server: ScriptedServer) -> None:
    put(server, 32)
    batches: list[Sequence[MessageView]] = []

    async def listener(messages: Sequence[MessageView]) -> ConsumeResult:
        batches.append(messages)
        return FAILURE if messages[0].text == "10" else SUCCESS

    async with consumer_of(server, listener, batch_size=10):
        await until(lambda: len(acked(server)) + len(failed(server)) == 32)
    assert [len(batch) for batch in batches] == [10, 10, 10, 2]
    assert sorted(int(name[2:]) for name, _ in failed(server)) == list(range(10, 20))
    with pytest.raises(TypeError):
        batches[0][0] = batches[0][1]  # type: ignore[index]


# ---- What fits ----


@pytest.mark.row("A3")
@pytest.mark.row("C6")
async def test_a_slow_listener_never_has_more_in_its_hands_than_it_was_told(server: ScriptedServer) -> None:
    put(server, 300)
    put(server, 300, "u")
    most = 0
    turns = asyncio.Semaphore(0)

    async def listener(_: MessageView) -> ConsumeResult:
        nonlocal most
        most = max(most, len(server.held), consumer.cached.messages)
        await turns.acquire()
        return SUCCESS

    consumer = consumer_of(server, listener, ["t", "u"], max_cached_messages=50)
    async with consumer:
        await until(lambda: consumer.cached.messages > 38)
        for done in range(600):
            turns.release()
            if done % 10 == 0:
                await until(lambda at=done: len(acked(server)) >= at - 30)
        await until(lambda: len(acked(server)) == 600)
    assert 38 < most <= 50
    assert max(request.batch_size for request in server.requests("ReceiveMessage")) <= 25


async def test_with_little_room_a_busy_topic_gets_no_help_that_would_starve_another(server: ScriptedServer) -> None:
    put(server, 640)
    most = 0

    async def listener(_: MessageView) -> ConsumeResult:
        nonlocal most
        most = max(most, *(len(each.polls) for each in consumer._core._polling._assignments.values()))
        return SUCCESS

    consumer = consumer_of(server, listener, ["t", "u"], max_cached_messages=64)
    async with consumer:
        await until(lambda: len(acked(server)) == 640)
    assert most == 1


@pytest.mark.row("C6")
async def test_no_poll_leaves_while_the_bytes_are_used_up(server: ScriptedServer) -> None:
    put(server, 200, size=10_000)
    most = 0
    turns = asyncio.Semaphore(0)

    async def listener(_: MessageView) -> ConsumeResult:
        nonlocal most
        most = max(most, consumer.cached.bytes)
        await turns.acquire()
        return SUCCESS

    consumer = consumer_of(server, listener, max_cached_bytes=100_000)
    async with consumer:
        await until(lambda: consumer.cached.bytes == 100_000)
        for _ in range(200):
            turns.release()
        await until(lambda: len(acked(server)) == 200)
    assert most <= 100_000


async def test_at_most_so_many_run_at_once(server: ScriptedServer) -> None:
    put(server, 100)
    running = most = 0

    async def listener(_: MessageView) -> ConsumeResult:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return SUCCESS

    async with consumer_of(server, listener, concurrency=7):
        await until(lambda: len(acked(server)) == 100)
    assert most == 7


# ---- What goes wrong on the way ----


@pytest.mark.row("K9")
@pytest.mark.parametrize("refused", [pb.INTERNAL_SERVER_ERROR, pb.TOO_MANY_REQUESTS])
async def test_after_an_error_the_same_attempt_is_asked_for(server: ScriptedServer, refused: int) -> None:
    put(server, 2)
    errors: list[PopError | None] = []

    class Errors(Interceptor):
        def after_receive(self, _topic: str, _messages: Sequence[MessageView], error: PopError | None, /) -> None:
            errors.append(error)

    server.answers["ReceiveMessage"] = lambda _: (
        [rpc.ReceiveMessageResponse(status=status(refused))] if len(server.requests("ReceiveMessage")) < 3 else None
    )
    async with consumer_of(server, Seen(), interceptors=[Errors()]):
        await until(lambda: len(acked(server)) == 2)
    first, second, third, *_ = [request.attempt_id for request in server.requests("ReceiveMessage")]
    assert first == second == third
    assert errors[2] is None
    expected = TooManyRequests if refused == pb.TOO_MANY_REQUESTS else PopError
    assert all(isinstance(error, expected) for error in errors[:2])


@pytest.mark.row("K9")
async def test_an_answer_that_broke_is_asked_for_again_and_handed_out_once(server: ScriptedServer) -> None:
    put(server, 5)
    cut: list[pb.Message] = []

    def answer(request: rpc.ReceiveMessageRequest) -> Any:
        if cut:
            return None
        cut.extend(server._take(request))
        server.answered[request.attempt_id] = cut
        return [rpc.ReceiveMessageResponse(message=each) for each in cut[:3]] + [grpc.StatusCode.UNAVAILABLE]

    server.answers["ReceiveMessage"] = answer
    seen = Seen()
    async with consumer_of(server, seen):
        await until(lambda: len(acked(server)) == 5)
    assert sorted(seen.texts) == ["0", "1", "2", "3", "4"]
    assert not server.held


async def test_a_server_that_repeats_nothing_has_what_came_of_a_broken_answer_handed_out() -> None:
    async with ScriptedServer(capabilities="") as server:
        put(server, 2)
        cut: list[pb.Message] = []

        def answer(request: rpc.ReceiveMessageRequest) -> Any:
            if cut:
                return None
            cut.extend(server._take(request))
            return [rpc.ReceiveMessageResponse(message=cut[0]), grpc.StatusCode.UNAVAILABLE]

        server.answers["ReceiveMessage"] = answer
        seen = Seen()
        async with consumer_of(server, seen):
            await until(lambda: acked(server) == ["t-0"])
    assert seen.texts == ["0"]


async def test_a_defect_does_not_end_the_polling(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient._push.assignments.PAUSE_AFTER_DEFECT", 0.01)
    calls: list[int] = []

    async def broken(*_: Any) -> None:
        calls.append(1)
        if len(calls) < 3:
            raise ZeroDivisionError

    monkeypatch.setattr("popclient._engine.receive.read_messages", broken)
    async with consumer_of(server, Seen()):
        await until(lambda: len(calls) > 3)


async def test_a_defect_in_a_helping_poll_is_logged_and_the_first_one_goes_on(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    put(server, 200)
    consumer = consumer_of(server, Seen())
    polling = consumer._core._polling
    poll, helps = polling._poll, polling._help
    helping: set[asyncio.Task[Any] | None] = set()

    async def help_badly(assignment: Any) -> None:
        helping.add(asyncio.current_task())
        await helps(assignment)

    async def poll_badly(assignment: Any) -> bool:
        if asyncio.current_task() in helping:
            raise ZeroDivisionError("a defect")
        return await poll(assignment)

    monkeypatch.setattr(polling, "_help", help_badly)
    monkeypatch.setattr(polling, "_poll", poll_badly)
    async with consumer:
        await until(lambda: len(acked(server)) == 200)
        await until(lambda: helping and not consumer.cached.messages)
    found = [record.exc_info for record in caplog.records if record.name == "popclient" and record.exc_info]
    assert found
    assert {type(each[1]) for each in found} == {ZeroDivisionError}


@pytest.mark.parametrize("refusal", [pb.INTERNAL_SERVER_ERROR, pb.INVALID_RECEIPT_HANDLE, pb.FORBIDDEN])
async def test_an_ack_is_said_again_unless_it_is_refused_for_good(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, refusal: pb.Code.ValueType
) -> None:
    monkeypatch.setattr("popclient._push.outcomes.RETRY_AFTER_S", 0.01)
    is_final = refusal != pb.INTERNAL_SERVER_ERROR
    server.answers["AckMessage"] = lambda _: (
        rpc.AckMessageResponse(status=status(refusal)) if len(server.requests("AckMessage")) < 3 else None
    )
    put(server, 1)
    errors: list[PopError | None] = []

    class Acks(Interceptor):
        def after_ack(self, _: MessageView, error: PopError | None, /) -> None:
            errors.append(error)

    async with consumer_of(server, Seen(), interceptors=[Acks()]) as consumer:
        await until(lambda: errors)
        await until(lambda: consumer.cached == (0, 0))
    assert len(server.requests("AckMessage")) == (1 if is_final else 3)
    assert (errors[-1] is None) is not is_final


async def test_a_failure_is_said_again_too(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("popclient._push.outcomes.RETRY_AFTER_S", 0.01)
    refused = rpc.ChangeInvisibleDurationResponse(status=status(pb.INTERNAL_SERVER_ERROR))
    server.answers["ChangeInvisibleDuration"] = lambda _: refused if len(failed(server)) < 3 else None
    put(server, 1)
    async with consumer_of(server, Seen(lambda _: FAILURE)) as consumer:
        await until(lambda: len(failed(server)) == 3)
        await until(lambda: consumer.cached == (0, 0))
    assert server.withheld


# ---- Looking on ----


class Recorder(Interceptor):
    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def _note(self, what: str) -> None:
        self.log.append(f"{self.name} {what}")
        raise ValueError("an interceptor does no harm")

    def before_receive(self, topic: str, /) -> None:
        self._note(f"before receive {topic}")

    def after_receive(self, topic: str, messages: Sequence[MessageView], error: PopError | None, /) -> None:
        self._note(f"after receive {topic} {len(messages)}")

    def before_consume(self, messages: Sequence[MessageView], /) -> None:
        self._note(f"before consume {messages[0].text}")

    def after_consume(self, messages: Sequence[MessageView], consumption: Consumption, /) -> None:
        self._note(f"after consume {messages[0].text} {consumption.status}")

    def before_ack(self, message: MessageView, /) -> None:
        self._note(f"before ack {message.text}")

    def after_ack(self, message: MessageView, error: PopError | None, /) -> None:
        self._note(f"after ack {message.text} {error}")


@pytest.mark.row("E17")
async def test_interceptors_are_told_in_order_and_do_no_harm(server: ScriptedServer) -> None:
    put(server, 1)
    log: list[str] = []

    async def listener(_: MessageView) -> ConsumeResult:
        log.append("listener")
        return SUCCESS

    async with consumer_of(server, listener, interceptors=[Recorder("a", log), Recorder("b", log)]):
        await until(lambda: "a after ack 0 None" in log)
    without_second_poll = [line for line in log if line.count("receive") == 0]
    assert log[:4] == ["a before receive t", "b before receive t", "b after receive t 1", "a after receive t 1"]
    assert without_second_poll == [
        *("a before consume 0", "b before consume 0", "listener"),
        *("b after consume 0 SUCCESS", "a after consume 0 SUCCESS"),
        *("a before ack 0", "b before ack 0", "b after ack 0 None", "a after ack 0 None"),
    ]


# ---- The end ----


async def test_closing_gives_back_what_waits_and_lets_what_runs_finish(server: ScriptedServer) -> None:
    put(server, 20)
    release = asyncio.Event()
    seen: list[str] = []

    async def listener(message: MessageView) -> ConsumeResult:
        seen.append(message.text)
        await release.wait()
        return SUCCESS

    consumer = consumer_of(server, listener, concurrency=3)
    async with consumer:
        await until(lambda: len(seen) == 3 and consumer.cached.messages == 20)
        closing = asyncio.ensure_future(consumer.close())
        await until(lambda: len(given_back(server)) == 17)
        assert not closing.done()
        release.set()
        await closing
    assert seen == ["0", "1", "2"]
    assert sorted(acked(server)) == ["t-0", "t-1", "t-2"]
    assert [name for name, _ in server.calls if name != "Heartbeat"][-1] == "NotifyClientTermination"
    assert not failed(server)
    await consumer.close()
    with pytest.raises(ClientClosed):
        await consumer.start()


async def test_a_listener_that_does_not_end_is_waited_for_so_long_and_no_longer(server: ScriptedServer) -> None:
    put(server, 1)
    started = asyncio.Event()

    async def listener(_: MessageView) -> ConsumeResult:
        started.set()
        await asyncio.Event().wait()
        return SUCCESS

    async with consumer_of(server, listener, drain_timeout=0.05):
        await started.wait()
    assert acked(server) == []
    assert server.requests("NotifyClientTermination")


async def test_what_comes_while_closing_is_given_back(server: ScriptedServer) -> None:
    server.gates["QueryAssignment"] = asyncio.Event()
    consumer = consumer_of(server, Seen())
    starting = asyncio.ensure_future(consumer.start())
    await server.arrived["QueryAssignment"].wait()
    await consumer.close()
    assert (await asyncio.gather(starting, return_exceptions=True))[0] is not None
    assert not server.requests("ReceiveMessage")


async def test_what_a_poll_has_brought_when_it_is_ended_is_given_back(server: ScriptedServer) -> None:
    put(server, 3)
    half = asyncio.Event()

    def answer(request: rpc.ReceiveMessageRequest) -> Any:
        messages = server._take(request)
        if not messages:
            return None
        return [*(rpc.ReceiveMessageResponse(message=each) for each in messages), half.wait()]

    server.answers["ReceiveMessage"] = answer
    async with consumer_of(server, Seen()) as consumer:
        await until(lambda: len(server.held) == 3)
        await asyncio.sleep(0.05)  # for the frames to arrive; whether they have, nobody else knows
    assert sorted(given_back(server)) == ["t-0", "t-1", "t-2"]
    assert consumer.cached == (0, 0)


@pytest.mark.row("K9")
async def test_what_the_server_granted_to_a_poll_that_is_ended_is_given_back(server: ScriptedServer) -> None:
    put(server, 3)
    server.grant_without_answer()
    async with consumer_of(server, Seen()):
        await until(lambda: len(server.held) == 3)
    first, second, *_ = [request.attempt_id for request in server.requests("ReceiveMessage")]
    assert first == second
    assert sorted(given_back(server)) == ["t-0", "t-1", "t-2"]


async def test_the_listener_may_close_its_consumer(server: ScriptedServer) -> None:
    put(server, 3)

    async def listener(_: MessageView) -> ConsumeResult:
        await consumer.close()
        return SUCCESS

    consumer = consumer_of(server, listener, concurrency=1)
    async with asyncio.timeout(60):
        await consumer.run()
    assert acked(server) == ["t-0"]
    assert given_back(server) == ["t-1", "t-2"]


async def test_closing_does_not_wait_for_ever_for_a_server_that_is_gone(server: ScriptedServer) -> None:
    put(server, 3)
    seen = Seen(lambda _: FAILURE)
    server.gates["ChangeInvisibleDuration"] = asyncio.Event()
    config = ClientConfig(endpoints=server.endpoints, close_timeout=0.1, request_timeout=600)
    async with asyncio.timeout(60):
        async with aio.PushConsumer(config, "push", "t", seen):
            await until(lambda: len(seen.texts) == 3)


async def test_a_consumer_that_never_reached_a_server_closes_at_once() -> None:
    config = ClientConfig(endpoints="127.0.0.1:1", request_timeout=0.1)
    with pytest.raises(PopError):
        async with aio.PushConsumer(config, "push", "t", Seen()):
            raise AssertionError("it must not get here")


@pytest.mark.parametrize(
    ("given", "asked"), [({}, 32), ({"receive_batch_size": 5}, 5), ({"receive_batch_size": 50}, 32)]
)
async def test_a_receive_asks_for_so_many(server: ScriptedServer, given: dict[str, Any], asked: int) -> None:
    put(server, 1)
    async with consumer_of(server, Seen(), **given):
        await until(lambda: acked(server))
    assert {request.batch_size for request in server.requests("ReceiveMessage")} == {asked}


@pytest.mark.row("N8")
@pytest.mark.parametrize("given", [0, 129])
async def test_a_receive_of_too_many_is_refused_at_the_making(server: ScriptedServer, given: int) -> None:
    with pytest.raises(ValueError, match=f"receive_batch_size is {given}; it must be from 1 to 128"):
        consumer_of(server, Seen(), receive_batch_size=given)
