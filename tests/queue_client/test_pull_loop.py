"""The loop of pulls: what each answer leads to, and when a queue is pulled again."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import grpc
import pytest

from popclient import MessageQueue, UnsupportedByServer
from popclient._queue_push.pull_requests import PullRequest
from popclient._version import log
from popproto.v2 import definition_pb2 as pb
from popproto.v2 import service_pb2 as rpc
from tests.queue_client.queue_consumers import Q, QueueConsumers, Watching
from tests.support.queue_server import pull_frames
from tests.support.scripted_server import status, until


@pytest.mark.row("B5")
@pytest.mark.row("B12")
async def test_found_messages_go_to_the_listener_and_the_next_pull_starts_behind_them(
    consumers: QueueConsumers,
) -> None:
    await consumers.server.fill(Q, map(str, range(64)))
    core = await consumers.start()
    await until(lambda: len(consumers.seen) == 64)
    await until(lambda: consumers.server.pulls_of(Q) == [0, 32, 64])
    assert sorted(consumers.texts, key=int) == [str(number) for number in range(64)]
    await until(lambda: consumers.offset(core) == 64)


async def test_a_pull_interval_keeps_pulls_that_find_something_apart(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, map(str, range(64)))
    await consumers.start(pull_interval=2)
    await until(lambda: len(consumers.seen) == 32)
    await consumers.clock.advance(1.9)
    assert consumers.server.pulls_of(Q) == [0]
    await consumers.clock.advance(0.1)
    await until(lambda: len(consumers.seen) == 64)


@pytest.mark.row("B1")
async def test_a_pull_request_is_made_once_per_queue_and_used_again(
    consumers: QueueConsumers, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[MessageQueue] = []
    real = PullRequest.__init__

    def counted(self: PullRequest, group: str, mq: MessageQueue, *rest: Any) -> None:
        made.append(mq)
        real(self, group, mq, *rest)

    monkeypatch.setattr(PullRequest, "__init__", counted)
    await consumers.server.fill(Q, map(str, range(100)))
    await consumers.start(pull_batch_size=1)
    await until(lambda: len(consumers.server.pulls_of(Q)) == 101)
    assert [mq for mq in made if mq == Q] == [Q]


@pytest.mark.row("B2")
async def test_a_queue_whose_pull_is_stuck_stops_no_other(consumers: QueueConsumers) -> None:
    consumers.server.widths["t"] = 8
    stuck, never = MessageQueue("t", 3), asyncio.Event()

    async def hang() -> None:
        await never.wait()

    consumers.server.answers["PullMessage"] = lambda request: hang() if request.message_queue.id == 3 else None
    for queue in range(8):
        await consumers.server.fill(MessageQueue("t", queue), [str(queue)])
    await consumers.start()
    await until(lambda: sorted(consumers.texts) == list("0124567"))
    assert consumers.server.pulls_of(stuck) == [0]
    never.set()
    await until(lambda: len(consumers.seen) == 8)


@pytest.mark.row("B3")
async def test_a_pull_says_all_there_is_to_say(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "ab", tag="x")
    core = await consumers.start(topics={"t": "x"}, pull_batch_size=7)
    await until(lambda: consumers.offset(core) == 2 and len(consumers.server.requests("PullMessage")) > 2)
    [request, *_] = [each for each in consumers.server.requests("PullMessage") if each.message_queue.topic.name == "t"]
    assert (request.group.name, request.message_queue.id, request.offset, request.batch_size) == ("g", 0, 0, 7)
    assert (request.filter_expression.type, request.filter_expression.expression) == (pb.TAG, "x")
    assert request.long_polling_timeout.ToTimedelta() == timedelta(seconds=15)
    assert consumers.server.extras[0].sys_flag == 2
    said = {extras.sub_version for extras in consumers.server.extras}
    await until(
        lambda: (
            said <= {int(each.client_properties["popmq.subscription_version"]) for each in consumers.server.settings}
        )
    )


@pytest.mark.row("B22")
async def test_post_subscription_when_pull_sets_its_bit_and_a_change_makes_a_later_version(
    consumers: QueueConsumers,
) -> None:
    core = await consumers.start(post_subscription_when_pull=True)
    await until(lambda: consumers.server.extras)
    assert consumers.server.extras[0].sys_flag == 2 | 4
    before = core.sub_version
    await core.subscribe("t", core.options.topics["t"])
    assert core.sub_version > before
    await until(
        lambda: consumers.server.settings[-1].client_properties["popmq.subscription_version"] == str(core.sub_version)
    )
    await consumers.server.fill(Q, "a")
    await until(lambda: consumers.server.extras[-1].sub_version == core.sub_version)


@pytest.mark.row("B6")
@pytest.mark.row("M5")
async def test_what_only_shares_a_hash_is_refused_at_the_second_look_and_counts_as_consumed(
    consumers: QueueConsumers,
) -> None:
    await consumers.server.fill(Q, ["collides"], tag="BB")
    consumers.server.answers["PullMessage"] = lambda request: (
        pull_frames(pb.OK, consumers.server.queues[Q][:1], 1)
        if request.message_queue.topic.name == "t" and request.offset == 0
        else None
    )
    core = await consumers.start(topics={"t": "Aa"})
    await until(lambda: consumers.server.pulls_of(Q) == [0, 1])
    await until(lambda: consumers.offset(core) == 1)
    await consumers.server.fill(Q, ["fits"], tag="Aa")
    await until(lambda: consumers.texts == ["fits"])


@pytest.mark.row("B7")
async def test_after_nothing_new_it_pulls_again_at_once_and_the_progress_moves_only_with_nothing_in_hand(
    consumers: QueueConsumers,
) -> None:
    finish = asyncio.Event()

    async def listener(messages: object, context: object) -> object:
        await finish.wait()
        return await consumers.succeed(messages, context)

    await consumers.server.fill(Q, "a")
    core = await consumers.start(listener)
    await until(lambda: consumers.server.pulls_of(Q) == [0, 1])
    consumers.server.answers["PullMessage"] = lambda request: (
        pull_frames(pb.MESSAGE_NOT_FOUND, [], 2) if len(consumers.server.pulls_of(Q)) == 3 else None
    )
    await consumers.server.fill(Q, "b")
    # The fourth pull shows that the empty answer to the third one has been dealt with.
    await until(lambda: consumers.server.pulls_of(Q) == [0, 1, 2, 2])
    assert consumers.offset(core) is None
    finish.set()
    await until(lambda: consumers.offset(core) == 2)


@pytest.mark.row("A11")
async def test_a_server_that_holds_no_pull_does_not_make_it_spin(consumers: QueueConsumers) -> None:
    consumers.server.answers["PullMessage"] = lambda request: pull_frames(pb.MESSAGE_NOT_FOUND, [], request.offset)
    await consumers.start()
    await until(lambda: consumers.server.pulls_of(Q) == [0, 0])
    await consumers.clock.advance(0.9)
    assert consumers.server.pulls_of(Q) == [0, 0]
    await consumers.advance(10, step=0.5)
    assert len(consumers.server.pulls_of(Q)) <= 13


@pytest.mark.row("B8")
@pytest.mark.row("B13")
async def test_what_nobody_wants_counts_as_consumed(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, map(str, range(1_000)), tag="B")
    core = await consumers.start(topics={"t": "A"})
    await until(lambda: consumers.offset(core) == 1_000)
    assert consumers.seen == []
    await consumers.clock.advance(10)
    await until(lambda: consumers.server.progress.get(Q) == 1_000)
    await core.close()
    before = len(consumers.server.pulls_of(Q))
    await consumers.start(topics={"t": "A"})
    await until(lambda: len(consumers.server.pulls_of(Q)) > before)
    assert consumers.server.pulls_of(Q)[before:] == [1_000]


@pytest.mark.row("B9")
async def test_an_offset_that_is_not_there_is_corrected_and_the_queue_taken_up_anew(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, map(str, range(60)))
    consumers.server.trim(Q, 50)
    core = await consumers.start()
    await until(lambda: consumers.server.progress.get(Q) == 50)
    await consumers.clock.advance(1)
    await until(lambda: consumers.server.pulls_of(Q)[:2] == [0, 50])
    await until(lambda: sorted(consumers.texts) == [str(number) for number in range(50, 60)])
    await until(lambda: consumers.offset(core) == 60)


@pytest.mark.row("B9")
async def test_an_offset_beyond_the_end_is_corrected_after_the_delay_that_was_asked_for(
    consumers: QueueConsumers,
) -> None:
    await consumers.server.fill(Q, map(str, range(10)))
    consumers.server.progress[Q] = 10
    consumers.server.answers["FetchOffsets"] = _once(consumers, 999)
    core = await consumers.start(offset_illegal_delay=10)
    await until(lambda: consumers.server.pulls_of(Q) == [999])
    await until(lambda: core.parts.owned() == [] or Q not in dict(core.parts.owned()))
    await consumers.advance(9.9, step=1)
    assert consumers.server.pulls_of(Q) == [999]
    await consumers.clock.advance(1.2)
    await until(lambda: consumers.server.pulls_of(Q) == [999, 10])
    await consumers.server.fill(Q, ["next"])
    await until(lambda: consumers.texts == ["next"])


@pytest.mark.row("B9")
async def test_a_late_result_does_not_move_a_corrected_offset(consumers: QueueConsumers) -> None:
    """A listener's thread may have looked at the queue just before it was dropped, and notes its offset just after."""
    await consumers.server.fill(Q, map(str, range(10)))
    consumers.server.answers["FetchOffsets"] = _once(consumers, 999)
    core = await consumers.start(offset_illegal_delay=10)
    await until(lambda: consumers.offset(core) == 10)
    core.parts.offset_store.update_offset(Q, 1_000, increase_only=True)
    core.parts.offset_store.update_offset(Q, 3, increase_only=False)
    await consumers.comes(lambda: len(consumers.server.pulls_of(Q)) > 1, 12)
    assert consumers.server.pulls_of(Q) == [999, 10]
    assert consumers.server.progress[Q] == 10


