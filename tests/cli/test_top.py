"""popmq top: what one frame shows, its order, and the keys on a terminal."""

from __future__ import annotations

import io
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta

import pytest
from rich.console import Console

from popclient.admin import Admin
from popclient.cli.top import sample as top
from popclient.cli.top import screen
from tests.support.shell import POPMQ, Shell


def drawn(now: top.TopSample, rows: list[top.TopRow], width: int, height: int | None = None) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(screen.frame(now, rows, "r", "", width, height))
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.fixture
def busy(shell: Shell) -> Shell:
    """Two groups: one holds a message, is behind and is paused; the other has nothing to do."""
    shell.ok("topic", "create", "flights", "--queues", "1")
    for group in ("arrivals", "board"):
        shell.ok("group", "create", group)
    shell.ok("message", "send", "flights", "x", "--count", "5")
    shell.ok("message", "receive", "flights", "--group", "arrivals", "--max", "1")
    shell.ok("message", "receive", "flights", "--group", "arrivals", "--max", "1", "--ack")
    shell.ok("message", "receive", "flights", "--group", "board", "--ack")
    shell.ok("group", "pause", "arrivals")
    shell.broker.clock.advance("90s")
    return shell


def test_one_frame_needs_nothing_but_the_client(busy: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("command", "sample"):
        monkeypatch.delitem(sys.modules, f"popclient.cli.top.{module}", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    head, headings, *rows, _, hint = busy.ok("top", "--once").lines
    assert "group 'arrivals' is paused, and 4 messages wait; resume it with: popmq group resume arrivals" in hint
    assert "2 groups, 1 with messages ready" in head
    assert headings.split() == "GROUP TOPIC READY INFLIGHT WAITING RETRY COMMIT DLQ OLDEST READY MEMBERS STATE".split()
    assert [row.split() for row in rows] == [
        ["arrivals", "flights", "4", "0", "0", "1", "0", "1m30s", "0", "paused"],
        ["board", "flights", "0", "0", "0", "5", "0", "0"],
    ]
    by_name = busy.json("top", "--sort", "n")
    assert [(row["group"], row["ready"], row["oldest_ready_ms"]) for row in by_name] == [
        ("arrivals", 4, 90_000),
        ("board", 0, None),
    ]


def test_rates_are_the_difference_of_two_samples(busy: Shell) -> None:
    with Admin(busy.endpoint) as admin:
        before = top.sample(admin)
        busy.ok("message", "send", "flights", "x", "--count", "20")
        busy.ok("message", "receive", "flights", "--group", "board", "--max", "10", "--ack")
        busy.broker.clock.advance("10s")
        now = top.sample(admin)
    arrivals, board = top.in_order(top.rows_of(now, before), "n")
    assert (arrivals.rate_in, arrivals.rate_done) == (2.0, 0.0)
    assert (board.rate_in, board.rate_done, board.ready) == (2.0, 1.0, 10)
    assert [row.group for row in top.in_order([board, arrivals], "r")] == ["arrivals", "board"]
    assert [row.group for row in top.in_order([board, arrivals], "o")] == ["arrivals", "board"]
    backwards = replace(before.status, now=now.status.now + timedelta(seconds=1))
    assert top.rows_of(now, before._replace(status=backwards))[0].rate_in is None, "a clock that went back"


def test_names_do_not_steer_the_terminal(busy: Shell) -> None:
    with Admin(busy.endpoint) as admin:
        now = top.sample(admin)
    (row, *_) = top.rows_of(now, None)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(screen.frame(now, [row._replace(group="\x1b[31m[bold]g")], "r", "gone \x07", 200))
    text = console.export_text()
    assert "\\x1b[31m[bold]g" in text
    assert "gone \\x07" in text


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (60, "GROUP ○ ◐ ◔ ● ✕ OLDEST"),
        (80, "GROUP TOPIC ○ ◐ ◔ ● ✕ IN/S DONE/S OLDEST"),
        (130, "GROUP TOPIC ○ READY ◐ INFLIGHT ◔ WAITING RETRY ● COMMIT ✕ DLQ IN/S DONE/S OLDEST READY MEMBERS"),
    ],
)
def test_a_narrow_terminal_shows_whole_numbers(busy: Shell, width: int, headings: str) -> None:
    with Admin(busy.endpoint) as admin:
        now = top.sample(admin)
    (row, *_) = top.rows_of(now, None)
    row = row._replace(group="g" * 40, topic="t" * 40, ready=1_234_567, commit=7_654_321)
    lines = drawn(now, [row], width)
    assert all(len(line) <= width for line in lines)
    (shown,) = [line for line in lines if line.startswith("ggg")]
    assert "1 234 567" in shown
    assert "7 654 321" in shown
    assert headings in [" ".join(line.split()) for line in lines]


def test_a_low_terminal_keeps_the_first_rows_and_the_keys(busy: Shell) -> None:
    with Admin(busy.endpoint) as admin:
        now = top.sample(admin)
    (row, *_) = top.rows_of(now, None)
    rows = [row._replace(group=f"group-{number}") for number in range(50)]
    lines = drawn(now, rows, 120, height=12)
    assert len(lines) <= 12
    assert lines[2].startswith("group-0 ")
    assert lines[-3] == "and 43 more rows"
    assert "is paused" in lines[-2]
    assert lines[-1].startswith("sorted by ready")


def test_it_needs_a_terminal(busy: Shell) -> None:
    refused = busy("top")
    assert refused.status == 2
    assert "popmq top needs a terminal; print one frame with --once" in refused.err


@contextmanager
def terminal(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The command on a terminal of its own, and the other end of that."""
    ours, theirs = pty.openpty()

    def as_in_a_shell() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is ignored where the tests run in the background

    process = subprocess.Popen(
        [POPMQ, *words], stdin=theirs, stdout=theirs, stderr=theirs, close_fds=True, preexec_fn=as_in_a_shell
    )
    os.close(theirs)
    try:
        yield process, ours
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def read_until(descriptor: int, wanted: str) -> None:
    seen, end = "", time.monotonic() + 30
    while wanted not in seen:
        assert select.select([descriptor], [], [], max(0.0, end - time.monotonic()))[0], seen
        seen += os.read(descriptor, 65_536).decode(errors="replace")


def test_keys_sort_and_quit(busy: Shell) -> None:
    with terminal("--endpoint", busy.endpoint, "top", "--interval", "1h") as (process, ours):
        read_until(ours, "sorted by ready")
        os.write(ours, b"n")
        read_until(ours, "sorted by name")
        os.write(ours, b"q")
        assert process.wait(30) == 0


def test_an_interrupt_ends_it_without_a_traceback(busy: Shell) -> None:
    with terminal("--endpoint", busy.endpoint, "top", "--interval", "1h") as (process, ours):
        read_until(ours, "sorted by ready")
        process.send_signal(signal.SIGINT)
        shown = b""
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    shown += os.read(ours, 65_536)
                except OSError:  # the other end is closed
                    break
        assert process.wait(30) == 130
        assert b"Traceback" not in shown
        assert b"\x1b[?1049l" in shown, "the screen is as it was before"
