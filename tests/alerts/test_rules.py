"""What needs a person, and when that begins and ends."""

from __future__ import annotations

from typing import Any

import pytest

from popserver.administration.facts import Lag
from popserver.alerts.rules import (
    BEGIN_MS,
    END_MS,
    Alert,
    AlertKind,
    Facts,
    RecentDeadLetters,
    Steady,
    StuckMessageGroup,
    find,
)
from popserver.cluster.sql import KnownServer
from popserver.mirrors.rules import MirrorRow
from popserver.model.budget import Budget
from popserver.model.names import Resource
from popserver.model.retry import MINUTE_MS

AT = 1_700_000_000_000
GROUP = Resource("", "billing")
MIRROR = MirrorRow(
    "nightly", "old:1", "new:1", "eu", "flights", "billing", "owner-1", "ship-17", AT - 60_000, "RUNNING", "", "", 9, 0,
    0, 0, 0, 4, AT - 500_000, AT - 90_000,
)  # fmt: skip
SECRETS = ("ship-17", "card 4111", "customer-7", "0102FC", "client-9", "price >")


def facts(**given: Any) -> Facts:
    nothing: dict[str, Any] = dict.fromkeys(Facts._fields, ())
    none = {"now_ms": AT, "growth": {}, "overdue_ms": 0, "retrying": {}, "retention_ms": 0, "paused": lambda *_: False}
    return Facts(**nothing | none | given)


def lag(group: Resource = GROUP, topic: str = "orders", ready: int = 5, age_ms: int = 2 * MINUTE_MS) -> Lag:
    return Lag(group, Resource("", topic), ready, 0, 0, 0, AT - age_ms, 9, 9, 1, 1)


def budget(used: int) -> Budget:
    made = Budget("connections", 10, "connections", "max_connections")
    assert all(made.take(1) for _ in range(used))
    return made


EVERYTHING = facts(
    lag=[lag()],
    growth={GROUP: 3},
    overdue_ms=6_000,
    servers=[KnownServer("a1", "mq:8081", AT - 90_000, False), KnownServer("b2", "mq:8082", AT, True)],
    warnings=["only 400 MiB are free on the disk"],
    budgets=[budget(8)],
    dead_letters=[RecentDeadLetters(GROUP, 3, "card 4111 was refused")],
    stuck=[StuckMessageGroup(GROUP, "customer-7", 4, 12, "0102FC")],
    differing=["consumers of group 'billing' have different subscriptions: client-9 has price > 3"],
    retrying={GROUP: "7 of the last 20 deliveries were retries"},
    gone=[MIRROR],
    retention_ms=MINUTE_MS,
)


def test_each_kind_is_found() -> None:
    found = find(EVERYTHING)
    assert sorted(each.kind for each in found) == sorted(AlertKind)
    assert len({each.key for each in found}) == len(found)
    assert {each.path for each in found} == {
        "/server", "/groups", "/groups/billing", "/dead-letters/billing", "/mirrors",
    }  # fmt: skip


def test_a_mirror_that_is_gone_is_named() -> None:
    (found,) = find(facts(gone=[MIRROR]))
    assert found.sentence == ("Mirror nightly of eu/flights for billing is gone: it does not report for 1 min 30 s.")
    assert (found.namespace, found.subject, found.has_namespace) == ("eu", "nightly", True)


def test_nothing_is_found_where_all_is_well() -> None:
    well = facts(
        lag=[lag(age_ms=1_000), lag(Resource("", "radar"), ready=0)],
        growth={GROUP: 3},
        overdue_ms=5_000,
        servers=[KnownServer("b2", "mq:8082", AT, True)],
        budgets=[budget(7), Budget("none", 0, "bytes", "none")],
    )
    assert find(well) == []


def test_what_leaves_the_server_has_nothing_of_messages() -> None:
    told = " ".join(f"{each.sentence} {each.next_step} {each.subject} {each.path}" for each in find(EVERYTHING))
    shown = " ".join(each.detail for each in find(EVERYTHING))
    for secret in SECRETS:
        assert secret not in told
        assert secret in shown, "an operator sees it"


def test_a_group_that_catches_up_is_not_behind() -> None:
    assert find(facts(lag=[lag()], growth={GROUP: 0})) == []
    assert find(facts(lag=[lag()], growth={})) == [], "it is not known yet"
    two_topics = facts(lag=[lag(age_ms=0), lag(topic="gates", ready=2)], growth={GROUP: 1})
    assert "7 ready, 1 more than a minute ago" in find(two_topics)[0].sentence


