"""Which queues belong to which member."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from popclient._queues.allocation import (
    AllocateStrategy,
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ByMachineRoom,
    ConsistentHash,
    MachineRoomNearby,
    allocate,
    strategy_of,
)
from popclient.message import MessageQueue


def queues_of(topic: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(topic, queue_id) for queue_id in range(count)]


def members_of(count: int) -> list[str]:
    return [f"c{i:02}" for i in range(1, count + 1)]


def shares(strategy: AllocateStrategy, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[list[int]]:
    """Queue ids of each member, the members in order."""
    return [[mq.queue_id for mq in allocate(strategy, "g", member, queues, members)] for member in sorted(members)]


def room_of_queue(mq: MessageQueue) -> str:
    return "north" if mq.queue_id % 3 == 0 else "south" if mq.queue_id % 3 == 1 else "empty"


def room_of_member(client_id: str) -> str:
    return "north" if int(client_id[1:]) % 2 else "south"


COMPLETE: list[AllocateStrategy] = [
    Averagely(),
    AveragelyByCircle(),
    ConsistentHash(),
    MachineRoomNearby(room_of_queue, room_of_member),
    MachineRoomNearby(room_of_queue, room_of_member, AveragelyByCircle()),
    ByMachineRoom(frozenset({"north", "south", "empty"}), room_of_queue),
]


@pytest.mark.row("J4")
@pytest.mark.parametrize(
    ("queues", "members", "expected"),
    [
        (6, 1, [[0, 1, 2, 3, 4, 5]]),
        (6, 2, [[0, 1, 2], [3, 4, 5]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (3, 2, [[0, 1], [2]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (2, 3, [[0], [1], []]),
    ],
)
def test_averagely_gives_contiguous_ranges_and_the_first_members_one_more(
    queues: int, members: int, expected: list[list[int]]
) -> None:
    assert shares(Averagely(), queues_of("t", queues), members_of(members)) == expected


@pytest.mark.row("J3")
@pytest.mark.row("J5")
@pytest.mark.parametrize("strategy", COMPLETE, ids=lambda each: type(each).__name__)
@settings(max_examples=40)
@given(data=st.data(), queues=st.integers(1, 40), members=st.integers(1, 12))
def test_whatever_the_order_of_the_views_all_queues_are_shared_and_none_twice(
    strategy: AllocateStrategy, data: st.DataObject, queues: int, members: int
) -> None:
    everything, everybody = queues_of("t", queues), members_of(members)
    taken = [
        allocate(strategy, "g", member, data.draw(st.permutations(everything)), data.draw(st.permutations(everybody)))
        for member in everybody
    ]
    assert sorted(chain.from_iterable(taken)) == everything


@pytest.mark.row("J5")
def test_by_circle_deals_out_one_by_one() -> None:
    assert shares(AveragelyByCircle(), queues_of("t", 8), members_of(3)) == [[0, 3, 6], [1, 4, 7], [2, 5]]


@pytest.mark.row("J5")
def test_by_config_a_member_has_what_is_named_and_there() -> None:
    strategy = ByConfig(frozenset({MessageQueue("t", 1), MessageQueue("t", 9), MessageQueue("u", 0)}))
    assert shares(strategy, queues_of("t", 4), ["c01"]) == [[1]]
    assert shares(strategy, queues_of("v", 4), ["c01"]) == [[]]


def test_a_retry_topic_that_no_config_names_is_consumed_all_the_same() -> None:
    strategy = ByConfig(frozenset({MessageQueue("t", 1)}))
    assert shares(strategy, queues_of("%RETRY%g", 1), members_of(2)) == [[0], []]
    nowhere = ByMachineRoom(frozenset({"north"}), lambda _: "elsewhere")
    assert shares(nowhere, queues_of("%RETRY%g", 1), members_of(2)) == [[0], []]
    assert shares(nowhere, queues_of("t", 4), members_of(2)) == [[], []]


@pytest.mark.row("J5")
def test_by_machine_room_queues_of_other_rooms_are_left_alone() -> None:
    strategy = ByMachineRoom(frozenset({"north"}), room_of_queue)  # 0, 3, 6, 9, 12
    assert shares(strategy, queues_of("t", 15), members_of(2)) == [[0, 3, 12], [6, 9]]


@pytest.mark.row("J5")
def test_nearby_a_room_shares_its_own_and_everybody_what_has_no_member() -> None:
    strategy = MachineRoomNearby(room_of_queue, room_of_member)
    # north: 0, 3, 6, 9 for c01 and c03; south: 1, 4, 7, 10 for c02; empty: 2, 5, 8, 11 for all three
    assert shares(strategy, queues_of("t", 12), members_of(3)) == [[0, 2, 3, 5], [1, 4, 7, 8, 10], [6, 9, 11]]


def test_nearby_refuses_what_has_no_room() -> None:
    with pytest.raises(ValueError, match=r"t:0 has no room; room_of_queue"):
        allocate(MachineRoomNearby(lambda _: "", room_of_member), "g", "c01", queues_of("t", 1), ["c01"])
    with pytest.raises(ValueError, match="c01 has no room"):
        allocate(MachineRoomNearby(room_of_queue, lambda _: ""), "g", "c01", queues_of("t", 1), ["c01"])


@pytest.mark.row("J5")
def test_with_a_consistent_hash_only_the_queues_of_who_leaves_move() -> None:
    queues, members = queues_of("t", 64), members_of(5)
    before = {mq: member for member in members for mq in allocate(ConsistentHash(), "g", member, queues, members)}
    stayed = members[:-1]
    after = {mq: member for member in stayed for mq in allocate(ConsistentHash(), "g", member, queues, stayed)}
    assert {mq for mq in queues if before[mq] != after[mq]} == {mq for mq in queues if before[mq] == members[-1]}


def test_a_consistent_hash_needs_a_place() -> None:
    with pytest.raises(ValueError, match="virtual_nodes is 0"):
        ConsistentHash(0)


@pytest.mark.row("J5")
@pytest.mark.parametrize(
    ("name", "kind"), [("AVG", Averagely), ("AVG_BY_CIRCLE", AveragelyByCircle), ("CONSISTENT_HASH", ConsistentHash)]
)
def test_strategies_have_names(name: str, kind: type) -> None:
    assert isinstance(strategy_of(name), kind)


@pytest.mark.row("J5")
@pytest.mark.parametrize(
    ("name", "way_out"),
    [("CONFIG", "ByConfig"), ("MACHINE_ROOM", "ByMachineRoom"), ("MACHINE_ROOM_NEARBY", "MachineRoomNearby")],
)
def test_a_name_that_does_not_say_all_leads_to_the_strategy_that_does(name: str, way_out: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' cannot be had by its name alone; give {way_out}\("):
        strategy_of(name)


def test_what_is_no_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="'AVERAGE'; it must be one of AVG, AVG_BY_CIRCLE"):
        strategy_of("AVERAGE")
    with pytest.raises(TypeError, match="allocate_strategy is 7"):
        strategy_of(7)  # type: ignore[arg-type]


def test_a_strategy_of_the_users_own_sees_sorted_views_and_gives_only_what_there_is() -> None:
    def all_to_first(
        group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> Sequence[MessageQueue]:
        assert (group, list(queues), list(members)) == ("g", queues_of("t", 3), ["a", "b"])
        return queues if client_id == members[0] else []

    assert strategy_of(all_to_first) is all_to_first
    assert allocate(all_to_first, "g", "a", queues_of("t", 3)[::-1], ["b", "a", "b"]) == queues_of("t", 3)
    with pytest.raises(ValueError, match=r"gave a u:0; it may give of t:0, t:1"):
        allocate(lambda *_: [MessageQueue("u", 0)], "g", "a", queues_of("t", 2), ["a"])


def test_who_is_not_a_member_yet_has_nothing_and_empty_views_are_no_views() -> None:
    assert allocate(Averagely(), "g", "stranger", queues_of("t", 3), ["a"]) == []
    with pytest.raises(ValueError, match="queues of group 'g' are empty; keep the present share"):
        allocate(Averagely(), "g", "a", [], ["a"])
    with pytest.raises(ValueError, match="members of group 'g' are empty"):
        allocate(Averagely(), "g", "a", queues_of("t", 3), [])
    with pytest.raises(ValueError, match="client_id is empty"):
        allocate(Averagely(), "g", "", queues_of("t", 3), ["a"])


def test_queues_sort_by_topic_then_id() -> None:
    assert sorted([MessageQueue("b", 0), MessageQueue("a", 10), MessageQueue("a", 2)]) == [
        MessageQueue("a", 2),
        MessageQueue("a", 10),
        MessageQueue("b", 0),
    ]
