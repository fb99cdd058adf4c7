"""Dead letters over the wire: selected, planned, sent back at a caller's pace, repaired, purged; and every refusal."""

from __future__ import annotations

from typing import Any

import pytest

from popproto.v1 import admin_pb2 as admin
from popproto.v2 import definition_pb2 as pb
from popserver.dead_letters import flow as dead_letters_flow
from tests.support.admin_server import AdminServer, named

GROUP, TOPIC = named("counters"), named("flights")


def of(**more: Any) -> admin.DeadLetterSelection:
    return admin.DeadLetterSelection(group=GROUP, **more)


def fill(admin_server: AdminServer, count: int = 4) -> list[int]:
    """Dead letters m0, m1, …; their ids."""
    admin_server.call("CreateTopic", topic=TOPIC, queue_count=1)
    admin_server.make_group("counters")
    for number in range(count):
        admin_server.send(
            "flights", f"m{number}", properties={"number": str(number)}, tag="odd" if number % 2 else "even"
        )
    for message in admin_server.receive("counters", "flights"):
        admin_server.give_up("counters", "flights", message)
    return [each.id for each in listed(admin_server)]


def listed(admin_server: AdminServer, **more: Any) -> list[admin.DeadLetter]:
    return list(admin_server.call("ListDeadLetters", selection=of(**more)).dead_letters)


def ids_of(letters: list[admin.DeadLetter]) -> list[str]:
    return [each.origin_message_id for each in letters]


@pytest.mark.row("L12")
@pytest.mark.row("O7")
def test_a_plan_is_written_down_and_run_at_the_callers_pace(admin_server: AdminServer) -> None:
    fill(admin_server)
    plan = admin_server.call("PlanRedrive", selection=of(where="number < 3"), reason="mended").plan
    assert (plan.state, plan.planned, plan.redriven, plan.reason) == ("PLANNED", 3, 0, "mended")
    assert len(listed(admin_server)) == 4, "nothing moves yet"
    step = admin_server.call("RunRedrive", plan_id=plan.plan_id, max=2)
    assert (step.plan.state, step.redriven, step.skipped, step.plan.planned) == ("RUNNING", 2, 0, 1)
    step = admin_server.call("RunRedrive", plan_id=plan.plan_id)
    assert (step.plan.state, step.redriven, step.plan.redriven) == ("DONE", 1, 3)
    step = admin_server.call("RunRedrive", plan_id=plan.plan_id)
    assert (step.status.code, step.plan.state, step.redriven) == (pb.OK, "DONE", 0)
    again = admin_server.receive("counters", "flights")
    assert [each.system_properties.message_id for each in again] == ["m0", "m1", "m2"]
    assert again[0].system_properties.delivery_attempt == 1
    assert again[0].user_properties["popmq.redrive-plan"] == plan.plan_id
    assert again[0].topic.name == "flights"
    parent = again[0].system_properties.dead_letter_queue
    assert (parent.topic, parent.message_id) == ("flights", "m0")
    admin_server.ack("counters", "flights", again[0])
    admin_server.give_up("counters", "flights", again[1])
    outcomes = [each.outcome for each in admin_server.call("ListRedrives", plan_id=plan.plan_id).redrives]
    assert outcomes == ["COMMIT", "DLQ", "INFLIGHT"]
    (only,) = admin_server.call("ListRedrives", plan_id=plan.plan_id, after_id=2, max=1).redrives
    assert (only.message_id, only.redriven_message_id, only.change, only.topic.name) == ("m2", "m2", "NONE", "flights")
    assert ids_of(listed(admin_server)) == ["m3", "m1"], "the newest death has the highest id"
    assert ids_of(listed(admin_server, redriven_too=True)) == ["m0", "m2", "m3", "m1"]
    assert [each.plan_id for each in listed(admin_server, redriven_too=True)] == [plan.plan_id, plan.plan_id, "", ""]


