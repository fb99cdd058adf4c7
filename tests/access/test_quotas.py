"""How much one holder may ask for in a second."""

from __future__ import annotations

import re

import pytest

from popserver.access import quotas
from popserver.access.quotas import Quota
from popserver.model.errors import TooManyRequests

START_MS = 1_735_689_600_000


def test_a_seconds_worth_is_there_at_once_and_comes_back() -> None:
    quota = Quota(10, "messages")
    for _ in range(10):
        quota.take("alice", 1, START_MS)
    with pytest.raises(TooManyRequests, match="alice has used up its 10 messages per second; try again in 1 ms"):
        quota.take("alice", 1, START_MS)
    quota.take("alice", 1, START_MS + 100)
    quota.take("bob", 10, START_MS)


def test_a_large_batch_is_let_in_and_paid_for() -> None:
    quota = Quota(10, "messages")
    quota.take("alice", 40, START_MS)
    with pytest.raises(TooManyRequests) as refused:
        quota.take("alice", 1, START_MS)
    told = re.search(r"again in (\d+) ms", refused.value.sentence)
    assert told is not None
    wait_ms = int(told[1])
    assert wait_ms == 3_001
    with pytest.raises(TooManyRequests):
        quota.take("alice", 1, START_MS + 3_000)
    quota.take("alice", 1, START_MS + wait_ms)


def test_the_rate_is_kept_on_the_long_run() -> None:
    quota, let_in = Quota(100, "requests"), 0
    for now_ms in range(START_MS, START_MS + 10_000):
        try:
            quota.take("alice", 1, now_ms)
            let_in += 1
        except TooManyRequests:
            continue
    assert 1_090 <= let_in <= 1_110  # ten seconds and the one saved up


def test_what_is_only_counted_leaves_a_bounded_debt() -> None:
    quota = Quota(10, "requests")
    for _ in range(1_000):
        quota.charge("alice", 1, START_MS)
    with pytest.raises(TooManyRequests, match="1001 ms"):
        quota.take("alice", 1, START_MS)
    quota.take("alice", 1, START_MS + 1_001)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "HOLDERS_MAX", 100)
    quota = Quota(1, "requests")
    for number in range(1_000):
        quota.take(f"client {number}", 1, START_MS)
    assert len(quota) == 100
    with pytest.raises(TooManyRequests):
        quota.take("client 999", 1, START_MS)
