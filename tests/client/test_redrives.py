"""What the administration asks of a server about dead letters, and what it makes of the answers, which are scripted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from popclient import ClientConfig, NotFound
from popclient.admin import Admin, DeadLetterSelection, RedriveOrder, Repair
from popproto.v1 import admin_pb2 as wire
from popproto.v2 import definition_pb2 as pb

OK = pb.Status(code=pb.OK)
MOMENT = datetime(2026, 11, 20, 10, tzinfo=UTC)


class Scripted:
    """Stands where a server's transport does: keeps the requests, gives the answers in turn."""

    where = "nowhere"
    reached = True

    def __init__(self, answers: Iterable[Any]) -> None:
        self.asked: list[tuple[str, Any]] = []
        self._answers = iter(answers)

    async def unary(self, pick: Callable[[Any], str], request: Any, _timeout: float) -> Any:
        link = SimpleNamespace(admin=_Names())
        self.asked.append((pick(link), _copied(request)))
        return next(self._answers)

    async def close(self) -> None: ...


class _Names:
    def __getattr__(self, name: str) -> str:
        return name


def _copied(request: Any) -> Any:
    return type(request).FromString(request.SerializeToString())


def administering(*answers: Any) -> tuple[Admin, Scripted]:
    scripted = Scripted(answers)
    transport: Any = scripted
    return Admin(ClientConfig("127.0.0.1:1", namespace="shop"), transport=transport), scripted


def plan(state: str, planned: int = 0, redriven: int = 0) -> wire.RedrivePlan:
    return wire.RedrivePlan(plan_id="p", state=state, planned=planned, redriven=redriven)


def pages(*ids: Iterable[int], last: bool = True) -> Iterable[wire.ListDeadLettersResponse]:
    for index, page in enumerate(ids):
        answer = wire.ListDeadLettersResponse(status=OK, dead_letters=[wire.DeadLetter(id=each) for each in page])
        if index < len(ids) - 1 or not last:
            answer.next_after_id = 100 * (index + 1)
        yield answer


def test_pages_may_be_empty_and_not_the_last() -> None:
    admin, server = administering(*pages([1, 2], [], [203]))
    assert [each.id for each in admin.dead_letters("till", after_id=0)] == [1, 2, 203]
    assert [request.after_id for _, request in server.asked] == [0, 100, 200]


def test_a_selection_is_asked_for_as_it_was_made() -> None:
    admin, server = administering(*pages([]))
    selection = DeadLetterSelection(
        "till", "orders", MOMENT, MOMENT.replace(hour=11), where="a > 1", ids=iter([4, 7]), redriven_too=True
    )
    assert admin.list_dead_letters(selection, max_messages=5, without_bodies=True).next_after_id is None
    [(_, request)] = server.asked
    asked = request.selection
    assert (asked.group.resource_namespace, asked.group.name, asked.topic.name) == ("shop", "till", "orders")
    assert (asked.dead_from.ToDatetime(UTC), asked.dead_until.ToDatetime(UTC)) == (MOMENT, MOMENT.replace(hour=11))
    assert (asked.where, list(asked.ids), asked.redriven_too) == ("a > 1", [4, 7], True)
    assert (request.max, request.without_bodies) == (5, True)


def test_what_is_not_given_does_not_narrow() -> None:
    admin, server = administering(*pages([]))
    admin.list_dead_letters("till")
    [(_, request)] = server.asked
    assert [field.name for field, _ in request.selection.ListFields()] == ["group"]


def test_nothing_dies_between_a_time_and_an_earlier_one() -> None:
    with pytest.raises(ValueError, match=r"dead_from 2026-11-20 10:00:00.* is not before dead_until 2026-11-20 10:00"):
        DeadLetterSelection("till", dead_from=MOMENT, dead_until=MOMENT)