@pytest.mark.user("U21")
def test_a_dry_run_names_message_target_change_and_reason(admin_server: AdminServer) -> None:
    fill(admin_server, 2)
    admin_server.call("CreateTopic", topic=named("mended"))
    fields: dict[str, Any] = {"plan_id": "p1", "selection": of(), "reason": "feed mended", "target": named("mended")}
    assert admin_server.call("PlanRedrive", **fields).plan.target.name == "mended"
    before = admin_server.digest()
    redrives = admin_server.call("ListRedrives", plan_id="p1").redrives
    assert [(each.message_id, each.target.name, each.change, each.reason, each.state) for each in redrives] == [
        ("m0", "mended", "NONE", "feed mended", "PLANNED"),
        ("m1", "mended", "NONE", "feed mended", "PLANNED"),
    ]
    assert admin_server.call("PlanRedrive", **fields).plan.planned == 2, "repeated, it answers what is there"
    assert admin_server.digest() == before
    admin_server.call("RunRedrive", plan_id="p1")
    (one, two) = admin_server.receive("menders", "mended")
    assert one.system_properties.message_id != "m0"
    assert {each.user_properties["popmq.redrive-of"] for each in (one, two)} == {"m0", "m1"}


@pytest.mark.user("U21")
def test_a_repaired_message_goes_back_to_its_group_alone(admin_server: AdminServer) -> None:
    first, second = fill(admin_server, 2)
    repair = admin.Repair(body=b"mended", properties=admin.Pairs(pairs={"number": "7"}))
    orders = [
        admin.RedriveOrder(dead_letter_id=second, repair=repair, reason="no number"),
        admin.RedriveOrder(dead_letter_id=first, repair=admin.Repair()),
    ]
    fields: dict[str, Any] = {"plan_id": "mend", "group": GROUP, "orders": orders, "reason": "all"}
    answer = admin_server.call("RedriveDeadLetters", **fields)
    assert answer.status.code == pb.OK
    assert [(each.message_id, each.change, each.reason, each.state) for each in answer.redrives] == [
        ("m1", "REPAIR", "no number", "REDRIVEN"),
        ("m0", "NONE", "all", "REDRIVEN"),
    ]
    before = admin_server.digest()
    assert admin_server.call("RedriveDeadLetters", **fields).redrives == answer.redrives
    assert admin_server.digest() == before, "a repetition changes nothing"
    again = {each.system_properties.message_id: each for each in admin_server.receive("counters", "flights")}
    assert {name: each.body for name, each in again.items()} == {"m0": b"body", "m1": b"mended"}
    assert again["m1"].user_properties["number"] == "7"
    for each in again.values():
        admin_server.ack("counters", "flights", each)
    (plan,) = admin_server.call("ListRedrivePlans", group=GROUP).plans
    assert (plan.plan_id, plan.state, plan.redriven, plan.group.name) == ("mend", "DONE", 2, "counters")
    assert [each.outcome for each in admin_server.call("ListRedrives", plan_id="mend").redrives] == ["COMMIT", "COMMIT"]


