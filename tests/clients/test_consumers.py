"""Who works for a group: told apart by what they want, and never silently (requirement G5)."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from popserver.clients.consumers import Consumers
from popserver.filters import Filter, tags
from popserver.filters import sql as filters_sql
from popserver.filters.subscription import ClientKind, Role, subscription
from popserver.model.names import Resource
from tests.support.running_broker import RunningBroker

GROUP, OTHER_GROUP = Resource("", "billing"), Resource("", "shipping")
ORDERS, REFUNDS = Resource("", "orders"), Resource("east", "refunds")
SECOND = 1_000


def role(*filters: tuple[Resource, Filter], group: Resource = GROUP, kind: ClientKind = ClientKind.PUSH) -> Role:
    return Role(group, kind, subscription(filters))


A = role((ORDERS, tags.parse("a")))
B = role((ORDERS, tags.parse("b")))


@pytest.fixture
def warned() -> Any:
    with capture_logs() as logs:
        yield logs


@pytest.mark.row("G5")
@pytest.mark.parametrize(
    ("one", "other", "wants", "other_wants"),
    [
        (A, B, "topic 'orders' by TAG 'a'", "topic 'orders' by TAG 'b'"),
        (A, role((ORDERS, filters_sql.parse("a > 1"))), "topic 'orders' by TAG 'a'", "topic 'orders' by SQL 'a > 1'"),
        (
            A,
            role((ORDERS, tags.parse("a")), (REFUNDS, tags.parse("*"))),
            "nothing of topic 'east/refunds'",
            "topic 'east/refunds' by TAG '*'",
        ),
        (A, role(), "topic 'orders' by TAG 'a'", "nothing of topic 'orders'"),
    ],
    ids=["another tag", "another kind", "another topic", "nothing"],
)
def test_another_subscription_is_warned_of(
    warned: list[Any], one: Role, other: Role, wants: str, other_wants: str
) -> None:
    consumers = Consumers()
    consumers.took("c1", one)
    assert not warned
    consumers.took("c2", other)
    (entry,) = warned
    assert entry["log_level"] == "warning"
    assert (entry["group"], entry["client_id"], entry["other_client_id"]) == ("billing", "c2", "c1")
    assert (entry["wants"], entry["other_wants"]) == (other_wants, wants)
    assert f"c1 has {wants}, c2 has {other_wants}" in consumers.disagreement(GROUP)
    assert not consumers.is_alike(GROUP)


@pytest.mark.row("G5")
def test_a_pull_consumer_that_names_its_queues_itself_disagrees_with_nobody(warned: list[Any]) -> None:
    consumers = Consumers()
    consumers.took("assigned", role(kind=ClientKind.PULL))
    consumers.took("member", role((ORDERS, tags.parse("a")), kind=ClientKind.PULL))
    consumers.took("assigned too", role(kind=ClientKind.PULL))
    assert (warned, consumers.disagreement(GROUP), consumers.disagreements(10)) == ([], "", [])
    assert consumers.is_alike(GROUP)
    consumers.took("another", role((ORDERS, tags.parse("b")), kind=ClientKind.PULL))
    assert "member has topic 'orders' by TAG 'a', another has" in consumers.disagreement(GROUP)
    assert len(warned) == len(consumers.disagreements(10)) == 1


def test_one_warning_for_each_change(warned: list[Any]) -> None:
    consumers = Consumers()
    for number in range(100):
        consumers.took(f"c{number}", A)
    for _ in range(10):  # settings are said again with every new stream
        consumers.took("late", B)
    assert len(warned) == 1
    consumers.took("late", A)
    assert not consumers.disagreement(GROUP)
    consumers.took("late", B)
    assert len(warned) == 2
    consumers.left("late")
    assert not consumers.disagreement(GROUP)


def test_the_same_in_other_words_is_the_same(warned: list[Any]) -> None:
    consumers = Consumers()
    consumers.took("c1", role((ORDERS, tags.parse("a || b")), (REFUNDS, filters_sql.parse("a > 1"))))
    consumers.took(
        "c2", role((REFUNDS, filters_sql.parse(" a > 1 ")), (ORDERS, tags.parse("b||a")), kind=ClientKind.SIMPLE)
    )
    consumers.took("c3", role((ORDERS, tags.parse("a")), group=OTHER_GROUP))
    assert not warned
    assert list(consumers.of(GROUP)) == ["c1", "c2"]


def test_a_long_expression_is_cut_and_still_told_apart(warned: list[Any]) -> None:
    head = " AND ".join(f"p{number} IS NULL" for number in range(100))
    consumers = Consumers()
    consumers.took("c1", role((ORDERS, filters_sql.parse(f"{head} AND q = 1"))))
    consumers.took("c2", role((ORDERS, filters_sql.parse(f"{head} AND q = 2"))))
    (entry,) = warned
    assert len(entry["wants"]) < 400
    assert entry["wants"] != entry["other_wants"]


def test_what_is_kept_of_a_consumer_is_bounded() -> None:
    many = subscription((Resource("", f"topic-{number:03}"), tags.parse("*")) for number in range(200))
    assert (len(many.filters), many.more) == (64, 136)


def test_nothing_is_kept_of_who_has_left() -> None:
    consumers = Consumers()
    consumers.took("c1", A)
    consumers.took("c1", role((ORDERS, tags.parse("a")), group=OTHER_GROUP))
    assert list(consumers.of(GROUP)) == []
    consumers.left("c1")
    consumers.left("never seen")
    assert (consumers._roles, consumers._groups) == ({}, {})


@pytest.mark.row("G5")
async def test_a_client_that_is_gone_disagrees_with_nobody(broker: RunningBroker) -> None:
    clients = broker.broker.sessions.clients
    for client_id, its in (("c1", A), ("c2", B)):
        clients.seen(client_id)
        clients.settled(client_id, works_in_order=False, role=its)
    assert [each.client_id for each in clients.consumers_of(GROUP)] == ["c1", "c2"]
    await broker.advance(20 * SECOND)
    clients.seen("c2")
    await broker.advance(20 * SECOND)
    assert [each.client_id for each in clients.consumers_of(GROUP)] == ["c2"]
    clients.seen("c1")  # it was silent for a while; it does not say everything again
    assert "c2 has" in clients.consumers.disagreement(GROUP)
    clients.ended("c1")
    await broker.advance(80 * SECOND)
    assert clients.consumers_of(GROUP) == []
    assert clients.consumers.disagreements(10) == []
