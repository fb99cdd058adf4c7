"""Skipping one message: what can be noted is done, everything else is refused and changes nothing."""

from __future__ import annotations

import pytest

from popserver.administration import message_facts
from popserver.database.notifications import RESETS, Invalidation
from popserver.delivery.history import FORCED_SKIP
from popserver.model.errors import InvalidReceiptHandle, TooLate, TooManyRequests
from popserver.model.group import Group, HistoryLevel
from popserver.model.handles import decode_receipt
from popserver.model.retry import Holder
from popserver.model.states import SHOWN, TRANSITIONS, Event, State
from popserver.model.topic import Topic, message_key, queue_of
from popserver.progress import skip as progress_skip
from popserver.progress.rules import skip_hint
from popserver.progress.skip import Skipped
from popserver.pulling.rules import QueueProgress
from tests.support.builders import in_order
from tests.support.open_store import HOUR, SECOND, OpenStore
from tests.support.progress import (
    ORDERED,
    commit,
    offsets_of,
    pull_group,
    refused_skip,
    reset,
    skip,
    states_by_offset,
)
from tests.support.redrive import redrive_all


def test_one_that_waits_never_comes_again(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 2)
    held, _ = store.receive(group, topic, holder=Holder.PUSH)
    store.change(group, held, HOUR)
    done = skip(store, group, topic, 0)
    assert (done.is_done, done.found.state) == (True, State.WAITING_RETRY)
    assert states_by_offset(store, group, topic) == "CI"
    assert store.history(group)[-1] == ("SKIP", "WAITING_RETRY", "COMMIT", 1)
    assert store.due_now() == 0


def test_one_that_is_held_is_its_holders(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 1)
    store.receive(group, topic)
    done = refused_skip(store, group, topic, 0)
    assert done.found.state is State.INFLIGHT
    assert done.found.hold is not None
    assert (done.found.hold.row.client_id, done.found.hold.row.visible_at_ms) == ("c1", store.now_ms + 30 * SECOND)
    assert "its hold ends" in skip_hint(done.found)


def test_the_head_of_a_queue_needs_no_row(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    assert skip(store, group, topic, 0).is_done
    done = refused_skip(store, group, topic, 2)
    assert done.found.ahead == 1
    assert "popmq group reset" in skip_hint(done.found)
    assert offsets_of(store.receive(group, topic)) == [1, 2]


def test_holes_and_retention_do_not_hide_the_head(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 5)
    store.conn.exec_driver_sql("DELETE FROM message WHERE (message_key & 1099511627775) < 3")
    store.conn.exec_driver_sql("UPDATE queue SET min_offset = 2")
    assert skip(store, group, topic, 3).is_done
    assert offsets_of(store.receive(group, topic)) == [4]


def test_a_blocked_message_group_goes_on(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic], intervals_ms=[HOUR])
    store.send(topic, in_order("stuck", 6))
    head, second = store.receive(group, topic, 2, holder=Holder.PUSH)
    assert store.receive(group, topic) == []
    store.ack(group, second)
    store.change(group, head, HOUR)
    assert store.receive(group, topic) == []
    assert skip(store, group, topic, 0).is_done
    assert store.rings == {topic.topic_id}
    assert states_by_offset(store, group, topic) == "CCRRRR", "what was acked behind it counts"
    assert offsets_of(store.receive(group, topic)) == [2, 3, 4, 5]