class TestASelection:
    def test_by_what_is_known(self, admin_server: AdminServer) -> None:
        one, _two, three, _four = fill(admin_server)
        for where, expected in (
            ("TAGS = 'odd'", ["m1", "m3"]),
            ("number BETWEEN 1 AND 2", ["m1", "m2"]),
            ("REASON STARTSWITH 'forwarded' AND ATTEMPT = 1 AND TOPIC = 'flights'", ["m0", "m1", "m2", "m3"]),
            ("MESSAGE_ID = 'm2' OR MESSAGE_GROUP IS NOT NULL", ["m2"]),
        ):
            assert ids_of(listed(admin_server, where=where)) == expected
        assert ids_of(listed(admin_server, ids=[three, one, 99])) == ["m0", "m2"]
        assert ids_of(listed(admin_server, topic=TOPIC)) == ["m0", "m1", "m2", "m3"]

    def test_by_time(self, admin_server: AdminServer) -> None:
        fill(admin_server)
        dead_at = listed(admin_server)[0].dead_at
        assert len(listed(admin_server, dead_from=dead_at)) == 4
        assert listed(admin_server, dead_until=dead_at) == []

    def test_goes_on_at_a_page(self, admin_server: AdminServer) -> None:
        one, two, three, four = fill(admin_server)
        page = admin_server.call("ListDeadLetters", selection=of(where="TAGS = 'odd'"), max=1, without_bodies=True)
        assert (ids_of(page.dead_letters), page.next_after_id) == (["m1"], two)
        assert page.dead_letters[0].message.body == b""
        assert not page.dead_letters[0].message.system_properties.HasField("body_digest"), "it would be of no body"
        page = admin_server.call(
            "ListDeadLetters", selection=of(where="TAGS = 'odd'"), max=1, after_id=page.next_after_id
        )
        assert (ids_of(page.dead_letters), page.HasField("next_after_id")) == (["m3"], False)
        assert page.dead_letters[0].message.body == b"body"
        assert page.dead_letters[0].message.system_properties.body_digest.checksum
        assert one < three < four


def test_a_purge_goes_step_by_step(admin_server: AdminServer) -> None:
    fill(admin_server, 5)
    answer = admin_server.call("PurgeDeadLetters", selection=of(where="number < 4"), max=3)
    assert (answer.purged, answer.HasField("next_after_id")) == (3, True)
    answer = admin_server.call(
        "PurgeDeadLetters", selection=of(where="number < 4"), max=3, after_id=answer.next_after_id
    )
    assert (answer.purged, answer.HasField("next_after_id")) == (1, False)
    assert ids_of(listed(admin_server)) == ["m4"]
    assert admin_server.call("GetDeadLetter", group=GROUP, message_id="m0").status.code == pb.MESSAGE_NOT_FOUND


def test_what_a_cancelled_plan_has_left_stays_dead(admin_server: AdminServer) -> None:
    fill(admin_server)
    admin_server.call("PlanRedrive", plan_id="p1", selection=of())
    admin_server.call("RunRedrive", plan_id="p1", max=1)
    plan = admin_server.call("CancelRedrive", plan_id="p1").plan
    assert (plan.state, plan.planned, plan.redriven) == ("CANCELLED", 3, 1)
    assert admin_server.call("CancelRedrive", plan_id="p1").plan == plan
    assert len(listed(admin_server)) == 3
    before = admin_server.digest()
    refused = admin_server.call("RunRedrive", plan_id="p1").status
    assert (refused.code, "'p1' was cancelled" in refused.message) == (pb.PRECONDITION_FAILED, True)
    assert admin_server.digest() == before
    assert admin_server.call("PlanRedrive", plan_id="p2", selection=of()).plan.planned == 3


def test_two_plans_send_back_each_dead_letter_once(admin_server: AdminServer) -> None:
    fill(admin_server)
    for plan_id in ("p1", "p2"):
        admin_server.call("PlanRedrive", plan_id=plan_id, selection=of())
    assert admin_server.call("RunRedrive", plan_id="p1", max=3).redriven == 3
    step = admin_server.call("RunRedrive", plan_id="p2")
    assert (step.redriven, step.skipped, step.plan.state) == (1, 3, "DONE")
    assert len(admin_server.receive("counters", "flights")) == 4
    assert [each.plan_id for each in admin_server.call("ListRedrivePlans").plans] == ["p2", "p1"]
    assert [each.plan_id for each in admin_server.call("ListRedrivePlans", plan_id="p1").plans] == ["p1"]
    assert not admin_server.call("ListRedrivePlans", plan_id="none").plans


