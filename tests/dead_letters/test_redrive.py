"""Dead letters go back to their group: once, anew, and everything that may happen to them then."""

from __future__ import annotations

from functools import partial

import pytest

from popserver.administration import message_facts
from popserver.catalog import groups, topics
from popserver.dead_letters import plan_facts, plans, selecting
from popserver.dead_letters.plan_requests import PlanStep
from popserver.dead_letters.rules import RedriveItem, Repair, Selection
from popserver.dead_letters.selecting import page_of_letters
from popserver.messages.ranges import Work
from popserver.messages.spread import RUN
from popserver.model.errors import ConsumerGroupNotFound, NotFound
from popserver.model.group import Group
from popserver.model.message import REDRIVE_OF, REDRIVE_PLAN, id_from_bytes
from popserver.model.names import Resource
from popserver.model.retry import Holder
from popserver.model.states import State
from popserver.model.topic import MessageType, Topic
from tests.support.builders import in_order
from tests.support.open_store import MINUTE, SECOND, OpenStore, bodies, ids
from tests.support.redrive import (
    a_plan,
    cancel,
    die,
    give_up,
    letter_ids,
    letters,
    lineage,
    order,
    plan_state,
    redrive_all,
    run,
    write_plan,
)


@pytest.fixture
def topic(store: OpenStore) -> Topic:
    return store.topic(queues=2)


@pytest.fixture
def group(store: OpenStore, topic: Topic) -> Group:
    return store.group(meets=[topic], max_attempts=3)


@pytest.mark.row("L12")
def test_it_comes_to_its_group_alone_as_a_message_of_its_topic(store: OpenStore, topic: Topic, group: Group) -> None:
    other = store.group("others", meets=[topic])
    (dead,) = die(store, group, topic, tag="A", keys=("k",), properties={"p": "v"})
    store.ack(other, *store.receive(other, topic))
    assert redrive_all(store, group) == (1, 0)
    assert topic.topic_id in store.rung
    (row,) = store.rows("SELECT state, attempt, holder, client_id FROM delivery")
    assert tuple(row) == ("READY", 0, "SIMPLE", ""), "as of a message that nobody has received"
    assert store.states(group) == {dead: State.READY}
    assert (store.lag(group).ready, store.lag(group).dead_letters) == (1, 0)
    (held,) = store.receive(group, topic)
    message = held.stored.message
    assert (message.topic, message.message_id, message.tag, message.keys) == (topic.name, dead, "A", ("k",))
    assert message.properties == {"p": "v", REDRIVE_PLAN: "p1"}
    assert held.stored.dead_letter_of == (topic.name.name, dead)
    assert held.attempt == 1
    (letter,) = letters(store, group)
    assert (held.stored.queue_number, held.stored.offset) == (letter.queue_id, letter.queue_offset)
    assert (letter.redrive_state, letter.plan_id) == ("REDRIVEN", "p1")
    assert (store.states(group), store.lag(group).inflight) == ({dead: State.INFLIGHT}, 1)
    assert store.receive(other, topic) == []
    assert store.ack(group, held) == [None]
    assert store.states(group) == {dead: State.COMMIT}
    assert store.ack(group, held) == [None], "again, while its own end is to come"
    assert store.receive(group, topic) == []


@pytest.mark.row("O7")
def test_the_lineage_tells_what_became_of_it(store: OpenStore, topic: Topic, group: Group) -> None:
    (dead,) = die(store, group, topic)
    write_plan(store, group)
    (planned,) = lineage(store, "p1")
    assert (planned.state, planned.outcome, planned.redriven_at_ms) == ("PLANNED", None, None)
    assert (planned.topic, planned.consumer_group, planned.dead_reason) == (
        "orders",
        "billing",
        "forwarded by its consumer",
    )
    assert (planned.reason, planned.change, plan_state(store)) == ("fixed", "NONE", "PLANNED")
    run(store)
    assert [row.outcome for row in lineage(store, "p1")] == ["READY"]
    (held,) = store.receive(group, topic)
    assert [row.outcome for row in lineage(store, "p1")] == ["INFLIGHT"]
    give_up(store, group, [held])
    assert [row.outcome for row in lineage(store, "p1")] == ["DLQ"]
    redrive_all(store, group, "p2")
    assert [row.outcome for each in ("p1", "p2") for row in lineage(store, each)] == ["DLQ", "READY"]
    store.ack(group, *store.receive(group, topic))
    (first,), (second,) = lineage(store, "p1"), lineage(store, "p2")
    assert (first.outcome, second.outcome, second.state) == ("DLQ", "COMMIT", "REDRIVEN")
    assert bytes(second.message_id) == bytes(second.redriven_message_id)
    assert store.state(group, dead) is State.COMMIT


