"""What committed transactions tell those who wait for it."""

from __future__ import annotations

from popserver.database.notifications import Invalidation
from popserver.engine.clock import ManualClock
from popserver.engine.timers import DueTimer
from popserver.engine.wakeups import Effects
from popserver.model.names import Resource


async def no_work() -> None:
    return None


async def test_a_timer_hears_of_earlier_times_of_its_kind() -> None:
    clock, effects = ManualClock(), Effects()
    timer = DueTimer(clock, no_work)
    effects.on_due("due", timer)
    now_ms = clock.now_ms()
    for told, due_ms in (
        ({"other": now_ms + 1_000}, None),
        ({"other": now_ms + 1_000, "due": now_ms + 3_000}, now_ms + 3_000),
        ({"due": now_ms + 4_000}, now_ms + 3_000),
        ({"due": now_ms + 2_000}, now_ms + 2_000),
    ):
        effects.due(told)
        assert timer.due_ms == due_ms
    await timer.close()


def test_whoever_waits_for_topics_hears_of_all_or_of_its_own() -> None:
    effects = Effects()
    of_all: list[int] = []
    of_some: list[int] = []
    of_lite: list[tuple[int, object]] = []
    effects.ready({1: None})  # nobody has subscribed yet
    effects.on_ready(of_all.append)
    effects.on_ready(of_some.append, among={2, 3})
    effects.on_ready_lite(lambda topic_id, hashes: of_lite.append((topic_id, hashes)), among={3, 4})
    effects.ready({1: None, 2: None, 3: [30, 31]})
    assert (of_all, of_some, of_lite) == ([1, 2, 3], [2, 3], [(3, [30, 31])])
    effects.ready({4: None})
    assert of_lite == [(3, [30, 31]), (4, None)]


def test_what_changed_is_told_by_kind_and_name() -> None:
    effects = Effects()
    topics: list[Resource] = []
    groups: list[Resource] = []
    effects.on_invalidated("topic", topics.append)
    effects.on_invalidated("group", groups.append)
    effects.invalidations([Invalidation("topic", "n", "orders"), Invalidation("group", "", "billing")])
    effects.invalidations([Invalidation("other", "", "x")])
    assert topics == [Resource("n", "orders")]
    assert groups == [Resource("", "billing")]
