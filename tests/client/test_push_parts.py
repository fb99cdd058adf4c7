"""The parts of the push consumer: whose turn it is, how much fits, what is late."""

from __future__ import annotations

import asyncio
import inspect
import math
from datetime import timedelta
from functools import partial
from typing import Any, get_overloads, get_type_hints
from unittest.mock import AsyncMock

import pytest

from popclient import ClientConfig, ConsumeResult, Interceptor, MessageView, PushConsumer, aio
from popclient._engine.flow import PACE_SPAN, CacheBudget, RecentWork
from popclient._push.backlog import Backlog, Batch, Buffered, Deadlines
from popclient._session.convert import retry_interval
from popclient.listening import AsyncBatchListener, AsyncListener, BatchListener, Listener
from popproto.v2 import definition_pb2 as pb
from tests.support.message_views import view_of
from tests.support.scripted_server import until

# ---- Recent work ----


@pytest.mark.parametrize(
    ("steps", "counted"),
    [
        ([(0.0, 10)], 0),
        ([(0.0, 0), (0.1, 30)], 30),
        ([(0.0, 0), (0.1, 30), (0.26, 50)], 50),
        ([(0.0, 0), (0.3, 50), (0.6, 70)], 20),
        ([(0.0, 0), (0.4, 32), (0.8, 64), (1.2, 96)], 32),
        ([(0.0, 0), (0.1, 30), (0.7, 31)], 0),
    ],
    ids=["nothing before", "at once", "the last span and this one", "no more", "a steady one", "a pause"],
)
def test_what_was_worked_off_lately(steps: list[tuple[float, int]], counted: int) -> None:
    """Each step is seconds, and messages so far."""
    recent, last = RecentWork(), -1
    for seconds, worked_off in steps:
        last = recent.count(worked_off, 1_000 + seconds)
    assert (last, PACE_SPAN) == (counted, 0.25)


# ---- Backlog ----


class GroupedBacklog:
    """A backlog, and what it has said of turns."""

    def __init__(self, batch_size: int = 1) -> None:
        self.turns: list[str] = []
        self.backlog = Backlog(batch_size, lambda held: self.turns.append(held.view.text))

    def put(self, names: str, message_group: str | None = None, topic: str = "t") -> list[Buffered]:
        return [self.backlog.put(view_of(name, topic), 1, message_group) for name in names.split()]

    def take(self) -> Batch:
        batch = self.backlog.next_batch()
        assert batch is not None
        return batch

    def texts(self) -> str:
        """All that may run now."""
        found = []
        while (batch := self.backlog.next_batch()) is not None:
            found.append("+".join(view.text for view in batch.views))
        return " ".join(found)


def test_without_order_all_may_run_at_once() -> None:
    grouped = GroupedBacklog()
    grouped.put("1 2 3")
    assert grouped.texts() == "1 2 3"


def test_of_a_message_group_one_runs_at_a_time_and_groups_run_side_by_side() -> None:
    grouped = GroupedBacklog()
    grouped.put("a1 a2 a3", "a")
    grouped.put("b1 b2", "b")
    grouped.put("x y")
    first = grouped.take()
    assert first.views[0].text == "a1"
    assert grouped.texts() == "b1 x y"
    grouped.backlog.free(first.group)
    assert grouped.texts() == "a2"
    assert grouped.turns == ["a1", "b1", "a2"]


def test_the_same_message_group_of_another_topic_is_another() -> None:
    grouped = GroupedBacklog()
    grouped.put("1 2", "a", "t")
    grouped.put("3 4", "a", "u")
    assert grouped.texts() == "1 3"


def test_topics_and_groups_take_turns() -> None:
    grouped = GroupedBacklog()
    grouped.put("1 2 3 4", topic="busy")
    grouped.put("5 6", topic="calm")
    grouped.put("7 8", "g", topic="calm")
    assert grouped.texts() == "1 5 7 2 6 3 4"


@pytest.mark.parametrize("size, split", [(10, "10 10 10 2"), (1, " ".join(["1"] * 32)), (64, "32")])
def test_a_pull_is_cut_into_batches(size: int, split: str) -> None:
    grouped = GroupedBacklog(size)
    grouped.put(" ".join(map(str, range(32))))
    assert [str(batch.count("+") + 1) for batch in grouped.texts().split()] == split.split()


