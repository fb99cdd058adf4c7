"""How often the console asks the server for its counts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

from popclient.aio import Admin
from popconsole.pulse import Pulse


class SlowServer:
    """Answers after so many seconds of a clock of its own."""

    def __init__(self) -> None:
        self.clock_s = 0.0
        self.takes_s = 0.0

    async def status(self) -> Any:
        self.clock_s += self.takes_s
        now = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.clock_s)
        return SimpleNamespace(now=now, appended=0, lag=(), commit_times=None)


async def pauses(*took_s: float) -> list[float]:
    """The pause after each of these answers."""
    server, found = SlowServer(), []
    pulse = Pulse("", 5.0, lambda: server.clock_s)
    for server.takes_s in took_s:
        await pulse.fresh(cast("Admin", server))
        found.append(pulse.pause_s)
    return found


async def test_one_slow_answer_does_not_make_it_wait() -> None:
    assert await pauses(0.7, 0.01, 0.01, 0.01, 2.0, 2.0, 0.01) == [5.0] * 7


async def test_a_server_whose_answers_take_long_is_asked_less_often() -> None:
    assert await pauses(0.25, 0.5, 0.125, 0.5, 0.5, 0.5, 3.0, 3.0, 3.0) == [5, 5, 12.5, 12.5, 12.5, 50, 50, 50, 60]
    assert (await pauses(3.0, 3.0, 3.0, 0.01))[-2:] == [60, 5], "and as often as before once it is quick again"
