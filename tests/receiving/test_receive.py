"""READY → INFLIGHT: what a receive grants, in which order, and what it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from popserver.catalog import topics
from popserver.filters.tags import parse
from popserver.model.errors import PopError
from popserver.model.group import ConsumeFrom, HistoryLevel
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.receiving import receive
from popserver.receiving.batch import Received
from tests.support.builders import messages_of
from tests.support.open_store import SECOND, START_MS, OpenStore, a_receive, bodies, ids, receipt_of


def test_nothing_stored_nothing_granted(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    group = store.group(meets=[topic])
    received = store.one(receive.receive, a_receive(group, topic))
    assert received == Received([], more=False)
    assert store.due_ms is None


def test_a_batch_comes_in_stored_order_once(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    sent = messages_of(5)
    store.send(topic, sent)
    first = store.one(receive.receive, a_receive(group, topic, 3))
    second = store.one(receive.receive, a_receive(group, topic, 3))
    assert [first.more, second.more] == [True, False]
    assert ids(first.deliveries) + ids(second.deliveries) == [each.message_id for each in sent]
    assert store.receive(group, topic) == []
    assert set(store.states(group).values()) == {State.INFLIGHT}


def test_a_grant_names_attempt_end_and_a_hold_of_its_own(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    granted = store.receive(group, topic, invisible_ms=12 * SECOND, client_id="me", holder=Holder.PUSH)
    receipts = [receipt_of(each) for each in granted]
    assert {each.attempt for each in granted} == {1}
    assert (
        {each.visible_at_ms for each in granted} == {START_MS + 12 * SECOND} == {each.ends_at_ms for each in receipts}
    )
    assert len({each.hold_id for each in receipts}) == 3
    assert store.due_ms == START_MS + 12 * SECOND
    row = store.delivery_of(group, receipts[0].message_key)
    assert (row.state, row.attempt, row.hold_id, row.holder, row.client_id) == (
        State.INFLIGHT,
        1,
        receipts[0].hold_id,
        Holder.PUSH,
        "me",
    )


def test_hold_ids_never_count(store: OpenStore) -> None:
    """64 random bits: from one handle nobody may guess the next."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 32)
    holds = [receipt_of(each).hold_id for each in store.receive(group, topic)]
    assert all(0 <= hold < 2**63 for hold in holds)
    assert sum(abs(one - other) < 2**40 for one, other in pairwise(sorted(holds))) == 0


def test_every_queue_is_read_whichever_comes_first(store: OpenStore) -> None:
    topic = store.topic(queues=3)
    group = store.group(meets=[topic])
    for queue in range(3):
        store.send(topic, 2, queue=queue, body=b"%d" % queue)
    assert bodies(store.receive(group, topic, 3, rotation=1)) == [b"1", b"1", b"2"]
    # Queue 1 is read to its end; of those left the first is queue 0.
    assert bodies(store.receive(group, topic, 3, rotation=2)) == [b"0", b"0", b"2"]


def test_the_first_queue_rotates(store: OpenStore) -> None:
    topic = store.topic(queues=4)
    group = store.group(meets=[topic])
    for queue in range(4):
        store.send(topic, 9, queue=queue, body=b"%d" % queue)
    firsts = [bodies(store.receive(group, topic, 1, rotation=rotation))[0] for rotation in range(4)]
    assert firsts == [b"0", b"1", b"2", b"3"]


