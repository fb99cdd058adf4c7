"""Requirements of the queue push consumer, with the real server: what crosses the wire is said by both ends.

The server's clock and the consumers' stand still until a test moves them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

import popserver
from popclient import (
    ConsumeConcurrentlyContext,
    ConsumeConcurrentlyStatus,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    Interceptor,
    Message,
    MessageQueue,
    MessageView,
    OrderlyListener,
    aio,
)
from popclient._engine.runner import TaskRunner
from popclient._queue_push import rebalance
from popclient._queue_push.core import QueuePushCore
from popclient._queue_push.pull_loop import PullLoop
from popclient._queue_push.pull_requests import PullRequest
from popclient.offset_file import read_offset_file
from popserver.model.names import Resource
from popserver.model.topic import MessageType, NewTopic
from tests.queue_client.manual_clock import ManualClock
from tests.queue_client.queue_consumers import DictOffsetStore
from tests.support.scripted_server import until

DONE, LATER = ConsumeConcurrentlyStatus.CONSUME_SUCCESS, ConsumeConcurrentlyStatus.RECONSUME_LATER
SUCCESS, SUSPEND = ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
COMMIT, ROLLBACK = ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK
PROGRESS = text(
    "SELECT queue.number, progress.next_offset FROM progress JOIN queue USING (queue_id) JOIN topic USING (topic_id)"
    " JOIN consumer_group USING (group_id) WHERE topic.name = :topic AND consumer_group.name = :group"
)
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[popserver.EmbeddedBroker]:
    with popserver.embedded(manual_clock=True) as broker:
        yield broker


class Pulls(Interceptor):
    """How many messages each answered pull of the topic has brought, and everything in its order."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.sizes: list[int] = []
        self.heard: list[str] = []

    def before_receive(self, topic: str, /) -> None:
        self.heard += ["ask"] if topic == self.topic else []

    def after_receive(self, topic: str, messages: Any, error: Any, /) -> None:
        if topic == self.topic and error is None:
            self.sizes.append(len(messages))
            self.heard.append("answer")

    def before_consume(self, messages: Any, /) -> None:
        self.heard.append("begin")

    def after_consume(self, messages: Any, consumption: Any, /) -> None:
        self.heard.append("end")


