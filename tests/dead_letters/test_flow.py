"""An operator's actions in a running broker: each answers about what it names, among others of its kind."""

from __future__ import annotations

import pytest

from popserver.dead_letters import flow, selecting
from popserver.dead_letters.flow import Redrives
from popserver.dead_letters.rules import LetterSelection, RedriveItem, Repair, Selection
from popserver.messages import read
from popserver.model.errors import BadRequest, IllegalMessageId, IllegalTopic, MessageNotFound, NotFound, PopError
from popserver.model.names import Resource, dead_letter_topic
from popserver.model.states import PlanState
from tests.support.builders import GROUP, TOPIC, a_message
from tests.support.running_broker import RunningBroker

OTHERS, OTHER_TOPIC = Resource("", "others"), Resource("", "other")
OF_GROUP, OF_OTHERS = LetterSelection(GROUP), LetterSelection(OTHERS)


async def die(broker: RunningBroker, *bodies: bytes, group: Resource = GROUP, topic: Resource = TOPIC) -> list[str]:
    """Dead letters of new messages; their message ids."""
    sent = [a_message(topic, body=body) for body in bodies]
    await broker.send(sent)
    for each in await broker.receive(group=group, topic=topic):
        await broker.broker.forward_to_dead_letter_queue(group, topic, each.receipt_handle)
    return [each.message_id for each in sent]


async def ids_of(redrives: Redrives, of: LetterSelection = OF_GROUP) -> list[int]:
    return [each.dead_letter_id for each in (await redrives.dead_letters(of, 0, 0, bodies=False)).letters]


@pytest.fixture
async def redrives(broker: RunningBroker) -> Redrives:
    await broker.topic()
    await broker.group(OTHERS)
    return broker.broker.redrives()


async def test_a_plan_is_answered_for_by_its_own_facts(broker: RunningBroker, redrives: Redrives) -> None:
    await die(broker, b"1", b"2", b"3")
    for plan_id, ids in (("p1", (1,)), ("p2", (1, 2)), ("p3", (1, 2, 3))):
        first, second, third = await ids_of(redrives)
        chosen = {1: first, 2: second, 3: third}
        only = Selection(ids=tuple(chosen[each] for each in ids))
        plan = await redrives.plan(plan_id, LetterSelection(GROUP, None, only), f"why {plan_id}", None, "ops")
        assert (plan.plan_id, plan.state, plan.planned, plan.reason) == (plan_id, "PLANNED", len(ids), f"why {plan_id}")
        assert (plan.group, plan.created_by, plan.target) == (GROUP, "ops", None)
    assert (await redrives.run("p2", 1)).plan.plan_id == "p2"
    step = await redrives.run("p2", 0)
    assert (step.plan.plan_id, step.plan.state, step.redriven, step.skipped) == ("p2", "DONE", 1, 0)
    cancelled = await redrives.cancel("p1")
    assert (cancelled.plan_id, cancelled.state) == ("p1", PlanState.CANCELLED)
    assert [each.plan_id for each in await redrives.plans(GROUP, None)] == ["p3", "p2", "p1"]
    assert [each.plan_id for each in await redrives.plans(None, "p2")] == ["p2"]
    assert await redrives.plans(OTHERS, None) == []
    assert len(await redrives.redrives("p2", 0, 0)) == 2
    assert [each.dead_letter_id for each in await redrives.redrives("p2", 0, 1)] == [first]
    assert [each.dead_letter_id for each in await redrives.redrives("p2", first, 0)] == [second]


async def test_a_plan_without_a_name_gets_one(broker: RunningBroker, redrives: Redrives) -> None:
    await die(broker, b"1")
    plans = [await redrives.plan("", OF_GROUP, "", None, "") for _ in range(2)]
    assert len({each.plan_id for each in plans}) == 2
    assert all(each.plan_id.startswith("plan-") for each in plans)