def test_why_says_by_which_plan_it_came_back(admin_server: AdminServer) -> None:
    fill(admin_server, 1)
    admin_server.call("PlanRedrive", plan_id="p1", selection=of(), reason="mended")
    admin_server.call("RunRedrive", plan_id="p1")
    answer = admin_server.call("Why", group=GROUP, message_id="m0")
    assert answer.sentence.startswith("redriven by plan 'p1' ")
    assert "READY: the next receive of group 'counters' may take it" in answer.sentence
    assert ("redriven by plan", "p1") in [(fact.name, fact.value) for fact in answer.evidence]
    assert answer.history[-1].reason == "redriven by plan p1: mended"
    (held,) = admin_server.receive("counters", "flights")
    assert "INFLIGHT" in admin_server.call("Why", group=GROUP, message_id="m0").sentence
    (state,) = admin_server.call("GetMessage", message_id="m0").states
    assert (state.state, state.delivery_attempt, state.client_id) == ("INFLIGHT", 1, "worker-1")
    admin_server.ack("counters", "flights", held)
    assert "COMMIT" in admin_server.call("Why", group=GROUP, message_id="m0").sentence


def refusals(ids: list[int]) -> list[tuple[str, dict[str, Any], int, tuple[str, ...]]]:
    order = admin.RedriveOrder(dead_letter_id=ids[0])
    named_twice = {"plan_id": "q", "group": GROUP, "orders": [order, order]}
    too_many = [admin.RedriveOrder(dead_letter_id=each) for each in range(1, 1_002)]
    bad = admin.RedriveOrder(dead_letter_id=ids[0], repair=admin.Repair(tag="a|b"))
    empty = admin.RedriveOrder(dead_letter_id=ids[0], repair=admin.Repair(body=b""))
    nobody = admin.DeadLetterSelection(group=named("nobody"))
    upside_down = of()
    upside_down.dead_from.seconds, upside_down.dead_until.seconds = 2, 1
    far_away = of()
    far_away.dead_from.seconds, far_away.dead_until.seconds = 10**12, 1
    beyond = of()
    beyond.dead_from.seconds, beyond.dead_until.seconds = 9 * 10**18, -(9 * 10**18)
    return [
        ("RunRedrive", {"plan_id": "none"}, pb.NOT_FOUND, ("'none'", "popmq dlq plans")),
        ("RunRedrive", {"plan_id": "a b"}, pb.BAD_REQUEST, ("'a b'", "64")),
        ("RunRedrive", {"plan_id": "p", "max": 1_001}, pb.BAD_REQUEST, ("1001", "1000")),
        ("CancelRedrive", {"plan_id": "none"}, pb.NOT_FOUND, ("'none'",)),
        ("CancelRedrive", {"plan_id": "done"}, pb.PRECONDITION_FAILED, ("'done' is done",)),
        ("ListRedrives", {"plan_id": "none"}, pb.NOT_FOUND, ("'none'",)),
        ("PlanRedrive", {"selection": nobody}, pb.CONSUMER_GROUP_NOT_FOUND, ("'nobody'",)),
        ("PlanRedrive", {"selection": of(where="a >")}, pb.ILLEGAL_FILTER_EXPRESSION, ("a >",)),
        ("PlanRedrive", {"selection": of(topic=named("gone"))}, pb.TOPIC_NOT_FOUND, ("'gone'",)),
        ("PlanRedrive", {"selection": of(redriven_too=True)}, pb.BAD_REQUEST, ("redriven_too",)),
        ("PlanRedrive", {"selection": upside_down}, pb.BAD_REQUEST, ("dead_until", "dead_from")),
        (
            "PlanRedrive",
            {"selection": far_away},
            pb.BAD_REQUEST,
            ("dead_from is 1000000000000 s", "1 to 9999"),
        ),
        ("ListDeadLetters", {"selection": beyond}, pb.BAD_REQUEST, ("dead_from is 9000000000000000000 s",)),
        ("ListRedrivePlans", {"plan_id": "a b"}, pb.BAD_REQUEST, ("'a b'", "64")),
        ("ListRedrivePlans", {"plan_id": ""}, pb.BAD_REQUEST, ("plan id ''",)),
        ("PlanRedrive", {"selection": of(), "reason": "x" * 1_025}, pb.BAD_REQUEST, ("1025", "1024")),
        ("PlanRedrive", {"selection": of(), "target": named("gone")}, pb.TOPIC_NOT_FOUND, ("'gone'",)),
        ("PlanRedrive", {"selection": of(), "target": named("%DLQ%counters")}, pb.ILLEGAL_TOPIC, ("%DLQ%counters",)),
        ("PlanRedrive", {"plan_id": "theirs", "selection": of()}, pb.BAD_REQUEST, ("'theirs'", "another group")),
        (
            "PlanRedrive",
            {"plan_id": "done", "selection": of(), "target": TOPIC},
            pb.BAD_REQUEST,
            ("'done'", "'flights'"),
        ),
        ("PlanRedrive", {"selection": of(ids=range(1, 1_002))}, pb.BAD_REQUEST, ("1001", "1000")),
        ("PurgeDeadLetters", {"selection": of(), "max": 1_001}, pb.BAD_REQUEST, ("1001", "1000")),
        ("RedriveDeadLetters", {"plan_id": "q", "group": GROUP, "orders": too_many}, pb.BAD_REQUEST, ("1001",)),
        ("RedriveDeadLetters", named_twice, pb.BAD_REQUEST, ("named twice",)),
        ("RedriveDeadLetters", {"group": GROUP, "orders": [order]}, pb.BAD_REQUEST, ("plan id ''",)),
        ("RedriveDeadLetters", {"plan_id": "q", "group": GROUP, "orders": [bad]}, pb.ILLEGAL_MESSAGE_TAG, ("'a|b'",)),
        ("RedriveDeadLetters", {"plan_id": "q", "group": GROUP, "orders": [empty]}, pb.MESSAGE_BODY_EMPTY, ("empty",)),
        (
            "RedriveDeadLetters",
            {"plan_id": "q", "group": GROUP, "orders": [order, admin.RedriveOrder(dead_letter_id=99)]},
            pb.MESSAGE_NOT_FOUND,
            ("no dead letter 99", "nothing was redriven"),
        ),
        (
            "RedriveDeadLetters",
            {"plan_id": "q", "group": named("others"), "orders": [order]},
            pb.MESSAGE_NOT_FOUND,
            (f"no dead letter {ids[0]}",),
        ),
    ]


