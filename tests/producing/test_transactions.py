"""Half messages: unseen until they are committed, decided once, and asked about when nobody decides."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from popserver.database.schema import pending
from popserver.messages import read
from popserver.messages.pending_messages import topics_of_sender
from popserver.model.errors import InvalidTransactionId
from popserver.model.topic import MessageType
from popserver.producing.half_messages import (
    CHECKS_PER_STEP_MAX,
    Decision,
    ReturnChecks,
    end_transaction,
    return_checks,
)
from popserver.producing.rules import CheckPolicy, Resolution
from tests.support.builders import TOPIC
from tests.support.open_store import HOUR, MINUTE, SECOND, START_MS, OpenStore
from tests.support.pending_store import (
    a_delayed,
    a_half,
    commit,
    decide,
    decision,
    enter_due,
    ids_in,
    pend,
    roll_back,
    take_checks,
)

COMMIT, ROLLBACK = Resolution.COMMIT, Resolution.ROLLBACK

pytestmark = pytest.mark.timeout(14)  # a decision that is not made is asked for again, without an end


def test_nobody_sees_it_before_it_is_committed(store: OpenStore) -> None:
    topic = store.topic()
    group = store.group(meets=[topic])
    half = a_half(tag="A", keys=("k",), properties={"p": "v"})
    (result,) = pend(store, topic, half)
    assert len(result.transaction_id) == 24
    assert store.check_ms == START_MS + 6 * SECOND
    assert enter_due(store, after_ms=HOUR) == 0
    assert store.receive(group, topic) == []
    assert commit(store, topic, result) is True
    assert store.rings == {topic.topic_id}
    (received,) = store.receive(group, topic)
    assert received.stored.message == half._replace(message_type=MessageType.NORMAL)
    assert received.stored.stored_at_ms == START_MS + HOUR
    assert ids_in(store, "pending") == []


def test_what_is_rolled_back_is_gone(store: OpenStore) -> None:
    topic = store.topic()
    (half,) = pend(store, topic, a_half())
    assert roll_back(store, topic, half) is True
    assert ids_in(store, "pending") == ids_in(store, "message") == []
    assert store.rings == set()


def test_the_first_decision_counts(store: OpenStore) -> None:
    topic = store.topic()
    committed, rolled_back = pend(store, topic, a_half(), a_half())
    commit(store, topic, committed)
    roll_back(store, topic, rolled_back)
    before = store.digest()
    assert commit(store, topic, committed) is True
    assert roll_back(store, topic, rolled_back) is True
    refusal = commit(store, topic, rolled_back)
    assert isinstance(refusal, InvalidTransactionId)
    assert rolled_back.transaction_id in refusal.sentence
    too_late = roll_back(store, topic, committed)
    assert isinstance(too_late, InvalidTransactionId)
    assert "was committed before and cannot be rolled back" in too_late.sentence
    assert store.digest() == before


@pytest.mark.parametrize(
    ("said", "answers"),
    [
        ([COMMIT, COMMIT, ROLLBACK], [True, True, InvalidTransactionId]),
        ([ROLLBACK, COMMIT, ROLLBACK], [True, InvalidTransactionId, True]),
    ],
    ids=["commit", "rollback"],
)
def test_the_first_counts_within_one_transaction_too(
    store: OpenStore, said: list[Resolution], answers: list[Any]
) -> None:
    topic = store.topic()
    (half,) = pend(store, topic, a_half())
    found = store.do(end_transaction, *(decision(topic, half, each) for each in said))
    assert [each.is_made if isinstance(each, Decision) else type(each) for each in found] == answers
    assert [each.age_ms is not None for each in found if isinstance(each, Decision)].count(True) == 1
    assert len(ids_in(store, "message")) == (said[0] is COMMIT)


def test_decisions_of_several_topics_in_any_order(store: OpenStore) -> None:
    topics = [store.topic(f"t{number}", queues=2) for number in range(3)]
    halves = [(topic, half) for topic in topics for half in pend(store, topic, a_half(), a_half())]
    wishes = [decision(topic, half, COMMIT) for topic, half in (halves[5], halves[0], halves[3], halves[1])]
    assert store.do(end_transaction, *wishes) == [Decision(is_made=True, age_ms=0)] * 4
    assert len(ids_in(store, "message")) == 4
    assert ids_in(store, "pending") == [halves[2][1].message_id, halves[4][1].message_id]


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
def test_a_wrong_transaction_id_decides_nothing(store: OpenStore, resolution: Resolution) -> None:
    topic = store.topic()
    (half,) = pend(store, topic, a_half())
    before = store.digest()
    assert isinstance(decide(store, topic, half, resolution, transaction_id="0" * 16), InvalidTransactionId)
    assert store.digest() == before


@pytest.mark.parametrize("resolution", [COMMIT, ROLLBACK])
def test_a_wrong_transaction_id_is_known_after_the_decision_too(store: OpenStore, resolution: Resolution) -> None:
    topic = store.topic()
    committed, rolled_back, other = pend(store, topic, a_half(), a_half(), a_half())
    commit(store, topic, committed)
    roll_back(store, topic, rolled_back)
    before = store.digest()
    for half in (committed, rolled_back):
        for wrong in ("x", "0" * 24, other.transaction_id, half.transaction_id[:-1], half.transaction_id.lower()):
            assert isinstance(decide(store, topic, half, resolution, transaction_id=wrong), InvalidTransactionId)
    assert store.digest() == before


def test_the_transaction_id_of_an_older_server_counts_while_its_half_is_there(store: OpenStore) -> None:
    topic = store.topic()
    halves = pend(store, topic, a_half(), a_half(), a_half())
    store.conn.execute(update(pending).values(transaction_id="0123456789ABCDEF"))
    committed, rolled_back, third = (half._replace(transaction_id="0123456789ABCDEF") for half in halves)
    assert commit(store, topic, committed) is True
    assert roll_back(store, topic, rolled_back) is True
    twice = [decision(topic, third, COMMIT)] * 2
    assert store.do(end_transaction, *twice) == [Decision(is_made=True, age_ms=0), Decision(is_made=True)]


def test_an_unknown_half_cannot_be_committed(store: OpenStore) -> None:
    topic = store.topic()
    (half,) = pend(store, store.topic("other"), a_half())
    assert isinstance(commit(store, topic, half), InvalidTransactionId)
    assert isinstance(roll_back(store, topic, half), InvalidTransactionId), "of this topic it is no transaction"
    assert ids_in(store, "pending") == [half.message_id]


def test_a_delayed_message_is_no_half(store: OpenStore) -> None:
    topic = store.topic()
    (late,) = pend(store, topic, a_delayed(store))
    for resolution in Resolution:
        assert isinstance(decide(store, topic, late, resolution, transaction_id="x"), InvalidTransactionId)
    assert ids_in(store, "pending") == [late.message_id]


def test_a_repeated_half_gets_the_first_transaction(store: OpenStore) -> None:
    topic = store.topic()
    half = a_half()
    (first,) = pend(store, topic, half)
    assert pend(store, topic, half) == [first]
    commit(store, topic, first)
    # Its answer was lost, and others have committed it meanwhile: committing it again must do no harm.
    (again,) = pend(store, topic, half)
    assert again.transaction_id
    assert commit(store, topic, again) is True
    assert ids_in(store, "message") == [half.message_id]


def test_sent_again_after_a_rollback_it_is_another_transaction(store: OpenStore) -> None:
    topic = store.topic()
    half = a_half()
    (first,) = pend(store, topic, half)
    roll_back(store, topic, first)
    (second,) = pend(store, topic, half)
    assert second.transaction_id != first.transaction_id
    assert isinstance(roll_back(store, topic, first), InvalidTransactionId)
    assert commit(store, topic, second) is True


def test_when_it_is_asked_about(store: OpenStore) -> None:
    topic = store.topic()
    patient = a_half(recovery_ms=HOUR)
    half = a_half(body=b"whole", tag="A")
    (_, result) = pend(store, topic, patient, half, client_id="p7")
    assert take_checks(store, topic, after_ms=6 * SECOND - 1).checks == []
    taken = take_checks(store, topic, after_ms=1)
    (check,) = taken.checks
    assert check.stored.message == half
    assert (check.transaction_id, check.client_id, check.checks_before) == (result.transaction_id, "p7", 0)
    assert taken.next_check_ms == START_MS + 36 * SECOND
    assert take_checks(store, topic).checks == []
    (check,) = take_checks(store, topic, after_ms=30 * SECOND).checks
    assert check.checks_before == 1
    commit(store, topic, result)
    assert take_checks(store, topic).next_check_ms == START_MS + HOUR
    (check,) = take_checks(store, topic, after_ms=HOUR).checks
    assert check.stored.message.message_id == patient.message_id


def test_after_the_last_check_it_is_given_up(store: OpenStore) -> None:
    topic = store.topic()
    policy = CheckPolicy(SECOND, SECOND, 3)
    (half,) = pend(store, topic, a_half())
    store.now_ms += 6 * SECOND
    for checks_before in range(3):
        taken = take_checks(store, topic, after_ms=SECOND, policy=policy)
        assert [each.checks_before for each in taken.checks] == [checks_before]
        assert taken.discarded == []
    taken = take_checks(store, topic, after_ms=SECOND, policy=policy)
    assert taken == ([], [(TOPIC, half.message_id, 3)], None)
    assert ids_in(store, "pending") == []
    assert isinstance(commit(store, topic, half), InvalidTransactionId)


def test_a_check_that_reached_nobody_does_not_count(store: OpenStore) -> None:
    topic = store.topic()
    pend(store, topic, a_half())
    (check,) = take_checks(store, topic, after_ms=MINUTE).checks
    store.one(return_checks, ReturnChecks([check.pending_id]))
    (again,) = take_checks(store, topic).checks
    assert again.checks_before == 0


def test_only_the_named_topics_are_asked_about(store: OpenStore) -> None:
    topic, other = store.topic(), store.topic("other")
    pend(store, other, a_half(), client_id="p9")
    assert take_checks(store, topic, after_ms=MINUTE) == ([], [], None)
    assert len(take_checks(store, topic, other).checks) == 1
    assert topics_of_sender(store.conn, "p9") == {other.topic_id}
    assert topics_of_sender(store.conn, "p1") == set()


def test_many_are_asked_about_in_steps(store: OpenStore) -> None:
    topic = store.topic()
    pend(store, topic, *(a_half() for _ in range(CHECKS_PER_STEP_MAX + 1)))
    first = take_checks(store, topic, after_ms=MINUTE)
    assert len(first.checks) == CHECKS_PER_STEP_MAX
    assert first.next_check_ms is not None
    assert first.next_check_ms <= store.now_ms
    assert len(take_checks(store, topic).checks) == 1


def test_a_step_carries_so_many_bytes(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "PAGE_BYTES_MAX", 25)
    topic = store.topic()
    pend(store, topic, *(a_half(body=bytes(10)) for _ in range(3)))
    assert [len(take_checks(store, topic, after_ms=after_ms).checks) for after_ms in (MINUTE, 0, 0)] == [2, 1, 0]