def test_what_is_held_behind_a_skipped_one_keeps_its_message_group_locked(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    store.send(topic, in_order("a", 4))
    head, second = store.receive(group, topic, 2)
    store.change(group, head, 0, give_back=True)
    assert states_by_offset(store, group, topic) == "RIRR"
    assert skip(store, group, topic, 0).is_done
    assert store.receive(group, topic) == [], "the second is held"
    store.ack(group, second)
    assert offsets_of(store.receive(group, topic)) == [2, 3]


def test_the_first_left_behind_of_a_message_group(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    store.send(topic, in_order("a", 4))
    (head,) = store.receive(group, topic, 1)
    assert store.receive(group, topic) == []
    assert states_by_offset(store, group, topic) == "IRRR"
    behind = refused_skip(store, group, topic, 2)
    assert behind.found.head is not None
    assert skip_hint(behind.found) == f"skip {behind.found.head.message_id} first"
    assert skip(store, group, topic, 1).is_done, "it is the next of its group, whatever is held before it"
    store.ack(group, head)
    assert skip(store, group, topic, 2).is_done
    assert offsets_of(store.receive(group, topic)) == [3]
    assert states_by_offset(store, group, topic) == "CCCI"


def test_other_message_groups_messages_are_not_before_it(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    for message_group in "aaba":
        store.send(topic, in_order(message_group, 1))
    store.receive(group, topic, 1)
    assert offsets_of(store.receive(group, topic)) == [2]
    assert skip(store, group, topic, 1).is_done
    assert skip(store, group, topic, 3).is_done
    assert states_by_offset(store, group, topic) == "ICIC"


def test_the_head_of_a_queue_whose_message_group_stands_at_the_scan(store: OpenStore) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    store.send(topic, in_order("a", 3))
    (head,) = store.receive(group, topic, 1)
    store.change(group, head, 0, give_back=True)
    assert skip(store, group, topic, 1).is_done, "the second is the next new one of queue and group"
    assert offsets_of(store.receive(group, topic)) == [0]
    store.check()


@pytest.mark.parametrize("state", SHOWN)
def test_skip_in_every_state(store: OpenStore, state: State) -> None:
    """The cells of the law's grid for SKIP; for RESET see below."""
    topic, group = _in_state(store, state)
    assert states_by_offset(store, group, topic)[0] == state[0]
    if (state, Event.SKIP) not in TRANSITIONS:
        refused_skip(store, group, topic, 0)
        return
    assert skip(store, group, topic, 0).is_done
    assert states_by_offset(store, group, topic)[0] == "C"
    assert store.history(group)[-1][:3] == ("SKIP", state, "COMMIT")


@pytest.mark.parametrize("state", SHOWN)
def test_reset_in_every_state(store: OpenStore, state: State) -> None:
    topic, group = _in_state(store, state)
    seen = len(store.history(group))
    reset(store, group, topic, 0)
    assert states_by_offset(store, group, topic)[0] == "R"
    told = [("RESET", state, "READY")] if (state, Event.RESET) in TRANSITIONS else []
    assert [each[:3] for each in store.history(group)[seen:]] == told


def _in_state(store: OpenStore, state: State) -> tuple[Topic, Group]:
    topic = store.topic()
    group = store.group(meets=[topic], history=HistoryLevel.ALL)
    store.send(topic, 1)
    (held,) = store.receive(group, topic, holder=Holder.PUSH)
    if state is State.READY:
        store.change(group, held, 0, give_back=True)
    elif state is State.WAITING_RETRY:
        store.change(group, held, HOUR)
    elif state is State.COMMIT:
        store.ack(group, held)
    elif state is State.DLQ:
        store.forward(group, held)
    return topic, group


def test_what_the_group_never_met_has_nothing_to_skip(store: OpenStore) -> None:
    topic, group = store.topic(), store.group()
    store.send(topic, 1)
    assert "popmq group reset" in skip_hint(refused_skip(store, group, topic, 0).found)


@pytest.mark.row("H13")
def test_members_that_are_stuck_at_a_message_are_told(store: OpenStore) -> None:
    topic = store.topic()
    group = pull_group(store)
    store.send(topic, 9)
    commit(store, group, topic, 4, resets=0)
    refused_skip(store, group, topic, 5)
    assert skip(store, group, topic, 4).is_done
    assert store.outdated == {Invalidation(RESETS, *group.name)}
    late = commit(store, group, topic, 4, resets=0)
    assert isinstance(late.refusal, TooLate)
    assert late.stored == QueueProgress(5, 1)


def force(store: OpenStore, group: Group, topic: Topic, offset: int = 0) -> Skipped:
    key = message_key(topic.queues[0].queue_id, offset)
    return store.one(progress_skip.skip, progress_skip.Skip(group, topic.topic_id, key, force=True))


@pytest.mark.parametrize("history", HistoryLevel)
def test_a_held_message_is_skipped_by_force_and_its_holder_is_told(store: OpenStore, history: HistoryLevel) -> None:
    topic = store.topic()
    group = store.group(meets=[topic], history=history)
    store.send(topic, 2)
    held, other = store.receive(group, topic, 2)
    done = force(store, group, topic)
    assert done.is_done
    assert done.found.hold is not None
    assert (done.found.hold.row.client_id, done.found.hold.row.visible_at_ms) == ("c1", store.now_ms + 30 * SECOND)
    assert states_by_offset(store, group, topic) == "CI"
    assert store.history(group)[-2:] == [("RESET", "INFLIGHT", "READY", 1), ("SKIP", "READY", "COMMIT", 1)]
    reasons = store.rows("SELECT reason FROM history ORDER BY history_id DESC LIMIT 2")
    assert reasons == [(FORCED_SKIP,)] * 2
    for _ in range(2):
        (late, fine) = store.ack(group, held, other)
        assert isinstance(late, InvalidReceiptHandle)
        assert "an operator has skipped the message for group 'billing' while it was held" in late.sentence
        assert fine is None
    with pytest.raises(InvalidReceiptHandle):
        store.change(group, held, HOUR)
    assert store.receive(group, topic) == []
    reset(store, group, topic, 0)
    again, _ = store.receive(group, topic)
    assert store.ack(group, again) == [None]


def test_by_force_after_a_redrive_who_held_it_before_is_told(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (held,) = store.receive(group, topic, invisible_ms=HOUR)
    store.forward(group, held)
    redrive_all(store, group)
    (again,) = store.receive(group, topic)
    key = decode_receipt(again.receipt_handle).message_key
    topic_id = store.one_value(f"SELECT topic_id FROM queue WHERE queue_id = {queue_of(key)}")
    assert store.one(progress_skip.skip, progress_skip.Skip(group, topic_id, key, force=True)).is_done
    for handle in (again, held):
        (late,) = store.ack(group, handle)
        assert isinstance(late, InvalidReceiptHandle)
        assert "an operator has skipped the message" in late.sentence


def test_force_changes_nothing_else(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic, 3)
    assert not force(store, group, topic, 2).is_done, "not the next one"
    (first,) = store.receive(group, topic, 1)
    store.ack(group, first)
    assert not force(store, group, topic, 0).is_done, "it is done"
    assert force(store, group, topic, 1).is_done, "as without force"


@pytest.mark.parametrize("offset", [0, 1])
def test_by_force_in_a_message_group_the_others_go_on(store: OpenStore, offset: int) -> None:
    topic = store.topic(accepts=ORDERED)
    group = store.group(meets=[topic])
    store.send(topic, in_order("g", 4))
    held = store.receive(group, topic, 2)
    assert force(store, group, topic, offset).is_done
    store.check()
    assert store.receive(group, topic) == [], "the other one is held"
    assert store.ack(group, held[1 - offset]) == [None]
    assert offsets_of(store.receive(group, topic)) == [2, 3]
    store.check()


def test_a_message_that_another_server_grants_meanwhile_is_left(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was READY when it was looked up."""
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    (held,) = store.receive(group, topic)
    store.change(group, held, 0, give_back=True)
    stale = message_facts.of_stored(store.conn, group, message_key(topic.queues[0].queue_id, 0))
    store.receive(group, topic)
    assert stale.state is State.READY
    monkeypatch.setattr(message_facts, "of_stored", lambda *_: stale)
    refused_skip(store, group, topic, 0)


def test_by_force_a_message_that_a_users_transaction_acks_is_left(store: OpenStore) -> None:
    if store.database.is_sqlite:
        pytest.skip("SQLite has one writer")
    topic = store.topic()
    group = store.group(meets=[topic])
    store.send(topic)
    store.receive(group, topic)
    other = store.database.connect_writer()
    store.database.begin(other)
    other.exec_driver_sql("SELECT 1 FROM delivery FOR UPDATE")
    with pytest.raises(TooManyRequests, match="nothing is skipped, repeat the request"):
        force(store, group, topic)
    other.exec_driver_sql("ROLLBACK")
    other.close()
    assert force(store, group, topic).is_done