@pytest.mark.row("K2")
@pytest.mark.row("K3")
@pytest.mark.row("G1")
def test_members_of_a_group_share_out_one_queue(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    sent = messages_of(300)
    store.send(topic, sent)
    got: dict[str, list[str]] = {"a": [], "b": [], "c": []}
    for turn in range(30):
        member = "abc"[turn % 3]
        got[member] += ids(store.receive(group, topic, 10, client_id=member))
    assert [len(each) for each in got.values()] == [100, 100, 100]
    assert sorted(id_ for each in got.values() for id_ in each) == sorted(each.message_id for each in sent)


@pytest.mark.row("G3")
def test_groups_know_nothing_of_each_other(store: OpenStore) -> None:
    topic = store.topic()
    one, other = store.group("one", meets=[topic]), store.group("other", meets=[topic])
    store.send(topic, 4)
    held = store.receive(one, topic, 3)
    store.ack(one, held[0])
    assert list(store.states(one).values()) == [State.COMMIT, State.INFLIGHT, State.INFLIGHT, State.READY]
    assert set(store.states(other).values()) == {State.READY}
    assert len(store.receive(other, topic)) == 4
    assert [store.lag(group).ready for group in (one, other)] == [1, 0]


def test_a_new_group_starts_where_it_was_told(store: OpenStore) -> None:
    topic = store.topic(queues=2)
    store.send(topic, 3, queue=0)
    earliest = store.group("earliest", meets=[topic])
    latest = store.group("latest", meets=[topic], consume_from=ConsumeFrom.LATEST)
    (after,) = store.send(topic, 1, queue=1)
    assert len(store.receive(earliest, topic)) == 4
    assert ids(store.receive(latest, topic)) == [after.message_id]
    assert store.lag(latest).ready == 0


class TestReadyAgain:
    """Messages that come again have their share of a batch, and no more while new ones wait."""

    def test_half_of_a_batch(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 20)
        again = ids(store.receive(group, topic, 10, invisible_ms=SECOND))
        store.end_due(after_ms=SECOND)
        granted = store.receive(group, topic, 8)
        assert [each.attempt for each in granted] == [2, 2, 2, 2, 1, 1, 1, 1]
        assert set(ids(granted[:4])) <= set(again)

    def test_the_whole_batch_when_nothing_new_waits(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 10)
        store.receive(group, topic, 10, invisible_ms=SECOND)
        store.end_due(after_ms=SECOND)
        received = store.one(receive.receive, a_receive(group, topic, 8))
        assert [each.attempt for each in received.deliveries] == [2] * 8
        assert received.more

    def test_a_batch_of_one_takes_turns(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 4)
        store.receive(group, topic, 2, invisible_ms=SECOND)
        store.end_due(after_ms=SECOND)
        attempts = [store.receive(group, topic, 1, rotation=turn)[0].attempt for turn in range(4)]
        assert attempts == [1, 2, 1, 2]

    def test_what_new_ones_leave_of_a_batch_is_filled_up(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 6)
        store.receive(group, topic, 6, invisible_ms=SECOND)
        store.end_due(after_ms=SECOND)
        store.send(topic, 1)
        granted = store.receive(group, topic, 7)
        assert sorted(each.attempt for each in granted) == [1, 2, 2, 2, 2, 2, 2]

    @pytest.mark.parametrize("rotation", [0, 1])
    def test_they_are_found_behind_new_ones_nobody_wants(self, store: OpenStore, rotation: int) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic, 2, tag="A")
        store.receive(group, topic, wanted=parse("A"), invisible_ms=SECOND)
        store.end_due(after_ms=SECOND)
        store.send(topic, 3, tag="B")
        received = store.one(receive.receive, a_receive(group, topic, 1, wanted=parse("A"), rotation=rotation))
        assert [each.attempt for each in received.deliveries] == [2]
        assert received.more, "another one is left for the next poll"

    def test_the_longest_waiting_first(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        sent = messages_of(3)
        store.send(topic, sent)
        for invisible_ms in (3, 1, 2):
            store.receive(group, topic, 1, invisible_ms=invisible_ms * SECOND)
        store.end_due(after_ms=3 * SECOND)
        assert [ids(store.receive(group, topic, 1))[0] for _ in range(3)] == [sent[n].message_id for n in (1, 2, 0)]

    @pytest.mark.row("K7")
    def test_a_new_grant_a_new_attempt_and_a_new_hold(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        store.send(topic)
        (first,) = store.receive(group, topic, invisible_ms=SECOND, client_id="a")
        assert store.receive(group, topic) == [], "nobody gets it while it is held"
        store.end_due(after_ms=SECOND)
        (second,) = store.receive(group, topic, client_id="b")
        assert [first.attempt, second.attempt] == [1, 2]
        assert receipt_of(first).hold_id != receipt_of(second).hold_id
        assert store.delivery_of(group, receipt_of(second).message_key).client_id == "b"


def test_a_stale_view_of_the_topic_still_reads_a_queue_added_since(store: OpenStore) -> None:
    """A poll that was parked when the queue came, or another server."""
    topic = store.topic()
    group = store.group(meets=[topic])
    grown = store.one(topics.update_topic, topics.UpdateTopic(topic.name, queue_count=2))
    store.send(grown, 1, queue=1)
    (granted,) = store.receive(group, topic)
    assert granted.stored.queue_number == 1


class TestTogether:
    """Receives of one transaction: each gets what it would get alone, and none gets another's."""

    def test_they_share_out_what_there_is_in_turn(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        sent = [each.message_id for each in store.send(topic, 7)]
        wishes = [a_receive(group, topic, size) for size in (3, 2, 4, 1)]
        received = granted(store.do(receive.receive, *wishes))
        assert [ids(each.deliveries) for each in received] == [sent[:3], sent[3:5], sent[5:], []]
        assert [each.more for each in received] == [True, True, False, False]

    def test_each_holds_in_its_own_name_and_for_its_own_time(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic], history=HistoryLevel.ALL)
        store.send(topic, 2)
        store.receive(group, topic, invisible_ms=0)
        store.end_due()
        store.send(topic, 2)
        wishes = [
            a_receive(group, topic, 1, client_id=client_id, holder=holder, invisible_ms=seconds * SECOND)
            for client_id, holder, seconds in (
                ("a", Holder.SIMPLE, 30),
                ("b\N{SNOWMAN}'\"", Holder.PUSH, 10),
                ("c", Holder.SIMPLE, 20),
            )
        ]
        for request, each in zip(wishes, granted(store.do(receive.receive, *wishes)), strict=True):
            (held,) = each.deliveries
            assert held.visible_at_ms == store.now_ms + request.invisible_ms == receipt_of(held).ends_at_ms
            row = store.delivery_of(group, receipt_of(held).message_key)
            assert (row.client_id, row.holder, row.visible_at_ms) == (
                request.client_id,
                request.holder,
                held.visible_at_ms,
            )
        assert store.due_ms == store.now_ms + 10 * SECOND
        takers = store.rows("SELECT client_id FROM history WHERE event = 'RECEIVE' ORDER BY history_id")
        assert [row.client_id for row in takers[-3:]] == [each.client_id for each in wishes]

    def test_of_different_groups_topics_and_filters(self, store: OpenStore) -> None:
        one, other = store.topic("one"), store.topic("other")
        a, b = store.group("a", meets=[one, other]), store.group("b", meets=[one, other])
        for topic in (one, other):
            for tag in "AB":
                store.send(topic, 1, tag=tag, body=f"{topic.name.name} {tag}".encode())
        wishes = [
            a_receive(a, one, wanted=parse("A")),
            a_receive(b, other),
            a_receive(a, one, wanted=parse("B")),
            a_receive(b, one, wanted=parse("B")),
            a_receive(a, other, wanted=parse("A||B")),
        ]
        received = granted(store.do(receive.receive, *wishes))
        assert [bodies(each.deliveries) for each in received] == [
            [b"one A"],
            [b"other A", b"other B"],
            [],  # judged by the group's first filter, and passed over
            [b"one B"],
            [b"other A", b"other B"],
        ]

    def test_more_than_a_step(self, store: OpenStore) -> None:
        topic = store.topic()
        group = store.group(meets=[topic])
        sent = [each.message_id for each in store.send(topic, 1_200)]
        received = granted(store.do(receive.receive, *[a_receive(group, topic, 32)] * 40))
        assert [message_id for each in received for message_id in ids(each.deliveries)] == sent
        assert [len(each.deliveries) for each in received] == [32] * 37 + [16, 0, 0]


def granted(outcomes: Sequence[Received | PopError]) -> list[Received]:
    return [each for each in outcomes if isinstance(each, Received)]


@pytest.mark.row("K9")
def test_a_hold_that_ran_out_is_not_repeated(store: OpenStore) -> None:
    """Its time is over though it has not been ended yet: its message may be another's in a moment."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (first,) = store.receive(group, topic, invisible_ms=10 * SECOND, attempt_id="a")
    store.now_ms += 10 * SECOND - 1
    (again,) = store.receive(group, topic, invisible_ms=10 * SECOND, attempt_id="a")
    assert again.receipt_handle == first.receipt_handle
    store.now_ms += 1
    assert store.receive(group, topic, invisible_ms=10 * SECOND, attempt_id="a") == []
    store.end_due()
    (next_one,) = store.receive(group, topic, attempt_id="a")
    assert (next_one.attempt, store.ack(group, next_one)) == (2, [None])