def test_a_group_that_is_paused_is_not_behind() -> None:
    behind = facts(lag=[lag()], growth={GROUP: 3})
    assert find(behind._replace(paused=lambda group_id, topic_id: (group_id, topic_id) == (1, 1))) == []
    assert len(find(behind._replace(paused=lambda group_id, topic_id: (group_id, topic_id) == (1, 2)))) == 1


@pytest.mark.parametrize(("age_ms", "is_near"), [(79_999, False), (80_000, True)])
def test_what_retention_removes_unread_is_told_before(age_ms: int, is_near: bool) -> None:
    old = facts(lag=[lag(age_ms=1_000), lag(topic="gates", age_ms=age_ms)], retention_ms=100_000)
    assert find(old._replace(retention_ms=0)) == []
    found = find(old)
    assert [each.kind for each in found] == [AlertKind.RETENTION] * is_near
    for alert in found:
        assert alert.sentence == (
            "Messages are removed soon that group billing has not read: 10 ready, the oldest for 1 min 20 s; the limit"
            " is 1 min 40 s."
        )
        assert alert.next_step == "Start its members, or raise --retention. If nobody needs the group, delete it."
        (paused,) = find(old._replace(paused=lambda *_: True))
        assert paused.next_step.startswith("It is paused: resume it, or raise --retention.")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"overdue_ms": 6_000}, {"overdue_ms": 93_000}),
        ({"warnings": ["only 400 MiB are free"]}, {"warnings": ["only 1 GiB are free"]}),
        (
            {"dead_letters": [RecentDeadLetters(GROUP, 1, "a")]},
            {"dead_letters": [RecentDeadLetters(GROUP, 2_000, "b")]},
        ),
        ({"budgets": [budget(8)]}, {"budgets": [budget(10)]}),
    ],
)
def test_other_numbers_are_the_same_alert(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert find(facts(**one))[0].key == find(facts(**other))[0].key


def test_other_groups_and_namespaces_are_other_alerts() -> None:
    groups = [GROUP, Resource("", "radar"), Resource("billing", "radar")]
    keys = {find(facts(dead_letters=[RecentDeadLetters(each, 1, "")]))[0].key for each in groups}
    assert len(keys) == 3


ALERT = Alert(AlertKind.WARNING, "", "", "The disk is full.", "Free some.")


class Watched:
    """An alert that is there or not, from step to step, and what is open."""

    def __init__(self) -> None:
        self.steady = Steady()
        self.now_ms = AT
        self.open: set[str] = set()
        self.log: list[str] = []

    def step(self, is_there: bool, after_ms: int = 15_000) -> None:
        self.now_ms += after_ms
        change = self.steady.next([ALERT] if is_there else [], self.open, self.now_ms)
        self.log += ["begin"] * len(change.begun) + ["end"] * len(change.over)
        self.open |= {each.key for each in change.begun}
        self.open -= set(change.over)


def test_what_stays_begins_once_and_ends_once() -> None:
    watched = Watched()
    for _ in range(20):
        watched.step(True)
    assert watched.log == ["begin"]
    for _ in range(20):
        watched.step(False)
    assert watched.log == ["begin", "end"]


def test_it_begins_after_a_while_and_ends_after_a_while() -> None:
    watched = Watched()
    watched.step(True)
    watched.step(True, BEGIN_MS - 1)
    assert watched.log == []
    watched.step(True, 1)
    assert watched.log == ["begin"]
    watched.step(False, END_MS - 1)
    assert watched.log == ["begin"]
    watched.step(False, 1)
    assert watched.log == ["begin", "end"]


def test_what_flickers_is_one_alert_or_none() -> None:
    watched = Watched()
    for _ in range(50):
        watched.step(True)
        watched.step(False)
    assert watched.log == ["begin"]
    rare = Watched()
    for _ in range(50):
        rare.step(True)
        rare.step(False, END_MS + 1)
    assert rare.log == []


def test_an_alert_of_an_earlier_server_ends_too() -> None:
    watched = Watched()
    watched.open = {ALERT.key}
    watched.step(True)
    assert watched.log == [], "it has begun before"
    watched.step(False, END_MS)
    assert watched.log == ["end"]
    gone = Watched()
    gone.open = {"an alert that this version does not find"}
    gone.step(False)
    gone.step(False, END_MS)
    assert gone.log == ["end"]


def test_what_is_over_is_forgotten() -> None:
    watched = Watched()
    for is_there in (True, False):
        for _ in range(20):
            watched.step(is_there)
    assert not watched.steady._seen_ms and not watched.steady._since_ms