@pytest.mark.row("L12")
def test_its_attempts_begin_anew_and_it_dies_again_as_the_same_copy(
    store: OpenStore, topic: Topic, group: Group
) -> None:
    (dead,) = die(store, group, topic)
    (before,) = letters(store, group)
    redrive_all(store, group)
    for attempt in (1, 2, 3):
        (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=MINUTE)
        assert held.attempt == attempt
        store.change(group, held, SECOND)
        store.end_due(after_ms=SECOND)
    (after,) = letters(store, group)
    assert after.id > before.id
    assert (after.copy_key, after.origin_key, after.topic) == (before.copy_key, before.origin_key, "orders")
    assert (after.delivery_attempt, after.redrive_state, after.plan_id) == (3, None, None)
    assert store.states(group) == {dead: State.DLQ}
    assert store.rows("SELECT 1 FROM delivery") == []


@pytest.mark.parametrize("how", ["hold ends", "forwarded"])
def test_however_it_dies_again_its_origin_is_known(store: OpenStore, topic: Topic, how: str) -> None:
    group = store.group("once", meets=[topic], max_attempts=1)
    die(store, group, topic)
    (before,) = letters(store, group)
    redrive_all(store, group)
    (held,) = store.receive(group, topic, holder=Holder.PUSH, invisible_ms=MINUTE)
    if how == "forwarded":
        give_up(store, group, [held])
        assert store.forward(group, held) is None, "a repetition"
    else:
        store.end_due(after_ms=MINUTE)
    (after,) = letters(store, group)
    assert (after.origin_key, after.redrive_state) == (before.origin_key, None)
    assert after.id > before.id


class TestARepair:
    def test_is_a_new_message_for_the_group_alone(self, store: OpenStore, topic: Topic, group: Group) -> None:
        other = store.group("others", meets=[topic])
        first, second = die(store, group, topic, 2, tag="A", keys=("k",), properties={"p": "v", "q": "w"})
        one, two = letter_ids(store, group)
        repair = Repair(b"whole", "B", ("k1", "k2"), {"p": "new"})
        assert order(store, group, [RedriveItem(one, "no origin", repair), RedriveItem(two, "", Repair(tag=""))]) == (
            2,
            0,
        )
        held = sorted(store.receive(group, topic), key=lambda each: each.stored.offset)
        assert ids(held) == [first, second]
        assert bodies(held) == [b"whole", b"body"]
        assert [each.stored.message.tag for each in held] == ["B", None]
        assert [each.stored.message.keys for each in held] == [("k1", "k2"), ("k",)]
        properties = held[0].stored.message.properties
        assert (properties["p"], "q" in properties) == ("new", False)
        assert (properties[REDRIVE_OF], properties[REDRIVE_PLAN]) == (first, "p1")
        assert held[0].stored.dead_letter_of == (topic.name.name, first)
        assert [row.change for row in lineage(store, "p1")] == ["REPAIR", "REPAIR"]
        assert [row.reason for row in lineage(store, "p1")] == ["no origin", "fixed"]
        assert len(store.receive(other, topic)) == 2, "as they were sent"
        assert store.receive(group, topic) == []
        assert store.ack(group, *held) == [None, None]
        assert [row.outcome for row in lineage(store, "p1")] == ["COMMIT", "COMMIT"]

    def test_that_dies_again_is_the_same_dead_letter(self, store: OpenStore, topic: Topic, group: Group) -> None:
        (dead,) = die(store, group, topic)
        (before,) = letters(store, group)
        order(store, group, [RedriveItem(before.id, "", Repair(b"still wrong"))])
        give_up(store, group, store.receive(group, topic))
        (after,) = letters(store, group)
        assert (after.copy_key, after.origin_key, bytes(after.body)) == (before.copy_key, before.origin_key, b"body")
        assert store.states(group)[dead] is State.DLQ
        order(store, group, [RedriveItem(after.id, "", Repair(b"right"))], "p2")
        assert bodies(store.receive(group, topic)) == [b"right"]

    def test_may_be_repeated(self, store: OpenStore, topic: Topic, group: Group) -> None:
        die(store, group, topic)
        (one,) = letter_ids(store, group)
        orders = [RedriveItem(one, "", Repair(b"whole"))]
        assert order(store, group, orders) == (1, 0)
        before = store.digest()
        assert order(store, group, orders) == (0, 0)
        assert store.digest() == before
        give_up(store, group, store.receive(group, topic))
        assert order(store, group, orders) == (0, 0), "its dead letter has another id now"