def test_a_refusal_is_precise_and_changes_nothing(admin_server: AdminServer) -> None:
    ids = fill(admin_server, 1)
    admin_server.make_group("others")
    admin_server.call("PlanRedrive", plan_id="theirs", selection=admin.DeadLetterSelection(group=named("others")))
    admin_server.call("PlanRedrive", plan_id="done", selection=of(ids=[99]))
    admin_server.call("RunRedrive", plan_id="done")
    before = admin_server.digest()
    for method, fields, code, words in refusals(ids):
        status = admin_server.call(method, **fields).status
        assert status.code == code, (method, fields, status)
        for word in words:
            assert word in status.message
        assert admin_server.digest() == before, (method, fields)


def test_a_name_is_of_one_selection(admin_server: AdminServer) -> None:
    """Written down, run, or made of orders: a repetition with another selection is refused, the same one answered."""
    first, *_ = fill(admin_server)
    admin_server.call("PlanRedrive", plan_id="p", selection=of(where="number < 1"))
    order = admin.RedriveOrder(dead_letter_id=first)
    admin_server.call("RedriveDeadLetters", plan_id="o", group=GROUP, orders=[order])
    before = admin_server.digest()
    for plan_id, other in (("p", of(where="number >= 1")), ("p", of()), ("o", of())):
        refused = admin_server.call("PlanRedrive", plan_id=plan_id, selection=other).status
        assert (refused.code, "with another selection" in refused.message) == (pb.BAD_REQUEST, True)
    assert admin_server.digest() == before
    admin_server.send("flights", "late")
    (late,) = [
        each for each in admin_server.receive("counters", "flights") if each.system_properties.message_id == "late"
    ]
    admin_server.give_up("counters", "flights", late)
    admin_server.call("RunRedrive", plan_id="p")
    plan = admin_server.call("PlanRedrive", plan_id="p", selection=of(where="number < 1")).plan
    assert (plan.state, plan.planned, plan.skipped) == ("DONE", 0, 1), "what died since is not of it"