def test_purging_goes_on_until_nothing_is_left() -> None:
    admin, server = administering(
        wire.PurgeDeadLettersResponse(status=OK, purged=1_000, next_after_id=1_000),
        wire.PurgeDeadLettersResponse(status=OK, purged=0, next_after_id=2_000),
        wire.PurgeDeadLettersResponse(status=OK, purged=7),
    )
    heard: list[int] = []
    assert admin.purge_dead_letters("till", told=heard.append) == 1_007
    assert heard == [1_000, 1_000, 1_007]
    assert [request.after_id for _, request in server.asked] == [0, 1_000, 2_000]


def test_a_plan_is_written_down_to_its_end_under_one_name() -> None:
    admin, server = administering(
        *(wire.PlanRedriveResponse(status=OK, plan=plan(each, 9)) for each in ("DRAFT", "DRAFT", "PLANNED"))
    )
    assert admin.plan_redrive("till", reason="mended", target="orders").planned == 9
    names = {request.plan_id for _, request in server.asked}
    assert len(server.asked) == 3
    assert len(names) == 1, "a plan whose answer was lost is found again"
    assert names != {""}
    assert {(request.reason, request.target.name) for _, request in server.asked} == {("mended", "orders")}


def test_a_plan_is_run_until_nothing_is_left() -> None:
    admin, server = administering(
        wire.RunRedriveResponse(status=OK, plan=plan("RUNNING", 2, 3), redriven=3),
        wire.RunRedriveResponse(status=OK, plan=plan("DONE", 0, 4), redriven=1, skipped=1),
    )
    steps = list(admin.run_redrive("p", rate=500))
    assert [(each.redriven, each.skipped, each.plan.state) for each in steps] == [(3, 0, "RUNNING"), (1, 1, "DONE")]
    assert {(request.plan_id, request.max) for _, request in server.asked} == {("p", 100)}


def test_nothing_runs_before_it_is_iterated() -> None:
    admin, server = administering()
    admin.run_redrive("p")
    assert server.asked == []


def test_a_repair_says_what_is_different_and_nothing_else() -> None:
    redrive = wire.Redrive(plan_id="p", dead_letter_id=4, state="REDRIVEN", change="REPAIR", redriven_message_id="m2")
    admin, server = administering(wire.RedriveDeadLettersResponse(status=OK, redrives=[redrive]))
    orders = [
        RedriveOrder(4, Repair(body="é", tag="", keys="k", properties={}), reason="mended"),
        RedriveOrder(5, Repair(keys=())),
        RedriveOrder(6),
    ]
    [done] = admin.redrive_dead_letters("p", "till", iter(orders), target="orders", reason="a fix")
    assert (done.state, done.redriven_message_id, done.redriven_at, done.target) == ("REDRIVEN", "m2", None, None)
    [(_, request)] = server.asked
    assert (request.plan_id, request.group.name, request.target.name, request.reason) == (
        "p",
        "till",
        "orders",
        "a fix",
    )
    first, second, third = request.orders
    assert (first.repair.body, first.repair.tag, list(first.repair.keys.words)) == ("é".encode(), "", ["k"])
    assert first.reason == "mended"
    assert [field.name for field, _ in first.repair.ListFields()] == ["body", "tag", "keys", "properties"]
    assert [field.name for field, _ in second.repair.ListFields()] == ["keys"]
    assert not third.HasField("repair")


def test_a_repair_names_what_it_changes() -> None:
    assert Repair().changed == ()
    assert Repair(body=b"", tag="", keys=[], properties={}).changed == ("body", "tag", "keys", "properties")


def test_a_plan_there_is_not() -> None:
    admin, _ = administering(wire.ListRedrivePlansResponse(status=OK))
    with pytest.raises(NotFound, match="redrive plan 'p' does not exist; list them with: popmq dlq plans"):
        admin.redrive_plan("p")


def test_redrives_come_page_by_page() -> None:
    answers = [
        wire.ListRedrivesResponse(status=OK, redrives=[wire.Redrive(dead_letter_id=each) for each in page])
        for page in ([1, 5], [9], [])
    ]
    admin, server = administering(*answers)
    assert [each.dead_letter_id for each in admin.redrives("p")] == [1, 5, 9]
    assert [request.after_id for _, request in server.asked] == [0, 5, 9]
