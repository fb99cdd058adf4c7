"""When a queue is not pulled for now."""

from __future__ import annotations

import pytest

from popclient._consume.process_queue import ProcessQueue
from popclient._engine.flow import MIB, CachedQueue, Exceeded, FlowTimes, QueueLimits
from popclient.message import MessageQueue
from tests.support.message_views import view_at, views

BATCH = 32


def cached(messages: int = 1, size: int = 1, span: int = 0) -> CachedQueue:
    return CachedQueue(messages, size, 100, 100 + span)


@pytest.mark.row("C1")
def test_a_listener_that_does_nothing_lets_a_thousand_in_and_what_one_pull_brings() -> None:
    pq, limits, offset = ProcessQueue(now=0.0), QueueLimits(), 0
    while (exceeded := limits.exceeded(pq.cached, orderly=False)) is None:
        pq.put(views(*range(offset, offset + BATCH)))
        offset += BATCH
    assert exceeded is Exceeded.COUNT
    assert 1_000 < pq.cached.messages <= 1_000 + BATCH


@pytest.mark.row("C2")
def test_large_messages_stop_it_by_their_bytes() -> None:
    pq, limits, offset = ProcessQueue(now=0.0), QueueLimits(), 0
    body = b"x" * MIB
    while (exceeded := limits.exceeded(pq.cached, orderly=False)) is None:
        pq.put([view_at(offset, body)])
        offset += 1
    assert exceeded is Exceeded.SIZE
    assert pq.cached.bytes == 101 * MIB


@pytest.mark.row("C3")
def test_a_message_that_does_not_end_stops_it_by_the_span_in_concurrent_mode_alone() -> None:
    pq, limits, offset = ProcessQueue(now=0.0), QueueLimits(), 0
    while (exceeded := limits.exceeded(pq.cached, orderly=False)) is None:
        batch = views(*range(offset, offset + BATCH))
        pq.put(batch)
        pq.remove([message for message in batch[:-1] if message.queue_offset != 0], now=0.0)
        offset += BATCH
    assert exceeded is Exceeded.SPAN
    assert 2_000 < pq.cached.span <= 2_000 + BATCH
    assert limits.exceeded(pq.cached, orderly=True) is None


@pytest.mark.parametrize(
    ("held", "expected"),
    [
        (cached(messages=1_000), None),
        (cached(messages=1_001), Exceeded.COUNT),
        (cached(size=100 * MIB), None),
        (cached(size=100 * MIB + 1), Exceeded.SIZE),
        (cached(span=2_000), None),
        (cached(span=2_001), Exceeded.SPAN),
        (CachedQueue(0, 0, None, None), None),
    ],
)
def test_a_limit_itself_is_allowed(held: CachedQueue, expected: Exceeded | None) -> None:
    assert QueueLimits().exceeded(held, orderly=False) is expected


@pytest.mark.row("C4")
def test_the_first_and_every_thousandth_time_is_worth_a_line() -> None:
    times = FlowTimes()
    assert sum(times.hit(Exceeded.COUNT) for _ in range(2_500)) == 3
    assert times.times(Exceeded.COUNT) == 2_500
    assert times.hit(Exceeded.SPAN), "each limit counts for itself"


@pytest.mark.row("C4")
def test_the_line_says_what_is_cached_and_which_limit_it_passes() -> None:
    sentence = QueueLimits().sentence(MessageQueue("t", 3), cached(1_001, 77, 5), Exceeded.COUNT, 1)
    assert sentence.startswith("t:3 is not pulled for now: 1001 messages, 77 bytes, offsets 100 to 105 are cached")
    assert "beyond pull_threshold_for_queue 1000; 1 times so far" in sentence


@pytest.mark.row("C5")
def test_thresholds_of_a_topic_are_divided_among_its_owned_queues() -> None:
    limits = QueueLimits(pull_threshold_for_topic=100, pull_threshold_size_for_topic=6)
    of_four, of_two = limits.of_queue(4), limits.of_queue(2)
    assert (of_four.pull_threshold_for_queue, of_four.pull_threshold_size_for_queue) == (25, 1)
    assert (of_two.pull_threshold_for_queue, of_two.pull_threshold_size_for_queue) == (50, 3)
    assert limits.of_queue(1_000).pull_threshold_for_queue == 1, "each queue has room for one"
    assert of_four.of_queue(2) == of_two, "a later share is reckoned from the topic's, not from an earlier share"


@pytest.mark.row("C5")
def test_by_default_a_topic_has_no_thresholds() -> None:
    assert QueueLimits().of_queue(4) == QueueLimits()
    assert QueueLimits(pull_threshold_for_topic=100).of_queue(0).pull_threshold_for_queue == 1_000, "nothing owned"


def test_a_share_is_never_more_than_a_queue_may_have() -> None:
    limits = QueueLimits(pull_threshold_for_topic=6_553_500, pull_threshold_size_for_topic=102_400).of_queue(1)
    assert (limits.pull_threshold_for_queue, limits.pull_threshold_size_for_queue) == (65_535, 1_024)


@pytest.mark.parametrize(
    ("name", "value", "limits"),
    [
        ("pull_threshold_for_queue", 0, "1 to 65535"),
        ("pull_threshold_for_queue", 65_536, "1 to 65535"),
        ("pull_threshold_size_for_queue", 1_025, "1 to 1024"),
        ("pull_threshold_for_topic", 0, "1 to 6553500"),
        ("pull_threshold_size_for_topic", -2, "1 to 102400"),
        ("consume_concurrently_max_span", 0, "1 to 65535"),
    ],
)
def test_limits_have_limits(name: str, value: int, limits: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is {value}; it must be from {limits}"):
        QueueLimits(**{name: value})