async def test_a_page_has_dead_letters_of_its_group_and_topic(broker: RunningBroker, redrives: Redrives) -> None:
    await broker.topic(OTHER_TOPIC)
    sent = await die(broker, b"1", b"2")
    theirs = await die(broker, b"3", group=GROUP, topic=OTHER_TOPIC)
    # Another group gets all messages of the topic, and gives one up.
    await broker.send([a_message(body=b"4")])
    (first, *_) = await broker.receive(group=OTHERS)
    await broker.broker.forward_to_dead_letter_queue(OTHERS, TOPIC, first.receipt_handle)
    page = await redrives.dead_letters(OF_GROUP, 0, 0, bodies=True)
    assert [each.stored.message.message_id for each in page.letters if each.stored] == sent + theirs
    assert [each.stored.message.body for each in page.letters if each.stored] == [b"1", b"2", b"3"]
    assert [(each.group, each.topic, each.queue_number, each.queue_offset) for each in page.letters] == [
        (GROUP, TOPIC, 0, 0),
        (GROUP, TOPIC, 0, 1),
        (GROUP, OTHER_TOPIC, 0, 0),
    ]
    assert [(each.attempt, each.redrive_state, each.plan_id) for each in page.letters] == [(1, "", "")] * 3
    assert page.next_after_id is None
    page = await redrives.dead_letters(LetterSelection(GROUP, OTHER_TOPIC), 0, 0, bodies=False)
    assert [each.stored.message.body for each in page.letters if each.stored] == [b""]
    assert len(await ids_of(redrives, OF_OTHERS)) == 1
    ids = await ids_of(redrives)
    page = await redrives.dead_letters(OF_GROUP, ids[0], 1, bodies=False)
    assert ([each.dead_letter_id for each in page.letters], page.next_after_id) == ([ids[1]], ids[1])
    page = await redrives.dead_letters(LetterSelection(GROUP, None, Selection(ids=tuple(ids))), ids[0], 0, bodies=False)
    assert [each.dead_letter_id for each in page.letters] == ids[1:]


async def test_a_page_has_32_unless_it_says_otherwise(broker: RunningBroker, redrives: Redrives) -> None:
    for _ in range(2):
        await die(broker, *[b"x"] * 20)
    assert len(await ids_of(redrives)) == 32
    assert len((await redrives.dead_letters(OF_GROUP, 0, 40, bodies=False)).letters) == 40
    plan = await redrives.plan("p", OF_GROUP, "", None, "")
    assert len(await redrives.redrives(plan.plan_id, 0, 0)) == 32
    assert len(await redrives.redrives(plan.plan_id, 0, 40)) == 40
    assert await redrives.purge(OF_GROUP, 0, 0) == (40, None)
    assert await redrives.purge(OF_GROUP, 0, 0) == (0, None)


async def test_one_is_found_by_the_id_of_its_message(broker: RunningBroker, redrives: Redrives) -> None:
    first, second = await die(broker, b"1", b"2")
    found = await redrives.dead_letter(GROUP, second)
    assert found.stored is not None
    assert (found.stored.message.message_id, found.stored.message.body) == (second, b"2")
    with pytest.raises(MessageNotFound, match=f"group 'others' has no dead letter with message id '{first}'"):
        await redrives.dead_letter(OTHERS, first)
    with pytest.raises(IllegalMessageId, match="blank"):
        await redrives.dead_letter(GROUP, " ")
    with pytest.raises(PopError):
        await redrives.dead_letter(Resource("", "a b"), first)


async def test_named_dead_letters_are_answered_in_the_order_of_the_request(
    broker: RunningBroker, redrives: Redrives
) -> None:
    await die(broker, b"1", b"2", b"3")
    first, second, third = await ids_of(redrives)
    orders = [RedriveItem(third, "own reason"), RedriveItem(first, "", Repair(body=b"mended"))]
    done = await redrives.redrive("p1", GROUP, orders, "the plan's", None, "ops")
    told = [(each.dead_letter_id, each.state, each.change, each.reason) for each in done]
    assert told == [(third, "REDRIVEN", "NONE", "own reason"), (first, "REDRIVEN", "REPAIR", "the plan's")]
    (plan,) = await redrives.plans(GROUP, "p1")
    assert (plan.state, plan.redriven, plan.reason, plan.created_by) == ("DONE", 2, "the plan's", "ops")
    assert await ids_of(redrives) == [second]
    assert sorted(each.stored.message.body for each in await broker.receive()) == [b"3", b"mended"]


