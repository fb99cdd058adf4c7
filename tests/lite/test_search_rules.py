"""A search for the messages of lite topics: which client gets which, what waits, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.delivery.ready import RedrivenRow
from popserver.fifo.positions import MessageGroupKey, Opened
from popserver.filters import tags
from popserver.model.group import ConsumeFrom, Group, HistoryLevel, LiteModel
from popserver.model.names import Resource
from popserver.model.retry import Holder, RetryPolicy
from popserver.model.topic import MessageQueue, MessageType, Topic, message_key
from popserver.receiving import lite, lite_scan
from popserver.receiving.batch import OpenGroup, Receive
from popserver.receiving.lite import LiteFound
from popserver.receiving.lite_scan import _FREE, _HAS_EXPIRED, _HAS_POSITION, _IS_HELD, _LiteSearch, _NewRow, _Waiting
from popserver.receiving.receive import receive_batch_of

QUEUE = 5
TOPIC = Topic(2, Resource("", "orders"), (MessageQueue(QUEUE, 0),), (MessageType.LITE,), 0)


def a_group(model: LiteModel | None = LiteModel.SHARED) -> Group:
    return Group(1, Resource("", "g"), RetryPolicy(), ConsumeFrom.EARLIEST, HistoryLevel.ALL, None, 0, model)


def a_receive(client_id: str, batch_size: int = 4, *, heads_only: bool = False) -> Receive:
    everything = tags.parse("*")
    return Receive(a_group(), TOPIC, everything, batch_size, 1, Holder.SIMPLE, client_id, 0, heads_only=heads_only)


def key_of(lite_topic: str) -> MessageGroupKey:
    return MessageGroupKey(TOPIC.topic_id, QUEUE, lite_topic)


def row(offset: int, lite_topic: str, client_id: str | None, is_taken: int = _FREE) -> _NewRow:
    return _NewRow(message_key(QUEUE, offset), lite_topic, client_id, is_taken)


def an_open_group(lite_topic: str, *, has_found: bool = True, next_offset: int | None = None) -> OpenGroup:
    found: Any = [object()] if has_found else []
    return OpenGroup(key_of(lite_topic), found, next_offset, stays_open=False)


def a_search(
    *several: Receive,
    capacities: dict[str, int] | None = None,
    open_groups: dict[str, list[OpenGroup]] | None = None,
    again: dict[str, list[RedrivenRow]] | None = None,
) -> _LiteSearch:
    batch = receive_batch_of(several)
    clients = lite.clients_of(batch, several)
    wanted = {each: sum(one.batch_size for one in receives) for each, receives in clients.items()}
    passed = LiteFound(
        [], open_groups or {}, again or {}, wanted if capacities is None else capacities, left_over=False
    )
    return _LiteSearch(batch, clients, passed)


def given(search: _LiteSearch) -> dict[str, list[int]]:
    """The offsets that each client gets."""
    return {each: [key - message_key(QUEUE, 0) for key, _ in keys] for each, keys in search._keys.items() if keys}


class TestMessages:
    def test_go_to_the_clients_of_their_lite_topics(self) -> None:
        search = a_search(a_receive("a"), a_receive("b"))
        assert search.needed == 8
        assert search.take(QUEUE, [row(0, "x", "a"), row(1, "y", "b"), row(2, "x", "a"), row(3, "z", "a")]) == 4
        assert given(search) == {"a": [0, 2, 3], "b": [1]}
        assert (search.needed, search.waiting, search.with_position) == (4, {}, set())

    def test_wait_if_their_client_has_enough_or_does_not_ask(self) -> None:
        search = a_search(a_receive("a", 1), a_receive("b"))
        rows = [row(0, "x", "a"), row(1, "x", "a"), row(2, "y", "c"), row(3, "z", None), row(4, "x", "a")]
        assert search.take(QUEUE, rows) == 5
        assert given(search) == {"a": [0]}
        assert search.waiting == {
            key_of("x"): _Waiting(1, "a", is_held=False, is_single=False),
            key_of("y"): _Waiting(2, "c", is_held=False, is_single=True),
            key_of("z"): _Waiting(3, None, is_held=False, is_single=True),
        }

    def test_behind_one_that_waits_wait_too(self) -> None:
        search = a_search(a_receive("a", 1), a_receive("b", 4))
        assert search.take(QUEUE, [row(0, "y", "a"), row(1, "x", "a"), row(2, "x", "b")]) == 3
        assert given(search) == {"a": [0]}
        assert search.waiting == {key_of("x"): _Waiting(1, "a", is_held=False, is_single=False)}

    def test_of_held_lite_topics_wait(self) -> None:
        search = a_search(a_receive("a"))
        search.take(
            QUEUE, [row(0, "x", "a", _IS_HELD), row(1, "y", "a", _HAS_POSITION), row(2, "y", "a", _HAS_POSITION)]
        )
        assert given(search) == {}
        assert search.waiting == {key_of("x"): _Waiting(0, "a", is_held=True, is_single=True)}
        assert search.with_position == {key_of("y")}

    def test_of_expired_lite_topics_are_skipped(self) -> None:
        search = a_search(a_receive("a"))
        assert search.take(QUEUE, [row(0, "x", "a", _HAS_EXPIRED), row(1, "y", "a")]) == 2
        assert (given(search), search.waiting, search.with_position) == ({"a": [1]}, {}, set())

    def test_of_one_lite_topic_go_to_the_client_that_got_the_first(self) -> None:
        search = a_search(a_receive("a"), a_receive("b"))
        search.take(QUEUE, [row(0, "x", "a"), row(1, "x", "b")])
        assert given(search) == {"a": [0, 1]}

    def test_follow_those_of_an_open_lite_topic(self) -> None:
        open_groups = {
            "b": [an_open_group("x"), an_open_group("y", next_offset=7), an_open_group("z", has_found=False)]
        }
        search = a_search(a_receive("a"), a_receive("b"), open_groups=open_groups)
        search.take(QUEUE, [row(0, "x", "a"), row(1, "y", "a"), row(2, "z", "a")])
        assert given(search) == {"a": [1, 2], "b": [0]}

    def test_of_a_client_that_takes_heads_are_one_of_each_lite_topic(self) -> None:
        search = a_search(a_receive("a", heads_only=True), a_receive("b"))
        search.take(QUEUE, [row(0, "x", "a"), row(1, "x", "a"), row(2, "y", "b"), row(3, "y", "b"), row(4, "z", "a")])
        assert given(search) == {"a": [0, 4], "b": [2, 3]}
        assert search.waiting == {key_of("x"): _Waiting(1, "a", is_held=False, is_single=True)}


class TestASearchEnds:
    def test_when_all_clients_have_enough(self) -> None:
        search = a_search(a_receive("a", 2))
        assert not search.is_enough
        assert search.take(QUEUE, [row(0, "x", "a"), row(1, "y", "a"), row(2, "z", "a")]) == 2
        assert (search.is_enough, search.needed, search.waiting) == (True, 0, {})

    def test_before_it_begins_if_nothing_is_needed(self) -> None:
        assert a_search(a_receive("a"), capacities={"a": 0}).is_enough
        assert a_search(a_receive("a"), a_receive("b"), capacities={"a": -3, "b": 0}).is_enough
        search = a_search(a_receive("a"), a_receive("b"), capacities={"a": -3, "b": 1})
        assert (search.needed, search.is_enough) == (1, False)

    @pytest.mark.parametrize(("of_others", "ends"), [(4, False), (5, True)])
    def test_early_if_the_rest_is_small_and_most_that_it_reads_is_of_others(self, of_others: int, ends: bool) -> None:
        """Of 32 it needs 4 more, which is an eighth."""
        search = a_search(a_receive("a", 32))
        search.take(QUEUE, [row(at, f"x{at}", "a") for at in range(28)])
        assert not search.is_enough
        search.take(QUEUE, [row(100 + at, f"y{at}", "c") for at in range(of_others)])
        assert (search.needed, search.is_enough) == (4, ends)

    def test_not_early_while_more_than_an_eighth_is_needed(self) -> None:
        search = a_search(a_receive("a", 32))
        search.take(QUEUE, [row(at, f"x{at}", "a") for at in range(27)])
        search.take(QUEUE, [row(100 + at, f"y{at}", "c") for at in range(20)])
        assert (search.needed, search.is_enough) == (5, False)

    def test_not_early_while_a_client_has_nothing(self) -> None:
        search = a_search(a_receive("a", 31), a_receive("b", 1))
        search.take(QUEUE, [row(at, f"x{at}", "a") for at in range(31)])
        search.take(QUEUE, [row(100 + at, f"y{at}", "c") for at in range(20)])
        assert (search.needed, search.is_enough) == (1, False)
        found: tuple[dict[str, Any], ...] = (
            {"open_groups": {"b": [an_open_group("z")]}},
            {"again": {"b": [RedrivenRow(message_key(QUEUE, 7), 0, "b")]}},
        )
        for each in found:
            search = a_search(a_receive("a", 31), a_receive("b", 1), **each)
            search.take(QUEUE, [row(at, f"x{at}", "a") for at in range(31)])
            search.take(QUEUE, [row(100 + at, f"y{at}", "c") for at in range(20)])
            assert search.is_enough


class TestClients:
    def test_have_receives_of_their_own_if_they_choose(self) -> None:
        several = [a_receive("a"), a_receive("b"), a_receive("a", 7)]
        batch = receive_batch_of(several)
        assert lite.clients_of(batch, several) == {"a": [several[0], several[2]], "b": [several[1]]}
        batch = batch._replace(group=a_group(None))
        assert lite.clients_of(batch, several) == {"": several}

    def test_get_each_open_lite_topic_once(self) -> None:
        x, y, z = (Opened(QUEUE, name, 0, 0, 0) for name in "xyz")
        elsewhere = x._replace(queue_id=6)
        opened = {"a": [x, y], "b": [y, elsewhere, z], "c": [z, x]}
        assert lite._each_once(opened) == {"a": [x, y], "b": [elsewhere, z], "c": []}
        assert lite._each_once({"a": [x, x]}) == {"a": [x, x]}

    @pytest.mark.parametrize(
        ("capacity", "opened", "share"),
        [(32, 1, 32), (31, 1, 16), (32, 4, 8), (32, 5, 4), (3, 1, 2), (3, 3, 1), (1, 4, 1), (0, 1, 1)],
    )
    def test_take_a_power_of_two_of_each(self, capacity: int, opened: int, share: int) -> None:
        assert lite._share([a_receive("a")], capacity, opened) == share
        assert lite._share([a_receive("a"), a_receive("a", heads_only=True)], capacity, opened) == 1


def test_a_read_asks_for_enough_rows() -> None:
    needed = a_search(a_receive("a", 100)).needed
    assert lite_scan._READ_PER_NEEDED * needed == 100
    assert (lite_scan._READ_MIN, lite_scan._SCANNED_MAX) == (64, 2_000)