def test_to_a_target_it_is_a_message_for_everybody(store: OpenStore, topic: Topic, group: Group) -> None:
    target = store.topic("repaired", queues=2)
    reader = store.group("readers", meets=[target])
    (dead,) = die(store, group, topic, properties={"p": "v"})
    assert redrive_all(store, group, target=target) == (1, 0)
    (held,) = store.receive(reader, target)
    message = held.stored.message
    assert message.message_id != dead
    assert message.properties == {"p": "v", REDRIVE_OF: dead, REDRIVE_PLAN: "p1"}
    (row,) = lineage(store, "p1")
    assert (row.target_topic, row.outcome) == ("repaired", None), "the group does not read it"
    assert id_from_bytes(bytes(row.redriven_message_id)) == message.message_id
    assert store.states(group) == {dead: State.COMMIT}
    store.meet(group, target)
    assert [row.outcome for row in lineage(store, "p1")] == ["READY"]
    give_up(store, group, store.receive(group, target))
    assert [row.outcome for row in lineage(store, "p1")] == ["DLQ"]


def test_a_plan_of_nothing_redrives_nothing(store: OpenStore, topic: Topic, group: Group) -> None:
    assert redrive_all(store, group) == (0, 0)
    assert plan_state(store) == "DONE"
    die(store, group, topic)
    assert run(store) == (0, 0), "what has died since is not of the plan"


def test_a_target_that_is_gone_keeps_its_name_in_the_record(store: OpenStore, topic: Topic, group: Group) -> None:
    target = store.topic(Resource("shop", "repaired"), queues=2)
    die(store, group, topic)
    redrive_all(store, group, target=target)
    store.one(topics.delete_topic, topics.DeleteTopic(target.name))
    store.purge()
    plan = plan_facts.plan(store.conn, "p1")
    (record,) = plan_facts.redrives(store.conn, "p1", 0, 10)
    assert plan is not None
    assert plan.target == record.target == target.name
    (row,) = lineage(store, "p1")
    assert (row.target_topic, row.outcome) == ("repaired", None)


def test_of_a_message_group_it_waits_for_nobody(store: OpenStore) -> None:
    topic = store.topic("ordered", queues=1)
    group = store.group("keeps-order", meets=[topic])
    store.send(topic, in_order("g", 3, topic=topic.name))
    first, second, third = store.receive(group, topic)
    give_up(store, group, [first])
    redrive_all(store, group)
    (again,) = store.receive(group, topic)
    assert ids([again]) == ids([first])
    store.check()
    assert store.ack(group, again, second, third) == [None] * 3


def test_it_is_waited_for_by_a_holder_that_comes_back(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic)
    redrive_all(store, group)
    (held,) = store.receive(group, topic, attempt_id="a1")
    (again,) = store.receive(group, topic, attempt_id="a1")
    assert again == held
    changed = store.change(group, held, MINUTE)
    assert store.ack(group, held)[0] is not None
    assert store.ack(group, changed) == [None]


def test_why_and_its_history_name_the_plan(store: OpenStore, topic: Topic, group: Group) -> None:
    (dead,) = die(store, group, topic)
    redrive_all(store, group)
    found, steps = message_facts.message_facts(store.conn, group.name, topic.name, dead, store.times)
    assert found.state is State.READY
    last = steps[-1]
    assert (last.event, last.client_id, last.reason) == ("REDRIVE", "", "redriven by plan p1: fixed")
    assert (last.from_state, last.to_state, last.attempt) == ("DLQ", "READY", 1)


def test_without_a_reason_its_history_names_the_plan_alone(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic)
    ids_there = letter_ids(store, group)
    store.one(plans.create_plan, a_plan(group, reason=""))
    store.one(plans.record_step, PlanStep("p1", 0, ids_there[-1], ids_there, is_last=True))
    assert run(store) == (1, 0)
    assert store.one_value("SELECT reason FROM history WHERE event = 'REDRIVE'") == "redriven by plan p1"