def test_the_plans_of_a_group_go_with_it(admin_server: AdminServer) -> None:
    fill(admin_server, 2)
    admin_server.call("PlanRedrive", plan_id="p", selection=of())
    admin_server.call("DeleteGroup", group=GROUP)
    before = admin_server.digest()
    for method in ("RunRedrive", "CancelRedrive", "ListRedrives"):
        status = admin_server.call(method, plan_id="p").status
        assert (status.code, "redrive plan 'p' does not exist" in status.message) == (pb.NOT_FOUND, True), method
    assert admin_server.digest() == before


def test_a_plan_of_nothing_is_done_at_once(admin_server: AdminServer) -> None:
    fill(admin_server, 1)
    admin_server.call("PurgeDeadLetters", selection=of())
    plan = admin_server.call("PlanRedrive", plan_id="p", selection=of()).plan
    assert (plan.state, plan.planned) == ("DONE", 0)
    step = admin_server.call("RunRedrive", plan_id="p")
    assert (step.plan.state, step.redriven) == ("DONE", 0)


def test_no_orders_make_a_plan_that_is_done(admin_server: AdminServer) -> None:
    fill(admin_server, 1)
    answer = admin_server.call("RedriveDeadLetters", plan_id="q", group=GROUP)
    assert (answer.status.code, list(answer.redrives)) == (pb.OK, [])
    (plan,) = admin_server.call("ListRedrivePlans", plan_id="q").plans
    assert (plan.state, plan.planned, plan.redriven, len(listed(admin_server))) == ("DONE", 0, 0, 1)


def test_what_another_plan_has_sent_back_is_skipped(admin_server: AdminServer) -> None:
    first, second = fill(admin_server, 2)
    admin_server.call("PlanRedrive", plan_id="p1", selection=of(ids=[first]))
    admin_server.call("RunRedrive", plan_id="p1")
    orders = [admin.RedriveOrder(dead_letter_id=each) for each in (first, second)]
    answer = admin_server.call("RedriveDeadLetters", plan_id="p2", group=GROUP, orders=orders)
    assert [(each.state, each.note) for each in answer.redrives] == [
        ("SKIPPED", "it was no dead letter any more when its turn came"),
        ("REDRIVEN", ""),
    ]
    (plan,) = admin_server.call("ListRedrivePlans", plan_id="p2").plans
    assert (plan.redriven, plan.skipped, plan.state) == (1, 1, "DONE")


def test_a_draft_is_gone_on_with_and_takes_what_was_dead_when_it_began(
    admin_server: AdminServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(admin_server, 5)
    monkeypatch.setattr(dead_letters_flow, "STEPS_OF_A_CALL", 1)
    monkeypatch.setattr(dead_letters_flow, "STEP_MAX", 2)
    plan = admin_server.call("PlanRedrive", plan_id="p", selection=of()).plan
    assert (plan.state, plan.planned) == ("DRAFT", 2)
    refused = admin_server.call("RunRedrive", plan_id="p", max=1).status
    assert (refused.code, "is a DRAFT" in refused.message) == (pb.PRECONDITION_FAILED, True)
    other = admin_server.call("PlanRedrive", plan_id="p", selection=of(where="number > 1")).status
    assert (other.code, "with another selection" in other.message) == (pb.BAD_REQUEST, True)
    admin_server.send("flights", "late")
    for message in admin_server.receive("counters", "flights"):
        admin_server.give_up("counters", "flights", message)
    assert admin_server.call("PlanRedrive", plan_id="p", selection=of()).plan.planned == 4
    plan = admin_server.call("PlanRedrive", plan_id="p", selection=of()).plan
    assert (plan.state, plan.planned) == ("PLANNED", 5)