def test_a_batch_has_one_topic_and_one_message_group() -> None:
    grouped = GroupedBacklog(3)
    grouped.put("1 2", "a")
    grouped.put("3 4", "b")
    grouped.put("5", topic="u")
    grouped.put("6 7")
    assert grouped.texts() == "1+2 3+4 5 6+7"


def test_a_chain_waits_for_everything_that_holds_it_up() -> None:
    grouped = GroupedBacklog()
    grouped.put("1 2", "a")
    group = grouped.take().group
    grouped.backlog.hold_up(group)
    grouped.backlog.free(group)
    assert grouped.texts() == ""
    grouped.backlog.free(group)
    assert grouped.texts() == "2"


def test_what_is_withdrawn_does_not_run_and_what_comes_then_does() -> None:
    grouped = GroupedBacklog()
    held = grouped.put("1 2 3", "a")
    first = grouped.take()
    assert grouped.backlog.withdraw(held[2])
    assert not grouped.backlog.withdraw(held[2])
    assert [each.view.text for each in grouped.backlog.withdraw_rest(first.group)] == ["2"]
    grouped.put("1", "a")
    grouped.backlog.free(first.group)
    assert grouped.texts() == "1"
    grouped.put("4 5")
    assert [each.view.text for each in grouped.backlog.withdraw_all()] == ["4", "5"]
    assert grouped.texts() == ""


def test_chains_that_are_done_are_forgotten() -> None:
    grouped = GroupedBacklog()
    for number in range(100):
        grouped.put(str(number), f"group-{number}")
    grouped.put("x y")
    taken = []
    while (batch := grouped.backlog.next_batch()) is not None:
        taken.append(batch)
    for batch in taken:
        if batch.group.ordered:
            grouped.backlog.free(batch.group)
    assert grouped.backlog._groups == {}


def test_a_late_word_of_a_forgotten_chain_does_not_touch_its_successor() -> None:
    grouped = GroupedBacklog()
    grouped.put("1", "a")
    old = grouped.take().group
    grouped.backlog.free(old)
    grouped.put("2 3", "a")
    grouped.backlog.hold_up(old)
    assert grouped.texts() == "2"
    grouped.backlog.free(old)
    grouped.put("4", "a")
    assert grouped.texts() == ""


# ---- Budget ----


async def test_a_poll_asks_for_what_fits() -> None:
    budget = CacheBudget(100, 1 << 20)
    first = await budget.acquire(32, 1, 1)
    assert first.messages == 32
    for _ in range(30):
        budget.take(10)
    budget.release(first)
    assert budget.cached == (30, 300)
    for _ in range(44):
        budget.take(10)
    assert (await budget.acquire(32, 1, 1)).messages == 26


