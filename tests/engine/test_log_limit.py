"""What callers can cause again and again is told once in a while."""

from __future__ import annotations

from popserver.engine.reader import LOG_AGAIN_MS, LogLimit


def test_one_line_a_minute_that_says_how_many_were_held_back() -> None:
    brake = LogLimit()
    told = [
        brake.dropped(now_ms) for now_ms in (1_000, 1_001, LOG_AGAIN_MS, LOG_AGAIN_MS + 1_000, LOG_AGAIN_MS + 1_001)
    ]
    assert told == [0, None, None, 2, None]


def test_or_several_lines_a_minute() -> None:
    brake = LogLimit(lines=2)
    told = [brake.dropped(now_ms) for now_ms in (0, 1, 2, 3, LOG_AGAIN_MS, LOG_AGAIN_MS + 1, LOG_AGAIN_MS + 2)]
    assert told == [0, 0, None, None, 2, 0, None]
