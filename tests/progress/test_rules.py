"""The events of a reset for each state, the offsets that a queue stores, and what an operator is told to do."""

from __future__ import annotations

import pytest

from popserver.administration.why import HoldFacts, MessageFacts
from popserver.delivery.deliveries import DeliveryRow
from popserver.model.errors import IllegalOffset
from popserver.model.group import ConsumeFrom, Group, HistoryLevel
from popserver.model.names import Resource
from popserver.model.retry import RetryPolicy
from popserver.model.states import TRANSITIONS, Event, State
from popserver.model.topic import MessageQueue, Topic
from popserver.progress.rules import Edge, Goal, check_offset, events, skip_hint


@pytest.mark.parametrize("state", State)
@pytest.mark.parametrize("offset", [4, 5, 6])
def test_a_reset_leads_each_message_where_it_belongs(state: State, offset: int) -> None:
    """From the target on all are READY, before it all have ended; and each event is legal where it happens."""
    found = state
    for event in events(state, offset, 5):
        found = TRANSITIONS[found, event]
    assert found in ({State.READY} if offset >= 5 else {State.COMMIT, State.DLQ})


def test_the_fewest_events() -> None:
    assert events(State.READY, 5, 5) == ()
    assert events(State.COMMIT, 5, 5) == (Event.RESET,)
    assert events(State.READY, 4, 5) == events(State.WAITING_RETRY, 4, 5) == (Event.SKIP,)
    assert events(State.COMMIT, 4, 5) == events(State.DLQ, 4, 5) == ()
    assert events(State.INFLIGHT, 4, 5) == (Event.RESET, Event.SKIP)


def test_names_of_edges_are_on_the_wire() -> None:
    assert [each.value for each in Edge] == ["BEGINNING", "END"]


TOPIC = Topic(1, Resource("", "t"), (MessageQueue(7, 0),), (), 1_000)


@pytest.mark.parametrize("offset", [3, 4, 7])
def test_an_offset_that_the_queue_stores(offset: int) -> None:
    check_offset(Goal(TOPIC, TOPIC.queues[0], offset), offset, 3, 7)


@pytest.mark.parametrize("offset", [2, 8])
def test_an_offset_that_the_queue_does_not_store(offset: int) -> None:
    with pytest.raises(IllegalOffset, match=f"offset {offset} is not in queue 0 of topic 't', which stores 3 to 7"):
        check_offset(Goal(TOPIC, TOPIC.queues[0], offset), offset, 3, 7)


HEAD = HoldFacts("first", DeliveryRow(1, 2, 3, State.INFLIGHT, 1, 4, 2_000, "SIMPLE", "client", None))
GROUP = Group(1, Resource("", "g"), RetryPolicy(), ConsumeFrom.LATEST, HistoryLevel.ALL, None, 1_000)


@pytest.mark.parametrize(
    ("state", "head", "words"),
    [
        (None, None, "give the group its progress"),
        (State.INFLIGHT, None, "group skip --force"),
        (State.INFLIGHT, HEAD, "group skip --force"),
        (State.ACKED_IN_TRANSACTION, None, "group skip --force"),
        (State.READY, HEAD, f"skip {HEAD.message_id} first"),
        (State.ACKED_PROVISIONALLY, HEAD, f"skip {HEAD.message_id} first"),
        (State.READY, None, "only the next message"),
        (State.COMMIT, HEAD, "there is nothing left to skip"),
        (State.DLQ, None, "there is nothing left to skip"),
    ],
)
def test_what_an_operator_can_do_about_a_message(state: State | None, head: HoldFacts | None, words: str) -> None:
    facts = MessageFacts(group=GROUP, state=state, head=head)
    assert words in skip_hint(facts)