async def test_a_full_room_lets_nobody_ask_until_a_quarter_is_free() -> None:
    budget = CacheBudget(8, 1 << 20)
    for _ in range(8):
        budget.take(1)
    asking = asyncio.ensure_future(budget.acquire(32, 1, 1))
    budget.leave(1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asking.done()
    budget.leave(1)
    assert (await asking).messages == 2


async def test_bytes_stop_the_polls_too_and_large_messages_are_asked_for_one_by_one() -> None:
    budget = CacheBudget(1000, 1000)
    budget.take(999)
    assert (await budget.acquire(32, 400, 1)).messages == 1
    asking = asyncio.ensure_future(budget.acquire(32, 400, 1))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not asking.done()
    budget.leave(999)
    assert (await asking).messages == 1


async def test_many_idle_polls_leave_room_for_one_another() -> None:
    budget = CacheBudget(64, 1000)
    asks = [await budget.acquire(32, 1 << 16, 40) for _ in range(40)]
    assert sum(permit.messages for permit in asks) <= 64


async def test_whoever_asked_first_is_served_first_and_who_gives_up_is_not_waited_for() -> None:
    budget = CacheBudget(1, 1000)
    budget.take(1)
    given_up, first, second = (asyncio.ensure_future(budget.acquire(1, 1, 1)) for _ in range(3))
    await asyncio.sleep(0)
    given_up.cancel()
    budget.leave(1)
    permit = await first
    assert not second.done()
    budget.release(permit)
    await second


# ---- Deadlines ----


async def test_what_is_not_forgotten_in_time_is_late_in_the_order_of_watching() -> None:
    late: list[str] = []
    deadlines = Deadlines(0.02, lambda held: late.append(held.view.text))
    grouped = GroupedBacklog()
    one, two, three = grouped.put("1 2 3")
    for held in (one, two, three):
        deadlines.watch(held)
    deadlines.watch(one)  # watched already
    deadlines.forget(two)
    await until(lambda: len(late) == 2)
    assert late == ["1", "3"]
    deadlines.watch(two)
    deadlines.stop()
    await asyncio.sleep(0.02)  # the loop calls timers in the order of their times, and that of `two` was earlier
    assert late == ["1", "3"]


# ---- The retry interval ----


def test_the_ladder_and_after_its_end_its_last_rung() -> None:
    settings = pb.Settings()
    for seconds in (10, 30, 60):
        settings.backoff_policy.customized_backoff.next.add().FromSeconds(seconds)
    assert [retry_interval(settings, attempt).total_seconds() for attempt in (0, 1, 2, 3, 4, 99)] == [
        *(10, 10, 30, 60, 60, 60)
    ]


def test_an_exponential_policy_and_none() -> None:
    settings = pb.Settings()
    assert retry_interval(settings, 3).total_seconds() == 10
    exponential = settings.backoff_policy.exponential_backoff
    exponential.initial.FromSeconds(5)
    exponential.max.FromSeconds(7200)
    exponential.multiplier = 2
    assert [retry_interval(settings, attempt).total_seconds() for attempt in (1, 2, 3, 10_000)] == [5, 10, 20, 7200]


@pytest.mark.row("C6")
@pytest.mark.parametrize("face", [PushConsumer, aio.PushConsumer])
def test_its_bounds_unless_told(face: Any) -> None:
    options = inspect.signature(face).parameters
    assert options["max_cached_messages"].default == 1_024
    assert options["max_cached_bytes"].default == 64 * 1024 * 1024


# ---- What cannot work is refused at once ----


async def _done(_: Any) -> ConsumeResult:
    return ConsumeResult.SUCCESS


class _Half:
    """Looks like an interceptor, at first."""

    def before_receive(self, topic: str, /) -> None:
        """Nothing."""

    def __repr__(self) -> str:
        return "half"


@pytest.mark.row("N8")
@pytest.mark.parametrize(
    "wrong, error, says",
    [
        ({"group": ""}, ValueError, "group is ''"),
        ({"group": None}, ValueError, "group is None"),
        ({"topics": []}, ValueError, "at least one"),
        ({"topics": {}}, ValueError, "at least one"),
        ({"topics": ""}, ValueError, "needs a name"),
        ({"listener": None}, TypeError, "listener is None; give a function"),
        ({"listener": "print"}, TypeError, "listener is 'print'"),
        ({"batch_size": 0}, ValueError, "batch_size is 0; it must be at least 1"),
        ({"concurrency": 0}, ValueError, "concurrency is 0"),
        ({"max_cached_bytes": 0}, ValueError, "max_cached_bytes is 0"),
        ({"max_cached_messages": 0}, ValueError, "max_cached_messages is 0; it must be at least 1"),
        ({"max_cached_messages": 2, "topics": "abc"}, None, ""),
        ({"max_cached_messages": 2, "topics": ["a", "b", "c"]}, ValueError, "is 2 for 3 topics"),
        ({"max_cached_messages": -1}, ValueError, "max_cached_messages is -1"),
        ({"max_cached_messages": 2.5}, TypeError, "max_cached_messages is 2.5; it must be a whole number"),
        ({"max_cached_bytes": -1}, ValueError, "max_cached_bytes is -1; it must be at least 1"),
        ({"max_cached_bytes": "64M"}, TypeError, "max_cached_bytes is '64M'; it must be a whole number"),
        ({"batch_size": 2.5}, TypeError, "batch_size is 2.5; it must be a whole number, at least 1"),
        ({"concurrency": 2.5}, TypeError, "concurrency is 2.5; it must be a whole number, at least 1"),
        ({"concurrency": True}, TypeError, "concurrency is True"),
        ({"topics": {"a": 5}}, TypeError, r"topics\['a'\] is 5; give a tag expression such as 'a || b', or a Filter"),
        ({"topics": 5}, TypeError, "topics is 5; give the name of a topic, several"),
        ({"topics": [5]}, TypeError, "topics is .5.; give the name of a topic, several"),
        (
            {"consumption_timeout": 0},
            ValueError,
            "consumption_timeout is 0; it must be seconds .* from 0.001 s to 10800",
        ),
        ({"consumption_timeout": 10_801}, ValueError, "consumption_timeout is 10801; .* to 10800 s"),
        ({"consumption_timeout": timedelta(hours=4)}, ValueError, "consumption_timeout is 4:00:00; .* to 10800 s"),
        ({"consumption_timeout": -1}, ValueError, "consumption_timeout is -1"),
        ({"consumption_timeout": "5"}, TypeError, "consumption_timeout is '5'; it must be seconds or a timedelta"),
        ({"drain_timeout": -1}, ValueError, "drain_timeout is -1; .* from 0 s to 36500 days"),
        ({"drain_timeout": math.nan}, ValueError, "drain_timeout is nan; .* to 36500 days"),
        ({"drain_timeout": math.inf}, ValueError, "drain_timeout is inf; .* to 36500 days"),
        ({"drain_timeout": 1e18}, ValueError, "drain_timeout is 1e.18; .* to 36500 days"),
        (
            {"interceptors": Interceptor()},
            TypeError,
            "interceptors is <.*Interceptor object .*; give a list of Interceptors",
        ),
        ({"interceptors": [Interceptor]}, TypeError, "interceptor <class .*Interceptor'> is a class; give an instance"),
        ({"interceptors": [Interceptor(), 5]}, TypeError, "interceptor 5 has no before_receive, .*, after_ack; derive"),
        (
            {"interceptors": [_Half()]},
            TypeError,
            "interceptor half has no after_receive, .* from popclient.Interceptor",
        ),
        ({"interceptors": iter([Interceptor()])}, None, ""),
        ({"endpoints": ClientConfig(endpoints="a:1"), "batch_size": 3}, None, ""),
    ],
)
@pytest.mark.parametrize("face", [PushConsumer, aio.PushConsumer])
def test_what_cannot_work_is_refused_at_once(
    face: Any, wrong: dict[str, Any], error: type[Exception] | None, says: str
) -> None:
    listener = _done if face is aio.PushConsumer else print
    given = {"endpoints": "127.0.0.1:1", "group": "g", "topics": "t", "listener": listener, **wrong}
    if error is None:
        assert "group='g' not connected" in repr(face(**given))
        return
    with pytest.raises(error, match=says):
        face(**given)


def test_a_coroutine_function_belongs_to_the_asyncio_consumer() -> None:
    class Careful:
        async def __call__(self, _: MessageView) -> ConsumeResult:
            return ConsumeResult.SUCCESS

    for listener in (_done, Careful(), partial(_done), AsyncMock()):
        with pytest.raises(TypeError, match=r"is a coroutine function; use popclient\.aio\.PushConsumer"):
            PushConsumer("127.0.0.1:1", "g", "t", listener)  # type: ignore[arg-type]
        assert aio.PushConsumer("127.0.0.1:1", "g", "t", listener).group == "g"


def test_a_plain_function_belongs_to_the_synchronous_consumer() -> None:
    class Careful:
        def __call__(self, _: MessageView) -> ConsumeResult:
            return ConsumeResult.SUCCESS

    for listener in (print, Careful(), partial(print), lambda _: ConsumeResult.SUCCESS):
        with pytest.raises(
            TypeError, match=r"no coroutine function; write it with `async def`, or use popclient\.Push"
        ):
            aio.PushConsumer("127.0.0.1:1", "g", "t", listener)  # type: ignore[arg-type]
        assert PushConsumer("127.0.0.1:1", "g", "t", listener).group == "g"


@pytest.mark.row("E4")
@pytest.mark.parametrize(
    "face, single, batch",
    [(PushConsumer, Listener, BatchListener), (aio.PushConsumer, AsyncListener, AsyncBatchListener)],
)
def test_a_type_checker_knows_what_the_listener_gets(face: Any, single: Any, batch: Any) -> None:
    hints = [get_type_hints(each) for each in get_overloads(face.__init__)]
    assert [(each["listener"], each["batch_size"]) for each in hints] == [(single, type(None)), (batch, int)]
    told = inspect.signature(face.__init__)
    for each in get_overloads(face.__init__):
        assert [*inspect.signature(each).parameters] == [*told.parameters]
