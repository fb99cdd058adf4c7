"""The bridge from threads to the event loop."""

from __future__ import annotations

import contextvars
import threading

from popclient._loop import loop_thread


def test_what_a_thread_hands_in_runs_without_its_context() -> None:
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nobody's")
    found: list[str] = []
    ran = threading.Event()
    mine.set("mine")
    loop_thread().post(lambda: (found.append(mine.get()), ran.set()))
    assert ran.wait(5)
    assert found == ["nobody's"]