class Live:
    """A topic and a group of a test's own on the shared server, and consumers that are closed at the end."""

    def __init__(self, server: popserver.EmbeddedBroker) -> None:
        self.server = server
        self.clock = ManualClock()
        self.topic = self.group = f"row-{next(_numbers)}"
        self.mq = MessageQueue(self.topic, 0)
        self.seen: list[MessageView] = []
        self.calls: list[int] = []
        self.pulls = Pulls(self.topic)
        self.pull_loop = PullLoop(self.clock)
        self._cores: list[QueuePushCore] = []

    async def make_topic(self, queues: int = 1, name: str = "") -> None:
        new = NewTopic(Resource("", name or self.topic), queues, (MessageType.NORMAL,))
        await asyncio.to_thread(self.server.run, self.server.app.broker.catalog.create_topic(new))

    async def send(self, *texts: str, tag: str | None = None, topic: str = "") -> None:
        async with aio.Producer(self.server.endpoint) as producer:
            messages = [Message(topic or self.topic, each, tag=tag) for each in texts]
            (await producer.send_many(messages)).raise_for_failures()

    @property
    def texts(self) -> list[str]:
        return [view.text for view in self.seen]

    def note(self, messages: Any) -> None:
        self.seen += messages
        self.calls.append(len(messages))

    async def succeed(self, messages: Any, _: Any) -> Any:
        self.note(messages)
        return DONE

    async def start(self, listener: Any = None, topics: Any = None, **options: Any) -> QueuePushCore:
        options = {"consume_from": "CONSUME_FROM_FIRST_OFFSET", "interceptors": [self.pulls]} | options
        pull_loop = options.pop("pull_loop", self.pull_loop)
        group = options.pop("group", self.group)
        face = aio.QueuePushConsumer(
            self.server.endpoint, group, topics or self.topic, listener or self.succeed, **options
        )
        made = face._core.options
        core = QueuePushCore(face._config, made, TaskRunner, pull_loop)
        self._cores.append(core)
        await core.start()
        return core

    async def progress(self, group: str = "", topic: str = "") -> dict[int, int]:
        """The group's, by queue, as the server has stored it."""
        names = {"topic": topic or self.topic, "group": group or self.group}
        reading = self.server.app.broker.engine.reader.read(lambda conn: conn.execute(PROGRESS, names).all())
        return {row.number: row.next_offset for row in await asyncio.to_thread(self.server.run, reading)}

    async def stored(self, offset: int) -> None:
        """Waits until the server has that progress of queue 0, or more."""
        async with asyncio.timeout(60):
            while (await self.progress()).get(0, 0) < offset:  # noqa: ASYNC110  it is in the database
                await asyncio.sleep(0.005)

    async def advance(self, duration: str) -> None:
        """The server's clock."""
        await asyncio.to_thread(self.server.clock.advance, duration)

    async def owns(self, core: QueuePushCore, *queues: int, topic: str = "") -> None:
        wanted = [MessageQueue(topic or self.topic, queue) for queue in queues]
        await self.comes(lambda: [mq for mq in self.owned(core) if mq.topic == (topic or self.topic)] == wanted)

    async def comes(self, fact: Callable[[], Any]) -> None:
        """The consumers' clock goes on, with real time for real calls, until it is so."""
        async with asyncio.timeout(60):
            while not fact():
                await self.clock.advance(0.25)
                await asyncio.sleep(0.005)

    def owned(self, core: QueuePushCore) -> list[MessageQueue]:
        return sorted(mq for mq, _ in core.parts.owned())

    def remembered(self, core: QueuePushCore, mq: MessageQueue | None = None) -> int | None:
        return core.parts.offset_store.clone_offset_table().get(mq or self.mq)

    async def close(self) -> None:
        for core in self._cores:
            await core.close()


@pytest.fixture
async def live(server: popserver.EmbeddedBroker) -> AsyncIterator[Live]:
    live = Live(server)
    yield live
    await live.close()


class Slow:
    """A listener whose calls end when the test says so."""

    def __init__(self) -> None:
        self.ends: dict[str, asyncio.Future[Any]] = {}

    async def __call__(self, messages: Any, _: Any) -> Any:
        end = self.ends[messages[0].text] = asyncio.get_running_loop().create_future()
        return await end

    async def has(self, *texts: str) -> None:
        await until(lambda: set(self.ends) == set(texts))

    def end(self, *texts: str, result: Any = DONE) -> None:
        for each in texts:
            self.ends.pop(each).set_result(result)


# ---- The loop of pulls ----