async def test_to_a_target_they_go_as_its_plan_says(broker: RunningBroker, redrives: Redrives) -> None:
    await broker.topic(OTHER_TOPIC)
    await die(broker, b"1", b"2")
    first, _ = await ids_of(redrives)
    (done,) = await redrives.redrive("p1", GROUP, [RedriveItem(first)], "", OTHER_TOPIC, "")
    assert done.state == "REDRIVEN"
    plan = await redrives.plan("p2", OF_GROUP, "", OTHER_TOPIC, "")
    assert (plan.target, plan.planned) == (OTHER_TOPIC, 1)
    await redrives.run("p2", 0)
    received = await broker.receive(group=OTHERS, topic=OTHER_TOPIC)
    assert [each.stored.message.body for each in received] == [b"1", b"2"]
    with pytest.raises(BadRequest, match="redrive plan 'p2' does not send to its group alone; use another plan id"):
        await redrives.plan("p2", OF_GROUP, "", None, "")
    with pytest.raises(IllegalTopic):
        await redrives.redrive("p3", GROUP, [RedriveItem(first)], "", dead_letter_topic(GROUP), "")


@pytest.mark.parametrize("plan_id", ["", "a b", "x" * 65])
async def test_a_name_that_is_none_is_refused(redrives: Redrives, plan_id: str) -> None:
    with pytest.raises(BadRequest, match="plan id"):
        await redrives.run(plan_id, 0)
    with pytest.raises(BadRequest, match="plan id"):
        await redrives.cancel(plan_id)
    with pytest.raises(BadRequest, match="plan id"):
        await redrives.redrives(plan_id, 0, 0)
    with pytest.raises(BadRequest, match="plan id"):
        await redrives.plans(None, plan_id)


async def test_a_plan_that_does_not_exist_is_named(redrives: Redrives) -> None:
    with pytest.raises(NotFound, match="'p1' does not exist"):
        await redrives.redrives("p1", 0, 0)
    assert await redrives.plans(None, "p1") == []


async def test_a_new_message_has_the_tag_of_its_dead_letter_or_of_its_repair(
    broker: RunningBroker, redrives: Redrives
) -> None:
    await broker.topic(OTHER_TOPIC)
    await broker.send([a_message(tag="A", body=b"1"), a_message(tag="A", body=b"2")])
    for each in await broker.receive():
        await broker.broker.forward_to_dead_letter_queue(GROUP, TOPIC, each.receipt_handle)
    first, second = await ids_of(redrives)
    orders = [RedriveItem(first), RedriveItem(second, "", Repair(tag="B"))]
    await redrives.redrive("p1", GROUP, orders, "", OTHER_TOPIC, "")
    for tag, body in (("B", b"2"), ("A", b"1")):
        (received,) = await broker.receive(group=Resource("", f"only-{tag}"), topic=OTHER_TOPIC, wanted=tag)
        assert (received.stored.message.body, received.stored.message.tag) == (body, tag)


async def test_a_page_that_ends_early_says_where_it_goes_on(
    broker: RunningBroker, redrives: Redrives, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(broker, *[b"x"] * 5)
    ids = await ids_of(redrives)
    monkeypatch.setattr(selecting, "STEP_ROWS_MAX", 3)
    nothing = LetterSelection(GROUP, None, Selection(where="TAGS = 'none'"))
    page = await redrives.dead_letters(nothing, 0, 0, bodies=False)
    assert (page.letters, page.next_after_id) == ([], ids[2])
    page = await redrives.dead_letters(nothing, ids[2], 0, bodies=False)
    assert (page.letters, page.next_after_id) == ([], None)


async def test_a_page_has_as_many_bodies_as_fit_into_an_answer(
    broker: RunningBroker, redrives: Redrives, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(broker, *[b"ten bytes."] * 4)
    ids = await ids_of(redrives)
    monkeypatch.setattr(read, "PAGE_BYTES_MAX", 30)
    for after_id, bodies, expected in (
        (0, True, (ids[:3], ids[2])),
        (ids[2], True, (ids[3:], None)),
        (0, False, (ids, None)),
    ):
        page = await redrives.dead_letters(OF_GROUP, after_id, 0, bodies=bodies)
        assert ([each.dead_letter_id for each in page.letters], page.next_after_id) == expected


async def test_a_plan_is_recorded_with_the_step_that_ends_at_its_last_dead_letter(
    broker: RunningBroker, redrives: Redrives, monkeypatch: pytest.MonkeyPatch
) -> None:
    await die(broker, *[b"x"] * 3)
    monkeypatch.setattr(selecting, "STEP_ROWS_MAX", 3)
    monkeypatch.setattr(flow, "STEPS_OF_A_CALL", 1)
    plan = await redrives.plan("p", OF_GROUP, "", None, "")
    assert (plan.state, plan.planned) == (PlanState.PLANNED, 3)
