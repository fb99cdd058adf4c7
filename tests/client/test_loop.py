"""The bridge from threads to the event loop."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest

from popclient._loop import LoopThread, loop_of_process


def test_what_a_thread_hands_in_runs_without_its_context() -> None:
    mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="nobody's")
    found: list[str] = []
    ran = threading.Event()
    mine.set("mine")
    LoopThread().post(lambda: (found.append(mine.get()), ran.set()))
    assert ran.wait(60)
    assert found == ["nobody's"]


@pytest.mark.parametrize("raised", [ValueError("a defect"), SystemExit(3), KeyboardInterrupt()])
def test_what_a_posted_callback_raises_is_logged_and_stops_nothing(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise raised

    ran = threading.Event()
    thread = loop_of_process()
    together = threading.Event()
    thread.post(lambda: together.wait(60))  # so that what follows is looked at in one turn
    thread.post(fail)
    thread.post(ran.set)
    together.set()
    assert ran.wait(60)
    [record] = caplog.records
    assert record.exc_info is not None
    assert record.exc_info[1] is raised
    assert loop_of_process() is thread


@pytest.mark.parametrize("raised", [SystemExit(3), KeyboardInterrupt()])
def test_what_the_loop_itself_raises_is_logged_and_ends_no_thread(
    raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise raised

    ran = threading.Event()
    thread = loop_of_process()
    thread.loop.call_soon_threadsafe(fail)
    thread.loop.call_soon_threadsafe(ran.set)
    assert ran.wait(60)
    assert [record.exc_info[1] for record in caplog.records if record.exc_info] == [raised]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("raised", [ValueError("a defect"), SystemExit(3)])
def test_what_handing_in_raises_is_the_callers(raised: BaseException) -> None:
    def fail(*_: Any) -> Any:
        raise raised

    for call in (LoopThread().ask, LoopThread().run):
        with pytest.raises(type(raised)) as caught:
            call(fail)
        assert caught.value is raised


@pytest.mark.timeout(60)
def test_a_caller_that_is_interrupted_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """As by Ctrl+C while it wakes the loop."""

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    thread = loop_of_process()
    with monkeypatch.context() as pressed:
        pressed.setattr(thread.loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.post(lambda: None)
    ran = threading.Event()
    thread.post(ran.set)
    assert ran.wait(30)