@pytest.mark.row("B1")
@pytest.mark.row("B5")
@pytest.mark.row("B12")
@pytest.mark.row("E4")
async def test_a_backlog_comes_in_pulls_of_32_by_one_request_that_is_used_again(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[MessageQueue] = []

    def request(*given: Any) -> PullRequest:
        made.append(given[1])
        return PullRequest(*given)

    monkeypatch.setattr(rebalance, "PullRequest", request)
    await live.make_topic()
    await live.send(*map(str, range(100)))
    core = await live.start(consume_message_batch_max_size=10)
    await until(lambda: live.remembered(core) == 100)
    assert live.pulls.sizes == [32, 32, 32, 4]
    assert live.calls == [10, 10, 10, 2] * 3 + [4]
    assert sorted(live.texts, key=int) == [str(number) for number in range(100)]
    assert made.count(live.mq) == 1


@pytest.mark.row("H7")
@pytest.mark.row("H11")
async def test_progress_is_stored_after_10_s_then_every_5_s(live: Live) -> None:
    slow = Slow()
    await live.make_topic()
    core = await live.start(slow)
    await live.owns(core, 0)
    due = live.clock.now()
    for number, wait in ((1, 10), (2, 5), (3, 5)):
        await live.send(str(number))
        await slow.has(str(number))
        await until(lambda: live.pulls.heard[-1] == "ask")  # it has left, and cannot carry this message's progress
        slow.end(str(number))
        await until(lambda number=number: live.remembered(core) == number)
        due += wait
        await live.clock.advance(due - live.clock.now() - 2)
        assert (await live.progress()).get(0, 0) == number - 1
        await live.clock.advance(2)
        await live.stored(number)


@pytest.mark.row("H8")
async def test_progress_rides_on_the_next_pull(live: Live) -> None:
    await live.make_topic()
    await live.send("a", "b")
    core = await live.start()
    await until(lambda: live.remembered(core) == 2)
    await live.send("c")  # answers the pull that is held; the next one says how far the queue is consumed
    await until(lambda: live.remembered(core) == 3)
    await live.stored(2)


@pytest.mark.row("B6")
@pytest.mark.row("B8")
@pytest.mark.row("B13")
async def test_what_only_shares_a_hash_or_fits_no_tag_is_never_heard_and_counts_as_consumed(live: Live) -> None:
    await live.make_topic()
    for tag, name in (("BB", "collides"), ("C", "other"), ("BB", "again"), ("Aa", "fits")):
        await live.send(name, tag=tag)
    core = await live.start(topics={live.topic: "Aa"})
    await until(lambda: live.remembered(core) == 4)
    await live.send("once more", tag="C")
    await live.send("and again", tag="BB")
    async with asyncio.timeout(60):
        while live.remembered(core) != 6:  # when the pull that is held has ended
            await live.advance("15s")
            await asyncio.sleep(0.02)
    assert live.texts == ["fits"]
    await core.close()
    assert await live.progress() == {0: 6}


@pytest.mark.row("B7")
async def test_a_held_pull_that_ends_empty_is_followed_by_another_at_once(live: Live) -> None:
    await live.make_topic()
    await live.send("a")
    core = await live.start()
    await until(lambda: live.remembered(core) == 1 and live.pulls.heard[-1] == "ask")
    asked = live.pulls.heard.count("ask")
    await live.advance("15s")
    await until(lambda: live.pulls.heard.count("ask") > asked)
    assert live.pulls.sizes[-1] == 0
    await live.send("b")
    await until(lambda: live.texts == ["a", "b"])


@pytest.mark.row("B9")
async def test_an_offset_that_retention_has_removed_is_corrected_to_the_oldest(live: Live) -> None:
    await live.make_topic()
    await live.send("first")
    first = await live.start()
    await until(lambda: live.remembered(first) == 1)
    await first.close()
    assert await live.progress() == {0: 1}
    await live.send(*"abc")
    await live.advance("40h")
    await live.send(*"xy")
    await live.advance("40h")
    await live.start()
    await live.comes(lambda: live.texts == ["first", "x", "y"])
    assert [view.queue_offset for view in live.seen] == [0, 4, 5]


@pytest.mark.row("B16")
@pytest.mark.row("D6")
@pytest.mark.row("E12")
@pytest.mark.row("J13")
async def test_what_ends_after_its_topic_was_unsubscribed_is_not_committed_and_comes_to_the_next_owner(
    live: Live,
) -> None:
    slow, other = Slow(), f"{live.topic}-other"
    await live.make_topic()
    await live.make_topic(name=other)
    await live.send("a", "b")
    core = await live.start(slow, topics=[live.topic, other])
    await slow.has("a", "b")
    await core.unsubscribe(live.topic)
    await live.owns(core, 0, topic=other)
    await live.comes(lambda: live.mq not in live.owned(core))
    slow.end("a", "b")
    await core.close()
    assert (await live.progress()).get(0, 0) == 0
    await live.start()
    await until(lambda: sorted(live.texts) == ["a", "b"])


@pytest.mark.row("B18")
@pytest.mark.row("J14")
async def test_a_suspended_consumer_pulls_nothing_until_it_is_resumed(live: Live) -> None:
    await live.make_topic()
    core = await live.start()
    await live.owns(core, 0)
    await until(lambda: live.pulls.heard == ["ask"])
    core.suspend()
    await live.send("early")  # the pull that is open already brings it, and it is pulled again
    await until(lambda: "answer" in live.pulls.heard)
    await live.send("after")
    assert (live.texts, live.pulls.heard, live.pulls.sizes) == ([], ["ask", "answer"], [0])
    assert live.topic not in core.parts.statistics.by_topic()
    core.resume()
    await live.comes(lambda: live.texts == ["early", "after"])


@pytest.mark.row("B20")
async def test_the_statistics_count_what_the_server_gave(live: Live) -> None:
    async def listener(messages: Any, _: Any) -> Any:
        live.note(messages)
        return LATER if messages[0].text == "3" else DONE

    await live.make_topic()
    await live.send(*map(str, range(6)))
    core = await live.start(listener)
    await until(lambda: live.remembered(core) == 6)
    told = core.parts.statistics.by_topic()[live.topic]
    assert (told.group, round(told.pull_tps * 60), told.consume_failed_msgs) == (live.group, 6, 1)
    assert (round(told.consume_ok_tps * 60), round(told.consume_failed_tps * 60)) == (5, 1)


# ---- Flow ----


@pytest.mark.row("C1")
@pytest.mark.row("C2")
@pytest.mark.row("C3")
@pytest.mark.parametrize(
    "limit, cached",
    [
        ({"pull_threshold_for_queue": 20}, 24),
        ({"pull_threshold_size_for_queue": 1}, 20),
        ({"consume_concurrently_max_span": 30}, 32),
    ],
)
async def test_a_listener_that_hangs_takes_no_more_from_the_server_than_the_limit_and_one_pull(
    live: Live, limit: dict[str, int], cached: int
) -> None:
    """64 KiB each, and a pull brings 256 KiB: the first one beyond a limit is the last."""
    release = asyncio.Event()

    async def listener(messages: Any, _: Any) -> Any:
        await release.wait()
        return await live.succeed(messages, _)

    await live.make_topic()
    await live.send(*[f"{number:02}" + "x" * 65_534 for number in range(40)])
    core = await live.start(listener, **limit)
    await until(lambda: live.clock.waits(0.05))
    assert dict(core.parts.owned())[live.mq].cached.messages == sum(live.pulls.sizes) == cached
    release.set()
    await live.comes(lambda: live.remembered(core) == 40)


# ---- Listeners ----


@pytest.mark.row("D4")
@pytest.mark.row("E13")
async def test_the_stored_progress_is_the_first_message_that_is_not_finished(live: Live) -> None:
    slow = Slow()
    await live.make_topic()
    await live.send(*"abcd")
    core = await live.start(slow)
    await slow.has(*"abcd")
    slow.end("d", "b")
    await until(lambda: live.remembered(core) == 0)
    slow.end("a")
    await until(lambda: live.remembered(core) == 2)
    await core.close()
    assert await live.progress() == {0: 2}
    again = await live.start(slow)
    await until(lambda: {"c", "d"} <= set(slow.ends) and live.remembered(again) is not None)
    slow.end("c", "d")
    await until(lambda: live.remembered(again) == 4)


@pytest.mark.row("E6")
@pytest.mark.row("E7")
@pytest.mark.row("E8")
async def test_of_a_batch_the_tail_behind_ack_index_comes_again_by_the_retry_topic(live: Live) -> None:
    async def listener(messages: Any, context: ConsumeConcurrentlyContext) -> Any:
        assert isinstance(messages, tuple)
        assert began <= int(messages[0].properties["CONSUME_START_TIME"]) <= live.clock.epoch_ms()
        live.note(messages)
        match messages[0].delivery_attempt:
            case 1:
                context.ack_index = 2
            case 2:
                raise KeyError("a defect")
            case 3:
                return None
        return DONE

    began = live.clock.epoch_ms()
    await live.make_topic()
    await live.send(*"abcde")
    core = await live.start(listener, consume_message_batch_max_size=5)
    await until(lambda: live.remembered(core) == 5)
    live.seen.clear()
    retry = MessageQueue(f"%RETRY%{live.group}", 0)
    for interval, attempt in (("10s", 2), ("30s", 3), ("1m", 4)):
        await live.advance(interval)
        # Both are handed back before the clock goes on: from then on their next interval counts.
        await live.comes(lambda attempt=attempt: live.remembered(core, retry) == 2 * (attempt - 1))
        assert {view.text for view in live.seen if view.delivery_attempt == attempt} == {"d", "e"}
        assert {view.topic for view in live.seen} == {live.topic}


@pytest.mark.row("E3")
@pytest.mark.row("D10")
async def test_what_is_too_long_with_its_listener_comes_again_once_whatever_it_says_later(live: Live) -> None:
    slow = Slow()
    await live.make_topic()
    await live.send("a")
    core = await live.start(slow, consume_timeout=10)
    await slow.has("a")
    hanging = slow.ends["a"]
    await live.comes(lambda: live.remembered(core) == 1)
    await live.advance("10s")  # level 3
    await until(lambda: slow.ends["a"] is not hanging)
    hanging.set_result(LATER)
    slow.end("a")
    retry = MessageQueue(f"%RETRY%{live.group}", 0)
    await until(lambda: live.remembered(core, retry) == 1)
    await live.advance("3h")
    assert not slow.ends, "its late failure has made no second copy"


@pytest.mark.row("E17")
async def test_interceptors_see_the_pull_and_then_the_listener(live: Live) -> None:
    await live.make_topic()
    await live.send("a")
    core = await live.start()
    await until(lambda: live.remembered(core) == 1)
    heard = [each for each in live.pulls.heard if each != "ask"]
    assert live.pulls.heard[0] == "ask"
    assert heard[:3] == ["answer", "begin", "end"]


# ---- In order ----


@pytest.mark.row("F1")
@pytest.mark.row("F5")
@pytest.mark.row("F7")
async def test_in_order_what_fails_comes_again_in_its_place_and_the_next_owner_goes_on_behind_it(live: Live) -> None:
    results = iter([SUCCESS, SUSPEND, KeyError("a defect")])

    async def listener(messages: Any, _: ConsumeOrderlyContext) -> Any:
        live.note(messages)
        result = next(results, SUCCESS)
        if isinstance(result, Exception):
            raise result
        return result

    await live.make_topic()
    await live.send(*"abc")
    core = await live.start(OrderlyListener(listener))
    await live.comes(lambda: live.remembered(core) == 3)
    assert live.texts == ["a", "b", "b", "b", "c"]
    assert live.seen[1].delivery_attempt == 3, "one view, counted up"
    await core.close()
    assert await live.progress() == {0: 3}
    await live.send("d")
    await live.start(OrderlyListener(listener), pull_loop=PullLoop(live.clock))
    await live.comes(lambda: live.texts[5:] == ["d"])


@pytest.mark.row("F11")
async def test_in_order_without_auto_commit_the_server_hears_what_the_listener_commits(live: Live) -> None:
    results = iter([SUCCESS, SUCCESS, ROLLBACK, SUCCESS, SUCCESS, COMMIT])

    async def listener(messages: Any, context: ConsumeOrderlyContext) -> Any:
        context.auto_commit = False
        live.note(messages)
        return next(results, SUCCESS)

    await live.make_topic()
    await live.send(*"abc")
    core = await live.start(OrderlyListener(listener))
    await live.comes(lambda: live.remembered(core) == 3)
    assert live.texts == ["a", "b", "c", "a", "b", "c"]
    await live.send("d")
    await until(lambda: live.texts[-1] == "d")
    await core.close()
    assert await live.progress() == {0: 3}, "the last one was never committed"


@pytest.mark.row("F8")
async def test_in_order_one_thread_serves_two_queues_in_turn(live: Live) -> None:
    async def listener(messages: Any, _: Any) -> Any:
        live.note(messages)
        return SUCCESS

    await live.make_topic(2)
    for number in range(6):  # a request each, so that the queues get them in turn
        await live.send(str(number))
    core = await live.start(OrderlyListener(listener), consume_threads=1)
    await live.owns(core, 0, 1)
    await until(lambda: len(live.seen) == 6)
    for queue in (0, 1):
        assert [view.queue_offset for view in live.seen if view.queue_id == queue] == [0, 1, 2]


# ---- Who has which queue, and from where ----


@pytest.mark.row("G2")
@pytest.mark.row("J8")
@pytest.mark.row("E11")
@pytest.mark.row("F10")
@pytest.mark.row("H2")
async def test_broadcasting_gives_everything_to_everybody_and_the_server_keeps_nothing_of_it(
    live: Live, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    seen: Counter[str] = Counter()

    async def listener(messages: Any, _: Any) -> Any:
        seen.update(message.text for message in messages)
        return LATER if messages[0].text == "1" else DONE

    async def in_order(messages: Any, _: Any) -> Any:
        seen.update(message.text for message in messages)
        return SUCCESS

    await live.make_topic()
    await live.send(*"012")
    options: dict[str, Any] = {"model": "BROADCASTING"}
    cores = [await live.start(listener, client_name=name, **options) for name in ("one", "two")]
    cores.append(await live.start(OrderlyListener(in_order), client_name="three", **options))
    await live.comes(lambda: all(live.remembered(core) == 3 for core in cores))
    assert set(seen.values()) == {3}
    assert caplog.text.count("failed and are dropped") == 2
    await live.close()
    assert await live.progress() == {}
    files = [tmp_path / ".popmq" / "offsets" / name / live.group / "offsets.json" for name in ("one", "two", "three")]
    found = [read_offset_file(file) for file in files]
    assert [each and each[0] for each in found] == [{f"{live.topic}@{live.group}": {0: 3}}] * 3


@pytest.mark.row("H1")
async def test_with_a_store_of_the_users_own_the_server_keeps_no_progress(live: Live) -> None:
    store = DictOffsetStore({})
    await live.make_topic()
    await live.send("a", "b")
    core = await live.start(offset_store=store)
    await until(lambda: live.remembered(core) == 2)
    await core.close()
    assert (store.stored[live.mq], await live.progress()) == (2, {})
    await live.send("c")
    await live.start(offset_store=store)
    await live.comes(lambda: live.texts == ["a", "b", "c"])


@pytest.mark.row("H9")
@pytest.mark.row("H10")
@pytest.mark.row("J7")
async def test_a_queue_that_goes_and_comes_back_is_committed_and_read_anew_and_what_stays_is_the_same(
    live: Live,
) -> None:
    share = [0, 1]

    def strategy(_group: str, _client_id: str, queues: Any, _members: Any) -> Any:
        return [mq for mq in queues if mq.queue_id in share]

    await live.make_topic(2)
    for number in range(8):
        await live.send(str(number))
    core = await live.start(allocate_strategy=strategy)
    await live.comes(lambda: len(live.seen) == 8)
    stays = dict(core.parts.owned())[MessageQueue(live.topic, 1)]
    share.remove(0)
    await live.owns(core, 1)
    assert (await live.progress())[0] == 4
    assert live.remembered(core) is None
    assert dict(core.parts.owned())[MessageQueue(live.topic, 1)] is stays
    for number in range(8, 12):
        await live.send(str(number))
    await until(lambda: len(live.seen) == 10)
    elsewhere = await live.start(pull_loop=PullLoop(live.clock), allocate_strategy=lambda _g, _c, queues, _m: queues)
    await live.comes(lambda: live.remembered(elsewhere) == 6)
    await elsewhere.close()
    live.seen.clear()
    share.append(0)
    await live.owns(core, 0, 1)
    await live.send("12")
    await live.send("13")
    await until(lambda: {"12", "13"} <= set(live.texts))
    assert not set(live.texts) & {"8", "9", "10", "11"}, "what the other owner has done is done"


@pytest.mark.row("I4")
@pytest.mark.row("I5")
async def test_stored_progress_and_a_retry_topics_beginning_win_over_the_setting(live: Live) -> None:
    async def failing(messages: Any, _: Any) -> Any:
        return LATER if messages[0].text == "b" else DONE

    await live.make_topic()
    await live.send("a", "b")
    first = await live.start(failing)
    await until(lambda: live.remembered(first) == 2)
    await first.close()
    await live.send("c")
    await live.advance("10s")
    await live.start(consume_from="CONSUME_FROM_LAST_OFFSET")
    await live.comes(lambda: sorted(live.texts) == ["b", "c"])


@pytest.mark.row("J12")
async def test_who_joins_changes_the_others_share_which_its_listener_hears(live: Live) -> None:
    told: list[tuple[int, list[int]]] = []

    def watch(topic: str, queues: Any, mine: Any) -> None:
        if topic == live.topic:
            told.append((len(queues), sorted(mq.queue_id for mq in mine)))

    await live.make_topic(4)
    first = await live.start(message_queue_listener=watch)
    await live.owns(first, 0, 1, 2, 3)
    version = first.sub_version
    second = await live.start(pull_loop=PullLoop(live.clock))
    await live.comes(lambda: len(live.owned(second)) >= 2 and len(told) > 1)
    assert told[0] == (4, [0, 1, 2, 3])
    assert told[-1][0] == 4 and len(told[-1][1]) == 2
    assert first.sub_version > version


@pytest.mark.row("G4")
@pytest.mark.row("C5")
async def test_each_topic_is_shared_by_itself_and_its_threshold_among_the_queues_that_are_owned(live: Live) -> None:
    other = f"{live.topic}-other"
    await live.make_topic(4)
    await live.make_topic(2, name=other)
    both = await live.start(topics=[live.topic, other], pull_threshold_for_topic=100)
    await live.owns(both, 0, 1, 2, 3)
    await until(lambda: both.limits(live.topic).pull_threshold_for_queue == 25)
    await live.start(pull_loop=PullLoop(live.clock))
    await live.comes(lambda: both.limits(live.topic).pull_threshold_for_queue == 50)
    assert sum(mq.topic == live.topic for mq in live.owned(both)) == 2
    await live.owns(both, 0, 1, topic=other)


@pytest.mark.row("J18")
async def test_a_faulty_strategy_stops_neither_another_group_nor_another_topic(live: Live) -> None:
    other = f"{live.topic}-other"

    def faulty(_group: str, _client_id: str, queues: Any, _members: Any) -> Any:
        if queues[0].topic == live.topic:
            raise KeyError("a defect")
        return queues

    await live.make_topic()
    await live.make_topic(name=other)
    await live.send("a")
    await live.send("b", topic=other)
    one = await live.start(topics=[live.topic, other], allocate_strategy=faulty)
    await live.comes(lambda: live.texts == ["b"])
    assert live.mq not in live.owned(one)
    await live.start(topics=[live.topic, other], group=f"{live.group}-h")
    await live.comes(lambda: Counter(live.texts) == {"a": 1, "b": 2})
