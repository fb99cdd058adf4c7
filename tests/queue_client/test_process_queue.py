"""What of one queue is fetched and not finished."""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popclient._consume.process_queue import NOTHING_CACHED, ProcessQueue
from popclient._engine.flow import CachedQueue
from tests.support.message_views import offsets_of, view_at, views


def holding(*offsets: int) -> ProcessQueue:
    pq = ProcessQueue(now=0.0)
    pq.put(views(*offsets))
    return pq


@pytest.mark.row("D3")
def test_the_orderly_listener_is_started_once_until_its_run_ends() -> None:
    pq = ProcessQueue(now=0.0)
    assert not pq.put([])
    assert pq.put(views(0))
    assert not pq.put(views(1))
    assert offsets_of(pq.take(10, now=1.0)) == [0, 1]
    pq.commit()
    assert not pq.put(views(2)), "the run goes on until it finds nothing"
    pq.take(10, now=1.0)
    pq.commit()
    assert pq.take(10, now=1.0) == []
    assert pq.put(views(3))


@pytest.mark.row("D4")
def test_what_may_be_committed_is_the_smallest_offset_left() -> None:
    pq = holding(0, 1, 2, 3)
    assert [pq.remove(views(offset), now=1.0) for offset in (3, 1, 2)] == [0, 0, 0]
    assert pq.remove(views(0), now=1.0) == 4
    assert pq.remove(views(0), now=1.0) == NOTHING_CACHED


@pytest.mark.row("D4")
def test_offsets_that_the_filter_has_left_out_are_passed_over() -> None:
    pq = holding(5, 9, 14)
    assert pq.remove(views(5), now=1.0) == 9
    assert pq.remove(views(9, 14), now=1.0) == 15


@pytest.mark.row("D11")
def test_an_offset_is_held_once() -> None:
    pq = holding(3, 4)
    pq.put([view_at(3, b"xyz"), view_at(4, b"xyz")])
    assert pq.cached == CachedQueue(messages=2, bytes=2, first_offset=3, last_offset=4)


@pytest.mark.row("D11")
def test_an_offset_that_is_with_the_orderly_listener_is_not_held_a_second_time() -> None:
    pq = holding(3, 4)
    pq.take(1, now=1.0)
    pq.put(views(3))
    assert pq.cached.messages == 2
    assert offsets_of(pq.take(10, now=1.0)) == [4]


@pytest.mark.row("D5")
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["put", "remove", "take", "commit", "rollback", "again"]), st.lists(st.integers(0, 12))
        )
    )
)
def test_counts_are_right_and_never_negative(steps: list[tuple[str, list[int]]]) -> None:
    pq = ProcessQueue(now=0.0)
    waiting: set[int] = set()
    taken: set[int] = set()
    highest = -1
    for step, offsets in steps:
        messages = [view_at(offset, b"x" * offset) for offset in offsets]
        match step:
            case "put":
                pq.put(messages)
                waiting |= set(offsets) - taken
                highest = max({highest} | waiting)
            case "remove":
                had, waiting = bool(waiting), waiting - set(offsets)
                commit = min(waiting) if waiting else highest + 1
                assert pq.remove(messages, now=0.0) == (commit if had else NOTHING_CACHED)
            case "take":
                batch = set(sorted(waiting)[: len(offsets)])
                assert offsets_of(pq.take(len(offsets), now=0.0)) == sorted(batch)
                waiting, taken = waiting - batch, taken | batch
            case "commit":
                assert pq.commit() == (max(taken) + 1 if taken else NOTHING_CACHED)
                taken = set()
            case "rollback":
                pq.rollback()
                waiting, taken = waiting | taken, set()
            case "again":
                pq.consume_again(messages)
                waiting, taken = waiting | (taken & set(offsets)), taken - set(offsets)
        cached = pq.cached
        assert (cached.messages, cached.bytes) == (len(waiting) + len(taken), sum(waiting) + sum(taken))
        assert cached.span == (max(waiting) - min(waiting) if waiting else 0)
        assert pq.is_empty is (not waiting and not taken)