def _once(consumers: QueueConsumers, offset: int) -> Callable[[Any], Any]:
    """The first answers, at the start and when the queue is taken up, tell that progress for the topic's queue."""
    from popproto.v1 import legacy_pb2 as legacy

    told: list[int] = []

    def answer(request: legacy.FetchOffsetsRequest) -> legacy.FetchOffsetsResponse | None:
        if len(told) == 2 or request.queues[0].topic.name != "t":
            return None
        told.append(offset)
        return legacy.FetchOffsetsResponse(
            status=status(pb.OK), offsets=[legacy.QueueOffset(queue=request.queues[0], offset=offset)]
        )

    return answer


@pytest.mark.row("B10")
async def test_after_a_failure_it_is_pulled_again_in_three_seconds_said_but_for_retries(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    consumers.server.answers["PullMessage"] = lambda _: [_failed()]
    await consumers.server.fill(Q, "a")
    await consumers.start()
    await until(lambda: "group g pulls t:0 again in 3 s" in caplog.text)
    await until(lambda: consumers.server.pulls[("%RETRY%g", 0)])
    del consumers.server.answers["PullMessage"]
    await consumers.clock.advance(2.9)
    assert consumers.seen == []
    await consumers.clock.advance(0.1)
    await until(lambda: consumers.texts == ["a"])
    assert "group g pulls %RETRY%g:0 again" not in caplog.text


def _failed() -> rpc.PullMessageResponse:
    return rpc.PullMessageResponse(status=status(pb.INTERNAL_SERVER_ERROR, "out of order"))


@pytest.mark.row("B10")
async def test_a_server_that_comes_back_is_pulled_from_again(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "a")
    await consumers.start()
    await until(lambda: consumers.texts == ["a"])
    port = consumers.server.port
    await consumers.server.stop()
    await consumers.server.start(port)
    await consumers.server.fill(Q, "b")
    await consumers.advance(4, step=0.5)
    await until(lambda: consumers.texts == ["a", "b"])


@pytest.mark.row("B11")
async def test_a_pull_that_leads_back_is_said(consumers: QueueConsumers, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "popclient")
    consumers.server.progress[Q] = 5
    await consumers.server.fill(Q, map(str, range(6)))
    consumers.server.answers["PullMessage"] = lambda request: (
        pull_frames(pb.MESSAGE_NOT_FOUND, [], 4)
        if request.offset == 5 and len(consumers.server.pulls_of(Q)) == 1
        else None
    )
    await consumers.start()
    await until(lambda: "t:0: a pull from offset 5 led back: next offset 4" in caplog.text)
    await until(lambda: consumers.server.pulls_of(Q)[:3] == [5, 4, 6])
    assert caplog.text.count("led back") == 1


@pytest.mark.row("B16")
@pytest.mark.row("D6")
async def test_what_comes_for_a_dropped_queue_is_thrown_away(
    consumers: QueueConsumers, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, log.name)
    watching = Watching()
    await consumers.server.fill(Q, "a")
    consumers.server.gates["PullMessage"] = asyncio.Event()
    core = await consumers.start(interceptors=[watching])
    await until(lambda: consumers.server.pulls_of(Q) == [0])
    [pq] = [pq for mq, pq in core.parts.owned() if mq == Q]
    pq.dropped = True
    consumers.server.gates.pop("PullMessage").set()
    await until(lambda: "was given up" in caplog.text)
    assert pq.is_empty and consumers.seen == []
    assert "after_receive t 1" not in watching.heard
    await consumers.clock.advance(5)
    assert consumers.server.pulls_of(Q) == [0]
    assert consumers.offset(core) is None


@pytest.mark.row("B17")
async def test_a_queue_without_a_subscription_is_looked_at_again_in_three_seconds(consumers: QueueConsumers) -> None:
    core = await consumers.start()
    await until(lambda: consumers.server.pulls_of(Q) == [0])
    subscription = core.parts.subscribed._by_topic.pop("t")
    await consumers.server.fill(Q, "a")
    await until(lambda: consumers.texts == ["a"])
    await until(lambda: consumers.clock.waits(3.0))
    await consumers.server.fill(Q, "b")
    await consumers.clock.advance(2.9)
    assert consumers.server.pulls_of(Q) == [0]
    core.parts.subscribed._by_topic["t"] = subscription
    await consumers.clock.advance(0.1)
    await until(lambda: consumers.texts == ["a", "b"])


def told(consumers: QueueConsumers) -> set[str]:
    """The topics that the server was told last."""
    return {entry.topic.name for entry in consumers.server.settings[-1].subscription.subscriptions}


@pytest.mark.row("J13")
async def test_the_queues_of_a_topic_that_is_unsubscribed_are_given_up(consumers: QueueConsumers) -> None:
    core = await consumers.start(topics=["t", "u"])
    await consumers.owns(core, 0)
    await consumers.owns(core, 0, 1, 2, 3, topic="u")
    await consumers.server.fill(Q, "a")
    await until(lambda: consumers.offset(core) == 1)
    await core.unsubscribe("t")
    await consumers.comes(lambda: all(mq.topic != "t" for mq in core.parts.table), 2)
    await until(lambda: consumers.server.progress.get(Q) == 1)
    await until(lambda: told(consumers) == {"u", "%RETRY%g"})
    await consumers.owns(core, 0, 1, 2, 3, topic="u")


@pytest.mark.row("B18")
async def test_a_suspended_consumer_looks_again_every_second(consumers: QueueConsumers) -> None:
    core = await consumers.start()
    await until(lambda: consumers.server.pulls_of(Q) == [0])
    core.suspend()
    await consumers.server.fill(Q, "ab")  # the pull that is open brings them, and they wait
    await until(lambda: consumers.clock.waits(1.0))
    await consumers.server.fill(Q, "c")
    await consumers.advance(30, step=1)
    assert (consumers.server.pulls_of(Q), consumers.seen) == ([0], [])
    core.resume()
    await consumers.clock.advance(1)
    await until(lambda: consumers.texts == ["a", "b", "c"])
    assert consumers.server.pulls_of(Q)[1] == 0


@pytest.mark.row("B18")
async def test_a_consumer_that_is_not_running_looks_again_in_three_seconds(consumers: QueueConsumers) -> None:
    core = await consumers.start()
    await until(lambda: consumers.server.pulls_of(Q) == [0])
    core.state = type(core.state).CREATE_JUST
    await consumers.server.fill(Q, "a")
    await until(lambda: len(consumers.seen) == 1)
    await consumers.server.fill(Q, "b")
    await consumers.clock.advance(2.9)
    assert consumers.server.pulls_of(Q) == [0]
    core.state = type(core.state).RUNNING
    await consumers.clock.advance(0.2)
    await until(lambda: len(consumers.seen) == 2)


@pytest.mark.row("B19")
async def test_a_busy_server_is_asked_again_after_20_ms(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, "a")
    consumers.server.answers["PullMessage"] = lambda _: [rpc.PullMessageResponse(status=status(pb.TOO_MANY_REQUESTS))]
    await consumers.start()
    await until(lambda: consumers.server.pulls_of(Q) == [0])
    del consumers.server.answers["PullMessage"]
    await until(lambda: consumers.clock.waits(0.02))
    await consumers.clock.advance(0.02)
    await until(lambda: consumers.texts == ["a"])


@pytest.mark.row("B21")
@pytest.mark.row("H8")
async def test_progress_rides_on_pulls(consumers: QueueConsumers) -> None:
    await consumers.server.fill(Q, map(str, range(77)))
    core = await consumers.start()
    await until(lambda: consumers.offset(core) == 77)
    await consumers.server.fill(Q, "x")
    await until(lambda: any(extras.commit_offset >= 77 for extras in consumers.server.extras))
    [extras, *_] = [extras for extras in consumers.server.extras if extras.commit_offset >= 77]
    assert extras.sys_flag == 1 | 2


@pytest.mark.row("D7")
async def test_a_queue_whose_loop_is_lost_is_taken_up_anew_once(consumers: QueueConsumers) -> None:
    core = await consumers.start()
    await until(lambda: consumers.server.pulls_of(Q) == [0])
    lost = dict(core.parts.owned())[Q]
    await consumers.advance(119, step=5)
    assert dict(core.parts.owned())[Q] is lost
    await consumers.advance(25, step=5)
    await until(lambda: consumers.server.pulls_of(Q) == [0, 0])
    assert lost.dropped
    new = dict(core.parts.owned())[Q]
    await consumers.advance(60, step=5)
    assert dict(core.parts.owned())[Q] is new


async def test_a_call_that_a_server_does_not_know_ends_the_consumer(consumers: QueueConsumers) -> None:
    consumers.server.answers["PullMessage"] = lambda _: grpc.StatusCode.UNIMPLEMENTED
    await consumers.server.fill(Q, "a")
    core = await consumers.start()
    await until(lambda: core.refusal is not None)
    with pytest.raises(UnsupportedByServer, match="PullMessage is not offered by the server"):
        core.raise_refusal()


@pytest.mark.row("B20")
async def test_statistics_tell_of_pulls_and_consumption_by_topic(consumers: QueueConsumers) -> None:
    from popclient import ConsumeConcurrentlyStatus

    async def listener(messages: list[object], context: object) -> object:
        await consumers.succeed(messages, context)
        await consumers.clock.advance(0.25)
        return ConsumeConcurrentlyStatus.CONSUME_SUCCESS if len(consumers.seen) < 6 else None

    first = [0.08]

    def slow(_: object) -> None:
        """The server takes 80 ms for the first pull, and no time for others."""
        consumers.clock._now += first.pop() if first else 0

    await consumers.server.fill(Q, map(str, range(6)))
    consumers.server.answers["PullMessage"] = slow
    core = await consumers.start(listener, consume_threads=1)
    await until(lambda: len(consumers.server.sent_back) == 1)
    told = core.parts.statistics.by_topic()["t"]
    assert (told.group, told.topic) == ("g", "t")
    assert told.pull_tps == 6 / 60
    assert any(told.pull_rt == pytest.approx(80 / pulls) for pulls in (1, 2, 3))
    assert (told.consume_ok_tps, told.consume_failed_tps, told.consume_failed_msgs) == (5 / 60, 1 / 60, 1)
    assert told.consume_rt == 250
    await consumers.clock.advance(61)
    later = core.parts.statistics.by_topic()["t"]
    assert (later.consume_ok_tps, later.consume_rt, later.consume_failed_msgs) == (0, 0, 1)
