"""What committed transactions tell those who wait for it."""

from __future__ import annotations

from popserver.engine.clock import ManualClock
from popserver.engine.timers import DueTimer
from popserver.engine.wakeups import Effects


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