@pytest.fixture
def restless_threads() -> Iterator[None]:
    """Threads change often, so that what needs a lock shows it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.row("D2")
@pytest.mark.usefixtures("restless_threads")
def test_threads_that_put_and_remove_lose_nothing() -> None:
    pq = ProcessQueue(now=0.0)
    threads, each = 6, 300
    commits: list[int] = []
    begin = threading.Barrier(threads)

    def work(thread: int) -> None:
        mine = [thread + threads * i for i in range(each)]
        begin.wait()
        pq.put(views(*mine))
        chance = random.Random(thread)
        chance.shuffle(mine)
        for offset in mine:
            commits.append(pq.remove(views(offset), now=0.0))
            cached = pq.cached
            assert cached.messages >= 0
            assert cached.bytes == cached.messages, "one byte each: both were read in one moment"
            assert cached.span >= 0

    running = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert pq.is_empty
    assert pq.cached == CachedQueue(0, 0, None, None)
    assert max(commits) == threads * each


@pytest.mark.row("D6")
def test_a_dropped_queue_takes_in_and_hands_out_nothing() -> None:
    pq = holding(0, 1, 2)
    pq.start(views(0), now=0.0)
    pq.take(1, now=0.0)
    pq.dropped = True
    assert not pq.put(views(7))
    assert pq.claim(views(1)) == []
    assert pq.expired(1_000.0, consume_timeout=1.0, most=16) == []
    assert pq.take(1, now=0.0) == []
    assert pq.commit() == NOTHING_CACHED
    assert pq.remove(views(1), now=0.0) == NOTHING_CACHED
    assert pq.cached.last_offset == 2


@pytest.mark.row("D7")
def test_a_pull_is_expired_after_its_time() -> None:
    pq = ProcessQueue(now=100.0)
    assert not pq.is_pull_expired(220.0, 120.0)
    assert pq.is_pull_expired(220.1, 120.0)
    assert pq.is_pull_expired(105.1, 5.0)
    pq.pulled(220.1)
    assert not pq.is_pull_expired(340.0, 120.0)


def test_the_unfinished_span_counts_what_has_finished_behind_a_message_that_has_not() -> None:
    pq = ProcessQueue(now=0.0)
    assert pq.unfinished_span == 0
    pq.put(views(*range(10, 15)))
    pq.remove(views(*range(11, 15)), now=0.0)
    assert (pq.cached.span, pq.unfinished_span) == (0, 4)
    pq.remove(views(10), now=0.0)
    assert pq.unfinished_span == 0


@pytest.mark.row("D8")
def test_a_lock_holds_for_half_a_minute() -> None:
    pq = ProcessQueue(now=100.0)
    assert not pq.may_consume(100.0), "never granted"
    pq.lock(200.0)
    assert pq.may_consume(230.0)
    assert not pq.may_consume(230.1)
    assert pq.locked and pq.is_lock_expired(230.1)
    pq.lock(230.1)
    assert pq.may_consume(260.0)
    pq.unlock()
    assert not pq.may_consume(230.2)
    pq.lock(231.0)
    pq.dropped = True
    assert not pq.may_consume(231.0)


@pytest.mark.row("D9")
def test_orderly_take_and_commit() -> None:
    pq = holding(4, 5, 6)
    assert offsets_of(pq.take(2, now=1.0)) == [4, 5]
    assert pq.cached == CachedQueue(messages=3, bytes=3, first_offset=6, last_offset=6)
    assert pq.commit() == 6
    assert pq.cached.messages == 1
    assert pq.commit() == NOTHING_CACHED


@pytest.mark.row("D9")
def test_orderly_rollback_brings_the_batch_again_from_its_beginning() -> None:
    pq = holding(4, 5, 6)
    pq.take(2, now=1.0)
    pq.rollback()
    assert pq.commit() == NOTHING_CACHED
    assert offsets_of(pq.take(3, now=1.0)) == [4, 5, 6]


@pytest.mark.row("D9")
def test_orderly_consume_again_brings_those_messages_again() -> None:
    pq = holding(4, 5, 6)
    pq.take(2, now=1.0)
    pq.consume_again(views(5, 6))
    assert offsets_of(pq.take(3, now=1.0)) == [5, 6]
    assert pq.commit() == 7


def test_what_takes_too_long_is_found_at_the_head_alone() -> None:
    pq = holding(0, 1, 2, 3)
    pq.start(views(0, 1), now=0.0)
    pq.start(views(2), now=500.0)
    pq.start(views(3), now=0.0)
    assert pq.expired(900.0, consume_timeout=900.0, most=16) == []
    assert offsets_of(pq.expired(900.1, consume_timeout=900.0, most=16)) == [0, 1]
    assert pq.expired(900.1, consume_timeout=900.0, most=16) == [], "the first sweep has claimed them"


def test_a_sweep_is_bounded() -> None:
    pq = holding(*range(40))
    pq.start(views(*range(40)), now=0.0)
    assert offsets_of(pq.expired(901.0, consume_timeout=900.0, most=16)) == list(range(16))


def test_a_message_is_decided_on_by_one() -> None:
    pq = holding(0, 1, 2)
    pq.start(views(0, 1), now=0.0)
    late = pq.expired(901.0, consume_timeout=900.0, most=1)
    assert offsets_of(pq.claim(views(0, 1))) == [1], "what the sweep hands back is no longer the listener's"
    assert pq.remove(late, now=901.0) == 1
    assert pq.claim(views(0)) == []


def test_a_claim_that_came_to_nothing_may_be_made_again() -> None:
    pq = holding(0)
    pq.start(views(0), now=0.0)
    late = pq.expired(901.0, consume_timeout=900.0, most=16)
    assert pq.claim(views(0)) == [], "the listener ends meanwhile"
    pq.disclaim(late)
    assert offsets_of(pq.expired(902.0, consume_timeout=900.0, most=16)) == [0], "nobody else would ever free it"
    pq.disclaim(late)
    pq.start(views(0), now=903.0)
    assert pq.expired(1_800.0, consume_timeout=900.0, most=16) == [], "started anew, it is not late yet"
    assert offsets_of(pq.claim(views(0))) == [0]


def test_cleared_it_is_as_new() -> None:
    pq = holding(0, 1)
    pq.start(views(0), now=0.0)
    pq.take(1, now=0.0)
    pq.clear()
    assert pq.cached == CachedQueue(0, 0, None, None)
    assert pq.put(views(0))


def test_it_shows_what_it_holds() -> None:
    assert repr(holding(3, 8)) == "<ProcessQueue 2 messages 2 bytes offsets=3..8 dropped=False locked=False>"