def test_many_fill_the_queues_of_their_target(store: OpenStore, topic: Topic, group: Group) -> None:
    target = store.topic("repaired", queues=2)
    die(store, group, topic, RUN + 1)
    assert redrive_all(store, group, target=target) == (RUN + 1, 0)
    query = "SELECT next_offset FROM queue WHERE topic_id = :id ORDER BY number"
    assert [row.next_offset for row in store.rows(query, id=target.topic_id)] == [9, 8]
    assert {row.redrive_state for row in letters(store, group)} == {"REDRIVEN"}


def test_of_a_message_group_it_is_in_a_target_a_message_like_others(store: OpenStore) -> None:
    topic, target = store.topic("ordered"), store.topic("repaired")
    group = store.group("keeps-order", meets=[topic, target])
    store.send(topic, in_order("g", 1, topic=topic.name))
    give_up(store, group, store.receive(group, topic))
    redrive_all(store, group, target=target)
    (held,) = store.receive(group, target)
    assert (held.stored.message.message_type, held.stored.message.message_group) == (MessageType.NORMAL, None)


def test_of_a_message_group_it_keeps_its_name_when_it_is_repaired(store: OpenStore) -> None:
    topic = store.topic("ordered")
    group = store.group("keeps-order", meets=[topic])
    store.send(topic, in_order("g", 1, topic=topic.name))
    give_up(store, group, store.receive(group, topic))
    order(store, group, [RedriveItem(letter_ids(store, group)[0], "", Repair(b"mended"))])
    (held,) = store.receive(group, topic)
    assert (held.stored.message.message_type, held.stored.message.message_group) == (MessageType.FIFO, "g")


def test_what_is_found_for_a_cancelled_plan_is_not_recorded(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic)
    store.one(plans.create_plan, a_plan(group))
    cancel(store)
    ids_there = letter_ids(store, group)
    store.one(plans.record_step, PlanStep("p1", 0, ids_there[-1], ids_there, is_last=True))
    assert (lineage(store, "p1"), plan_state(store)) == ([], "CANCELLED")


def test_with_their_group_its_plans_are_gone_at_once(store: OpenStore, topic: Topic, group: Group) -> None:
    die(store, group, topic)
    write_plan(store, group)
    store.one(groups.delete_group, groups.DeleteGroup(group.name))
    assert plan_state(store) == "PLANNED", "its row stays until it is purged"
    for act in (run, cancel):
        with pytest.raises(NotFound, match="redrive plan 'p1' does not exist"):
            act(store)
    with pytest.raises(ConsumerGroupNotFound):
        store.one(plans.create_plan, a_plan(group, "p2"))
    store.purge()
    with pytest.raises(ConsumerGroupNotFound):
        store.one(plans.create_plan, a_plan(group, "p2"))


def test_a_condition_meets_letters_of_a_topic_that_is_gone(store: OpenStore, topic: Topic, group: Group) -> None:
    other = store.topic("stays")
    store.meet(group, other)
    for each in (topic, other):
        die(store, group, each)
    gone, stays = letter_ids(store, group)
    store.one(topics.delete_topic, topics.DeleteTopic(topic.name))
    store.purge()
    for where, expected in (("TOPIC IS NULL", [gone]), ("TOPIC = 'stays'", [stays]), ("ATTEMPT = 1", [gone, stays])):
        assert page_of_letters(store.conn, group, Selection(where=where), 0, 10).ids == expected


def test_a_condition_meets_letters_of_a_message_group(store: OpenStore) -> None:
    topic = store.topic("ordered")
    group = store.group("keeps-order", meets=[topic])
    store.send(topic, in_order("g", 1, topic=topic.name))
    store.send(topic)
    give_up(store, group, store.receive(group, topic))
    ordered, other = letter_ids(store, group)
    for where, expected in (("MESSAGE_GROUP = 'g'", [ordered]), ("MESSAGE_GROUP IS NULL", [other])):
        assert page_of_letters(store.conn, group, Selection(where=where), 0, 10).ids == expected


def test_an_expensive_filter_ends_a_page_before_its_limit(
    store: OpenStore, topic: Topic, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the long tag is expensive: without it there is work left for both."""
    die(store, group, topic, 2, tag="x" * 4_800)
    first, second = letter_ids(store, group)
    monkeypatch.setattr(selecting, "Work", partial(Work, 200))
    fitting = Selection(where="TAGS IS NOT NULL")
    page = page_of_letters(store.conn, group, fitting, 0, 10)
    assert (page.ids, page.next_after_id) == ([first], first)
    page = page_of_letters(store.conn, group, fitting, first, 10)
    assert (page.ids, page.next_after_id) == ([second], None)
